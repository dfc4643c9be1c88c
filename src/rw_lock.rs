//! A distributed reader-writer lock per key: readers share it, a writer is alone.
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
//! # What holds
//!
//! A writer is never beside anybody. Every reader has a lease of its own, so a crashed one frees only itself, and a
//! writer's intent is its place in the queue, which dies with it. A writer that waits stops new readers, unless
//! [`Prefer::Readers`] is set; but after [`most_writers`](RwLockBuilder::most_writers) in a row that went before
//! readers that waited, these readers go first, so neither starves.
//!
//! Readers may come in [groups](RwLock::with_group): those of one group share, groups exclude each other.
//!
//! # Coming from redis-rwlock (e-chip)
//!
//! | there | here |
//! |---|---|
//! | `New(client, prefix, Options{})` | [`RwLock::new`]`(&store, name)`; the key is an argument of each call |
//! | `Read(ctx, fn)`, `Write(ctx, fn)` | [`read`](RwLock::read), [`write`](RwLock::write): guards |
//! | `LockTTL`, refreshed every half of it | [`ttl`](RwLockBuilder::ttl), renewed every third of it |
//! | `RetryCount` × `RetryInterval` | [`max_wait`](RwLockBuilder::max_wait): nobody retries, who waits is woken |
//! | `AppID` | [`app_id`](RwLockBuilder::app_id) |
//! | `ReaderLockToken` | [`with_group`](RwLock::with_group) |
//! | the mode option, which does nothing | [`prefer`](RwLockBuilder::prefer) |
//! | `ErrTimeout` | [`Error::is_waited_too_long`](crate::Error::is_waited_too_long) |
//! | `ErrInterrupted` | drop the future; or [`close`](RwLock::close), and [`Error::is_interrupted`](crate::Error::is_interrupted) |
//! | `ErrNotReleased` | [`release`](RwLockWriteGuard::release) says `false` |
//! | hash tags in the prefix, for a Cluster | by itself |
//!
//! # The layer
//!
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
//! ## What it asks
//!
//! The [key](crate::KeyExtractor) by a closure or function; `None` lets a request pass. Whether it reads or writes by
//! [`access`](RwLockLayer::access): it writes unless set; `web::rw_lock` goes by the method. A request that cannot be
//! admitted now is refused, unless it may [wait](RwLockLayer::max_wait).
//!
//! ## While the lock is held
//!
//! It is held until there is a response, or with `response::UntilBodyEnd` until the end of its body. What the handler gets
//! by [`on_lease`](RwLockLayer::on_lease) has the fencing token, which whatever it writes to should check, and tells
//! when the lock is lost. Then, until there is a response, the inner future is dropped, unless
//! [`cancel_when_lost`](RwLockLayer::cancel_when_lost) is off, and the request refused as
//! [`LeaseLost`](crate::RefusalKind::LeaseLost). Once there is a response, its body goes on when the lock is lost;
//! `response::LeaseEnd::Abort` ends it with an error.
//!
//! `response::UntilBodyEnd` releases the lock of a body that makes no progress for 60 s, and can set a maximum. The lock of an
//! upgraded connection (WebSocket, CONNECT) is released with the head of the response. A handler can take its lock along
//! and hold it for longer: see [`LeaseSlot`](crate::lease::LeaseSlot).
//!
//! ## When the store is away
//!
//! Requests are refused: a lock that cannot be had is not had, and nothing stands in for it.
//!
//! ## Readiness
//!
//! As of [`concurrency_limit`](crate::wait_group#readiness).

pub use crate::layer::rw_lock::*;
pub use crate::primitive::rw_lock::*;
