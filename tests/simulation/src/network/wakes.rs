//! Who waits is woken by the message of whoever gives what it waits for, and not by a heartbeat, a poll or a time-out of its own.
//! Where no message is late, that takes a few of the longest delays. A heartbeat comes after more than a second.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::os;
use crate::server::database::{Database, Entry, Item};
use crate::server::reply::Bytes;
use crate::server::sorted_set::Bound;
use crate::server::{keys_of_call, lock};

/// Scores of holders are times in µs below it, those of other members are above, see `lua/holders.lua`.
const LIFT: f64 = 4_503_599_627_370_496.0;
/// From here on are the scores of those that wait behind all others, see `lua/queue.lua`.
const ASIDE: f64 = 15.0 * 562_949_953_421_312.0;
/// How a process is named at the beginning of a token, and at the end of its channels.
const PROCESS: usize = 16;

/// The holders of a key, and who waits for it, after the last request that named it.
struct Line {
    waiters: BTreeSet<Bytes>,
    /// The first one, unless it waits behind all others.
    first: Option<Bytes>,
    holders: BTreeSet<Bytes>,
    /// When all leases have ended, if none is renewed, in µs.
    ends: f64,
}

/// A waiter that waits no more at the server, and has not shown yet that it knows.
struct Told {
    process: usize,
    name: Bytes,
    at: Instant,
    is_granted: bool,
}

#[derive(Default)]
struct State {
    /// By the address of the server and the key of the waiters.
    lines: BTreeMap<(String, Bytes), Line>,
    /// By token.
    told: BTreeMap<Bytes, Told>,
    judged: u64,
    broken: Vec<String>,
}

pub struct Wakes {
    within: Duration,
    /// The beginnings of names that are not judged: their callers do not tell what they hold.
    besides: Vec<&'static [u8]>,
    /// The beginnings of names whose first waiter is the next one to be served.
    in_order: Vec<&'static [u8]>,
    state: Mutex<State>,
}

impl State {
    fn condemn(&mut self, what: String) {
        let at = os::elapsed().as_secs_f64() * 1e3;
        self.broken.push(format!("{at:.3} ms: {what}"));
    }

    /// Those who wait no more have to hear of it, unless the request names them.
    fn tell(
        &mut self,
        name: &[u8],
        before: &Line,
        after: &Line,
        values: &[Bytes],
        listens: impl Fn(&[u8]) -> Option<usize>,
    ) {
        let gone = before.waiters.difference(&after.waiters);
        for token in gone.filter(|token| !values.contains(token)) {
            let Some(process) = token.get(..PROCESS).and_then(&listens) else {
                continue;
            };
            let told = Told {
                process,
                name: name.to_vec(),
                at: Instant::now(),
                is_granted: after.holders.contains(token),
            };
            self.told.insert(token.clone(), told);
        }
    }

    /// All of these know.
    fn all_know(&mut self, know: impl Fn(&Told) -> bool, within: Duration) {
        let known = self.told.iter().filter(|(_, told)| know(told));
        for token in known.map(|(token, _)| token.clone()).collect::<Vec<_>>() {
            self.knows(&token, within);
        }
    }

    /// The process of a waiter knows.
    fn knows(&mut self, token: &[u8], within: Duration) {
        let Some(told) = self.told.remove(token) else {
            return;
        };
        self.judged += 1;
        let late = told.at.elapsed();
        if late > within {
            let what = match told.is_granted {
                true => "was granted it",
                false => "had to hear of it",
            };
            let who = format!("{}: {}", told.name.escape_ascii(), token.escape_ascii());
            let process = told.process;
            self.condemn(format!(
                "{who} {what}, process {process} knew {late:?} later"
            ));
        }
    }
}

impl Line {
    fn new(database: &mut Database, holders: &[u8], waiters: &[u8]) -> Self {
        let now = database.micros as f64;
        let mut line = Self {
            waiters: BTreeSet::new(),
            first: None,
            holders: BTreeSet::new(),
            ends: now,
        };
        match database.entry(holders) {
            Some(Entry {
                item: Item::Text(token),
                until,
            }) => {
                line.holders.insert(token.clone());
                line.ends = until.map_or(f64::INFINITY, |until| until as f64 * 1e3);
            }
            Some(Entry {
                item: Item::SortedSet(set),
                ..
            }) => {
                for (token, ends) in set.between(Bound::open(now), Bound::open(LIFT)) {
                    line.holders.insert(token.clone());
                    line.ends = ends;
                }
            }
            _ => {}
        }
        if let Some(Item::SortedSet(set)) = database.get(waiters) {
            let first = set.iter().next().filter(|(_, score)| *score < ASIDE);
            line.first = first.map(|(token, _)| token.clone());
            line.waiters = set.iter().map(|(token, _)| token.clone()).collect();
        }
        line
    }
}

