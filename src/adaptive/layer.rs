//! A concurrency limit whose limit adapts.

use std::time::Duration;

use tokio::time::Instant;

use crate::adaptive::client_time::{Client, ServiceTime};
use crate::adaptive::table::AdaptiveLimits;
use crate::adaptive::{Adaptive, Classify, Signal};
use crate::error::Error;
use crate::key::Key;
use crate::layers::concurrency_limit::{ConcurrencyLimitLayer, RequestPermits};
use crate::layers::lease::{Leased, Observe, Observes};
use crate::lease::handle::Lease;

impl<Req, H, R> ConcurrencyLimitLayer<Req, H, R> {
    /// Adapts the limit of each key to the capacity of the inner service, for all processes together. The limit of the
    /// WaitGroup is the start value.
    ///
    /// A [`limit`](Self::limit) that is chosen for a request is an upper bound: the lower one applies. A request that
    /// weighs more than the limit at that time takes all of it. See the [module](crate::wait_group#adaptive-limits).
    ///
    /// ```
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_distributed::wait_group::{Adaptive, Signal};
    /// use tower_distributed::{ConcurrencyLimitLayer, Store, WaitGroup};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
    /// let searches = WaitGroup::new(&Store::in_memory(), "searches", 10)?;
    /// let adaptive = Adaptive::aimd().min(2).max(100).classify(|answer: &Result<&str, std::io::Error>| {
    ///     if answer.is_ok() { Signal::Success } else { Signal::Overload }
    /// });
    /// let limit = ConcurrencyLimitLayer::new(searches, |_: &&str| "all").adaptive(adaptive)?;
    /// let search = limit.layer(service_fn(async |text: &'static str| Ok(text)));
    /// assert_eq!(search.oneshot("redis").await?, "redis");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) unless 1 ≤ min ≤ start ≤ max ≤ 1 000 000, and if the window or the timeout is
    /// out of range.
    pub fn adaptive<C>(
        self,
        adaptive: Adaptive<C>,
    ) -> Result<ConcurrencyLimitLayer<Req, H, R, Adaptive<C>>, Error> {
        let Self {
            key,
            provide: Leased { from, hold },
            max_wait,
            on_lease,
            cancel_when_lost,
            reject,
        } = self;
        let provide = Leased {
            from: from.adaptive(adaptive)?,
            hold,
        };
        Ok(ConcurrencyLimitLayer {
            key,
            provide,
            max_wait,
            on_lease,
            cancel_when_lost,
            reject,
        })
    }
}

impl<Req> RequestPermits<Req> {
    fn adaptive<C>(self, adaptive: Adaptive<C>) -> Result<RequestPermits<Req, Adaptive<C>>, Error> {
        let Self {
            mut source,
            weight,
            limit,
            turn,
            watch,
            observer: (),
        } = self;
        let group = &source.group;
        let (rules, timeout) = (adaptive.rules(group.limit())?, adaptive.timeout);
        if adaptive.is_http && watch.is_none() {
            return Err(Error::invalid(
                "HttpSignals needs a layer that sees the bodies of requests: use web::concurrency_limit, \
                 grpc::concurrency_limit or watch_body; for requests without HTTP, set classify to a closure",
            ));
        }
        let limits = AdaptiveLimits::new(group.store(), group.name(), rules, timeout);
        source.adaptive = Some(limits);
        Ok(RequestPermits {
            source,
            weight,
            limit,
            turn,
            watch,
            observer: adaptive,
        })
    }
}

/// Records how a request has ended, even if its future is dropped.
#[derive(Debug)]
pub struct Sample {
    limits: AdaptiveLimits,
    key: Key,
    began: Instant,
    client: Client,
    is_noted: bool,
}

impl<Req, C> Observes for RequestPermits<Req, Adaptive<C>> {
    type Sample = Option<Sample>;
}

impl<Req, C: Classify<Res, E>, Res, E> Observe<Req, Res, E> for RequestPermits<Req, Adaptive<C>> {
    fn began(&self, lease: &Lease, request: Req) -> (Option<Sample>, Req) {
        let Some(limits) = self.source.adaptive.clone() else {
            return (None, request);
        };
        let (request, client) = match &self.watch {
            Some(watch) => watch(request),
            None => (request, Client::Nothing),
        };
        let (key, began) = (lease.key().clone(), Instant::now());
        (
            Some(Sample {
                limits,
                key,
                began,
                client,
                is_noted: false,
            }),
            request,
        )
    }

    fn ended(&self, sample: Option<Sample>, outcome: &Result<Res, E>) {
        if let Some(mut sample) = sample {
            sample.is_noted = true;
            let signal = self.observer.classify.classify(outcome);
            let (latency, signal) = match sample.client.of_response(sample.began, Instant::now()) {
                ServiceTime::Known(latency) => (latency, signal),
                ServiceTime::Unknown if signal == Signal::Overload => (Duration::ZERO, signal),
                ServiceTime::Unknown | ServiceTime::BrokenOff => (Duration::ZERO, Signal::Ignore),
            };
            sample.limits.ended(&sample.key, latency, signal);
        }
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        if self.is_noted {
            return;
        }
        if let ServiceTime::Known(latency) = self.client.of_dropped(self.began, Instant::now())
            && latency >= self.limits.timeout()
        {
            self.limits.ended(&self.key, latency, Signal::Overload);
        }
    }
}
