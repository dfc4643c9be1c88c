//! How long a response holds its lease.

use crate::Lease;

/// Decides how long the lease of a request is held after the response is returned.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot hold a lease with a response `{Res}`",
    note = "`UntilResponse` holds the lease until a response is returned; `response::UntilBodyEnd` needs an `http::Response`"
)]
pub trait Hold<Res> {
    /// The response that the layer returns.
    type Response;

    /// Attaches the lease to the response, or drops it.
    ///
    /// `lease` is `None` if the request passed without a lease, or if the handler has taken it.
    fn hold(&self, response: Res, lease: Option<Lease>) -> Self::Response;
}

/// Holds the lease until the response is returned. The default outside of HTTP.
///
/// The layers of `web` hold a lease to the end of the body, unless `until_response` is called:
///
/// ```
/// use axum::{Router, routing::get};
/// use tower_distributed::{Store, WaitGroup, extract, web};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// // Limits the work until the head of the response; the body streams without a permit.
/// let searches = WaitGroup::new(&Store::in_memory(), "searches", 2)?;
/// let limit = web::concurrency_limit(searches, extract::client_ip()).until_response();
/// let app: Router = Router::new().route("/search", get(async || "all of it")).layer(limit);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct UntilResponse;

impl<Res> Hold<Res> for UntilResponse {
    type Response = Res;

    fn hold(&self, response: Res, lease: Option<Lease>) -> Res {
        drop(lease);
        response
    }
}
