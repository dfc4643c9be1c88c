//! The layer that handles requests under mutexes. See the public module `mutex`.

use std::time::Duration;

use crate::key::Key;
use crate::layers::key::{Extracted, KeyExtractor};
use crate::layers::lease::{
    Acquire, Acquired, Acquiring, LeaseLayer, Leased, Provide, Unobserved, UntilResponse, acquire,
};
use crate::layers::refusal::AsError;
use crate::lease::handle::Lease;
use crate::mutex::Mutex;
use crate::store::failure::{StoreFailure, StoreFailurePolicy};
use crate::telemetry::counters::Decisions;

/// A [`Layer`](tower_layer::Layer) that handles the requests of a key one at a time, under a mutex.
///
/// See the [module](crate::mutex) for details.
///
/// The type parameters are the request type, [how long](Self::hold) a lock is held, and how
/// [refusals](Self::reject_with) are returned.
///
/// ```
/// use std::time::Duration;
/// use tower::{Layer, Service, ServiceExt, service_fn};
/// use tower_distributed::{LeaseHandle, Mutex, MutexLayer, Refusal, Store, StoreFailure};
///
/// struct Bill { user: u64, fence: Option<u64> }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
/// let bills = Mutex::new(&Store::in_memory(), "bills")?;
/// let lock = MutexLayer::new(bills.clone(), |bill: &Bill| bill.user)
///     .max_wait(Duration::from_millis(10))
///     .on_lease(|lock: &LeaseHandle, bill: &mut Bill| bill.fence = lock.fence())
///     .cancel_when_lost(false) // the database refuses an old fencing token, so the handler may finish
///     .on_store_failure(StoreFailure::FailClosed)
///     .reject_with(|refusal: Refusal| format!("refused: {refusal}"));
/// let mut bill = lock.layer(service_fn(async |bill: Bill| {
///     Ok::<_, std::io::Error>(if bill.fence.is_some() { "billed" } else { "no lock" }.to_owned())
/// }));
///
/// assert_eq!(bill.ready().await?.call(Bill { user: 7, fence: None }).await?, "billed");
/// let _elsewhere = bills.lock(7).await?; // for example in another process
/// let refused = bill.ready().await?.call(Bill { user: 7, fence: None }).await?;
/// assert_eq!(refused, "refused: the lock did not become free in time");
/// # Ok(()) }
/// ```
pub type MutexLayer<Req, H = UntilResponse, R = AsError> = LeaseLayer<Req, Leased<Locks, H>, R>;

/// The locks of the requests of a [`MutexLayer`].
#[derive(Clone, Debug)]
pub struct Locks {
    mutex: Mutex,
    away: StoreFailurePolicy<Mutex>,
}

impl<Req> MutexLayer<Req> {
    /// Creates a layer that handles each request under the mutex of its key.
    #[must_use]
    pub fn new(mutex: Mutex, key: impl KeyExtractor<Req> + Send + Sync + 'static) -> Self {
        let locks = Locks {
            mutex,
            away: StoreFailurePolicy::FailClosed,
        };
        Self::of(Leased::of(locks), key).cancel_when_lost(true)
    }
}

impl<Req, H, R> MutexLayer<Req, H, R> {
    /// Sets what happens to requests while the store is unavailable. Default: [`StoreFailure::FailClosed`].
    ///
    /// With [`StoreFailure::FailOpen`], requests are handled without a lock. With [`StoreFailure::LocalShare`], each
    /// process handles the requests of a key one at a time, regardless of the number of replicas. All layers in the
    /// process that use this mutex exclude each other, and its settings apply.
    #[must_use]
    pub fn on_store_failure(mut self, on_store_failure: StoreFailure) -> Self {
        let Locks { mutex, away } = &mut self.provide.from;
        *away = StoreFailurePolicy::new(on_store_failure, |_| mutex.local_share());
        self
    }
}

impl Unobserved for Locks {}

impl<Req> Provide<Req> for Locks {
    fn lease(&self, key: Extracted, _: &Req, max_wait: Option<Duration>) -> Acquiring<Lease> {
        acquire(self, key, (), max_wait)
    }
}

impl Acquire for Locks {
    type Asked = ();
    type Granted = Lease;

    fn decisions(&self) -> &Decisions {
        &self.mutex.decisions
    }

    fn is_in_memory(&self) -> bool {
        self.mutex.quorum.is_none() && self.mutex.leases.namespace.store.is_in_memory()
    }

    async fn acquire(&self, key: Key, (): (), max_wait: Option<Duration>) -> Acquired<Lease> {
        let Self { mutex, away } = self;
        let asked = mutex.acquire(key.clone(), max_wait).await;
        let local = |local: Mutex, _| async move { local.acquire(key, max_wait).await };
        let settled = away.settle(asked, local).await;
        Ok(mutex.decisions.settle(settled)?.map(Lease::from))
    }
}
