//! Locks of several keys that are held together.

use std::collections::HashSet;
use std::future::{Future, pending};
use std::ops::Deref;

use futures_util::FutureExt as _;
use futures_util::future::{join_all, select_all, try_join_all};
use tokio::time::Instant;

use crate::error::Error;
use crate::key::Key;
use crate::lease::acquire_all::MOST_KEYS;
use crate::lease::handle::Lease;
use crate::lease::waiter::Patience;
use crate::mutex::{Mutex, MutexGuard, waited_too_long};

impl Mutex {
    /// Locks the mutexes of several keys: all of them, or none. Waits until they are free.
    ///
    /// First it tries to lock all of them in one step, like [`try_lock_all`](Self::try_lock_all). If one is not free,
    /// it locks one after the other, in the order of the bytes of the keys, which is the same for all callers. So
    /// callers of `lock_all` do not deadlock each other. While it waits for a lock, it holds and renews the locks
    /// earlier in the order, so other callers wait for these too. If one of them is lost during the wait, it starts
    /// again.
    ///
    /// Without a [`watchdog`](super::MutexBuilder::watchdog), a caller starts again and again if its locks expire
    /// before the last of many keys is free: choose a ttl that is longer than such a wait.
    ///
    /// A caller that already holds a lock of this name, and locks others, can still cause a deadlock: lock all keys
    /// that you need in one call.
    ///
    /// There is one guard for all keys. It has a [fencing token](MutexGuards::fences) for each key, in the order of
    /// `keys`. [`max_wait`](super::MutexBuilder::max_wait) applies to the whole call, and the other settings to each
    /// key. If the future is dropped, all of them are unlocked.
    ///
    /// ```
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let accounts = Mutex::new(&Store::in_memory(), "accounts")?;
    /// let both = accounts.lock_all(["ann", "bob"]).await?;
    /// let [ann, bob] = both.fences()[..] else { unreachable!("one for each key") };
    /// println!("ann is locked with {ann}, bob with {bob}");
    /// assert!(accounts.try_lock("bob").await.unwrap_err().is_refused());
    /// assert!(both.unlock().await?); // `true`: all were still held
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`lock`](Self::lock). Then no lock is held. [`is_invalid`](Error::is_invalid) also if there are no
    /// keys or more than 32, or if a key is given twice.
    pub async fn lock_all<K: Into<Key>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<MutexGuards, Error> {
        let keys = Keys::new(keys);
        self.decisions
            .admitted(self.all(keys, Some(self.settings.wait)).await)
    }

    /// Locks the mutexes of several keys, if all of them are free and have no waiters. Does not wait.
    ///
    /// In a store that is not a Cluster this is one atomic step: if one key is not free, none of the others is locked,
    /// even briefly. On a Cluster it is one step if all keys are in one slot. Otherwise, and on a quorum, the keys are
    /// locked one after the other, in the order of their bytes, and unlocked again if one is refused. During this time,
    /// other calls may find them locked.
    ///
    /// ```
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let accounts = Mutex::new(&Store::in_memory(), "accounts")?;
    /// let bob = accounts.lock("bob").await?;
    /// assert!(accounts.try_lock_all(["ann", "bob"]).await.unwrap_err().is_refused());
    /// assert!(!accounts.is_locked("ann").await?);
    ///
    /// let error = accounts.try_lock_all(["ann", "ann"]).await.unwrap_err();
    /// assert_eq!(error.to_string(), "the keys of lock_all must differ, \"ann\" is given twice");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_refused`](Error::is_refused) if one of the keys is locked or has waiters. [`is_lost`](Error::is_lost) if
    /// one of several locks was lost before the last one was locked. Otherwise the same as
    /// [`lock_all`](Self::lock_all).
    pub async fn try_lock_all<K: Into<Key>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<MutexGuards, Error> {
        let keys = Keys::new(keys);
        self.decisions.admitted(self.all(keys, None).await)
    }

    async fn all(
        &self,
        keys: Result<Keys, Error>,
        wait: Option<Patience>,
    ) -> Result<MutexGuards, Error> {
        let keys = keys?;
        keys.each.iter().try_for_each(|key| self.check(key))?;
        if self.quorum.is_none() && self.leases.are_in_one_place(&keys.each) {
            match self.in_one_step(&keys).await {
                Err(error) if wait.is_some() && error.is_refused() => {}
                done => return done,
            }
        }
        // A deadline that overflows is no deadline.
        let deadline = wait.and_then(|wait| Instant::now().checked_add(wait.max_wait?));
        loop {
            if let Some(guards) = self.in_order(&keys, wait, deadline).await? {
                return Ok(guards);
            }
            in_time(deadline)?;
            tokio::task::yield_now().await;
        }
    }

    async fn in_one_step(&self, keys: &Keys) -> Result<MutexGuards, Error> {
        let values = keys
            .each
            .iter()
            .map(|key| self.suffix(key))
            .collect::<Result<Vec<_>, _>>()?;
        let (suffixes, in_use): (Vec<_>, Vec<_>) = values.into_iter().unzip();
        let client = self.several.get_or_init(|| self.leases.several());
        let leases = self
            .leases
            .acquire_all(client.as_ref(), &keys.each, &suffixes)
            .await?;
        let guards = leases
            .into_iter()
            .zip(in_use)
            .map(|(lease, in_use)| MutexGuard::new(lease, in_use));
        Ok(MutexGuards(guards.collect()))
    }

    /// Locks one key after the other. `None`: one lock was lost while this waited for another.
    async fn in_order(
        &self,
        keys: &Keys,
        wait: Option<Patience>,
        deadline: Option<Instant>,
    ) -> Result<Option<MutexGuards>, Error> {
        let mut taken = Taken(Vec::with_capacity(keys.each.len()));
        for position in &keys.order {
            // The first lock is acquired even with no time left, as by `lock`.
            if !taken.0.is_empty() {
                in_time(deadline)?;
            }
            let key = keys.each[*position].clone();
            let guard = match wait {
                None => self.ask(key, None).await?,
                Some(wait) => {
                    let left =
                        deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                    tokio::select! {
                        biased;
                        guard = self.wait(key, Patience { max_wait: left, ..wait }) => guard?,
                        () = any_lost(taken.0.iter().map(|(_, guard)| guard)) => return Ok(None),
                    }
                }
            };
            taken.0.push((*position, guard));
        }
        if taken.0.iter().all(|(_, guard)| guard.is_held()) {
            taken.0.sort_unstable_by_key(|(position, _)| *position);
            return Ok(Some(MutexGuards(
                taken.0.drain(..).map(|(_, guard)| guard).collect(),
            )));
        }
        if wait.is_some() {
            Ok(None)
        } else {
            Err(Error::lost())
        }
    }
}

