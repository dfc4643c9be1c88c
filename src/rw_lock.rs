//! A distributed reader-writer lock for each key: readers share the lock, a writer holds it alone.
//!
//! ```
//! use tower_distributed::{RwLock, Store};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let documents = RwLock::new(&store, "documents")?;
//!
//! let (first, second) = (documents.read("42").await?, documents.read("42").await?);
//! assert!(documents.try_write("42").await.unwrap_err().is_refused());
//! drop((first, second));
//!
//! let writer = documents.write("42").await?;
//! println!("writing with fence {}", writer.fence());
//! assert!(writer.release().await?);
//! # Ok(()) }
//! ```
//!
//! # Guarantees
//!
//! A writer never holds the lock together with a reader or another writer. Each reader has its own lease, so a
//! crashed reader does not release the leases of others. A waiting writer exists only as a place in the queue. If
//! the writer crashes, the place expires.
//!
//! A waiting writer stops new readers, unless [`Prefer::Readers`] is set. After
//! [`most_writers`](RwLockBuilder::most_writers) writers in a row have passed waiting readers, the waiting readers
//! are served first. So neither readers nor writers starve. With [`Prefer::Readers`], writers can starve.
//!
//! Readers can have a [group](RwLock::with_group): readers of the same group share the lock, and groups exclude each
//! other.
//!
//! # Coming from redis-rwlock (e-chip)
//!
//! | there | here |
//! |---|---|
//! | `New(client, prefix, Options{})` | [`RwLock::new`]`(&store, name)`; the key is an argument of each call |
//! | `Read(ctx, fn)`, `Write(ctx, fn)` | [`read`](RwLock::read), [`write`](RwLock::write): they return guards |
//! | `LockTTL`, refreshed every half of it | [`ttl`](RwLockBuilder::ttl), renewed every third of it |
//! | `RetryCount` × `RetryInterval` | [`max_wait`](RwLockBuilder::max_wait): waiters are woken and do not retry |
//! | `AppID` | [`app_id`](RwLockBuilder::app_id) |
//! | `ReaderLockToken` | [`with_group`](RwLock::with_group) |
//! | the mode option, which has no effect | [`prefer`](RwLockBuilder::prefer) |
//! | `ErrTimeout` | [`Error::is_waited_too_long`](crate::Error::is_waited_too_long) |
//! | `ErrInterrupted` | drop the future; or [`close`](RwLock::close), and [`Error::is_interrupted`](crate::Error::is_interrupted) |
//! | `ErrNotReleased` | [`release`](RwLockWriteGuard::release) returns `false` |
//! | hash tags in the prefix, for a Cluster | automatic |
//!
//! # The layer
//!
//! [`RwLockLayer`] handles requests that read the same key concurrently, and a request that writes alone, across all
//! processes.
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
//! ## Key, access and waiting
//!
//! A closure or function [names the key](crate::KeyExtractor) of a request. A request without a key (`None`) passes
//! without a lock; one without a part of its key, such as a header field, is refused. [`access`](RwLockLayer::access) decides whether a request reads or writes; by default, every
//! request writes. `web::rw_lock` decides by the HTTP method. If the lock is not free, the request is refused
//! immediately, unless [`max_wait`](RwLockLayer::max_wait) is set.
//!
//! ## While the lock is held
//!
//! The layer holds the lock until the response is returned, or with `response::UntilBodyEnd` until the end of the
//! response body. [`on_lease`](RwLockLayer::on_lease) gives the handler a [`LeaseHandle`](crate::LeaseHandle). The
//! handle has the fencing token, which every resource that the handler writes to should check. It also signals the
//! loss of the lock.
//!
//! If the lock is lost before the response is returned, the layer drops the inner future and refuses the request as
//! [`LeaseLost`](crate::RefusalKind::LeaseLost). [`cancel_when_lost(false)`](RwLockLayer::cancel_when_lost) turns
//! this off. If the lock is lost later, the response body continues. `response::LeaseEnd::Abort` ends the body with
//! an error instead.
//!
//! `response::UntilBodyEnd` releases the lock if the body makes no progress for 60 s. It can also limit the total
//! time. The lock of an upgraded connection (WebSocket, CONNECT) is released with the head of the response. A
//! handler can take its lock and hold it for longer: see [`LeaseSlot`](crate::lease::LeaseSlot).
//!
//! ## When the store is unavailable
//!
//! The layer fails closed: requests are refused. There is no setting for this, because nothing can replace the lock.
//!
//! ## Readiness
//!
//! The same as for [`ConcurrencyLimitLayer`](crate::wait_group#readiness).

pub use crate::layer::rw_lock::*;
pub use crate::primitive::rw_lock::*;
