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
    by_key: HashMap<String, Place>,
    doubts: Vec<Doubt>,
    fences: HashMap<String, u64>,
    done: HashMap<String, Done>,
    /// By key: what a limit admitted.
    admitted: BTreeMap<(usize, String), Vec<Span>>,
    /// How many works of each route were judged.
    pub judged: [u64; Route::ALL.len()],
    pub breaches: Vec<Breach>,
    /// What is no breach if it follows an event, µs.
    pub excused: Vec<(u64, Route, Excuse)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Excuse {
    /// A handler that was stopped was beside the next holder for at most [`LATE`].
    Late,
    /// A duplicate of an item that the store could not record, as it said.
    Unsure,
}

/// Those who work under one key, and since when they are too many.
#[derive(Default)]
struct Place {
    present: Vec<Who>,
    too_many: Option<u64>,
}

/// There were too many for a moment. One of them must be stopped in time.
struct Doubt {
    since: u64,
    route: Route,
    key: String,
    who: Vec<Who>,
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
        self.judged[route as usize] += 1;
        if route == Route::Limited {
            self.admitted
                .entry((route as usize, key))
                .or_default()
                .push((visit.sent, at));
            return;
        }
        self.look_at_fence(at, route, &key, fence);
        self.look_at_item(at, route, &key);
        self.present.insert(who, Present { visit, entered: at });
        self.by_key
            .entry(key.clone())
            .or_default()
            .present
            .push(who);
        if self.are_too_many(&key) {
            self.by_key
                .entry(key)
                .or_default()
                .too_many
                .get_or_insert(at);
        }
    }

    fn are_too_many(&self, key: &str) -> bool {
        let present = &self.by_key[key].present;
        let has = |route| {
            present
                .iter()
                .any(|who| self.present[who].visit.route == route)
        };
        let most = match () {
            () if has(Route::Export) => PERMITS as usize,
            () if has(Route::Completion) || has(Route::Read) && !has(Route::Write) => usize::MAX,
            () => 1,
        };
        present.len() > most
    }

    /// `is_done`: it came to its end, and was not stopped.
    pub fn leave(&mut self, at: u64, who: Who, is_done: bool) {
        let Some(Present { visit, entered }) = self.present.remove(&who) else {
            return;
        };
        self.settle(at, (!is_done).then_some(who));
        let Visit {
            route,
            key,
            sent,
            units,
            ..
        } = visit;
        let place = self.by_key.entry(key.clone()).or_default();
        let were = place.present.clone();
        place.present.retain(|other| *other != who);
        let is_empty = place.present.is_empty();
        if let Some(since) = place.too_many
            && !self.are_too_many(&key)
        {
            self.by_key.entry(key.clone()).or_default().too_many = None;
            match at - since <= LATE {
                true if is_done => self.doubts.push(Doubt {
                    since,
                    route,
                    key: key.clone(),
                    who: were,
                }),
                true => self.excuse(since, route, Excuse::Late),
                false => self.breach(
                    since,
                    route,
                    format!("{key}: too many for {} µs", at - since),
                ),
            }
        }
        if is_empty {
            self.by_key.remove(&key);
        }
        match route {
            Route::Webhook | Route::Event if is_done => {
                self.done.insert(
                    key,
                    Done {
                        at,
                        ..Done::default()
                    },
                );
            }
            Route::Completion if is_done => {
                let admitted = self.admitted.entry((route as usize, key)).or_default();
                admitted.extend((0..units).map(|_| (sent, entered)));
            }
            _ => {}
        }
    }

    /// Settles the doubts: one of those is stopped now, or it was in vain to wait for that.
    fn settle(&mut self, at: u64, stopped: Option<Who>) {
        for doubt in std::mem::take(&mut self.doubts) {
            let Doubt {
                since,
                route,
                key,
                who,
            } = &doubt;
            if at - since > LATE {
                self.breach(
                    *since,
                    *route,
                    format!("{key}: too many, and nobody was stopped"),
                );
            } else if stopped.is_some_and(|stopped| who.contains(&stopped)) {
                self.excuse(*since, *route, Excuse::Late);
            } else {
                self.doubts.push(doubt);
            }
        }
    }

    /// A gateway has ended: nobody works there any more.
    pub fn end(&mut self, at: u64, connection: u64) {
        let gone: Vec<_> = self
            .present
            .keys()
            .filter(|who| who.0 == connection)
            .copied()
            .collect();
        gone.into_iter().for_each(|who| self.leave(at, who, false));
    }

    /// The caller of an item has been told that it was handled.
    pub fn confirm(&mut self, at: u64, route: Route, key: &str) {
        match self.done.get_mut(key) {
            Some(done) => done.is_confirmed = true,
            None => self.breach(at, route, format!("{key}: told as handled, and was not")),
        }
    }

    /// The layer says that an item may be handled twice.
    pub fn unsure(&mut self, key: &str) {
        if let Some(done) = self.done.get_mut(key) {
            done.is_unsure = true;
        }
    }

    /// Forgets the items that are not taken for duplicates any more.
    pub fn forget(&mut self, at: u64) {
        self.done
            .retain(|_, done| at - done.at < 4 * REMEMBER.as_micros() as u64);
    }

    /// Looks at what needs the whole run.
    pub fn finish(&mut self, at: u64) {
        let mut present: Vec<_> = self.present.keys().copied().collect();
        present.sort_unstable();
        present
            .into_iter()
            .for_each(|who| self.leave(at, who, true));
        self.settle(u64::MAX, None);
        for ((route, key), spans) in std::mem::take(&mut self.admitted) {
            let route = Route::ALL[route];
            let (rate, burst) = if route == Route::Limited {
                LIMITED
            } else {
                BUDGET
            };
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
                self.breach(
                    worst.to,
                    route,
                    format!("{key}: {worst:?}, allowed are {allowed:.1}"),
                );
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
        let Some(done) = self.done.get(key) else {
            return;
        };
        if !done.is_confirmed || at - done.at >= REMEMBER.as_micros() as u64 {
            return;
        }
        match done.is_unsure {
            true => self.excuse(at, route, Excuse::Unsure),
            false => self.breach(
                at,
                route,
                format!("{key}: handled again after {} µs", at - done.at),
            ),
        }
    }

    fn excuse(&mut self, at: u64, route: Route, excuse: Excuse) {
        self.excused.push((at, route, excuse));
    }

    fn breach(&mut self, at: u64, route: Route, what: String) {
        self.breaches.push(Breach { at, route, what });
    }
}
