//! The local state of a bucket: no token is used twice, and no refusal outlives its reason.
//!
//! Not covered: [`HotKeyCounter`] may lose counts by design; each shard of [`Table`] is behind one lock.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::bucket::decision::BucketState;
use crate::bucket::give_back::Returning;
use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;
use crate::bucket::{Ask, Bucket};
use crate::clock;
use crate::key::Key;
use crate::sync::atomic::Ordering;
use crate::sync::{check, spawn};
use crate::token_bucket::local::entry::{Entry, LastState, Slots};
use crate::token_bucket::local::thread::ThreadLocalEntry;
use crate::token_bucket::local::{Asked, Local, Table};

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
            spawn(move || {
                slots
                    .take(0, 2, 63)
                    .map(|taken| (taken.count, taken.deadline))
            })
        };
        let ended = slots.empty(0);
        slots.put(0, 3, DEADLINES[1]);
        let (first, second) = match takes.join().unwrap() {
            Some((count, deadline)) if deadline == DEADLINES[0] => (count, 0),
            Some((count, deadline)) => (
                0,
                if deadline == DEADLINES[1] {
                    count
                } else {
                    i64::MAX
                },
            ),
            None => (0, 0),
        };
        assert_eq!((first + ended, second + slots.left(0)), (2, 3));
    });
}

fn quotas() -> Quotas {
    Quotas::try_from(Quota::per_hour(1).burst(10)).unwrap()
}

/// A bucket with this number of tokens.
fn with(quotas: &Quotas, left: i64) -> BucketState {
    let (now, mut bucket) = (
        1_000_000_000_000,
        Bucket::default().fit(quotas, 1_000_000_000_000).0,
    );
    bucket.charge(quotas, now, 10 - left);
    BucketState {
        quotas: quotas.clone(),
        now,
        bucket,
    }
}

struct Cache {
    local: Local,
    key: Key,
    quotas: Quotas,
}

impl Cache {
    /// A cache that has stored a bucket with this number of tokens.
    fn of(left: i64) -> (Arc<Self>, Arc<Entry>) {
        let cache = Self::empty();
        let (table, key) = (&cache.local.table, &cache.key);
        let entry = table.entry(table.hash(key), key, &cache.quotas).unwrap();
        cache
            .asked(None)
            .answered(false, &with(&cache.quotas, left));
        (cache, entry)
    }

    fn empty() -> Arc<Self> {
        let local = Local {
            refusals: true,
            ahead: None,
            table: Arc::new(Table::default()),
        };
        Arc::new(Self {
            local,
            key: "k".into(),
            quotas: quotas(),
        })
    }

    /// A request to the store that an entry counts as in flight.
    fn asked(&self, in_flight_of: Option<Arc<Entry>>) -> Asked {
        if let Some(entry) = &in_flight_of {
            entry.in_flight.fetch_add(1, Ordering::Relaxed);
        }
        let learns = Some((self.local.clone(), self.key.clone()));
        Asked {
            learns,
            in_flight_of,
            cost: 1,
            sent: clock::micros(),
        }
    }

    /// A reply with this number of tokens left.
    fn answer(&self, asked: Asked, admitted: bool, left: i64) -> impl FnOnce() + Send + use<> {
        let state = with(&self.quotas, left);
        move || asked.answered(admitted, &state)
    }

    /// Requests a token. `None`: refused without the store.
    fn ask(&self) -> Option<Option<Arc<Entry>>> {
        let gate = |copy: &mut ThreadLocalEntry| copy.gate(clock::micros(), ONE, true);
        match self.local.table.with(&self.key, &self.quotas, gate) {
            Some(ControlFlow::Break(_)) => None,
            Some(ControlFlow::Continue(entry)) => Some(entry),
            None => Some(None),
        }
    }
}

/// Of two requests for the last token, one is sent to the store.
pub(crate) fn as_many_requests_ask_as_there_are_tokens() {
    check(|| {
        let (cache, _) = Cache::of(1);
        let other = cache.clone();
        let other = spawn(move || other.ask().is_some());
        let asks = usize::from(cache.ask().is_some()) + usize::from(other.join().unwrap());
        assert_eq!(asks, 1);
    });
}

