//! Requests that are handled under a lease: what [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer),
//! [`MutexLayer`](crate::MutexLayer) and [`RwLockLayer`](crate::RwLockLayer) share.

mod future;
mod hold;
mod service;
mod slot;

use std::fmt;
use std::future::Future;
use std::pin::Pin;

pub use self::future::ResponseFuture;
pub use self::hold::{Hold, UntilResponse};
pub use self::service::Leased;
pub use self::slot::LeaseSlot;

use crate::telemetry::Outcome;
use crate::{Error, Key, Lease, LeaseHandle};

/// A lease under way; `None`: let through without one.
pub(crate) type Leasing = Pin<Box<dyn Future<Output = Result<Option<Lease>, Error>> + Send>>;

/// Gets leases for requests. Sealed: what the layers of this crate are made of.
pub trait Provide<Req>: sealed::Provide<Req> {}

impl<Req, P: sealed::Provide<Req>> Provide<Req> for P {}

pub(crate) mod sealed {
    use super::{Key, Leasing};

    pub trait Provide<Req> {
        #[doc(hidden)]
        #[allow(private_interfaces)]
        fn lease(&self, key: Key, request: &Req) -> Leasing;
    }
}

/// Sees a request that has its lease before the inner service does. Functions and closures of
/// `(&LeaseHandle, &mut Req)` do; `()` does nothing.
pub trait OnLease<Req> {
    /// Called with what watches the lease.
    fn on_lease(&self, lease: &LeaseHandle, request: &mut Req);

    /// Called instead where the inner service may also take the lease along: by
    /// [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer), [`MutexLayer`](crate::MutexLayer) and
    /// [`RwLockLayer`](crate::RwLockLayer). Calls
    /// [`on_lease`](Self::on_lease) unless implemented.
    fn on_slot(&self, lease: &LeaseHandle, _slot: &LeaseSlot, request: &mut Req) {
        self.on_lease(lease, request);
    }
}

impl<Req> OnLease<Req> for () {
    fn on_lease(&self, _: &LeaseHandle, _: &mut Req) {}
}

impl<Req, F: Fn(&LeaseHandle, &mut Req)> OnLease<Req> for F {
    fn on_lease(&self, lease: &LeaseHandle, request: &mut Req) {
        self(lease, request);
    }
}

/// What is done while the store gives no answer; `L` stands in for it in the process.
#[derive(Clone, Debug)]
pub(crate) enum Away<L> {
    FailClosed,
    FailOpen,
    LocalShare(L),
}

impl<L> Away<L> {
    /// What comes of asking, where the store is away by `local`. `None`: let through without a lease.
    pub(crate) async fn settle<T, F: Future<Output = Result<T, Error>>>(
        self,
        asked: Result<T, Error>,
        local: impl FnOnce(L, Error) -> F,
    ) -> Result<(Option<T>, Outcome), Error> {
        match (asked, self) {
            (Err(error), Self::FailOpen) if error.is_away() => Ok((None, Outcome::FailedOpen)),
            (Err(error), Self::LocalShare(share)) if error.is_away() => {
                local(share, error).await.map(|lease| (Some(lease), Outcome::LocalShare))
            }
            (asked, _) => asked.map(|lease| (Some(lease), Outcome::Admitted)),
        }
    }
}

/// All that a service needs to know; shared by its clones.
#[derive(Clone)]
pub(crate) struct Config<K, P, H, N, R> {
    pub(crate) key: K,
    pub(crate) provide: P,
    pub(crate) hold: H,
    pub(crate) on_lease: N,
    pub(crate) reject: R,
    pub(crate) cancel_when_lost: bool,
}

impl<K, P, H, N, R> Config<K, P, H, N, R> {
    pub(crate) fn hold<H2>(self, hold: H2) -> Config<K, P, H2, N, R> {
        let Self { key, provide, hold: _, on_lease, reject, cancel_when_lost } = self;
        Config { key, provide, hold, on_lease, reject, cancel_when_lost }
    }

    pub(crate) fn on_lease<N2>(self, on_lease: N2) -> Config<K, P, H, N2, R> {
        let Self { key, provide, hold, on_lease: _, reject, cancel_when_lost } = self;
        Config { key, provide, hold, on_lease, reject, cancel_when_lost }
    }

    pub(crate) fn reject<R2>(self, reject: R2) -> Config<K, P, H, N, R2> {
        let Self { key, provide, hold, on_lease, reject: _, cancel_when_lost } = self;
        Config { key, provide, hold, on_lease, reject, cancel_when_lost }
    }

    pub(crate) fn provide<P2>(self, map: impl FnOnce(P) -> P2) -> Config<K, P2, H, N, R> {
        let Self { key, provide, hold, on_lease, reject, cancel_when_lost } = self;
        Config { key, provide: map(provide), hold, on_lease, reject, cancel_when_lost }
    }
}

impl<K, P: fmt::Debug, H, N, R> fmt::Debug for Config<K, P, H, N, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("provide", &self.provide).finish_non_exhaustive()
    }
}

/// The settings that all layers of this kind have.
macro_rules! settings {
    ($layer:ident<K, $($own:ident),*>) => {
        impl<K, $($own,)* H, N, R> $layer<K, $($own,)* H, N, R> {
            /// Until when the lease is held, by a [`Hold`](crate::leased::Hold). For HTTP there is
            /// `http::UntilBodyEnd`, with limits for bodies that stall or last too long.
            #[must_use]
            pub fn hold<H2>(self, hold: H2) -> $layer<K, $($own,)* H2, N, R> {
                $layer { config: self.config.hold(hold) }
            }

            /// Holds the lease until there is a response, and no longer: to the head, where it has a body.
            #[must_use]
            pub fn until_response(self) -> $layer<K, $($own,)* crate::leased::UntilResponse, N, R> {
                self.hold(crate::leased::UntilResponse)
            }

            /// Shows requests that have their lease what watches it, by a closure of `(&LeaseHandle, &mut Req)`: its
            /// fencing token, and when it is lost. For HTTP there is `http::InsertLease`, which also lets the handler
            /// [take the lease along](crate::leased::LeaseSlot).
            #[must_use]
            pub fn on_lease<N2>(self, on_lease: N2) -> $layer<K, $($own,)* H, N2, R> {
                $layer { config: self.config.on_lease(on_lease) }
            }

            /// Makes refusals responses, by a closure from [`Refusal`](crate::Refusal) to the response, or another
            /// [`Reject`](crate::Reject). The service's error is then the inner service's. For HTTP there is
            /// `http::refuse()`, for gRPC `grpc::refuse()`.
            #[must_use]
            pub fn reject_with<R2>(self, reject: R2) -> $layer<K, $($own,)* H, N, R2> {
                $layer { config: self.config.reject(reject) }
            }

            /// Whether the inner service's future is dropped when the lease is lost, and the request refused as
            /// [`LeaseLost`](crate::RefusalKind::LeaseLost). Ends with the response: for its body there is
            /// `http::LeaseEnd::Abort`. A lease that the handler has [taken along](crate::leased::LeaseSlot) is not
            /// watched.
            #[must_use]
            pub fn cancel_when_lost(mut self, cancel: bool) -> Self {
                self.config.cancel_when_lost = cancel;
                self
            }
        }
    };
}
pub(crate) use settings;
