//! Leases that are held while others ask too much of the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use tower_distributed::{Mutex, MutexGuard, Store};

use crate::common::Bench;

/// How many, and for how long each lives unless it is renewed: half of them as long as any burst takes, and less.
const LEASES: [(usize, Duration); 2] = [
    (500, Duration::from_secs(10)),
    (500, Duration::from_secs(1)),
];

pub struct Leases {
    guards: Vec<MutexGuard>,
    lost: Arc<AtomicUsize>,
}

impl Leases {
    pub fn take(bench: &Bench, store: &Store) -> Self {
        let lost = Arc::new(AtomicUsize::new(0));
        let mut guards = Vec::new();
        for (count, ttl) in LEASES {
            let mutex = Mutex::builder()
                .ttl(ttl)
                .build(store, &format!("held-{}", ttl.as_secs()))
                .unwrap();
            let keys = (0..count).map(|i| format!("key-{i:016}"));
            let locked = bench
                .runtime
                .block_on(join_all(keys.map(|key| mutex.lock(key))));
            guards.extend(locked.into_iter().map(Result::unwrap));
        }
        for guard in &guards {
            let (told, lost) = (guard.lost(), lost.clone());
            bench.runtime.spawn(async move {
                told.await;
                lost.fetch_add(1, Ordering::Relaxed);
            });
        }
        Self { guards, lost }
    }

    /// Releases them. How many were lost: their holders were told, or are told now.
    pub fn release(self, bench: &Bench) -> usize {
        // Before they are released, which ends them too.
        let lost = self.lost.load(Ordering::Relaxed);
        let released = bench
            .runtime
            .block_on(join_all(self.guards.into_iter().map(MutexGuard::unlock)));
        let gone = released
            .into_iter()
            .filter(|was_held| !matches!(was_held, Ok(true)))
            .count();
        lost.max(gone)
    }
}
