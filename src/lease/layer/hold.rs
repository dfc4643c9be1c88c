//! How long a response holds its lease.

use std::convert::Infallible;
use std::task::{Context, Poll};

use super::slot::Slotted;
use super::{Acquiring, Finish, Holds, LeaseLayer, Lifecycle, Next, Observe, Observes, Provide};
use crate::{Extracted, Lease};

/// Leases that are acquired from `A`, and held as `H` says. See [`LeaseLayer`].
#[derive(Clone)]
pub struct Leased<A, H = UntilResponse> {
    pub(crate) from: A,
    pub(crate) hold: H,
}

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

impl<A> Leased<A> {
    pub(crate) fn of(from: A) -> Self {
        Self {
            from,
            hold: UntilResponse,
        }
    }
}

impl<A: Observes, H> Holds for Leased<A, H> {
    type Granted = Lease;
    type Guard = (Slotted, A::Sample);
    type Held = (Option<Lease>, A::Sample);
    type Finishing = Infallible;
}

impl<Req, Res, E, A, H> Lifecycle<Req, Res, E> for Leased<A, H>
where
    A: Provide<Req> + Observe<Req, Res, E>,
    H: Hold<Res>,
{
    type Response = H::Response;

    fn acquire<R>(
        layer: &LeaseLayer<Req, Self, R>,
        key: Extracted,
        request: &Req,
    ) -> Acquiring<Lease> {
        layer.provide.from.lease(key, request, layer.max_wait)
    }

    fn admit<R>(
        layer: &LeaseLayer<Req, Self, R>,
        lease: Lease,
        request: Req,
    ) -> Next<Lease, Self::Guard, Req, H::Response> {
        let (sample, mut request) = layer.provide.from.began(&lease, request);
        if layer.on_lease.is_empty() {
            let handle = layer.cancel_when_lost.then(|| lease.handle());
            return Next::Call(Some(((Slotted::Kept(lease), sample), handle)), request);
        }
        let (guard, handle) = Slotted::new(lease);
        layer
            .on_lease
            .iter()
            .for_each(|told| told.on_lease(&handle, &mut request));
        Next::Call(
            Some(((guard, sample), layer.cancel_when_lost.then_some(handle))),
            request,
        )
    }

    fn is_taken((guard, _): &Self::Guard) -> bool {
        guard.is_taken()
    }

    fn close((guard, sample): Self::Guard) -> Option<Self::Held> {
        Some((guard.into_lease(), sample))
    }

    fn finish<R>(
        layer: &LeaseLayer<Req, Self, R>,
        held: Option<Self::Held>,
        outcome: Result<Res, E>,
    ) -> Finish<Infallible, H::Response, E> {
        let (lease, sample) = held.unzip();
        if let Some(sample) = sample {
            Observe::<Req, Res, E>::ended(&layer.provide.from, sample, &outcome);
        }
        let lease = lease.flatten();
        Finish::Now(outcome.map(|response| layer.provide.hold.hold(response, lease)))
    }

    fn poll_finish(never: &mut Infallible, _: &mut Context<'_>) -> Poll<Result<H::Response, E>> {
        match *never {}
    }
}

debug!(Leased<A: std::fmt::Debug, H>, from);