fn in_time(deadline: Option<Instant>) -> Result<(), Error> {
    let is_over = deadline.is_some_and(|deadline| deadline <= Instant::now());
    if is_over {
        Err(waited_too_long(None))
    } else {
        Ok(())
    }
}

/// The keys of one call, at least one. No two are equal.
struct Keys {
    /// In the order of the caller.
    each: Vec<Key>,
    /// Their positions in the order in which they are locked.
    order: Vec<usize>,
}

impl Keys {
    fn new<K: Into<Key>>(keys: impl IntoIterator<Item = K>) -> Result<Self, Error> {
        // Reads at most one key more than can be locked.
        let each: Vec<Key> = keys
            .into_iter()
            .map(Into::into)
            .take(MOST_KEYS + 1)
            .collect();
        if each.is_empty() || each.len() > MOST_KEYS {
            let count = if each.is_empty() {
                "0".to_owned()
            } else {
                format!("more than {MOST_KEYS}")
            };
            return Err(Error::invalid(format!(
                "the keys of lock_all must be 1 to {MOST_KEYS}, are {count}"
            )));
        }
        let mut seen = HashSet::new();
        if let Some(twice) = each.iter().find(|key| !seen.insert(*key)) {
            let twice = twice.as_bytes().escape_ascii();
            return Err(Error::invalid(format!(
                "the keys of lock_all must differ, \"{twice}\" is given twice"
            )));
        }
        let mut order: Vec<_> = (0..each.len()).collect();
        order.sort_unstable_by_key(|position| &each[*position]);
        Ok(Self { each, order })
    }
}

