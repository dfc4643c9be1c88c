//! The local state of a bucket: no token is used twice, and no refusal outlives what it follows from.
//!
//! Not here: [`HotKeyCounter`] may lose counts by design; the shards of [`Table`] are each behind one lock.

use std::ops::ControlFlow;
use std::sync::Arc;

use loom::thread::spawn;

use super::entry::Entry;
use super::slots::Slots;
use super::{Asked, BucketState, Local, Table};
use crate::sync::check;
use crate::token_bucket::quota::Quotas;
use crate::token_bucket::returning::Returning;
use crate::token_bucket::state::{Ask, Bucket};
use crate::{Key, Quota, clock};

const ONE: Ask = Ask { cost: 1, wait: 0 };

/// A single token of a batch is taken once: by one of two requests, or by the task that ends the batch.
pub(crate) fn a_prefetched_token_is_used_once() {
    check(|| {
        let slots = Arc::new(Slots::default());
        slots.put(0, 1, 1_000_000);
        let takes = |slots: Arc<Slots>| move || slots.take(0, 1, 63).map_or(0, |taken| taken.count);
        let one = spawn(takes(slots.clone()));
        let other = spawn(takes(slots.clone()));
        let ended = slots.empty(0);
        let taken = one.join().unwrap() + other.join().unwrap();
        assert_eq!(taken + ended + slots.left(0), 1);
    });
}

/// A request that read a batch takes nothing from the batch that replaces it, which has another deadline.
pub(crate) fn tokens_keep_the_deadline_of_their_batch() {
    const DEADLINES: [i64; 2] = [1 << 20, 2 << 20];
    check(|| {
        let slots = Arc::new(Slots::default());
        slots.put(0, 2, DEADLINES[0]);
        let takes = {
            let slots = slots.clone();
            spawn(move || slots.take(0, 2, 63).map(|taken| (taken.count, taken.deadline)))
        };
        let ended = slots.empty(0);
        slots.put(0, 3, DEADLINES[1]);
        let (first, second) = match takes.join().unwrap() {
            Some((count, deadline)) if deadline == DEADLINES[0] => (count, 0),
            Some((count, deadline)) => (0, if deadline == DEADLINES[1] { count } else { i64::MAX }),
            None => (0, 0),
        };
        assert_eq!((first + ended, second + slots.left(0)), (2, 3));
    });
}

fn quotas() -> Quotas {
    Quotas::try_from(Quota::per_hour(1).burst(10)).unwrap()
}

/// A bucket with so many tokens.
fn with(quotas: &Quotas, left: i64) -> BucketState {
    let (now, mut bucket) = (1_000_000_000_000, Bucket::default().fit(quotas, 1_000_000_000_000).0);
    bucket.charge(quotas, now, 10 - left);
    BucketState { quotas: quotas.clone(), now, bucket }
}

struct Cache {
    local: Local,
    key: Key,
    quotas: Quotas,
}

impl Cache {
    /// A cache that knows a bucket with so many tokens.
    fn of(left: i64) -> (Arc<Self>, Arc<Entry>) {
        let cache = Self::empty();
        let (table, key) = (&cache.local.table, &cache.key);
        let entry = table.entry(table.hash(key), key, &cache.quotas).unwrap();
        cache.asked(None).answered(false, &with(&cache.quotas, left));
        (cache, entry)
    }

    fn empty() -> Arc<Self> {
        let local = Local { refusals: true, ahead: None, table: Arc::new(Table::default()) };
        Arc::new(Self { local, key: "k".into(), quotas: quotas() })
    }

    fn asked(&self, in_flight_of: Option<Arc<Entry>>) -> Asked {
        let learns = Some((self.local.clone(), self.key.clone()));
        Asked { learns, in_flight_of, cost: 1, sent: clock::micros() }
    }

    /// Asks for a token. `None`: refused without the store.
    fn ask(&self) -> Option<Option<Arc<Entry>>> {
        let gate = |copy: &mut super::ThreadLocalEntry| copy.gate(clock::micros(), ONE, true);
        match self.local.table.with(&self.key, &self.quotas, gate) {
            Some(ControlFlow::Break(_)) => None,
            Some(ControlFlow::Continue(entry)) => Some(entry),
            None => Some(None),
        }
    }
}

/// Of two requests for the last token, one asks the store.
pub(crate) fn as_many_requests_ask_as_there_are_tokens() {
    check(|| {
        let (cache, _) = Cache::of(1);
        let other = cache.clone();
        let other = spawn(move || other.ask().is_some());
        let asks = usize::from(cache.ask().is_some()) + usize::from(other.join().unwrap());
        assert_eq!(asks, 1);
    });
}

/// A thread does not use its share of tokens that another has forgotten.
pub(crate) fn tokens_of_a_forgotten_entry_are_not_used() {
    check(|| {
        let (cache, entry) = Cache::of(8);
        let now = clock::micros();
        entry.slots.0.put(0, 8, now + 1_000_000);
        let takes = |cache: &Cache| {
            cache.local.table.with(&cache.key, &cache.quotas, |copy| copy.take(now, ONE).is_some())
        };
        assert_eq!(takes(&cache), Some(true));
        let forgets = {
            let cache = cache.clone();
            spawn(move || cache.local.forget(&cache.key))
        };
        takes(&cache);
        forgets.join().unwrap();
        assert_ne!(takes(&cache), Some(true));
    });
}

/// While tokens are being given back, the next request for the key waits.
pub(crate) fn a_return_under_way_is_seen() {
    check(|| {
        let (returning, key) = (Returning::default(), Key::from("k"));
        let first = returning.begin(&key);
        let ends = spawn(move || drop(first));
        let second = returning.begin(&key);
        assert!(returning.end(&key).is_some());
        ends.join().unwrap();
        assert!(returning.end(&key).is_some());
        drop(second);
        assert!(returning.end(&key).is_none());
    });
}
