//! States as text, and the table.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, SystemTime};

use tower_distributed::Error;
use tower_distributed::fleet::{RefusedKey, SettingVersion};
use tower_distributed::lease::{Holder, Snapshot};
use tower_distributed::operator::{Entry, FlightState, State};

/// The longest name of a namespace, the longest key, and the most holders, unless all is shown. A row then has at most 100
/// characters.
const LONGEST: [usize; 2] = [20, 28];
const MOST_HOLDERS: usize = 5;

/// Rows of kind, namespace, key and state, each followed by lines about its holders.
pub(crate) struct Table {
    full: bool,
    rows: Vec<([String; 4], Vec<String>)>,
    namespaces: BTreeSet<String>,
}

impl Table {
    pub(crate) fn new(full: bool) -> Self {
        Self {
            full,
            rows: Vec::new(),
            namespaces: BTreeSet::new(),
        }
    }

    pub(crate) fn add(&mut self, entry: &Entry, state: Result<&State, &Error>) {
        let (text, leases) = match state {
            Ok(state) => (text(state), state.leases()),
            Err(error) => (error.to_string(), None),
        };
        let all = leases.map_or(&[][..], |leases| &leases.holders);
        let shown = if self.full {
            all.len()
        } else {
            all.len().min(MOST_HOLDERS)
        };
        let mut holders: Vec<_> = all[..shown].iter().map(holder).collect();
        if let Ok(State::Setting(versions)) = state {
            let most = if self.full { usize::MAX } else { MOST_HOLDERS };
            holders.extend(versions.iter().skip(1).take(most).map(version));
        }
        if let Ok(State::Refused(keys)) = state {
            let most = if self.full { usize::MAX } else { MOST_HOLDERS };
            holders.extend(keys.iter().take(most).map(refused));
        }
        let is_cut = leases.is_some_and(is_cut);
        if shown < all.len() {
            let least = if is_cut { "at least " } else { "" };
            holders.push(format!("and {least}{} more: see --full", all.len() - shown));
        } else if is_cut {
            holders.push("and more, whose leases end later".to_owned());
        }
        let cut = |text: &str, most: usize| match text.char_indices().nth(most - 1) {
            Some((at, c)) if !self.full && at + c.len_utf8() < text.len() => {
                format!("{}…", &text[..at])
            }
            _ => text.to_owned(),
        };
        let (namespace, key) = (
            cut(entry.namespace(), LONGEST[0]),
            cut(&entry.key_text(), LONGEST[1]),
        );
        self.rows
            .push(([entry.kind().to_string(), namespace, key, text], holders));
        self.namespaces.insert(entry.namespace().to_owned());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rows.is_empty() {
            return writeln!(f, "Nothing is stored.");
        }
        let head = (
            ["KIND", "NAMESPACE", "KEY", "STATE"].map(str::to_owned),
            Vec::new(),
        );
        let width = |column: usize| {
            let cells = self
                .rows
                .iter()
                .chain([&head])
                .map(|(cells, _)| cells[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let (kind, namespace, key) = (width(0), width(1), width(2));
        for (cells, holders) in [&head].into_iter().chain(&self.rows) {
            let [a, b, c, d] = cells;
            writeln!(f, "{a:kind$}  {b:namespace$}  {c:key$}  {d}")?;
            holders
                .iter()
                .try_for_each(|holder| writeln!(f, "    {holder}"))?;
        }
        let (entries, namespaces) = (
            count(self.rows.len(), "entry", "entries"),
            self.namespaces.len(),
        );
        writeln!(
            f,
            "{entries} in {}",
            count(namespaces, "namespace", "namespaces")
        )
    }
}

/// Whether there are more holders than the snapshot has: it ends after the first 1000.
pub(crate) fn is_cut(leases: &Snapshot) -> bool {
    leases
        .holders
        .iter()
        .map(|holder| holder.weight)
        .sum::<u64>()
        < leases.in_use
}

/// Describes a holder.
pub(crate) fn holder(holder: &Holder) -> String {
    let fence = holder
        .fence
        .map_or_else(String::new, |fence| format!(", fence {fence}"));
    let weight = if holder.weight == 1 {
        String::new()
    } else {
        format!(", weight {}", holder.weight)
    };
    // The value of a user can have any characters.
    let token = holder.token().escape_debug();
    format!(
        "holder {token}{fence}{weight}, {} left",
        span(holder.time_left)
    )
}

/// Describes a state, without its holders.
pub(crate) fn text(state: &State) -> String {
    match state {
        State::Bucket(bucket) => {
            let levels = bucket.balances().map(|level| {
                let full = match level.reset_after {
                    Some(after) => format!("full in {}", span(after)),
                    None => "never refills".to_owned(),
                };
                format!("{} of {} left, {full}", level.remaining, level.limit)
            });
            let levels = levels.collect::<Vec<_>>().join("; ");
            match bucket.blocked_for() {
                Duration::ZERO => levels,
                blocked => format!("blocked for {}; {levels}", span(blocked)),
            }
        }
        State::Leases(leases) => leases_text(leases),
        State::Permits(permits) => {
            let (limit, in_flight) = (permits.limit.limit, permits.limit.in_flight);
            let latency = permits.limit.latency;
            format!(
                "{}, limit {limit}, {in_flight} in flight at {latency:.1?}",
                leases_text(&permits.leases)
            )
        }
        State::Flight(flight) => flight_text(flight),
        State::Filter(filter) => {
            let (filled, items) = (100.0 * filter.filled, filter.estimated_count);
            format!(
                "{filled:.1} % of {} bits set, about {items} items",
                filter.size.bits
            )
        }
        State::Dedupe(dedupe) => match dedupe.is_handled {
            Some(true) => "handled".to_owned(),
            Some(false) => "not handled".to_owned(),
            None => {
                format!(
                    "for {} items, remembered for {}",
                    dedupe.capacity,
                    span(dedupe.remember_for)
                )
            }
        },
        State::Setting(versions) => versions.first().map_or_else(String::new, version),
        State::Refused(keys) => format!("refused {}", count(keys.len(), "key", "keys")),
        other => format!("{other:?}"),
    }
}

/// Describes how often a key was refused.
pub(crate) fn refused(
    RefusedKey {
        key,
        at_least,
        at_most,
        ..
    }: &RefusedKey,
) -> String {
    if at_least == at_most {
        format!("{at_least:>10}  {key}")
    } else {
        format!("{at_least:>10} to {at_most}  {key}")
    }
}

/// Describes a version of a setting.
pub(crate) fn version(version: &SettingVersion) -> String {
    let text = version
        .text
        .as_deref()
        .map_or_else(|| "the default of each process".to_owned(), printable);
    let ago = span(
        SystemTime::now()
            .duration_since(version.at)
            .unwrap_or_default(),
    );
    format!(
        "version {}: {text}, set by {} {ago} ago",
        version.number,
        printable(&version.who)
    )
}

/// Writes a text on one line.
pub(crate) fn printable(text: &str) -> String {
    // `escape_debug` also knows the characters that change the direction of the text.
    let is_safe = |c: char| "'\"\\".contains(c) || c.escape_debug().len() == 1;
    let safe = |c: char| {
        if is_safe(c) {
            c.to_string()
        } else {
            c.escape_default().to_string()
        }
    };
    text.chars().map(safe).collect()
}

fn leases_text(leases: &Snapshot) -> String {
    let held = match &leases.holders[..] {
        [] => "free".to_owned(),
        [one] if one.is_exclusive => "held".to_owned(),
        _ => format!("{} in use", leases.in_use),
    };
    match leases.waiting {
        0 => held,
        waiting => format!("{held}, {waiting} waiting"),
    }
}

fn flight_text(flight: &FlightState) -> String {
    let mut parts = Vec::new();
    if !flight.runs.is_free() {
        parts.push(format!("running, {} waiting", flight.runs.waiting));
    }
    if let Some(answer) = &flight.answer {
        let (bytes, fresh) = (answer.bytes, answer.fresh_for);
        let fresh = if fresh.is_zero() {
            "stale".to_owned()
        } else {
            format!("fresh for {}", span(fresh))
        };
        parts.push(format!(
            "answer of {bytes} bytes, {fresh}, kept for {}",
            span(answer.kept_for)
        ));
    }
    parts.join("; ")
}

fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Writes a time in its two largest units, rounded down.
fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 => format!("{} ms", span.as_millis()),
        1..60 => format!("{:.1} s", span.as_millis() as f64 / 1000.0),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}
