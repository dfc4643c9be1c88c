//! The lease of a request, for its handler to take along.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use crate::Lease;
use crate::store::lock;

/// Has the [`Lease`] of a request while the layer holds it, so that the handler can take it along: into a task that goes on
/// after the response, such as the one that serves an upgraded connection.
///
/// `web::InsertLease` puts it among the extensions of the request. Outside of HTTP it comes by
/// [`OnLease::on_slot`](super::OnLease::on_slot). Clones are of the same slot. A slot holds nothing: the layer
/// releases the lease when it would without one.
///
/// ```
/// use axum::{Extension, Router, routing::post};
/// use http::{Request, StatusCode};
/// use tower::ServiceExt;
/// use tower_distributed::lease::LeaseSlot;
/// use tower_distributed::{Store, WaitGroup, extract, web};
///
/// /// Answers at once, and holds the permit until the work is done.
/// async fn start(Extension(slot): Extension<LeaseSlot>) -> StatusCode {
///     let lease = slot.take();
///     tokio::spawn(async move {
///         work().await;
///         drop(lease); // released; `Lease::release` also says whether it was still held
///     });
///     StatusCode::ACCEPTED
/// }
/// # async fn work() { std::future::pending().await }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let jobs = WaitGroup::new(&Store::in_memory(), "jobs", 2)?;
/// let limit = web::concurrency_limit(jobs.clone(), extract::path());
/// let app: Router = Router::new().route("/jobs", post(start)).layer(limit);
///
/// let response = app.oneshot(Request::post("/jobs").body(axum::body::Body::empty())?).await?;
/// assert_eq!(response.status(), StatusCode::ACCEPTED);
/// drop(response);
/// assert_eq!(jobs.count("/jobs").await?, 1);
/// # Ok(()) }
/// ```
///
/// # Upgrades
///
/// The layer releases the lease of a WebSocket or of another upgraded connection with the head of the response. A handler
/// that takes it along holds it until the connection is closed:
///
/// ```
/// use axum::{Extension, Router, extract::Request, response::IntoResponse, routing::get};
/// use http::{StatusCode, header};
/// use tower_distributed::lease::LeaseSlot;
/// use tower_distributed::{Store, WaitGroup, extract, web};
///
/// async fn chat(Extension(slot): Extension<LeaseSlot>, mut request: Request) -> impl IntoResponse {
///     let lease = slot.take();
///     let upgrade = hyper::upgrade::on(&mut request); // or axum's WebSocketUpgrade::on_upgrade
///     tokio::spawn(async move {
///         let _lease = lease; // until the connection has been served, or could not be upgraded
///         if let Ok(connection) = upgrade.await {
///             serve(connection).await;
///         }
///     });
///     (StatusCode::SWITCHING_PROTOCOLS, [(header::CONNECTION, "upgrade"), (header::UPGRADE, "chat")])
/// }
/// # async fn serve(connection: hyper::upgrade::Upgraded) {}
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let chats = WaitGroup::new(&Store::in_memory(), "chats", 1000)?;
/// let limit = web::concurrency_limit(chats, |_: &Request| "all");
/// let app: Router = Router::new().route("/chat", get(chat)).layer(limit);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LeaseSlot(Weak<Mutex<Option<Lease>>>);

impl LeaseSlot {
    /// Takes the lease: from here on the layer neither holds nor watches it, and it is released when the caller releases
    /// or drops it. `None` where it was taken before, or the layer does not hold it any more: the inner service has
    /// answered, failed or been dropped.
    ///
    /// A handler that still wants to hear of the loss of the lease awaits [`Lease::lost`].
    #[must_use = "a lease that is dropped is released"]
    pub fn take(&self) -> Option<Lease> {
        lock(&*self.0.upgrade()?).take()
    }
}

impl fmt::Debug for LeaseSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseSlot").finish_non_exhaustive()
    }
}

/// The lease of a request while the inner service is at work, unless it was taken.
pub(super) struct Slotted(Arc<Mutex<Option<Lease>>>);

impl Slotted {
    pub(super) fn new(lease: Lease) -> Self {
        Self(Arc::new(Mutex::new(Some(lease))))
    }

    pub(super) fn slot(&self) -> LeaseSlot {
        LeaseSlot(Arc::downgrade(&self.0))
    }

    pub(super) fn is_taken(&self) -> bool {
        lock(&self.0).is_none()
    }

    pub(super) fn into_lease(self) -> Option<Lease> {
        lock(&self.0).take()
    }
}
