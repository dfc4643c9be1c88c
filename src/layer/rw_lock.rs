//! The layer that handles requests under reader-writer locks. See the public module `rw_lock`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::layer::leased::{Acquire, Config, Leased, Leasing, Provide, UntilResponse, settings};
use crate::primitive::lease::Wait;
use crate::primitive::rw_lock::Access;
use crate::telemetry::Decisions;
use crate::{AsError, Extracted, Key, KeyExtractor, RwLock};

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
pub struct RwLockLayer<Req, H = UntilResponse, R = AsError> {
    config: Config<Req, Locks<Req>, H, R>,
}

/// Acquires the locks of requests.
struct Locks<Req> {
    lock: RwLock,
    /// `None`: every request writes.
    access: Option<Arc<dyn ChooseAccess<Req> + Send + Sync>>,
    max_wait: Option<Duration>,
}

/// Decides whether a request reads or writes. Functions and closures from `&Req` to [`Access`] implement it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not decide whether a `{Req}` reads or writes",
    note = "pass a closure with a typed argument that returns `Access`: `|request: &Request| Access::Read`"
)]
pub trait ChooseAccess<Req> {
    /// Returns how the request uses the lock.
    fn access(&self, request: &Req) -> Access;
}

impl<Req, F: Fn(&Req) -> Access> ChooseAccess<Req> for F {
    fn access(&self, request: &Req) -> Access {
        self(request)
    }
}

impl<Req> RwLockLayer<Req> {
    /// Creates a layer that handles each request under the lock of its key.
    #[must_use]
    pub fn new(lock: RwLock, key: impl KeyExtractor<Req> + Send + Sync + 'static) -> Self {
        Self { config: Config::new(Arc::new(key), Locks { lock, access: None, max_wait: None }) }
    }
}

impl<Req, H, R> RwLockLayer<Req, H, R> {
    /// Sets a closure from `&Req` to [`Access`] that decides whether a request reads or writes. Default: every
    /// request writes.
    #[must_use]
    pub fn access(mut self, access: impl ChooseAccess<Req> + Send + Sync + 'static) -> Self {
        self.config.provide.access = Some(Arc::new(access));
        self
    }

    /// Sets how long a request waits for its lock. Default: it does not wait.
    ///
    /// [`max_waiters`](crate::rw_lock::RwLockBuilder::max_waiters) limits the number of waiting requests.
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.config.provide.max_wait = Some(max_wait);
        self
    }
}

settings!(RwLockLayer);

impl<Req> Provide<Req> for Locks<Req> {
    fn lease(&self, key: Extracted, request: &Req) -> Leasing {
        let access = self.access.as_ref().map_or(Access::Write, |access| access.access(request));
        let wait = self.max_wait.map(|max_wait| Wait { max_wait: Some(max_wait), ..self.lock.wait() });
        Leasing::new(&self.lock, key, (access, wait))
    }
}

impl Acquire for RwLock {
    type Asked = (Access, Option<Wait>);

    fn decisions(&self) -> &Decisions {
        self.decisions()
    }

    fn is_immediate(&self, (_, wait): Self::Asked) -> bool {
        self.is_in_memory() && wait.is_none()
    }

    async fn take(&self, key: Key, (access, wait): Self::Asked) -> Leased {
        self.acquire(key, access, wait).await.map(Some)
    }
}

impl<Req> Clone for Locks<Req> {
    fn clone(&self) -> Self {
        Self { lock: self.lock.clone(), access: self.access.clone(), max_wait: self.max_wait }
    }
}

impl<Req> fmt::Debug for Locks<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("lock", &self.lock).finish_non_exhaustive()
    }
}
