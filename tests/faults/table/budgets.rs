//! The model of the tokens of one key that are held and captured: a budget that does not refill.
//!
//! * A hold or an extension needs so many tokens that are neither charged nor held. A refusal needs that they are not available.
//! * A capture ends its hold, and charges its tokens once. If it says that the hold had ended before, the hold ended by itself
//!   between its ttl after the last step on it and that answer: its tokens were charged then, or released, as its key says.
//! * Answers tell the balance at a time between their call and their end, after their own step. Each token is then charged, or
//!   held, or available: what was charged is known from then on.
//! * A capture whose answer was lost charges its tokens once, or those of the hold if that ended by itself before, at any time
//!   after its call. A hold whose answer was lost may be held at any time after its call, and is released, or ends by itself. An
//!   extension whose answer was lost may be held until the hold ends. A hold of a killed process ends by itself.
//! * Of a budget that refills, what was captured for certain in any time `t` is at most `burst + rate · t`.

use std::collections::{BTreeMap, HashMap};

use super::history::{Event, HoldOutcome, HoldStep, Operation};
use super::linearizable::{Steps, is_linearizable};
use super::worker::{BUDGET, EVERY, EVERY_BURST, TTL, is_charged_at_end};
use support::interval_bound::{Bound, Span};
use todc_utils::specifications::Specification;

const TTL_NS: u64 = TTL.as_nanos() as u64;

