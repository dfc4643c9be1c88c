//! The adaptive limits that this process knows, and its measurements of their keys.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::adaptive::Signal;
use crate::adaptive::step::{Adapt, Adapted, LONGEST, Rules, Seen, Told};
use crate::error::Error;
use crate::key::Key;
use crate::lease::handle::Lease;
use crate::store::Store;
use crate::store::client::{Client, Namespace};
use crate::store::known_keys::KnownKeys;
use crate::sync::lock;
use crate::telemetry::counters::AdaptiveLimit;

/// The adaptive limits of a namespace. Cloning is cheap.
#[derive(Clone)]
pub(crate) struct AdaptiveLimits(Arc<Inner>);

struct Inner {
    client: Client<Adapt>,
    rules: Rules,
    timeout: Duration,
    known: Mutex<KnownKeys<Known>>,
    told: AdaptiveLimit,
}

/// The state of one key in this process.
#[derive(Debug)]
struct Known {
    limit: u32,
    /// The mean latency of the last window, from the last reply of the store.
    mean: Duration,
    /// When a request of this process last ended with a sample. `None`: never.
    sampled_at: Option<Instant>,
    /// When the store last replied. `None`: never.
    heard_at: Option<Instant>,
    used_at: Instant,
    /// When the last report was sent.
    sent_at: Instant,
    is_unanswered: bool,
    in_flight: u32,
    seen: Seen,
}

/// The maximum number of keys. Beyond that, keys that were not used for a minute are evicted. For keys without an
/// entry, nothing is reported, and their limits are read for each request.
const MOST: usize = 4096;
const UNUSED: Duration = Duration::from_secs(60);

/// A latency counts as at most this many times the mean of the last window, so that a few expensive requests do not
/// look like a queue.
const OUTLIER: u32 = 4;

/// A limit that is older than this is read before it is used.
const STALE: Duration = Duration::from_secs(10);

/// A report without a reply within this time is abandoned.
const GIVEN_UP: Duration = Duration::from_secs(10);

impl AdaptiveLimits {
    /// Opens the limits of the WaitGroups of the namespace `name`.
    pub(super) fn new(store: &Store, name: &str, rules: Rules, timeout: Duration) -> Self {
        let namespace: Namespace<Adapted> = Namespace::open(store, name);
        let (client, told) = (namespace.client(), AdaptiveLimit::new(name));
        Self(Arc::new(Inner {
            client,
            rules,
            timeout,
            known: Mutex::new(KnownKeys::new(MOST)),
            told,
        }))
    }

    pub(super) fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// Returns the weight and the limit for a request that weighs `weight`, for which the user has chosen the limit
    /// `most`.
    pub(crate) async fn bounded(&self, key: &Key, weight: u32, most: u32) -> (u32, u32) {
        let highest = u32::try_from(self.0.rules.max)
            .unwrap_or(u32::MAX)
            .min(most);
        if weight > highest {
            return (weight, highest);
        }
        let limit = match self.known(key) {
            Ok(limit) => limit,
            Err(asking) => asking.await,
        };
        let limit = limit.min(most);
        (weight.min(limit), limit)
    }

    /// Returns the limit of a key, if this process knows it; otherwise the future that reads it.
    fn known(&self, key: &Key) -> Result<u32, BoxFuture<'static, u32>> {
        let now = Instant::now();
        let known = slot(&self.0, &mut lock(&self.0.known), key, now).and_then(|known| {
            known.used_at = now;
            let is_fresh = known
                .heard_at
                .is_some_and(|heard| now.duration_since(heard) < STALE);
            is_fresh.then(|| (known.limit, self.0.due(known, now)))
        });
        if let Some((limit, due)) = known {
            self.send(key, due);
            return Ok(limit);
        }
        let read = || Adapt {
            rules: self.0.rules,
            known: self.0.rules.start,
            seen: Seen::default(),
        };
        if let Some(told) = self.0.client.step(key, read) {
            return Ok(self.0.hear(key, &told));
        }
        let (this, asking, key) = (
            self.clone(),
            self.0.client.run(key.clone(), read()),
            key.clone(),
        );
        Err(Box::pin(async move { this.0.hear(&key, &asking.await) }))
    }

    /// Counts a permit as in flight until it is released.
    pub(crate) fn in_flight(&self, lease: Lease, weight: u32) -> Lease {
        let key = lease.key().clone();
        let mut all = lock(&self.0.known);
        let Some(known) = all.get_mut(&key) else {
            return lease;
        };
        known.in_flight = known.in_flight.saturating_add(weight);
        known.seen.peak = known.seen.peak.max(known.in_flight.into());
        drop(all);
        lease.with_guard(InFlight {
            limits: self.clone(),
            key,
            weight,
        })
    }

    /// Records how a request has ended.
    pub(super) fn ended(&self, key: &Key, latency: Duration, signal: Signal) {
        let signal = match signal {
            Signal::Success if latency >= self.0.timeout => Signal::Overload,
            signal => signal,
        };
        let due = lock(&self.0.known).get_mut(key).and_then(|known| {
            match signal {
                Signal::Success => {
                    let most = if known.mean.is_zero() {
                        Duration::MAX
                    } else {
                        known.mean * OUTLIER
                    };
                    known.seen.ok += 1;
                    known.seen.latency += micros(latency.min(most));
                }
                Signal::Overload => known.seen.overloads += 1,
                Signal::Ignore => {}
            }
            let now = Instant::now();
            if signal != Signal::Ignore {
                known.sampled_at = Some(now);
            }
            self.0.due(known, now)
        });
        self.send(key, due);
    }

    /// Sends a report in the background.
    fn send(&self, key: &Key, due: Option<Adapt>) {
        let Some(report) = due else { return };
        let (this, of) = (self.clone(), key.clone());
        self.0.client.send(None, key.clone(), report, move |told| {
            this.0.hear(&of, &told);
        });
    }
}

