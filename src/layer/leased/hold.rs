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
#[derive(Clone, Copy, Debug, Default)]
pub struct UntilResponse;

impl<Res> Hold<Res> for UntilResponse {
    type Response = Res;

    fn hold(&self, response: Res, lease: Option<Lease>) -> Res {
        drop(lease);
        response
    }
}
