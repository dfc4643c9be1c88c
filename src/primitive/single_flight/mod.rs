//! The single flights. See the public module `single_flight`.

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
#[cfg(any(feature = "postcard", feature = "json"))]
pub use self::codec::SerdeValue;
pub(crate) use self::core::{Flown, Landed};
pub use self::verdict::Share;

use tokio::time::Instant;

use self::core::{Core, Work};
use self::verdict::Format;

#[cfg(feature = "postcard")]
use crate::Store;
use crate::{Error, Key, LeaseHandle};

/// A namespace of flights, one per key, whose answers are `T`s. A cheap clone; see the [module](crate::single_flight) for the whole story.
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
    /// [is refused](Error::is_refused) where it [took longer](Error::is_waited_too_long) than `max_wait`; or that
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
        let deadline = Instant::now().checked_add(self.0.settings.max_wait);
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
