//! The behaviour of layers while the store is unavailable: [`StoreFailure`].

use std::future::Future;
use std::num::NonZeroU32;

use crate::error::Error;
use crate::store::memory::InMemory;
use crate::store::memory::bound::Bounds;
use crate::store::memory::clock::Clock;
use crate::store::{Backend, Store};
use crate::telemetry::Outcome;

/// How a layer handles requests while the store is unavailable.
///
/// A [picture](crate::guide::pictures#an-outage) shows the three policies in an outage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreFailure {
    /// Refuse every request, as [`StoreUnavailable`](crate::RefusalKind::StoreUnavailable).
    #[default]
    FailClosed,
    /// Admit every request without a decision. [`on_admit`](crate::RateLimitLayer::on_admit) is not called.
    FailOpen,
    /// Limit in this process alone.
    ///
    /// A rate limit divides the rate and the burst by `replicas`, a concurrency limit divides the limit. The burst and
    /// the limit are at least 1. A request that costs or weighs more than its share is refused as under `FailClosed`. A
    /// mutex and a deduplication use the memory of this process; `replicas` has no effect on them.
    ///
    /// The share belongs to the [`Store`](crate::Store) and its clones, not to the layer: layers whose primitives have
    /// the same kind and name share it, as they share the state in Redis. So use one `Store` in a process. If such
    /// layers have different `replicas`, the largest applies to all of them: together they never admit more than the
    /// smallest share. The other settings of a primitive, such as its ttl and `max_waiters`, apply as in Redis. A
    /// single flight runs the work once for each `SingleFlight` and its clones.
    ///
    /// The share holds the state of up to a million keys in up to 48 MiB: see
    /// [`max_keys`](crate::StoreBuilder::max_keys) and [`max_bytes`](crate::StoreBuilder::max_bytes). A request for one
    /// more key is refused as [`Overloaded`](crate::RefusalKind::Overloaded).
    ///
    /// The share starts empty with the first outage. It does not know the leases and claims that the store granted
    /// before, and after the outage the store does not know those of the share: until these have ended, one holder of
    /// each kind can hold the same key at the same time. Fencing tokens come from the clock of this process.
    LocalShare {
        /// The number of processes that share the limit.
        replicas: NonZeroU32,
    },
    /// Limit in this process alone, as [`LocalShare`](Self::LocalShare) does, with a number of processes that is
    /// counted while the store is available.
    ///
    /// Each process that has a layer with this setting sends a heartbeat to the store about every 10 s, with one call
    /// for each name of a primitive, on the [background thread](crate::StoreBuilder::background). It adds no work to
    /// requests.
    ///
    /// * The number is the largest of the last four counts. So it rises with the next call, and falls up to 40 s after
    ///   a process has ended. It does not change during an outage.
    /// * A process that calls [`Store::shutdown`](crate::Store::shutdown), or drops its layers, is not counted from
    ///   then on. A process that crashes or is paused is counted for another 30 s.
    /// * Processes are counted by the clock of the server. After this clock was set, or the server lost its state,
    ///   single counts are too low. The largest of the last four counts compensates for that.
    /// * Layers whose primitives have the same kind and name use the same share, as with `LocalShare`. The largest of
    ///   their numbers applies.
    /// * Processes that cannot reach the store are not counted by the others. If a part of a fleet uses its share, and
    ///   the store then fails for the others too, these divide the limit by a number that is too low. `at_least` bounds
    ///   this.
    /// * At most 10 000 processes are counted for a name. Anyone who can write to Redis can forge or delete processes:
    ///   `at_least` bounds the shares in this case too.
    ///
    /// ```
    /// use std::num::NonZeroU32;
    /// use tower_distributed::{Quota, RateLimitLayer, Store, StoreFailure, TokenBucket};
    ///
    /// const STARTS_WITH: NonZeroU32 = NonZeroU32::new(20).unwrap();
    /// const AT_LEAST: NonZeroU32 = NonZeroU32::new(5).unwrap();
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "mail", Quota::per_minute(1000))?;
    /// let limit = RateLimitLayer::new(bucket, |user: &String| user.clone())
    ///     .on_store_failure(StoreFailure::CountedShare { replicas: STARTS_WITH, at_least: AT_LEAST });
    /// # let _: RateLimitLayer<_, ()> = limit;
    /// # Ok(()) }
    /// ```
    CountedShare {
        /// The number of processes before this process has counted them. Until it has counted four times, in about 30
        /// s, the larger number applies.
        replicas: NonZeroU32,
        /// The limit is divided by at least this number, whatever the count is.
        at_least: NonZeroU32,
    },
}

/// The source of the number of processes that share a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sharing {
    Named(NonZeroU32),
    /// `first` applies until the processes are counted.
    Counted {
        first: NonZeroU32,
        at_least: NonZeroU32,
    },
}

impl Store {
    /// Returns the memory of this process that replaces the store while it is unavailable: see
    /// [`StoreFailure::LocalShare`]. All clones of the store share it.
    pub(crate) fn local_share(&self) -> &Self {
        self.0.local_share.get_or_init(|| {
            let bounds = self
                .on_redis()
                .map_or(Bounds::LOCAL_SHARE, |store| store.limits.local_share);
            let home = self.background_for_a_task();
            let mut memory = InMemory::with_background(home, Clock::system(), bounds);
            memory.base.prefix = self.prefix().to_owned();
            Self::on(Backend::InMemory(memory))
        })
    }
}

/// The handling of requests while the store is unavailable. `L` replaces the primitive, in the memory of this process.
#[derive(Clone, Debug)]
pub(crate) enum StoreFailurePolicy<L> {
    FailClosed,
    FailOpen,
    LocalShare(L),
}

impl<L: Clone> StoreFailurePolicy<L> {
    /// `local` makes the primitive, given the source of the number of processes that share its limit.
    pub(crate) fn new(on_store_failure: StoreFailure, local: impl FnOnce(Sharing) -> L) -> Self {
        match on_store_failure {
            StoreFailure::FailClosed => Self::FailClosed,
            StoreFailure::FailOpen => Self::FailOpen,
            StoreFailure::LocalShare { replicas } => {
                Self::LocalShare(local(Sharing::Named(replicas)))
            }
            StoreFailure::CountedShare {
                replicas: first,
                at_least,
            } => Self::LocalShare(local(Sharing::Counted { first, at_least })),
        }
    }

    /// Converts the reply of the store into a result, with `local` for an outage. `None`: the request passes without a
    /// decision.
    pub(crate) async fn settle<T, F: Future<Output = Result<T, Error>>>(
        &self,
        answer: Result<T, Error>,
        local: impl FnOnce(L, Error) -> F,
    ) -> Result<(Option<T>, Outcome), Error> {
        match (answer, self) {
            (Err(error), Self::FailOpen) if error.is_away() => Ok((None, Outcome::FailedOpen)),
            (Err(error), Self::LocalShare(share)) if error.is_away() => {
                let answer = Box::pin(local(share.clone(), error)).await?;
                Ok((Some(answer), Outcome::LocalShare))
            }
            (Ok(answer), _) => Ok((Some(answer), Outcome::Admitted)),
            (Err(error), _) => Err(error),
        }
    }
}