/// The locks so far, each with the position of its key. Dropping this unlocks them: no work has run under them.
struct Taken(Vec<(usize, MutexGuard)>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0
            .drain(..)
            .for_each(|(_, guard)| Lease::from(guard).decline());
    }
}

/// Completes when one of the locks is lost.
fn any_lost<'a>(
    guards: impl Iterator<Item = &'a MutexGuard>,
) -> impl Future<Output = ()> + Send + 'static {
    let lost: Vec<_> = guards.map(|guard| guard.lost().boxed()).collect();
    async move {
        match lost.is_empty() {
            true => pending().await,
            false => drop(select_all(lost).await),
        }
    }
}

/// A guard of several locked mutexes, see [`Mutex::lock_all`]. Dropping it unlocks all of them in the background.
///
/// It derefs to the guards of the keys, in the order in which the caller named the keys. Each has the
/// [token](crate::LeaseHandle::token) and the [fencing token](MutexGuard::fence) of its key.
///
/// ```
/// use tower_distributed::{Mutex, Store};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// # async fn transfer(_fences: &[u64]) {}
/// let accounts = Mutex::new(&Store::in_memory(), "accounts")?;
/// let locks = accounts.lock_all(["bob", "ann"]).await?;
/// assert_eq!(locks[1].key().as_bytes(), b"ann");
/// let fences = locks.fences();
/// tokio::select! {
///     () = locks.lost() => println!("stopped: a lock is lost"),
///     () = transfer(&fences) => println!("done"),
/// }
/// assert!(locks.unlock().await?);
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a guard that is dropped unlocks its mutexes"]
pub struct MutexGuards(Vec<MutexGuard>);

impl MutexGuards {
    /// Returns the fencing token of each key, in the order in which the caller named the keys.
    ///
    /// Each is greater than the token of every earlier holder of its key. Tokens of different keys are not comparable.
    #[must_use]
    pub fn fences(&self) -> Vec<u64> {
        self.0.iter().map(MutexGuard::fence).collect()
    }

    /// Returns whether all locks are held now.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.0.iter().all(|guard| guard.is_held())
    }

    /// Completes when one of the locks is [lost](crate::LeaseHandle::lost), or when they are unlocked.
    ///
    /// The other locks are held and renewed until they are unlocked. Cancel safe. The future borrows nothing.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        any_lost(self.0.iter())
    }

    /// Renews all locks for their full ttl from now on. The watchdog also does this.
    ///
    /// # Errors
    ///
    /// * [`is_lost`](Error::is_lost): one of the locks is no longer held.
    /// * [`is_unavailable`](Error::is_unavailable): the store is unavailable. Some locks may have been renewed.
    pub async fn extend(&self) -> Result<(), Error> {
        try_join_all(self.0.iter().map(|guard| guard.extend()))
            .await
            .map(drop)
    }

    /// Unlocks all mutexes. Returns whether all of them were still held.
    ///
    /// The calls are sent together: one for all keys, on a Cluster one for each slot.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable): the store is unavailable. See
    /// [`Lease::release`](crate::Lease::release).
    ///
    /// # Cancel safety
    ///
    /// Once the future was polled, the mutexes are unlocked even if the future is dropped.
    pub async fn unlock(self) -> Result<bool, Error> {
        let releases = self
            .0
            .into_iter()
            .map(|guard| Lease::from(guard).release_together());
        join_all(releases)
            .await
            .into_iter()
            .try_fold(true, |all, held| Ok(held? && all))
    }
}

impl Deref for MutexGuards {
    type Target = [MutexGuard];

    fn deref(&self) -> &[MutexGuard] {
        &self.0
    }
}
