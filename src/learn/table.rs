//! The learned quotas that this process knows.

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::bucket::chosen::ChosenQuotas;
use crate::bucket::decision::Decision;
use crate::bucket::quotas::Quotas;
use crate::clock;
use crate::error::Error;
use crate::key::Key;
use crate::learn::Learned;
use crate::learn::plan::{Plan, SECOND};
use crate::learn::step::{Learn, Memory, Remembered};
use crate::store::Store;
use crate::store::client::{Client, Namespace};
use crate::store::known_keys::KnownKeys;
use crate::sync::lock;
use crate::token_bucket::TokenBucket;
use crate::token_bucket::calls::to_micros;

/// The learned quotas of a namespace. Cloning is cheap.
#[derive(Clone)]
pub(crate) struct LearnedQuotas(Arc<Inner>);

struct Inner {
    client: Client<Learn>,
    known: Mutex<KnownKeys<Known>>,
}

/// The state of one key in this process. Times are those of [`clock::micros`].
#[derive(Clone, Default)]
struct Known {
    quotas: Option<Quotas>,
    read_at: i64,
    /// When a read was sent that has no reply yet.
    reading_since: Option<i64>,
    /// When a call that learns was sent that has no reply yet.
    learning_since: Option<i64>,
    /// When this process last sent quotas that differ from the known ones.
    changed_at: i64,
    /// After a response that reported a window near its end: when the next window begins, by the clock of the store.
    next_window: Option<i64>,
    /// When the latest request whose response reported `quotas` was charged, by the clock of the store.
    confirmed: i64,
}

/// The purpose of a call.
#[derive(Clone, Copy)]
enum Call {
    Read,
    Learn,
}

/// The quotas that other processes have learned are read after this time, µs.
const READ_AFTER: i64 = 2_000_000;

/// A call without a reply within this time, µs, is abandoned.
const GIVEN_UP: i64 = 10_000_000;

/// If an upstream reports other quotas in each response, they are stored once in this time, µs.
const CHANGE_AFTER: i64 = 1_000_000;

/// The maximum number of keys. Beyond that, keys that were not read for a minute are evicted. The quotas of keys
/// without an entry are read from the store for each request.
const MOST: usize = 4096;
const UNUSED: i64 = 60_000_000;

impl LearnedQuotas {
    /// Opens the learned quotas of the buckets of the namespace `name`.
    pub(crate) fn new(store: &Store, name: &str) -> Self {
        let namespace: Namespace<Memory> = Namespace::open(store, &format!("{name}.learned"));
        Self(Arc::new(Inner {
            client: namespace.client(),
            known: Mutex::new(KnownKeys::new(MOST)),
        }))
    }

    /// Returns the learned quotas of a key. They are read from the store for the first request, and then now and then
    /// in the background. If the store fails, there are none.
    pub(crate) fn of(&self, key: &Key) -> ChosenQuotas {
        if let Some(remembered) = self.0.client.step(key, Learn::read) {
            return ChosenQuotas::Ready(Ok(remembered
                .ok()
                .and_then(|remembered| parsed(&remembered))));
        }
        let now = clock::micros();
        let found = lock(&self.0.known).get_mut(key).map(|known| {
            let is_due = now - known.read_at > READ_AFTER && known.may_read(now);
            (known.quotas.clone(), is_due.then_some(known.confirmed))
        });
        let Some((quotas, due)) = found else {
            let this = self.clone();
            let (reading, key) = (self.0.client.run(key.clone(), Learn::read()), key.clone());
            return ChosenQuotas::Pending(Box::pin(async move {
                Ok(this.0.answered(&key, Call::Read, reading.await))
            }));
        };
        if let Some(order) = due {
            // Quotas that responses have confirmed must not be replaced by an older response that another process
            // received late.
            let confirmed = quotas
                .as_ref()
                .filter(|_| order > 0)
                .map(|quotas| quotas.to_string().into());
            let learn = Learn {
                order,
                quotas: confirmed.unwrap_or_default(),
                corrects: false,
            };
            self.send(key.clone(), Call::Read, learn, |_| {});
        }
        ChosenQuotas::Ready(Ok(quotas))
    }

    /// Returns the learned quotas of a key that this process knows.
    pub(crate) fn known(&self, key: &Key) -> Option<Quotas> {
        match self.0.client.step(key, Learn::read) {
            Some(remembered) => parsed(&remembered.ok()?),
            None => lock(&self.0.known).get(key)?.quotas.clone(),
        }
    }

