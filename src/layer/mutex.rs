//! [`MutexLayer`]: requests of a key are handled one at a time, across all processes; the others wait or are refused.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_distributed::{Mutex, MutexLayer, Refusal, Store};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let bills = Mutex::new(&store, "bills")?;
//!
//! let mut bill = ServiceBuilder::new()
//!     .layer(MutexLayer::new(bills.clone(), |user: &&'static str| *user))
//!     .service(service_fn(async |user: &'static str| Ok::<_, std::io::Error>(format!("{user} was billed"))));
//!
//! assert_eq!(bill.ready().await?.call("ann").await?, "ann was billed");
//!
//! let elsewhere = bills.lock("ann").await?; // in another process, perhaps
//! let error = bill.ready().await?.call("ann").await.unwrap_err();
//! assert!(error.downcast_ref::<Refusal>().is_some(), "skipped");
//! # Ok(()) }
//! ```
//!
//! # What it asks
//!
//! The [key](crate::KeyExtractor) by a closure or function; `None` lets a request pass. A request whose lock is held by
//! another is refused at once, unless it may [wait](MutexLayer::wait_up_to). Any [`Mutex`] will do, also one of a quorum.
//!
//! # While the lock is held
//!
//! As of [`RwLockLayer`](crate::rw_lock_layer#while-the-lock-is-held).
//!
//! # When the store is away
//!
//! [`StoreFailure::FailClosed`] unless set.
//!
//! # Readiness
//!
//! As of [`concurrency_limit`](crate::concurrency_limit#readiness).

use std::time::Duration;

use tower_layer::Layer;

use crate::leased::{Away, Config, Leased, Leasing, UntilResponse, sealed, settings};
use crate::{AsError, Error, Key, Mutex, MutexGuard, Store, StoreFailure};

/// The service of a [`MutexLayer`].
pub type MutexService<S, K, H, N, R> = Leased<S, K, Exclusive, H, N, R>;

/// A [`Layer`] that handles requests under a mutex; see the [module](self) for the whole story.
#[derive(Clone, Debug)]
pub struct MutexLayer<K, H = UntilResponse, N = (), R = AsError> {
    config: Config<K, Exclusive, H, N, R>,
}

/// Which locks requests need.
#[derive(Clone, Debug)]
pub struct Exclusive {
    mutex: Mutex,
    longest_wait: Option<Duration>,
    away: Away<Result<Mutex, Error>>,
}

impl<K> MutexLayer<K> {
    /// Handles requests under the mutexes of a namespace, each by its key.
    #[must_use]
    pub fn new(mutex: Mutex, key: K) -> Self {
        let provide = Exclusive { mutex, longest_wait: None, away: Away::FailClosed };
        Self {
            config: Config {
                key,
                provide,
                hold: UntilResponse,
                on_lease: (),
                reject: AsError,
                cancel_when_lost: true,
            },
        }
    }
}

impl<K, H, N, R> MutexLayer<K, H, N, R> {
    /// Lets requests wait for their turn up to this long. How many may wait is the mutex's
    /// [`longest_queue`](crate::mutex::MutexBuilder::longest_queue).
    #[must_use]
    pub fn wait_up_to(mut self, longest: Duration) -> Self {
        self.config.provide.longest_wait = Some(longest);
        self
    }

    /// What to do while the store gives no answer. [`StoreFailure::FailOpen`] handles requests without a lock;
    /// [`StoreFailure::LocalShare`] one at a time in each process, however many replicas there are. Default:
    /// [`StoreFailure::FailClosed`].
    #[must_use]
    pub fn on_store_failure(mut self, on_store_failure: StoreFailure) -> Self {
        let exclusive = &mut self.config.provide;
        exclusive.away = match on_store_failure {
            StoreFailure::FailClosed => Away::FailClosed,
            StoreFailure::FailOpen => Away::FailOpen,
            StoreFailure::LocalShare { .. } => {
                Away::LocalShare(Mutex::new(&Store::in_memory(), exclusive.mutex.name()))
            }
        };
        self
    }
}

settings!(MutexLayer<K,>);

impl<Req> sealed::Provide<Req> for Exclusive {
    #[allow(private_interfaces)]
    fn lease(&self, key: Key, _: &Req) -> Leasing {
        let Self { mutex, longest_wait, away } = self.clone();
        Box::pin(async move {
            let asked = mutex.acquire(key.clone(), longest_wait).await;
            let local =
                |local: Result<Mutex, Error>, _| async move { local?.acquire(key, longest_wait).await };
            let settled = away.settle(asked, local).await;
            Ok(mutex.decisions().settle(settled)?.map(MutexGuard::into_lease))
        })
    }
}

impl<S, K, H, N, R> Layer<S> for MutexLayer<K, H, N, R>
where
    K: Clone,
    H: Clone,
    N: Clone,
    R: Clone,
{
    type Service = MutexService<S, K, H, N, R>;

    fn layer(&self, inner: S) -> Self::Service {
        Leased::new(inner, self.config.clone())
    }
}
