//! One caller does the work, the others get its answer: across all processes.
//!
//! ```
//! use tower_distributed::{SingleFlight, Store};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let reports = SingleFlight::<String>::new(&store, "reports")?;
//!
//! let (one, other) = tokio::join!(
//!     reports.run("2026-11", || async { "expensive".to_owned() }),
//!     reports.run("2026-11", || async { unreachable!("the first is at it") }),
//! );
//! assert_eq!(one?, other?);
//! # Ok(()) }
//! ```
//!
//! # What holds
//!
//! Callers of one key in one process share one run. Processes share through the store: whoever comes first *leads*, holds
//! a lease that is renewed while it works, and publishes its answer for a short [life](SingleFlightBuilder::life).
//! Those who *follow* are woken and read it; who comes later, and within its life, reads it too. So while the leader
//! lives, keeps its lease and shares its answer, there is one run.
//!
//! * If the leader dies, loses its lease, or goes away, exactly one follower takes over: at once where it can be told,
//!   after the lease's [time to live](SingleFlightBuilder::ttl) where it was killed.
//!   A leader that has lost its lease finishes for its own process, and publishes nothing; so there can be two runs
//!   at a time then. Work that must not be done twice needs the fencing token of a [mutex](crate::mutex).
//! * The work runs in a task of its own, so that no caller that stops polling holds up the others. When the last caller
//!   in its process goes away it is dropped, and a follower elsewhere takes over, unless it is to
//!   [go on](SingleFlightBuilder::go_on). A panic goes on in the caller whose work it was.
//! * An answer that is [too large](SingleFlightBuilder::largest_answer) or that the codec cannot encode reaches the
//!   callers of its own process; in each other process one caller runs, for all of it. An event tells of it.
//! * Nobody waits for what is not shared. See [below](#what-is-not-shared).
//! * A leader that hangs is given up after the [longest run](SingleFlightBuilder::max_run), and a follower takes over.
//! * Nobody follows for longer than the [longest wait](SingleFlightBuilder::longest_wait).
//! * What another codec or version wrote is not read, and what cannot be decoded counts as no answer; an event tells.
//!
//! All processes must be built with the same settings.
//!
//! # Stale answers
//!
//! With [`stale_for`](SingleFlightBuilder::stale_for) the last good answer is served for a while after its life. The first
//! who finds it stale gets it at once, and its work runs in the background, once in the fleet; meanwhile all get the
//! stale one. So nobody waits where there is any answer. A run that fails leaves the last good answer as it is.
//!
//! With [`refresh_early`](SingleFlightBuilder::refresh_early) an answer is made anew before its life is over: who asks gets
//! the answer that there is, and now and then, the likelier the nearer its end is, has a run begin in the background.
//! Where keys are asked for often nobody meets the end, without an answer that is older than its life.
//!
//! # What is not shared
//!
//! | outcome | callers that wait now | callers in the time after it |
//! |---|---|---|
//! | an answer | get it | get it, for its [life](SingleFlightBuilder::life) |
//! | an error, with [`share_errors`](SingleFlightBuilder::share_errors); of HTTP, a 5xx | get it, in all processes | run; one leads, the others wait |
//! | an error otherwise | all run at once | run; one leads, the others wait |
//! | a private answer: [`life_with`](SingleFlightBuilder::life_with) says `None`; of HTTP, `Set-Cookie`, `no-store` and the like | all run at once | all run at once, for [10 s](SingleFlightBuilder::pass_for) |
//! | an answer that is too large | its process gets it; elsewhere one of each process runs | one of each process runs, for the answer's life |
//!
//! [`max_parallel`](SingleFlightBuilder::max_parallel) bounds how many of a key run at once in a process.
//!
//! # Coming from …
//!
//! | there | here |
//! |---|---|
//! | Go `singleflight.Group`: `Do(key, fn)` | [`run`](SingleFlight::run), [`try_run`](SingleFlight::try_run), for all processes |
//! | `DoChan` | the future that these return; with a [longest wait](SingleFlightBuilder::longest_wait) |
//! | `Forget(key)` | [`forget`](SingleFlight::forget), of the published answer |
//! | "lock or skip" (billing) | [`Mutex::try_run`](crate::Mutex::try_run), [`MutexLayer`](crate::MutexLayer) |
//! | nginx `proxy_cache_lock`, `proxy_cache_use_stale updating` | `http::single_flight`, [`stale_for`](SingleFlightBuilder::stale_for) |
//!
//! # Events
//!
//! With the feature `tracing` or `metrics`: `answer_too_large`, `answer_not_encodable`, `answer_not_published`,
//! `answer_over_budget`, `flight_lost`, `flight_given_up`, `answer_foreign`, `answer_garbled`. What they mean, and all others: [`telemetry`](crate::telemetry).
//! With `tracing` the work runs in the span of the caller whose it is.

pub(crate) mod answer;
mod builder;
mod codec;
mod core;
mod driver;
mod early;
mod local_cache;
mod parallel;
mod stored;
mod table;
mod verdict;

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

pub use self::builder::{SingleFlightBuilder, Unpublished};
pub use self::codec::Codec;
#[cfg(feature = "json")]
pub use self::codec::Json;
#[cfg(feature = "postcard")]
pub use self::codec::Postcard;
pub(crate) use self::core::{Flown, Landed};
pub use self::verdict::Share;

