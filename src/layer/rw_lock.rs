//! [`RwLockLayer`]: requests of a key that read share it, one that writes is alone, across all processes.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_distributed::rw_lock::Access;
//! use tower_distributed::{LeaseHandle, RwLock, RwLockLayer, Store};
//!
//! #[derive(Clone)]
//! struct Edit { document: u64, text: Option<String>, fence: Option<u64> }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let documents = RwLock::new(&store, "documents")?;
//!
//! let mut edit = ServiceBuilder::new()
//!     .layer(
//!         RwLockLayer::new(documents, |edit: &Edit| edit.document)
//!             .access(|edit: &Edit| if edit.text.is_some() { Access::Write } else { Access::Read })
//!             .on_lease(|lease: &LeaseHandle, edit: &mut Edit| edit.fence = lease.fence()),
//!     )
//!     .service(service_fn(async |edit: Edit| Ok::<_, std::io::Error>(edit.fence)));
//!
//! let write = Edit { document: 42, text: Some("hello".into()), fence: None };
//! let fence = edit.ready().await?.call(write.clone()).await?;
//! assert!(edit.ready().await?.call(write).await? > fence);
//! # Ok(()) }
//! ```
//!
//! # What it asks
//!
//! The [key](crate::KeyExtractor) by a closure or function; `None` lets a request pass. Whether it reads or writes by
//! [`access`](RwLockLayer::access): it writes unless set; `http::rw_lock` goes by the method. A request that cannot be
//! admitted now is refused, unless it may [wait](RwLockLayer::wait_up_to).
//!
//! # While the lock is held
//!
//! It is held until there is a response, or with `http::UntilBodyEnd` until the end of its body. What the handler gets
//! by [`on_lease`](RwLockLayer::on_lease) has the fencing token, which whatever it writes to should check, and tells
//! when the lock is lost. Then, until there is a response, the inner future is dropped, unless
//! [`cancel_when_lost`](RwLockLayer::cancel_when_lost) is off, and the request refused as
//! [`LeaseLost`](crate::RefusalKind::LeaseLost). Once there is a response, its body goes on when the lock is lost;
//! `http::LeaseEnd::Abort` ends it with an error.
//!
//! `http::UntilBodyEnd` releases the lock of a body that makes no progress for 60 s, and can set a maximum. The lock of an
//! upgraded connection (WebSocket, CONNECT) is released with the head of the response. A handler can take its lock along
//! and hold it for longer: see [`LeaseSlot`](crate::leased::LeaseSlot).
//!
//! # When the store is away
//!
//! Requests are refused: a lock that cannot be had is not had, and nothing stands in for it.
//!
//! # Readiness
//!
//! As of [`concurrency_limit`](crate::concurrency_limit#readiness).

use std::time::Duration;

use tower_layer::Layer;

use crate::leased::{Config, Leased, Leasing, UntilResponse, sealed, settings};
use crate::primitive::lease::Wait;
use crate::rw_lock::Access;
use crate::{AsError, Key, RwLock};

/// The service of a [`RwLockLayer`].
pub type RwLocked<S, K, A, H, N, R> = Leased<S, K, Locks<A>, H, N, R>;

/// A [`Layer`] that handles requests under reader-writer locks; see the [module](self) for the whole story.
#[derive(Clone, Debug)]
pub struct RwLockLayer<K, A = AlwaysWrite, H = UntilResponse, N = (), R = AsError> {
    config: Config<K, Locks<A>, H, N, R>,
}

/// Which locks requests need.
#[derive(Clone, Debug)]
pub struct Locks<A> {
    lock: RwLock,
    access: A,
    longest_wait: Option<Duration>,
}

/// Whether a request reads or writes. Functions and closures from `&Req` to [`Access`] do.
pub trait ChooseAccess<Req> {
    /// What it does.
    fn access(&self, request: &Req) -> Access;
}

impl<Req, F: Fn(&Req) -> Access> ChooseAccess<Req> for F {
    fn access(&self, request: &Req) -> Access {
        self(request)
    }
}

/// Every request writes: the default outside of HTTP.
#[derive(Clone, Copy, Debug, Default)]
pub struct AlwaysWrite;

impl<Req> ChooseAccess<Req> for AlwaysWrite {
    fn access(&self, _: &Req) -> Access {
        Access::Write
    }
}

impl<K> RwLockLayer<K> {
    /// Handles requests under locks of a namespace, each by its key.
    #[must_use]
    pub fn new(lock: RwLock, key: K) -> Self {
        let provide = Locks { lock, access: AlwaysWrite, longest_wait: None };
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

impl<K, A, H, N, R> RwLockLayer<K, A, H, N, R> {
    /// Whether a request reads or writes, by a closure from `&Req` to [`Access`].
    #[must_use]
    pub fn access<A2>(self, access: A2) -> RwLockLayer<K, A2, H, N, R> {
        let config = self.config.provide(|Locks { lock, access: _, longest_wait }| Locks {
            lock,
            access,
            longest_wait,
        });
        RwLockLayer { config }
    }

    /// Lets requests wait for their turn up to this long. How many may wait is the lock's
    /// [`longest_queue`](crate::rw_lock::RwLockBuilder::longest_queue).
    #[must_use]
    pub fn wait_up_to(mut self, longest: Duration) -> Self {
        self.config.provide.longest_wait = Some(longest);
        self
    }
}

settings!(RwLockLayer<K, A>);

impl<Req, A: ChooseAccess<Req>> sealed::Provide<Req> for Locks<A> {
    #[allow(private_interfaces)]
    fn lease(&self, key: Key, request: &Req) -> Leasing {
        let (lock, access) = (self.lock.clone(), self.access.access(request));
        let wait = self.longest_wait.map(|longest| Wait { longest: Some(longest), ..lock.wait() });
        Box::pin(async move { lock.acquire(key, access, wait).await.map(Some) })
    }
}

impl<S, K, A, H, N, R> Layer<S> for RwLockLayer<K, A, H, N, R>
where
    K: Clone,
    A: Clone,
    H: Clone,
    N: Clone,
    R: Clone,
{
    type Service = RwLocked<S, K, A, H, N, R>;

    fn layer(&self, inner: S) -> Self::Service {
        Leased::new(inner, self.config.clone())
    }
}