/// A request with a reply is not counted both in the state and as in flight.
pub(crate) fn an_answered_request_counts_once() {
    check(|| {
        let (cache, entry) = Cache::of(2);
        let asked = cache.asked(Some(entry));
        let answer = spawn(cache.answer(asked, true, 1));
        assert!(cache.ask().is_some(), "one of two tokens is left");
        answer.join().unwrap();
    });
}

/// A reply that arrives while the refusal is removed is not stored: it dates from before the tokens were given back.
pub(crate) fn a_refusal_does_not_outlive_the_return_of_tokens() {
    check(|| {
        let (cache, entry) = Cache::of(0);
        let asked = cache.asked(Some(entry));
        let answer = spawn(cache.answer(asked, false, 0));
        cache.local.forget_refusal(&cache.key, &cache.quotas);
        answer.join().unwrap();
        assert!(
            cache.ask().is_some(),
            "it is refused as if the tokens were gone"
        );
    });
}

/// The same, if there was no entry yet, and if the bucket was reset.
pub(crate) fn a_first_refusal_does_not_outlive_a_return_or_reset() {
    let forgets: [fn(&Cache); 2] = [
        |cache| cache.local.forget_refusal(&cache.key, &cache.quotas),
        |cache| cache.local.forget(&cache.key),
    ];
    for forget in forgets {
        check(move || {
            let cache = Cache::empty();
            let asked = cache.asked(None);
            let answer = spawn(cache.answer(asked, false, 0));
            forget(&cache);
            answer.join().unwrap();
            assert!(
                cache.ask().is_some(),
                "it is refused as if the tokens were gone"
            );
        });
    }
}

/// Of two replies that arrive together, the later one is stored completely.
pub(crate) fn of_two_answers_the_later_is_kept() {
    check(|| {
        let (cache, entry) = Cache::of(10);
        let learns = |later, left| {
            let mut asked = cache.asked(Some(entry.clone()));
            asked.sent += later;
            cache.answer(asked, true, left)
        };
        let earlier = spawn(learns(1, 9));
        learns(1_000_000, 3)();
        earlier.join().unwrap();
        let now = with(&cache.quotas, 0).now;
        assert_eq!(
            entry
                .last_state
                .bucket(&cache.quotas)
                .free(&cache.quotas, now, 0),
            3
        );
    });
}

/// The usage in one calendar window is not read as the usage in the next.
pub(crate) fn a_full_window_is_not_taken_for_the_next() {
    const DAY: i64 = 86_400_000_000;
    check(|| {
        let quotas = Quotas::try_from(Quota::per_calendar_day(2)).unwrap();
        let state = Arc::new(LastState::new(&quotas));
        let used = |day, used| {
            let (now, mut bucket) = (
                day * DAY + 1,
                Bucket::default().fit(&quotas, day * DAY + 1).0,
            );
            bucket.charge(&quotas, now, used);
            BucketState {
                quotas: quotas.clone(),
                now,
                bucket,
            }
        };
        state.learn(1, &used(20_000, 2));
        let (next, reads) = (used(20_001, 1), state.clone());
        let learns = spawn(move || state.learn(DAY, &next));
        assert!(
            reads.bucket(&quotas).has(&quotas, 20_001 * DAY + 1, ONE),
            "one of two is left"
        );
        learns.join().unwrap();
    });
}

/// A thread does not use its share of tokens after another thread has dropped them.
pub(crate) fn tokens_of_a_forgotten_entry_are_not_used() {
    check(|| {
        let (cache, entry) = Cache::of(8);
        let now = clock::micros();
        entry.slots.0.put(0, 640, now + 1_000_000);
        let takes = |cache: &Cache| {
            cache.local.table.with(&cache.key, &cache.quotas, |copy| {
                copy.take(now, ONE).is_some()
            })
        };
        // A lookup in an empty table returns early.
        let (table, another) = (&cache.local.table, Key::from("another"));
        table
            .entry(table.hash(&another), &another, &cache.quotas)
            .unwrap();
        // The second time, it takes a share of ten.
        assert_eq!((takes(&cache), takes(&cache)), (Some(true), Some(true)));
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
