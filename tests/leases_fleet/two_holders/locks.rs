//! The locks under test: all kinds, with times to live and watchdogs that differ from holder to holder.

use std::time::Duration;

use futures::FutureExt as _;
use rand::seq::IndexedRandom as _;
use tower_distributed::rw_lock::RwLockWriteGuard;
use tower_distributed::{Error, Lease, Mutex, MutexGuard, Permit, RwLock, Store, WaitGroup};

const SHORTEST_TTL: Duration = Duration::from_millis(10);
const LONGEST_TTL: Duration = Duration::from_secs(60);
/// How many values of each kind a process keeps and uses again.
const KEPT: usize = 8;

/// A span between two others: as likely in one order of magnitude as in another.
pub(super) fn span(shortest: Duration, longest: Duration) -> Duration {
    let exponent = rand::random_range(0.0..=1.0);
    shortest.mul_f64((longest.as_secs_f64() / shortest.as_secs_f64()).powf(exponent))
}

/// With and without a queue that hands on, with and without a fence.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Mutex,
    WaitGroup,
    RwLock,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Mutex, Self::WaitGroup, Self::RwLock];
}

/// A lock of one kind, whose holders get what time to live it has.
#[derive(Clone, Debug)]
enum Lock {
    Mutex(Mutex),
    WaitGroup(WaitGroup),
    RwLock(RwLock),
}

#[derive(Debug)]
pub(super) enum Guard {
    Mutex(MutexGuard),
    Permit(Permit),
    Writer(RwLockWriteGuard),
}

/// The locks of one process.
#[derive(Debug)]
pub(super) struct Locks {
    store: Store,
    namespace: String,
    kept: Vec<(Duration, Lock)>,
}

impl Locks {
    pub(super) fn new(store: Store, namespace: String) -> Self {
        let mut locks = Self { store, namespace, kept: Vec::new() };
        let all = Kind::ALL.into_iter().flat_map(|kind| [kind; KEPT]);
        locks.kept = all.map(|kind| locks.make(kind)).collect();
        locks
    }

    /// Waits for a lock of this kind; also tells the time to live.
    pub(super) async fn lock(&self, kind: Kind, key: &str) -> Result<(Guard, Duration), Error> {
        let kept = self.kept.chunks(KEPT).nth(kind as usize).unwrap();
        let (ttl, lock) = match rand::random_ratio(1, 4) {
            true => self.make(kind),
            false => kept.choose(&mut rand::rng()).unwrap().clone(),
        };
        let guard = match lock {
            Lock::Mutex(mutex) => Guard::Mutex(mutex.lock(key).await?),
            Lock::WaitGroup(group) => Guard::Permit(group.add(key).await?),
            Lock::RwLock(lock) => Guard::Writer(lock.write(key).await?),
        };
        Ok((guard, ttl))
    }

    fn make(&self, kind: Kind) -> (Duration, Lock) {
        let (ttl, watchdog) = (span(SHORTEST_TTL, LONGEST_TTL), rand::random());
        let (store, name) = (&self.store, self.namespace.as_str());
        let lock = match kind {
            Kind::Mutex => {
                Lock::Mutex(Mutex::builder().ttl(ttl).watchdog(watchdog).build(store, name).unwrap())
            }
            Kind::WaitGroup => {
                let group = WaitGroup::builder(1).ttl(ttl).watchdog(watchdog);
                Lock::WaitGroup(group.build(store, &format!("{name}-permits")).unwrap())
            }
            Kind::RwLock => {
                let lock = RwLock::builder().ttl(ttl).watchdog(watchdog);
                Lock::RwLock(lock.build(store, &format!("{name}-documents")).unwrap())
            }
        };
        (ttl, lock)
    }
}

impl Guard {
    pub(super) fn lease(&self) -> &Lease {
        match self {
            Self::Mutex(guard) => guard,
            Self::Permit(permit) => permit,
            Self::Writer(guard) => guard,
        }
    }

    /// Gives it back: waits for the answer, does not, or drops it.
    pub(super) async fn release(self) {
        let way = rand::random_range(0..3);
        if way == 0 {
            return;
        }
        let release = async {
            match self {
                Self::Mutex(guard) => guard.unlock().await,
                Self::Permit(permit) => permit.done().await,
                Self::Writer(guard) => guard.release().await,
            }
        };
        // What becomes of it is for the records to tell.
        if way == 1 {
            let _ = release.await;
        } else {
            let _ = release.now_or_never();
        }
    }
}
