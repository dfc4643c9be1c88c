//! The layer that handles requests under reader-writer locks. See the public module `rw_lock`.

use std::sync::Arc;
use std::time::Duration;

use derive_where::derive_where;

use crate::key::Key;
use crate::layers::Choose;
use crate::layers::key::{Extracted, KeyExtractor};
use crate::layers::lease::{
    Acquire, Acquired, Acquiring, LeaseLayer, Leased, Provide, Unobserved, UntilResponse, acquire,
};
use crate::layers::refusal::AsError;
use crate::lease::handle::Lease;
use crate::lease::waiter::Patience;
use crate::macros::setters;
use crate::rw_lock::{Access, RwLock};
use crate::telemetry::counters::Decisions;

/// A [`Layer`](tower_layer::Layer) that handles each request under a reader-writer lock.
///
/// See the [module](crate::rw_lock) for details.
///
/// The type parameters are the request type, [how long](Self::hold) a lock is held, and how
/// [refusals](Self::reject_with) are returned.
///
/// ```
/// use std::time::Duration;
/// use tower::{Layer, Service, ServiceExt, service_fn};
/// use tower_distributed::rw_lock::Access;
/// use tower_distributed::{Refusal, RwLock, RwLockLayer, Store};
///
/// struct Edit { document: u64, text: Option<String> }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
/// let documents = RwLock::new(&Store::in_memory(), "documents")?;
/// let lock = RwLockLayer::new(documents.clone(), |edit: &Edit| edit.document)
///     .access(|edit: &Edit| if edit.text.is_some() { Access::Write } else { Access::Read })
///     .max_wait(Duration::from_millis(10))
///     .cancel_when_lost(false) // the database refuses an old fencing token, so the handler may finish
///     .reject_with(|_: Refusal| "try again later");
/// let mut edit = lock.layer(service_fn(async |_: Edit| Ok::<_, std::io::Error>("done")));
///
/// let _reader = documents.read(42).await?; // for example in another process
/// assert_eq!(edit.ready().await?.call(Edit { document: 42, text: None }).await?, "done");
/// let write = Edit { document: 42, text: Some("hello".into()) };
/// assert_eq!(edit.ready().await?.call(write).await?, "try again later");
/// # Ok(()) }
/// ```
pub type RwLockLayer<Req, H = UntilResponse, R = AsError> =
    LeaseLayer<Req, Leased<RequestLocks<Req>, H>, R>;

/// The locks of the requests of a [`RwLockLayer`].
#[derive_where(Clone)]
pub struct RequestLocks<Req> {
    lock: RwLock,
    /// `None`: every request writes.
    access: Option<Choose<Req, Access>>,
}

impl<Req> RwLockLayer<Req> {
    /// Creates a layer that handles each request under the lock of its key.
    #[must_use]
    pub fn new(lock: RwLock, key: impl KeyExtractor<Req> + Send + Sync + 'static) -> Self {
        Self::of(Leased::of(RequestLocks { lock, access: None }), key).cancel_when_lost(true)
    }
}

setters! { RwLockLayer<Req, H, R>:
    /// Sets a closure from `&Req` to [`Access`] that decides whether a request reads or writes. Default: every
    /// request writes.
    #[must_use]
    fn access(access: impl Fn(&Req) -> Access + Send + Sync + 'static)
        => provide.from.access = Some(Arc::new(access));
}

impl<Req> Unobserved for RequestLocks<Req> {}

impl<Req> Provide<Req> for RequestLocks<Req> {
    fn lease(&self, key: Extracted, request: &Req, max_wait: Option<Duration>) -> Acquiring<Lease> {
        let access = self
            .access
            .as_ref()
            .map_or(Access::Write, |access| access(request));
        acquire(&self.lock, key, access, max_wait)
    }
}

impl Acquire for RwLock {
    type Asked = Access;
    type Granted = Lease;

    fn decisions(&self) -> &Decisions {
        &self.decisions
    }

    fn is_in_memory(&self) -> bool {
        self.leases.namespace.store.is_in_memory()
    }

    async fn acquire(
        &self,
        key: Key,
        access: Access,
        max_wait: Option<Duration>,
    ) -> Acquired<Lease> {
        let wait = max_wait.map(|max_wait| Patience {
            max_wait: Some(max_wait),
            ..self.settings.wait
        });
        self.acquire(key, access, wait).await.map(Some)
    }
}

debug!(RequestLocks<Req>, lock);