impl Inner {
    fn start(&self) -> u32 {
        u32::try_from(self.rules.start).unwrap_or(u32::MAX)
    }

    /// The geometric mean of both, in seconds.
    fn due(&self, known: &mut Known, now: Instant) -> Option<Adapt> {
        let span = now.duration_since(known.sent_at);
        if micros(span) < self.rules.window || known.is_unanswered && span < GIVEN_UP {
            return None;
        }
        (known.sent_at, known.is_unanswered) = (now, true);
        // If the store has lost the limit, it continues with the limit that this process knows, if that is based on
        // recent samples.
        let is_recent = |at: Option<Instant>| at.is_some_and(|at| now.duration_since(at) < STALE);
        let knows = is_recent(known.heard_at) && is_recent(known.sampled_at);
        let limit = if knows {
            known.limit.into()
        } else {
            self.rules.start
        };
        let peak = known.in_flight.into();
        let seen = std::mem::replace(
            &mut known.seen,
            Seen {
                peak,
                ..Seen::default()
            },
        );
        Some(Adapt {
            rules: self.rules,
            known: limit,
            seen: Seen {
                span: micros(span),
                ..seen
            },
        })
    }

    /// Stores the reply for a key, and returns its limit. In an outage, the known limit stays.
    fn hear(&self, key: &Key, told: &Result<Told, Error>) -> u32 {
        let (now, mut all) = (Instant::now(), lock(&self.known));
        let mut known = slot(self, &mut all, key, now);
        if let Some(known) = &mut known {
            // After a failure, the next attempt must not be immediate.
            (known.heard_at, known.is_unanswered) = (Some(now), false);
        }
        let Ok(told) = told else {
            return known.map_or(self.start(), |known| known.limit);
        };
        let limit = u32::try_from(told.limit).unwrap_or(u32::MAX);
        if let Some(known) = known {
            known.limit = limit;
            known.mean = Duration::from_micros(u64::try_from(told.mean).unwrap_or(0));
        }
        drop(all);
        self.told.tell(limit, told.in_flight, told.mean);
        limit
    }
}

/// Returns the entry of a key. `None`: there are too many.
fn slot<'a>(
    limits: &Inner,
    all: &'a mut KnownKeys<Known>,
    key: &Key,
    now: Instant,
) -> Option<&'a mut Known> {
    let new = || Known {
        limit: limits.start(),
        mean: Duration::ZERO,
        sampled_at: None,
        heard_at: None,
        used_at: now,
        sent_at: now,
        is_unanswered: false,
        in_flight: 0,
        seen: Seen::default(),
    };
    all.entry(key, new, |known| {
        known.in_flight == 0 && now.duration_since(known.used_at) >= UNUSED
    })
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros())
        .unwrap_or(LONGEST)
        .min(LONGEST)
}

/// A permit in flight.
struct InFlight {
    limits: AdaptiveLimits,
    key: Key,
    weight: u32,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(known) = lock(&self.limits.0.known).get_mut(&self.key) {
            known.in_flight = known.in_flight.saturating_sub(self.weight);
        }
    }
}

debug!(AdaptiveLimits);

#[cfg(test)]
mod tests;
