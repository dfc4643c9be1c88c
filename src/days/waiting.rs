//! Queues that are never empty.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::{Skipping, World, days, days_or, in_both, soon};
use crate::lease::Snapshot;
use crate::rw_lock::{RwLockReadGuard, RwLockWriteGuard};
use crate::{Error, Lease, Mutex, MutexGuard, Permit, RwLock, WaitGroup};

/// Shorter than a waiter counts as alive (7 s), since none waits until its first heartbeat: by 3 s, since a busy machine takes
/// some time as well.
const STEP: Duration = Duration::from_secs(4);

/// A kind of lock with a queue.
trait Queued: Clone + Send + Sync + 'static {
    type Guard: Deref<Target = Lease> + fmt::Debug + Send + 'static;

    fn take(self) -> impl Future<Output = Result<Self::Guard, Error>> + Send;
    fn release(guard: Self::Guard) -> impl Future<Output = Result<bool, Error>>;
    fn look(&self) -> impl Future<Output = Result<Snapshot, Error>>;
}

macro_rules! queued {
    ($($kind:ident: $guard:ty, $take:ident, $release:ident;)*) => {$(
        impl Queued for $kind {
            type Guard = $guard;

            async fn take(self) -> Result<$guard, Error> {
                self.$take("k").await
            }

            async fn release(guard: $guard) -> Result<bool, Error> {
                guard.$release().await
            }

            async fn look(&self) -> Result<Snapshot, Error> {
                self.inspect("k").await
            }
        }
    )*};
}

queued! {
    WaitGroup: Permit, add, done;
    Mutex: MutexGuard, lock, unlock;
    RwLock: RwLockWriteGuard, write, release;
}

/// The readers of a group.
#[derive(Clone)]
struct Reader(RwLock);

impl Queued for Reader {
    type Guard = RwLockReadGuard;

    async fn take(self) -> Result<RwLockReadGuard, Error> {
        self.0.read("k").await
    }

    async fn release(guard: RwLockReadGuard) -> Result<bool, Error> {
        guard.release().await
    }

    async fn look(&self) -> Result<Snapshot, Error> {
        self.0.inspect("k").await
    }
}

/// The holders and the waiters of one key, as the driver knows them.
struct Key<K: Queued> {
    kinds: Vec<K>,
    limit: usize,
    held: VecDeque<K::Guard>,
    waiting: VecDeque<JoinHandle<Result<K::Guard, Error>>>,
    fence: u64,
    taken: usize,
    passed: Duration,
}

impl<K: Queued> Key<K> {
    fn new(kinds: Vec<K>, limit: usize) -> Self {
        Self {
            kinds,
            limit,
            held: VecDeque::new(),
            waiting: VecDeque::new(),
            fence: 0,
            taken: 0,
            passed: Duration::ZERO,
        }
    }

    /// Another caller. It holds at once if there is room, otherwise it is the last of the queue.
    async fn come(&mut self) {
        let kind = &self.kinds[self.taken % self.kinds.len()];
        self.taken += 1;
        let taking = tokio::spawn(kind.clone().take());
        if self.held.len() < self.limit {
            let lease = soon("a free lease", taking).await.unwrap().unwrap();
            return self.hold(lease).await;
        }
        self.waiting.push_back(taking);
        soon("the place in the queue", async {
            // A waiter that was turned away, or granted a lease beside the holders, is found at once.
            while kind.look().await.unwrap().waiting < self.waiting.len() as u64 {
                if let Some(at) = self.waiting.iter().position(JoinHandle::is_finished) {
                    let ended = self.waiting.remove(at).unwrap().await.unwrap();
                    let (held, passed) = (self.held.len(), self.passed);
                    panic!("after {passed:?}, waiter {at}, beside {held} holders: {ended:?}");
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    async fn hold(&mut self, lease: K::Guard) {
        // A grant from the queue is short until it is renewed.
        lease.extend().await.unwrap();
        let fence = lease.handle().fence().unwrap_or(0);
        assert!(fence > self.fence || fence == 0, "the fence {fence} is not above {}", self.fence);
        self.fence = fence;
        self.held.push_back(lease);
        assert!(self.held.len() <= self.limit);
        assert!(self.held.iter().all(|lease| lease.is_held()));
    }

    /// The oldest holder goes, and the first waiter gets its lease.
    async fn go(&mut self) {
        let released = K::release(self.held.pop_front().unwrap()).await.unwrap();
        assert!(released, "it was not held any more");
        let Some(first) = self.waiting.pop_front() else { return };
        let what = format!("after {:?}, the lease of the first waiter", self.passed);
        let lease = soon(&what, first).await.unwrap();
        self.hold(lease.expect("it was first in the queue")).await;
        let others = self.waiting.iter().filter(|waiting| waiting.is_finished());
        assert_eq!(others.count(), 0, "another waiter got it as well, or was turned away");
    }
}

async fn is_never_empty<K: Queued>(mut world: World, kinds: Vec<K>, limit: usize) {
    let lasts = match world.clock {
        Skipping::Redis { .. } if cfg!(debug_assertions) => days_or(1.0 / 6.0),
        _ => days(),
    };
    let mut key = Key::new(kinds, limit);
    for _ in 0..=limit {
        key.come().await;
    }
    while world.passed < lasts {
        key.come().await;
        key.go().await;
        world.skip(STEP);
        key.passed = world.passed;
    }
    while !key.held.is_empty() {
        key.go().await;
    }
    world.ends(&[]).await;
}

const LONGEST_WAIT: Duration = Duration::from_secs(600);

async fn permits(world: World) {
    let group = |store: &_| WaitGroup::builder(2).max_wait(LONGEST_WAIT).build(store, "permits").unwrap();
    let groups = world.each(group);
    is_never_empty(world, groups, 2).await;
}

async fn mutexes(world: World) {
    let mutex =
        |store: &_| Mutex::builder().strict_fifo().max_wait(LONGEST_WAIT).build(store, "mutex").unwrap();
    let mutexes = world.each(mutex);
    is_never_empty(world, mutexes, 1).await;
}

async fn writers(world: World) {
    let lock = |store: &_| RwLock::builder().max_wait(LONGEST_WAIT).build(store, "rw").unwrap();
    let locks = world.each(lock);
    is_never_empty(world, locks, 1).await;
}

/// Readers of different groups exclude each other, and queue apart from writers.
async fn readers(world: World) {
    let lock = |store: &_| RwLock::builder().max_wait(LONGEST_WAIT).build(store, "readers").unwrap();
    let locks = world.each(lock);
    let groups = ["blue", "green"].iter().zip(locks.iter().cycle());
    let readers = groups.map(|(group, lock)| Reader(lock.with_group(group).unwrap())).collect();
    is_never_empty(world, readers, 1).await;
}

in_both! { permits mutexes writers readers }
