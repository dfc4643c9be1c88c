//! The slot from which a handler can take the lease of its request.

use std::sync::{Arc, Mutex, Weak};

use crate::Lease;
use crate::sync::lock;

/// A slot from which a handler can take the [`Lease`] of its request while the layer holds it.
///
/// A handler takes the lease to hold it for longer than the layer does, for example in a task that serves an upgraded
/// connection.
///
/// `web::InsertLease` adds the slot to the extensions of the request. Outside of HTTP,
/// [`OnLease::on_slot`](super::OnLease::on_slot) provides it. Clones share the slot. A slot does not hold the
/// lease: if the lease is not taken, the layer releases it as usual.
///
/// ```
/// use axum::{Extension, Router, routing::post};
/// use http::{Request, StatusCode};
/// use tower::ServiceExt;
/// use tower_distributed::lease::LeaseSlot;
/// use tower_distributed::{Store, WaitGroup, extract, web};
///
/// /// Responds immediately, and holds the permit until the work is done.
/// async fn start(Extension(slot): Extension<LeaseSlot>) -> StatusCode {
///     let lease = slot.take();
///     tokio::spawn(async move {
///         work().await;
///         drop(lease); // releases it; `Lease::release` also returns whether it was still held
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
/// The layer releases the lease of a WebSocket or another upgraded connection with the head of the response. A
/// handler can take the lease and hold it until the connection is closed:
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
///         let _lease = lease; // held until the connection ends, or the upgrade fails
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
    /// Takes the lease. The layer no longer holds or watches it, and the caller must release or drop it.
    ///
    /// Returns `None` if the lease was taken before, or if the layer no longer holds it because the inner service has
    /// responded, failed or been dropped.
    ///
    /// To detect the loss of the lease, await [`lost`](crate::LeaseHandle::lost).
    #[must_use = "a lease that is dropped is released"]
    pub fn take(&self) -> Option<Lease> {
        lock(&*self.0.upgrade()?).take()
    }
}

debug!(LeaseSlot);

/// The lease of a request while the inner service runs, unless the handler has taken it.
#[derive(Debug)]
pub enum Slotted {
    /// Nobody can take it.
    Kept(Lease),
    Slot(Arc<Mutex<Option<Lease>>>),
}

impl Slotted {
    pub(super) fn new(lease: Lease) -> (Self, LeaseSlot) {
        let shared = Arc::new(Mutex::new(Some(lease)));
        let slot = LeaseSlot(Arc::downgrade(&shared));
        (Self::Slot(shared), slot)
    }

    pub(super) fn is_taken(&self) -> bool {
        matches!(self, Self::Slot(slot) if lock(slot).is_none())
    }

    pub(super) fn into_lease(self) -> Option<Lease> {
        match self {
            Self::Kept(lease) => Some(lease),
            Self::Slot(slot) => lock(&slot).take(),
        }
    }
}