use tokio::time::Instant;

use self::core::{Core, Work};
use self::verdict::Format;

#[cfg(feature = "postcard")]
use crate::Store;
use crate::{Error, Key, LeaseHandle};

/// A namespace of flights, one per key, whose answers are `T`s. A cheap clone; see the [module](self) for the whole story.
///
/// # Cancel safety
///
/// Every future here may be dropped at any time; when the last caller of a process goes away, so does its run.
pub struct SingleFlight<T, E = Infallible>(Arc<Core<T, E>>);

/// Why there is no answer.
#[derive(Debug)]
pub enum RunError<E> {
    /// The work failed: the caller's own, or with [shared errors](SingleFlightBuilder::share_errors) the leader's.
    Failed(E),
    /// It waited too long, was refused, or the store gave no answer.
    Flight(Error),
}

#[cfg(feature = "postcard")]
impl<T, E> SingleFlight<T, E>
where
    T: serde::Serialize + serde::de::DeserializeOwned + Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// The flights of the namespace `name` in a store, with answers in the [`Postcard`] format. For other settings there is
    /// the [`builder`](Self::builder).
    ///
    /// # Errors
    ///
    /// As [`SingleFlightBuilder::build`].
    pub fn new(store: &Store, name: &str) -> Result<Self, Error> {
        Self::builder(Postcard).build(store, name)
    }
}

impl<T: Clone + Send + Sync + 'static, E: Send + Sync + 'static> SingleFlight<T, E> {
    /// Settings of a namespace whose answers are written by a codec.
    pub fn builder(codec: impl Codec<T>) -> SingleFlightBuilder<T, E> {
        SingleFlightBuilder::new(codec)
    }

    /// Runs `work`, or gets what came of somebody else's.
    ///
    /// # Errors
    ///
    /// [`RunError::Failed`] where the work failed. [`RunError::Flight`] with an error that
    /// [is refused](Error::is_refused) where it [took longer](Error::is_waited_too_long) than the longest wait; or that
    /// [is an outage](Error::is_unavailable), where it is not to run then.
    ///
    /// # Panics
    ///
    /// Where the caller's own work does, and outside of a tokio runtime.
    pub async fn try_run<F>(
        &self,
        key: impl Into<Key>,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> Result<T, RunError<E>>
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let core = Arc::clone(&self.0);
        let work = move |_| async move {
            let own = work().await;
            Flown { shared: core.format.to_share(&own), own }
        };
        match self.fly(key.into(), |_| true, work).await {
            Ok(Landed::Own(outcome) | Landed::Shared(outcome)) => outcome.map_err(RunError::Failed),
            Err(error) => Err(RunError::Flight(error)),
        }
    }

    /// Forgets the answer to a key, so that the next caller runs, in all processes. What is under way goes on, is joined by
    /// those who come meanwhile, and is published: work that began before may bring what was to be forgotten. A process that
    /// serves a stale answer does so until it hears of it, or has a fresh one.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable).
    pub async fn forget(&self, key: impl Into<Key>) -> Result<(), Error> {
        self.0.forget(key.into()).await
    }

    /// The name of the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn format(&self) -> &Format<T, E> {
        &self.0.format
    }

    /// An answer that this process has kept, if it fits.
    pub(crate) fn cached(&self, key: &Key, fits: impl FnOnce(&T) -> bool) -> Option<T> {
        self.0.cached(key, fits)
    }

    /// Runs, or gets what came of another's run. A stale answer is good enough for the caller where it `fits`.
    pub(crate) async fn fly<R, W, F>(
        &self,
        key: Key,
        fits: impl Fn(&T) -> bool + Send + 'static,
        work: W,
    ) -> Result<Landed<R, T, E>, Error>
    where
        R: Send + 'static,
        W: FnOnce(Option<LeaseHandle>) -> F + Send + 'static,
        F: Future<Output = Flown<R, T, E>> + Send + 'static,
    {
        // What is too long to be told is for ever.
        let deadline = Instant::now().checked_add(self.0.settings.longest_wait);
        self.0.fly(key, Work { fits, work, deadline }).await
    }
}

impl<T: Clone + Send + Sync + 'static> SingleFlight<T> {
    /// Runs `work`, which cannot fail, or gets what came of somebody else's.
    ///
    /// # Errors
    ///
    /// As [`try_run`](Self::try_run), of the flight alone.
    ///
    /// # Panics
    ///
    /// As [`try_run`](Self::try_run).
    pub async fn run<F>(
        &self,
        key: impl Into<Key>,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> Result<T, Error>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let work = move || async move { Ok::<_, Infallible>(work().await) };
        match self.try_run(key, work).await {
            Ok(answer) => Ok(answer),
            Err(RunError::Flight(error)) => Err(error),
            Err(RunError::Failed(never)) => match never {},
        }
    }
}

impl<T, E> Clone for SingleFlight<T, E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T, E> fmt::Debug for SingleFlight<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleFlight").field("name", &self.0.name).finish_non_exhaustive()
    }
}

impl<E: fmt::Display> fmt::Display for RunError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::Flight(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for RunError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed(error) => error.source(),
            Self::Flight(error) => error.source(),
        }
    }
}
