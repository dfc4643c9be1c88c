//! Until when a lease is held.

use crate::Lease;

/// Decides until when the lease of a request is held, once there is a response.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot hold a lease with a response `{Res}`",
    note = "`UntilResponse` holds the lease until there is any response; `response::UntilBodyEnd` needs an `http::Response`"
)]
pub trait Hold<Res> {
    /// What becomes of the response.
    type Response;

    /// Keeps the lease with the response, or drops it.
    fn hold(&self, response: Res, lease: Option<Lease>) -> Self::Response;
}

/// Until there is a response: the default outside of HTTP.
#[derive(Clone, Copy, Debug, Default)]
pub struct UntilResponse;

impl<Res> Hold<Res> for UntilResponse {
    type Response = Res;

    fn hold(&self, response: Res, lease: Option<Lease>) -> Res {
        drop(lease);
        response
    }
}
