//! What a source of leases notes of the requests that have them.

use crate::Lease;

/// Notes something of each request while it is handled. It does not depend on the types of requests and responses, for the
/// same reason as [`Holds`](super::Holds).
pub trait Observes {
    /// What is noted. Dropped if the request does not end with an outcome.
    type Sample;
}

/// Observes the outcomes of requests.
pub trait Observe<Req, Res, E>: Observes {
    /// A request has its lease, and is about to be handled. Returns the request that is.
    fn began(&self, lease: &Lease, request: Req) -> (Self::Sample, Req);

    /// The inner service has answered.
    fn ended(&self, sample: Self::Sample, outcome: &Result<Res, E>);
}

/// A source that observes nothing.
pub trait Unobserved {}

impl<T: Unobserved> Observes for T {
    type Sample = ();
}

impl<T: Unobserved, Req, Res, E> Observe<Req, Res, E> for T {
    fn began(&self, _: &Lease, request: Req) -> ((), Req) {
        ((), request)
    }

    fn ended(&self, (): (), _: &Result<Res, E>) {}
}
