//! Who is compared.

use std::time::Duration;

use rslock::{LockGuard, LockManager};
use tokio::runtime::Runtime;
use tower_distributed::{Mutex, MutexGuard, Permit, Store, WaitGroup};

use crate::load::Load;
use crate::pairs::{self, Tally};

/// The default of ours, and so for all. Nothing is held for that long here.
const TTL: Duration = Duration::from_secs(30);

/// Somebody who locks and unlocks. One clone serves one caller.
pub trait Contestant: Clone + Send + Sync + 'static {
    type Guard: Send;

    /// Waits as long as it takes.
    fn lock(&self, key: &'static str) -> impl Future<Output = Self::Guard> + Send;

    fn unlock(guard: Self::Guard) -> impl Future<Output = ()> + Send;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Mutex,
    /// Sixteen at once.
    WaitGroup,
    Rslock,
    /// With shorter pauses than its own, for comparison only: it asks the server all the time.
    RslockEager,
}

impl Kind {
    pub fn title(self) -> &'static str {
        match self {
            Self::Mutex => "Mutex",
            Self::WaitGroup => "WaitGroup, 16 at once",
            Self::Rslock => "rslock",
            Self::RslockEager => "rslock, retries within 10 ms",
        }
    }

    /// Lets one process of it work; see [`pairs::run`].
    pub fn run(
        self,
        runtime: &Runtime,
        url: &str,
        load: Load,
        length: Duration,
        ready: impl FnOnce(),
    ) -> Tally {
        match self {
            Self::Mutex => {
                let mutex = Mutex::builder()
                    .ttl(TTL)
                    .build(&Store::redis(url).unwrap(), "bench")
                    .unwrap();
                pairs::run(runtime, &mutex, load, length, ready)
            }
            Self::WaitGroup => {
                let permits = WaitGroup::builder(16)
                    .ttl(TTL)
                    .build(&Store::redis(url).unwrap(), "bench");
                pairs::run(runtime, &permits.unwrap(), load, length, ready)
            }
            Self::Rslock => pairs::run(runtime, &LockManager::new(vec![url]), load, length, ready),
            Self::RslockEager => {
                let mut manager = LockManager::new(vec![url]);
                manager.set_retry(1000, Duration::from_millis(10));
                pairs::run(runtime, &manager, load, length, ready)
            }
        }
    }
}

impl Contestant for Mutex {
    type Guard = MutexGuard;

    async fn lock(&self, key: &'static str) -> MutexGuard {
        self.lock(key).await.unwrap()
    }

    async fn unlock(guard: MutexGuard) {
        assert!(guard.unlock().await.unwrap());
    }
}

impl Contestant for WaitGroup {
    type Guard = Permit;

    async fn lock(&self, key: &'static str) -> Permit {
        self.add(key).await.unwrap()
    }

    async fn unlock(permit: Permit) {
        assert!(permit.done().await.unwrap());
    }
}

/// As its README has it: one manager for all, `acquire`, `release`. Its settings are its own: three tries, with a
/// pause of 0 to 200 ms in between; `acquire` begins anew where they have failed, so it never gives up.
impl Contestant for LockManager {
    type Guard = LockGuard;

    async fn lock(&self, key: &'static str) -> LockGuard {
        self.acquire(key, TTL).await.unwrap()
    }

    async fn unlock(guard: LockGuard) {
        guard.release().await;
    }
}