    /// Learns from the response to a request for `key`, which `bucket` has admitted with `decision`.
    pub(crate) fn learn(
        &self,
        bucket: &TokenBucket,
        key: &Key,
        decision: &Decision,
        learned: &Learned,
    ) {
        let known = self.known(key);
        let plan = Plan::of(learned, known.as_ref());
        bucket.clients.upstream.clamped(plan.clamped);
        let Some(quotas) = plan.quotas.clone() else {
            return;
        };
        let (missing, order) = (plan.missing(decision), decision.state.now);
        let (corrects, now) = (missing.iter().any(|missing| *missing > 0), clock::micros());
        let changes = known.as_ref() != Some(&quotas);
        {
            let mut all = lock(&self.0.known);
            let Some(known) = slot(&mut all, key, now) else {
                return;
            };
            if !changes {
                known.confirmed = order.max(known.confirmed);
            } else if let Some(reset) = learned.doubtful_reset()
                && known.is_doubtful(order, reset)
            {
                return;
            }
            let may_change =
                changes && (known.changed_at == 0 || now - known.changed_at > CHANGE_AFTER);
            if !(may_change || corrects) || !known.may_learn(now) {
                return;
            }
            if changes {
                (known.changed_at, known.next_window) = (now, None);
            }
            // Otherwise requests that are decided before the reply arrives would use the configured quotas.
            if order > 0 {
                known.quotas.get_or_insert_with(|| quotas.clone());
            }
        }
        let learn = Learn {
            order,
            quotas: quotas.to_string().into(),
            corrects,
        };
        let (bucket, corrected) = (bucket.clone(), key.clone());
        self.send(key.clone(), Call::Learn, learn, move |may_correct| {
            for (position, tokens) in missing.into_iter().enumerate().filter(|_| may_correct) {
                let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
                if tokens > 0 {
                    let quota = bucket.with_quotas(&quotas.part(position..position + 1));
                    quota.charge_detached(corrected.clone(), tokens);
                }
            }
        });
    }

    /// Sends a call in the background. `then` gets whether a correction is granted.
    fn send(&self, key: Key, call: Call, learn: Learn, then: impl FnOnce(bool) + Send + 'static) {
        let (this, of) = (self.clone(), key.clone());
        self.0.client.send(None, key, learn, move |remembered| {
            let may_correct = remembered
                .as_ref()
                .is_ok_and(|remembered| remembered.corrects);
            this.0.answered(&of, call, remembered);
            then(may_correct);
        });
    }
}

impl Inner {
    /// Stores the reply for a key. In an outage, the known quotas stay.
    fn answered(
        &self,
        key: &Key,
        call: Call,
        remembered: Result<Remembered, Error>,
    ) -> Option<Quotas> {
        let (now, mut all) = (clock::micros(), lock(&self.known));
        let known = slot(&mut all, key, now);
        match (remembered, known) {
            (Ok(remembered), known) => {
                let quotas = parsed(&remembered);
                if let Some(known) = known {
                    if known.quotas != quotas {
                        known.confirmed = 0;
                    }
                    (known.quotas, known.read_at) = (quotas.clone(), now);
                    *known.since(call) = None;
                }
                quotas
            }
            (Err(_), Some(known)) => {
                // The next attempt must not be immediate.
                known.read_at = now;
                *known.since(call) = None;
                known.quotas.clone()
            }
            (Err(_), None) => None,
        }
    }
}

impl Known {
    /// Whether a window may be longer than it seems from the response to a request charged at `order`, because it ends
    /// in `reset`. The window is not longer if a new one has just begun: at most a moment after the end that an earlier
    /// such response reported.
    fn is_doubtful(&mut self, order: i64, reset: Duration) -> bool {
        let moment = if reset > SECOND {
            20 * SECOND
        } else {
            5 * SECOND
        };
        let since = self.next_window.map(|next| order - next);
        let has_begun = since.is_some_and(|since| since > 0 && since <= to_micros(moment));
        if !has_begun && since.is_none_or(|since| since > 0) {
            self.next_window = Some(order + to_micros(reset.saturating_add(SECOND)));
        }
        !has_begun
    }

    fn since(&mut self, call: Call) -> &mut Option<i64> {
        match call {
            Call::Read => &mut self.reading_since,
            Call::Learn => &mut self.learning_since,
        }
    }

    /// Whether a read may be sent. It must be the only call in flight.
    fn may_read(&mut self, now: i64) -> bool {
        is_answered(self.learning_since, now) && self.begins(Call::Read, now)
    }

    /// Whether a call that learns may be sent. Only one is in flight at a time, but a read may be in flight as well:
    /// limits that one response reports may not be reported again.
    fn may_learn(&mut self, now: i64) -> bool {
        self.begins(Call::Learn, now)
    }

    fn begins(&mut self, call: Call, now: i64) -> bool {
        let since = self.since(call);
        let begins = is_answered(*since, now);
        if begins {
            *since = Some(now);
        }
        begins
    }
}

fn is_answered(since: Option<i64>, now: i64) -> bool {
    since.is_none_or(|since| now - since > GIVEN_UP)
}

/// Returns the entry of a key. `None`: there are too many.
fn slot<'a>(all: &'a mut KnownKeys<Known>, key: &Key, now: i64) -> Option<&'a mut Known> {
    all.entry(key, Known::default, |known| now - known.read_at >= UNUSED)
}

/// Parses quotas. Quotas in the format of another version of this crate are not understood: then the configured quotas
/// apply.
fn parsed(remembered: &Remembered) -> Option<Quotas> {
    if remembered.quotas.is_empty() {
        None
    } else {
        remembered.quotas.parse().ok()
    }
}

debug!(LearnedQuotas);
