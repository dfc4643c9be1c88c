//! Changes of single states, after a question.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use tower_distributed::lease::Holder;
use tower_distributed::operator::{Entry, Kind, Operator, State};

use crate::arguments::{Arguments, Verb};
use crate::{Failure, show, told};

pub(crate) async fn act(
    operator: &Operator,
    arguments: &Arguments,
    verb: Verb,
    namespace: &str,
    key: &str,
) -> Result<(), Failure> {
    can_ask(arguments)?;
    let (entry, state) = find(operator, arguments.kind, verb, namespace, key).await?;
    println!("{entry}: {}", show::text(&state));
    match verb {
        Verb::Reset => {
            confirmed(arguments, "Fill this bucket and unblock it?")?;
            operator.reset(&entry).await.map_err(told)?;
            println!("The bucket is full.");
        }
        Verb::Forget => {
            confirmed(arguments, "Forget it?")?;
            let was_stored = operator.forget(&entry).await.map_err(told)?;
            println!(
                "{}",
                if was_stored {
                    "It is forgotten."
                } else {
                    "It was gone already."
                }
            );
        }
        Verb::Revoke => {
            let holder = chosen(&state, arguments)?;
            println!("{}", show::holder(holder));
            confirmed(
                arguments,
                "Take the lease from this holder, which is told, but not asked?",
            )?;
            let was_held = operator.revoke(&entry, holder).await.map_err(told)?;
            println!(
                "{}",
                if was_held {
                    "The lease is revoked."
                } else {
                    "The holder had it no longer."
                }
            );
        }
    }
    Ok(())
}

/// Finds the one entry of a key for which the verb has something to do.
async fn find(
    operator: &Operator,
    only: Option<Kind>,
    verb: Verb,
    namespace: &str,
    key: &str,
) -> Result<(Entry, State), Failure> {
    // Of a key that another program also uses, one kind may be readable and another not.
    let (mut found, mut unreadable) = (Vec::new(), Vec::new());
    for kind in Kind::ALL
        .into_iter()
        .filter(|kind| only.is_none_or(|only| only == *kind) && is_for(verb, *kind))
    {
        let entry = match Entry::parse(kind, namespace, key) {
            Err(_) if only.is_none() && has_keys_of_a_form(kind) => continue,
            entry => entry.map_err(told)?,
        };
        match operator.inspect(&entry).await {
            Ok(Some(state)) if has_something(verb, &state) => found.push((entry, state)),
            Err(error) if error.is_wrong_type() => unreadable.push(format!("{entry}: {error}")),
            Err(error) => return Err(told(error)),
            Ok(_) => {}
        }
    }
    if found.len() > 1 {
        let kinds: Vec<_> = found
            .iter()
            .map(|(entry, _)| entry.kind().to_string())
            .collect();
        return Err(format!(
            "{key} is the key of several states: add --kind {}",
            kinds.join(" or --kind ")
        ));
    }
    if let Some(found) = found.pop() {
        return Ok(found);
    }
    if !unreadable.is_empty() {
        return Err(unreadable.join("\n"));
    }
    if let (Verb::Forget, Ok(filter)) = (verb, Entry::whole(Kind::BloomFilter, namespace))
        && operator.inspect(&filter).await.map_err(told)?.is_some()
    {
        // It says that a filter cannot forget an item.
        operator.forget(&filter).await.map_err(told)?;
    }
    Err(format!(
        "nothing to {} in the namespace {namespace:?} at the key {key:?}",
        word(verb)
    ))
}

/// Whether not every text that is a key of other kinds is one of this kind: a claim has a key of a certain form, and an item
/// cannot be named by a digest.
fn has_keys_of_a_form(kind: Kind) -> bool {
    matches!(kind, Kind::ExactClaim | Kind::FilterClaim | Kind::Dedupe)
}

fn is_for(verb: Verb, kind: Kind) -> bool {
    match verb {
        Verb::Reset => kind == Kind::TokenBucket,
        Verb::Revoke => kind.has_holders(),
        Verb::Forget => matches!(kind, Kind::SingleFlight | Kind::Dedupe),
    }
}

fn has_something(verb: Verb, state: &State) -> bool {
    match (verb, state) {
        (Verb::Revoke, state) => state
            .leases()
            .is_some_and(|leases| !leases.holders.is_empty()),
        (Verb::Forget, State::Flight(flight)) => flight.answer.is_some(),
        (Verb::Forget, State::Dedupe(dedupe)) => dedupe.is_handled == Some(true),
        (Verb::Reset, _) => true,
        (Verb::Forget, _) => false,
    }
}

fn word(verb: Verb) -> &'static str {
    match verb {
        Verb::Reset => "reset",
        Verb::Revoke => "revoke",
        Verb::Forget => "forget",
    }
}

/// Returns the holder to revoke.
fn chosen<'a>(state: &'a State, arguments: &Arguments) -> Result<&'a Holder, Failure> {
    let holders = state.leases().map_or(&[][..], |leases| &leases.holders);
    let is_cut = state.leases().is_some_and(show::is_cut);
    match (&arguments.holder, holders) {
        (None, [holder]) => Ok(holder),
        (None, holders) => {
            let lines: Vec<_> = holders
                .iter()
                .map(|holder| format!("\n  {}", show::holder(holder)))
                .collect();
            Err(format!(
                "there are {}{} holders: choose one with --holder TOKEN{}",
                if is_cut { "more than " } else { "" },
                holders.len(),
                lines.concat()
            ))
        }
        (Some(token), holders) => {
            let is_it = |holder: &&Holder| holder.token() == token;
            holders.iter().find(is_it).ok_or_else(|| match is_cut {
                true => format!(
                    "none of the {} holders whose leases end first has the token {token:?}, and the others are not listed",
                    holders.len()
                ),
                false => format!("no holder has the token {token:?}"),
            })
        }
    }
}

/// Fails if a question is needed and nobody can answer it.
pub(crate) fn can_ask(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.yes || std::io::stdin().is_terminal() {
        return Ok(());
    }
    Err("cannot ask, since stdin is no terminal: nothing is changed. Add --yes to change it".into())
}

/// Asks, unless the arguments say yes. Everything but `y` and `yes` means no.
pub(crate) fn confirmed(arguments: &Arguments, question: &str) -> Result<(), Failure> {
    if arguments.yes {
        return Ok(());
    }
    print!("{question} [y/N] ");
    let mut answer = String::new();
    let read = std::io::stdout()
        .flush()
        .and_then(|()| std::io::stdin().lock().read_line(&mut answer));
    match read {
        Ok(_) if ["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) => Ok(()),
        Ok(_) => Err("nothing is changed".into()),
        Err(error) => Err(format!(
            "nothing is changed, since no answer can be read: {error}"
        )),
    }
}
