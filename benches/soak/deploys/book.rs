//! What the referee knows, and how it judges. It counts for itself, and asks neither the gateways nor Redis.

use std::collections::{BTreeMap, HashMap};

use support::interval_bound::{Bound, Span};

use super::terms::{BUDGET, LIMITED, REMEMBER};
use super::visit::Visit;
use crate::gateway::PERMITS;
use crate::routes::Route;

/// The connection of a gateway, and the number of a visit there.
pub type Who = (u64, u64);

/// A handler whose lease was lost is stopped; its word of that may be so late, µs.
const LATE: u64 = 100_000;

/// Of a rate limit: clocks that run apart, millionths.
const DRIFT_PPM: u64 = 1000;

#[derive(Default)]
pub struct Book {
    present: HashMap<Who, Present>,
    by_key: HashMap<String, Vec<Who>>,
    fences: HashMap<String, u64>,
    done: HashMap<String, Done>,
    /// By key: what a limit admitted.
    admitted: BTreeMap<(usize, String), Vec<Span>>,
    pub judged: [Judged; Route::ALL.len()],
    pub breaches: Vec<Breach>,
}

#[derive(Clone, Copy, Default)]
pub struct Judged {
    pub visits: u64,
    /// Of handlers that were stopped, beside the next holder for at most [`LATE`].
    pub late: u64,
    /// Duplicates of items that the store could not record, as it said.
    pub unsure: u64,
}

pub struct Breach {
    /// µs
    pub at: u64,
    pub route: Route,
    pub what: String,
}

struct Present {
    visit: Visit,
    entered: u64,
    /// Since when there are too many with it.
    too_many: Option<u64>,
}

/// An item that was handled.
#[derive(Default)]
struct Done {
    at: u64,
    /// The caller has its answer.
    is_confirmed: bool,
    is_unsure: bool,
}

impl Book {
    pub fn enter(&mut self, at: u64, who: Who, fence: u64, visit: Visit) {
        let (route, key) = (visit.route, visit.key.clone());
        self.judged[route as usize].visits += 1;
        if route == Route::Limited {
            self.admitted.entry((route as usize, key)).or_default().push((visit.sent, at));
            return;
        }
        self.look_at_fence(at, route, &key, fence);
        self.look_at_item(at, route, &key);
        let others = self.by_key.entry(key).or_default();
        let writers = || others.iter().filter(|other| self.present[other].visit.route == Route::Write);
        let is_too_many = match route {
            Route::Export => others.len() >= PERMITS as usize,
            Route::Read => writers().count() > 0,
            Route::Completion => false,
            _ => !others.is_empty(),
        };
        if is_too_many {
            for other in &*others {
                self.present.get_mut(other).unwrap().too_many.get_or_insert(at);
            }
        }
        others.push(who);
        self.present.insert(who, Present { visit, entered: at, too_many: None });
    }

    /// `is_done`: it came to its end, and was not stopped.
    pub fn leave(&mut self, at: u64, who: Who, is_done: bool) {
        let Some(Present { visit, entered, too_many }) = self.present.remove(&who) else { return };
        let Visit { route, key, sent, units, .. } = visit;
        let others = self.by_key.get_mut(&key).unwrap();
        others.retain(|other| *other != who);
        if let Some(since) = too_many {
            // Whoever leaves first answers for all.
            others.iter().for_each(|other| self.present.get_mut(other).unwrap().too_many = None);
            match is_done || at - since > LATE {
                true => self.breach(since, route, format!("{key}: too many for {} µs", at - since)),
                false => self.judged[route as usize].late += 1,
            }
        }
        if self.by_key[&key].is_empty() {
            self.by_key.remove(&key);
        }
        match route {
            Route::Webhook | Route::Event if is_done => {
                self.done.insert(key, Done { at, ..Done::default() });
            }
            Route::Completion if is_done => {
                let admitted = self.admitted.entry((route as usize, key)).or_default();
                admitted.extend((0..units).map(|_| (sent, entered)));
            }
            _ => {}
        }
    }

    /// A gateway has ended: nobody works there any more.
    pub fn end(&mut self, at: u64, connection: u64) {
        let gone: Vec<_> = self.present.keys().filter(|who| who.0 == connection).copied().collect();
        gone.into_iter().for_each(|who| self.leave(at, who, false));
    }

    /// The caller of an item has been told that it was handled.
    pub fn confirm(&mut self, key: &str) {
        if let Some(done) = self.done.get_mut(key) {
            done.is_confirmed = true;
        }
    }

    /// The layer says that an item may be handled twice. `message`: the end of its key.
    pub fn unsure(&mut self, message: &str) {
        let keys = self.done.iter_mut().filter(|(key, _)| key.rsplit('/').next() == Some(message));
        keys.for_each(|(_, done)| done.is_unsure = true);
    }

    /// Forgets the items that may be handled again.
    pub fn forget(&mut self, at: u64) {
        self.done.retain(|_, done| at - done.at < REMEMBER.as_micros() as u64);
    }

    /// Looks at what needs the whole run.
    pub fn finish(&mut self, at: u64) {
        let mut present: Vec<_> = self.present.keys().copied().collect();
        present.sort_unstable();
        present.into_iter().for_each(|who| self.leave(at, who, true));
        for ((route, key), spans) in std::mem::take(&mut self.admitted) {
            let route = Route::ALL[route];
            let (rate, burst) = if route == Route::Limited { LIMITED } else { BUDGET };
            let bound = Bound {
                burst: burst.into(),
                tokens: rate.into(),
                period_us: 1_000_000,
                extra_us: 0,
                drift_ppm: DRIFT_PPM,
            };
            let worst = bound.worst(&spans).filter(|worst| !bound.allows(*worst));
            if let Some(worst) = worst {
                let allowed = bound.allowed(worst);
                self.breach(worst.to, route, format!("{key}: {worst:?}, allowed are {allowed:.1}"));
            }
        }
    }

    fn look_at_fence(&mut self, at: u64, route: Route, key: &str, fence: u64) {
        if !matches!(route, Route::Invoice | Route::Write | Route::Report) {
            return;
        }
        let last = self.fences.insert(key.to_owned(), fence).unwrap_or(0);
        if fence <= last {
            self.breach(at, route, format!("{key}: the fence {fence} after {last}"));
        }
    }

    fn look_at_item(&mut self, at: u64, route: Route, key: &str) {
        let Some(done) = self.done.get(key) else { return };
        if !done.is_confirmed || at - done.at >= REMEMBER.as_micros() as u64 {
            return;
        }
        match done.is_unsure {
            true => self.judged[route as usize].unsure += 1,
            false => self.breach(at, route, format!("{key}: handled again after {} µs", at - done.at)),
        }
    }

    fn breach(&mut self, at: u64, route: Route, what: String) {
        self.breaches.push(Breach { at, route, what });
    }
}