/// A worker, and its number of the hold.
type Id = (usize, u64);

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The hold has so many tokens.
    Take(Id, i64),
    /// The hold cannot have so many tokens.
    Refuse(Id, i64),
    Capture(Id, i64),
    /// It ends by itself.
    End {
        id: Id,
        is_charged: bool,
    },
    Charge(i64),
    /// After a step on a hold, which then has so many tokens.
    Balance {
        remaining: i64,
        held: i64,
        after: Option<(Id, i64)>,
    },
    /// The hold may end at any time, with up to so many tokens charged.
    Loosen(Id, i64),
    /// So many tokens may be held at any time, and so many be charged.
    Unheard {
        held: i64,
        charged: i64,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Budget {
    charged: i64,
    holds: BTreeMap<Id, i64>,
    may_be_held: i64,
    may_be_charged: i64,
}

impl Budget {
    fn free(&self) -> i64 {
        i64::from(BUDGET) - self.charged - self.held()
    }

    fn held(&self) -> i64 {
        self.holds.values().sum()
    }

    fn of(&self, id: Id) -> i64 {
        self.holds.get(&id).copied().unwrap_or(0)
    }
}

impl Specification for Budget {
    type State = Self;
    type Operation = Step;

    fn init() -> Self {
        Self::default()
    }

    fn apply(step: &Step, budget: &Self) -> (bool, Self) {
        let mut next = budget.clone();
        let valid = match *step {
            Step::Take(id, tokens) => {
                next.holds.insert(id, tokens);
                tokens - budget.of(id) <= budget.free()
            }
            Step::Refuse(id, tokens) => {
                tokens - budget.of(id) > budget.free() - budget.may_be_held - budget.may_be_charged
            }
            Step::Capture(id, tokens) => {
                next.charged += tokens;
                next.holds.remove(&id).is_some()
            }
            Step::End { id, is_charged } => {
                next.charged += if is_charged { budget.of(id) } else { 0 };
                next.holds.remove(&id).is_some()
            }
            Step::Charge(tokens) => {
                next.charged += tokens;
                true
            }
            Step::Balance { remaining, held, after } => {
                let unheard = held - budget.held();
                let is_after = after.is_none_or(|(id, tokens)| budget.of(id) == tokens);
                let charged = i64::from(BUDGET) - held - remaining;
                let most = budget.charged + budget.may_be_charged;
                if remaining > 0 {
                    (next.charged, next.may_be_charged) = (charged, most - charged);
                }
                let is_charged = match remaining {
                    0 => most >= charged,
                    _ => (budget.charged..=most).contains(&charged),
                };
                is_after && (0..=budget.may_be_held).contains(&unheard) && is_charged
            }
            Step::Loosen(id, charged) => {
                let held = next.holds.remove(&id);
                next.may_be_held += held.unwrap_or(0);
                next.may_be_charged += charged;
                held.is_some()
            }
            Step::Unheard { held, charged } => {
                next.may_be_held += held;
                next.may_be_charged += charged;
                true
            }
        };
        (valid, next)
    }
}

/// A hold, as its holder knows it.
#[derive(Default)]
struct Known {
    tokens: i64,
    /// The beginning and the end of the last step that found it held.
    found: (u64, u64),
    /// Its holder has ended it.
    is_over: bool,
}

impl Known {
    /// Until when it cannot end by itself: for its ttl from the last step on.
    fn lasts(&self) -> u64 {
        self.found.0 + TTL_NS
    }

    /// From `at` on, or from its end by itself on if that is earlier, nobody knows how it ends.
    fn loosen(&self, at: u64, id: Id, charged: i64) -> (u64, u64, Step) {
        let at = at.min(self.lasts());
        // The answer to the last step may have come later.
        (at, at.max(self.found.1), Step::Loosen(id, charged))
    }
}

pub(crate) fn check(key: &str, operations: &[&Operation]) -> bool {
    let is_charged = is_charged_at_end(key);
    let mut operations = operations.to_vec();
    operations.sort_by_key(|operation| operation.call);
    let mut steps = Steps::new();
    let mut known: HashMap<Id, Known> = HashMap::new();
    for operation in operations {
        let Event::Hold(number, asked) = operation.asked else { continue };
        let (id, call) = ((operation.process, number), operation.call);
        let answer = operation.answer.as_ref().map(|(end, answer)| (*end, answer));
        let of = known.entry(id).or_default();
        if let Some((end, Event::Balance { remaining, held, .. })) = answer {
            let after = match asked {
                HoldStep::Look => None,
                HoldStep::Capture(_) | HoldStep::Drop(_) => Some((id, 0)),
                HoldStep::Authorize(tokens) | HoldStep::Extend(tokens) => Some((id, tokens.into())),
            };
            let after = after.filter(|_| !is_ended(answer));
            let (remaining, held) = ((*remaining).into(), (*held).into());
            steps.push((call, end, Step::Balance { remaining, held, after }));
        }
        let at_end = |tokens: i64| if is_charged { tokens } else { 0 };
        match (asked, outcome(answer.map(|(_, answer)| answer))) {
            (HoldStep::Look, _) => {}
            (HoldStep::Authorize(tokens) | HoldStep::Extend(tokens), Some(HoldOutcome::Done)) => {
                let end = answer.map_or(call, |(end, _)| end);
                steps.push((call, end, Step::Take(id, tokens.into())));
                (of.tokens, of.found) = (tokens.into(), (call, end));
            }
            (HoldStep::Authorize(tokens) | HoldStep::Extend(tokens), Some(HoldOutcome::Refused)) => {
                let end = answer.map_or(call, |(end, _)| end);
                steps.push((call, end, Step::Refuse(id, tokens.into())));
            }
            (HoldStep::Authorize(tokens) | HoldStep::Extend(tokens), None) => {
                let held = i64::from(tokens) - of.tokens;
                steps.push((call, call, Step::Unheard { held, charged: at_end(held) }));
            }
            (HoldStep::Capture(tokens), Some(HoldOutcome::Done)) => {
                let end = answer.map_or(call, |(end, _)| end);
                steps.push((call, end, Step::Capture(id, tokens.into())));
                of.is_over = true;
            }
            (_, Some(HoldOutcome::Ended(late))) => {
                let end = answer.map_or(call, |(end, _)| end);
                // An extension may have found it before.
                if !of.is_over {
                    steps.push((of.lasts().min(end), end, Step::End { id, is_charged }));
                }
                steps.push((call, end, Step::Charge(late.into())));
                of.is_over = true;
            }
            (HoldStep::Capture(tokens) | HoldStep::Drop(tokens), _) => {
                let charged = at_end(of.tokens).max(tokens.into());
                steps.push(match of.is_over {
                    false => of.loosen(call, id, charged),
                    true => (call, call, Step::Unheard { held: 0, charged: tokens.into() }),
                });
                of.is_over = true;
            }
        }
    }
    for (id, of) in known.into_iter().filter(|(_, of)| of.tokens > 0 && !of.is_over) {
        steps.push(of.loosen(u64::MAX, id, if is_charged { of.tokens } else { 0 }));
    }
    is_linearizable::<Budget>(steps)
}

fn is_ended(answer: Option<(u64, &Event)>) -> bool {
    matches!(outcome(answer.map(|(_, answer)| answer)), Some(HoldOutcome::Ended(_)))
}

/// `None`: nobody knows.
fn outcome(answer: Option<&Event>) -> Option<HoldOutcome> {
    match answer? {
        Event::Balance { outcome, .. } => Some(*outcome),
        Event::Released(true) => Some(HoldOutcome::Done),
        Event::Released(false) => Some(HoldOutcome::Ended(0)),
        Event::Refused => Some(HoldOutcome::Refused),
        _ => None,
    }
}

/// How many tokens were captured beyond the bound of the budget that refills.
pub(crate) fn above_rate(operations: &[&Operation]) -> usize {
    let micros = |ns: u64| ns / 1000;
    let captured = operations.iter().flat_map(|operation| {
        let (tokens, end) = match (&operation.asked, &operation.answer) {
            (Event::Hold(_, HoldStep::Capture(tokens)), Some((end, answer)))
                if outcome(Some(answer)) == Some(HoldOutcome::Done) =>
            {
                (*tokens, *end)
            }
            _ => (0, 0),
        };
        let span: Span = (micros(operation.call), micros(end) + 1);
        std::iter::repeat_n(span, tokens as usize)
    });
    let captured: Vec<_> = captured.collect();
    let period_us = u64::try_from(EVERY.as_micros()).unwrap();
    let bound = Bound { burst: EVERY_BURST.into(), tokens: 1, period_us, extra_us: 0, drift_ppm: 1000 };
    let Some(worst) = bound.worst(&captured) else { return 0 };
    (worst.admitted as f64 - bound.allowed(worst)).ceil().max(0.0) as usize
}

/// How many holds are said to have ended although they cannot have expired.
pub(crate) fn denied(operations: &[&Operation]) -> usize {
    let mut began = HashMap::new();
    for operation in operations {
        if let Event::Hold(number, HoldStep::Authorize(_)) = operation.asked {
            began.insert((operation.process, number), operation.call);
        }
    }
    let is_denied = |operation: &&&Operation| match (&operation.asked, &operation.answer) {
        (Event::Hold(number, _), Some((end, answer))) => {
            matches!(outcome(Some(answer)), Some(HoldOutcome::Ended(_)))
                && began.get(&(operation.process, *number)).is_some_and(|began| *end < began + TTL_NS / 2)
        }
        _ => false,
    };
    operations.iter().filter(is_denied).count()
}