/// The name of the family and the key of it, in the name of a key.
fn name(key: &[u8]) -> Option<&[u8]> {
    let from = key.iter().position(|byte| *byte == b'{')? + 1;
    let to = key.windows(2).rposition(|two| two == b"}:")?;
    key.get(from..to)
}

impl Wakes {
    pub fn new(
        within: Duration,
        besides: Vec<&'static [u8]>,
        in_order: Vec<&'static [u8]>,
    ) -> Self {
        Self {
            within,
            besides,
            in_order,
            state: Mutex::default(),
        }
    }

    /// How many waiters were judged, and what is wrong. To be called at the end.
    pub fn end(&self) -> (u64, Vec<String>) {
        let mut state = lock(&self.state);
        state.all_know(|told| told.at.elapsed() > self.within, self.within);
        (state.judged, std::mem::take(&mut state.broken))
    }

    /// A caller has what was granted to a token.
    pub fn got(&self, token: &str) {
        lock(&self.state).knows(token.as_bytes(), self.within);
    }

    /// A call of a process has ended that may have waited for a name that begins so.
    pub fn has_ended(&self, process: usize, name: &str) {
        let is_of = |told: &Told| told.process == process && told.name.starts_with(name.as_bytes());
        lock(&self.state).all_know(is_of, self.within);
    }

    /// A server has run a request of a process. `listens`: which process has this name, if it is subscribed to its channel.
    pub fn ran(
        &self,
        (address, process): (&str, usize),
        arguments: &[Bytes],
        database: &mut Database,
        listens: impl Fn(&[u8]) -> Option<usize>,
    ) {
        let is_script = arguments[0].starts_with(b"EVAL") || arguments[0].starts_with(b"FCALL");
        let Some((keys, values)) = keys_of_call(arguments).filter(|_| is_script) else {
            return;
        };
        let state = &mut *lock(&self.state);
        if !state.told.is_empty() {
            // Who asks, renews or releases knows; a heartbeat is told so.
            for token in values {
                state.knows(token, self.within);
            }
        }
        let waiters = keys
            .windows(3)
            .filter(|keys| keys[2].ends_with(b":waiters"));
        for three in waiters {
            let (holders, key) = (&three[0], &three[2]);
            let Some(name) = name(key) else { continue };
            if self.besides.iter().any(|other| name.starts_with(other)) {
                continue;
            }
            let place = (address.to_owned(), key.clone());
            let before = state.lines.remove(&place);
            let after = Line::new(database, holders, key);
            if let Some(before) = &before {
                // Who asks anew.
                let asks =
                    |told: &Told| !told.is_granted && told.process == process && told.name == name;
                state.all_know(asks, self.within);
                state.tell(name, before, &after, values, &listens);
                self.judge_order(state, name, before, &after);
            }
            // A lease that ends by itself wakes nobody: who is first asks then.
            let has_lapsed = before.is_some_and(|before| before.ends <= database.micros as f64);
            if after.holders.is_empty() && after.first.is_some() && !has_lapsed {
                let name = name.escape_ascii();
                state.condemn(format!("{name}: it is free, and somebody waits"));
            }
            if !after.waiters.is_empty() {
                state.lines.insert(place, after);
            }
        }
    }

    /// The first waiter is not granted by a request that freed nothing: what fits now did so before.
    fn judge_order(&self, state: &mut State, name: &[u8], before: &Line, after: &Line) {
        let first = before.first.as_ref();
        let is_first = first.is_some_and(|first| after.holders.contains(first));
        let is_in_order = self.in_order.iter().any(|other| name.starts_with(other));
        if is_first && is_in_order && before.holders.is_subset(&after.holders) {
            let name = name.escape_ascii();
            state.condemn(format!("{name}: the first one was left to wait"));
        }
    }
}
