//! The operations whose cost is measured.

use std::sync::Arc;
use std::time::Duration;

use tower_distributed::dedupe::{Claimed, Dedupe};
use tower_distributed::single_flight::Postcard;
use tower_distributed::{
    BloomFilter, Mutex, Quota, RwLock, SingleFlight, Store, StoreBuilder, TokenBucket, WaitGroup,
};

use crate::drive::Operation;

/// How many keys there are for operations on random keys.
const KEYS: u64 = 100_000;
/// How many answers there are. All callers ask for different ones.
const ANSWERS: u64 = 1000;
const ANSWER: usize = 100;
const LONG: Duration = Duration::from_secs(3600);

pub struct Kind {
    pub title: &'static str,
    /// How many operations a round has, of 256 callers.
    pub count: u64,
    /// Two stores are as two processes.
    pub make: fn(&[Store; 2]) -> Operation,
}

pub const KINDS: [Kind; 10] = [
    Kind {
        title: "decision, one key",
        count: 400_000,
        make: hot,
    },
    Kind {
        title: "decision, 100 000 keys",
        count: 200_000,
        make: many,
    },
    Kind {
        title: "decision, 100 000 keys, a token every 10/3 ms",
        count: 200_000,
        make: thirds,
    },
    Kind {
        title: "mutex: lock, unlock",
        count: 50_000,
        make: mutex,
    },
    Kind {
        title: "mutex: hand-over, 2 processes",
        count: 30_000,
        make: handover,
    },
    Kind {
        title: "permit: add, done",
        count: 50_000,
        make: permit,
    },
    Kind {
        title: "rw lock: read, release",
        count: 50_000,
        make: read,
    },
    Kind {
        title: "dedupe, exact: claim, confirm",
        count: 50_000,
        make: exact,
    },
    Kind {
        title: "dedupe, filter: claim, confirm",
        count: 50_000,
        make: filter,
    },
    Kind {
        title: "single flight: stored answer",
        count: 100_000,
        make: flight,
    },
];

/// A builder of stores that do not give up while the machine is busy with other things.
pub fn patient() -> StoreBuilder {
    let patience = Duration::from_secs(10);
    Store::builder()
        .timeout(patience)
        .connect_timeout(patience)
        .queue_timeout(patience)
}

/// A key of 20 bytes, in no order.
pub fn key(number: u64) -> String {
    format!(
        "key-{:016}",
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % KEYS
    )
}

fn bucket(store: &Store, per_second: u32) -> TokenBucket {
    TokenBucket::new(
        store,
        "bench",
        Quota::per_second(per_second).burst(1_000_000_000),
    )
    .unwrap()
}

fn hot(stores: &[Store; 2]) -> Operation {
    let bucket = bucket(&stores[0], 1000);
    Arc::new(move |_| {
        let bucket = bucket.clone();
        Box::pin(async move { assert!(bucket.allow("hot").await.unwrap().is_admitted()) })
    })
}

pub fn many(stores: &[Store; 2]) -> Operation {
    random_keys(bucket(&stores[0], 1000))
}

/// A token does not come every whole number of microseconds.
fn thirds(stores: &[Store; 2]) -> Operation {
    random_keys(bucket(&stores[0], 300))
}

fn random_keys(bucket: TokenBucket) -> Operation {
    Arc::new(move |number| {
        let bucket = bucket.clone();
        Box::pin(async move { assert!(bucket.allow(key(number)).await.unwrap().is_admitted()) })
    })
}

fn mutex(stores: &[Store; 2]) -> Operation {
    let mutex = Mutex::new(&stores[0], "bench").unwrap();
    Arc::new(move |number| {
        let mutex = mutex.clone();
        Box::pin(async move {
            assert!(
                mutex
                    .lock(key(number))
                    .await
                    .unwrap()
                    .unlock()
                    .await
                    .unwrap()
            )
        })
    })
}

/// Whoever unlocks hands over to the waiter that came first, of any process.
pub fn handover(stores: &[Store; 2]) -> Operation {
    let mutexes = stores.each_ref().map(|store| {
        Mutex::builder()
            .strict_fifo()
            .build(store, "bench")
            .unwrap()
    });
    Arc::new(move |number| {
        let mutex = mutexes[(number % 2) as usize].clone();
        Box::pin(async move { assert!(mutex.lock("hot").await.unwrap().unlock().await.unwrap()) })
    })
}

fn permit(stores: &[Store; 2]) -> Operation {
    let group = WaitGroup::new(&stores[0], "bench", 8).unwrap();
    Arc::new(move |number| {
        let group = group.clone();
        Box::pin(
            async move { assert!(group.add(key(number)).await.unwrap().done().await.unwrap()) },
        )
    })
}

fn read(stores: &[Store; 2]) -> Operation {
    let lock = RwLock::new(&stores[0], "bench").unwrap();
    Arc::new(move |number| {
        let lock = lock.clone();
        Box::pin(async move {
            assert!(
                lock.read(key(number))
                    .await
                    .unwrap()
                    .release()
                    .await
                    .unwrap()
            )
        })
    })
}

fn exact(stores: &[Store; 2]) -> Operation {
    deduped(
        Dedupe::exact(&stores[0], "bench")
            .capacity(1_000_000)
            .remember_for(LONG)
            .build()
            .unwrap(),
    )
}

fn filter(stores: &[Store; 2]) -> Operation {
    let filter = BloomFilter::builder()
        .capacity(1_000_000)
        .false_positive_rate(1e-6)
        .remember_for(LONG);
    deduped(Dedupe::new(&filter.build(&stores[0], "bench").unwrap()).unwrap())
}

fn deduped(dedupe: Dedupe) -> Operation {
    Arc::new(move |number| {
        let dedupe = dedupe.clone();
        Box::pin(async move {
            let claimed = dedupe.try_claim(format!("{number:036}")).await.unwrap();
            let Claimed::New(claim) = claimed else {
                panic!("{number} is new")
            };
            assert!(claim.confirm().await.unwrap());
        })
    })
}

fn flight(stores: &[Store; 2]) -> Operation {
    let flight = SingleFlight::<String>::builder(Postcard)
        .ttl(LONG)
        .build(&stores[0], "bench")
        .unwrap();
    Arc::new(move |number| {
        let flight = flight.clone();
        Box::pin(async move {
            let answer = flight
                .run(number % ANSWERS, || async { "a".repeat(ANSWER) })
                .await
                .unwrap();
            assert_eq!(answer.len(), ANSWER);
        })
    })
}
