#![doc = include_str!("single_flight/page.md")]

pub(crate) mod answer;
mod builder;
mod cache;
pub(crate) mod flight;
mod lead;
pub(crate) mod outcome;
mod publish;
pub(crate) mod stored;
mod task;
#[cfg(any(test, interleavings))]
pub(crate) mod tests;
mod waiters;

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use derive_where::derive_where;

use crate::error::Error;
use crate::key::Key;
use crate::lease::handle::LeaseHandle;
use crate::single_flight::flight::Core;
#[cfg(feature = "postcard")]
use crate::store::Store;

pub use self::builder::SingleFlightBuilder;
pub(crate) use self::flight::{FlightOutcome, Work};
#[cfg(feature = "json")]
pub use self::outcome::Json;
#[cfg(feature = "postcard")]
pub use self::outcome::Postcard;
#[cfg(any(feature = "postcard", feature = "json"))]
pub use self::outcome::SerdeValue;
pub use self::outcome::{Codec, Share};
pub use crate::layers::single_flight::{Capture, SingleFlightLayer, WholeAnswer, WholeResponse};
pub use crate::single_flight::flight::Captured;

/// A namespace of single flights, one per key, whose answers are of type `T`. Clones are cheap and share the
/// flights. See the [module](crate::single_flight) for the guarantees.
///
/// # Cancel safety
///
/// Every future here may be dropped at any time. When the last caller of a key in a process is dropped, its run is
/// dropped too, unless [`go_on`](SingleFlightBuilder::go_on) is set.
#[derive_where(Clone)]
pub struct SingleFlight<T, E = Infallible>(pub(crate) Arc<Core<T, E>>);

/// The error of [`SingleFlight::try_run`].
#[derive(Debug)]
pub enum RunError<E> {
    /// The caller's own work failed; with [shared errors](SingleFlightBuilder::share_errors) also the leader's.
    Failed(E),
    /// The caller waited longer than `max_wait`, was refused, lost its lease, or the store is unavailable.
    Flight(Error),
}

#[cfg(feature = "postcard")]
impl<T, E> SingleFlight<T, E>
where
    T: serde::Serialize + serde::de::DeserializeOwned + Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Creates the flights of the namespace `name` in a store, with answers in the [`Postcard`] format and the
    /// default settings. Use the [`builder`](Self::builder) for other settings.
    ///
    /// # Errors
    ///
    /// The same as [`SingleFlightBuilder::build`].
    pub fn new(store: &Store, name: &str) -> Result<Self, Error> {
        Self::builder(Postcard).build(store, name)
    }
}

impl<T: Clone + Send + Sync + 'static, E: Send + Sync + 'static> SingleFlight<T, E> {
    /// Runs `work`, or returns the outcome of another caller's run of the same key.
    ///
    /// ```
    /// use tower_distributed::single_flight::RunError;
    /// use tower_distributed::{SingleFlight, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let prices = SingleFlight::<u32, String>::new(&Store::in_memory(), "prices")?;
    /// match prices.try_run("tea", || async { Err("no such item".to_owned()) }).await {
    ///     Ok(price) => println!("{price}"),
    ///     Err(RunError::Failed(text)) => assert_eq!(text, "no such item"), // of the work
    ///     Err(RunError::Flight(error)) => return Err(error),               // of the flight
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`RunError::Failed`] if the work failed.
    /// * [`RunError::Flight`] with [`is_waited_too_long`](Error::is_waited_too_long) (and
    ///   [`is_refused`](Error::is_refused)) if the caller waited longer than `max_wait`.
    /// * [`RunError::Flight`] with [`is_unavailable`](Error::is_unavailable) if the store is unavailable and
    ///   [`on_store_failure`](SingleFlightBuilder::on_store_failure) is `FailClosed`, or if `max_wait` passed during an
    ///   outage.
    /// * [`RunError::Flight`] with [`is_lost`](Error::is_lost) if the caller's run lost its lease and
    ///   [`cancel_when_lost`](SingleFlightBuilder::cancel_when_lost) is `true`.
    /// * [`RunError::Flight`] with [`is_invalid`](Error::is_invalid) outside of a tokio runtime.
    ///
    /// # Panics
    ///
    /// Panics if the caller's own work panics.
    pub async fn try_run<F>(
        &self,
        key: impl Into<Key>,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> Result<T, RunError<E>>
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        match self
            .0
            .fly(
                &key.into(),
                Plain {
                    core: Arc::clone(&self.0),
                    work,
                },
            )
            .await
        {
            Ok(FlightOutcome::Own(outcome) | FlightOutcome::Shared(outcome, _)) => {
                outcome.map_err(RunError::Failed)
            }
            Err(error) => Err(RunError::Flight(error)),
        }
    }

    /// Removes the answer to a key in all processes, so that the next caller runs.
    ///
    /// A run that is in progress continues: new callers join it, and its answer is published. So an answer that was
    /// computed from old data may appear after this call. If a caller of this flight, or of a clone of it, already got
    /// an answer, that answer does not appear again: this call waits until it is published. Another process that is
    /// reading the answer, or serves a stale one, returns it to new callers until it receives the message about this
    /// call.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{SingleFlight, Store, single_flight::Postcard};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let prices = SingleFlight::<u32>::builder(Postcard).ttl(Duration::from_secs(60));
    /// let prices = prices.build(&Store::in_memory(), "prices")?;
    /// assert_eq!(prices.run("tea", || async { 3 }).await?, 3);
    /// prices.forget("tea").await?; // the price has changed
    /// assert_eq!(prices.run("tea", || async { 4 }).await?, 4);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) if the store is unavailable.
    pub async fn forget(&self, key: impl Into<Key>) -> Result<(), Error> {
        self.0.forget(key.into()).await
    }

    /// Returns the name of the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }
}

/// The work of [`SingleFlight::try_run`], whose outcome is shared unchanged.
struct Plain<W, T, E> {
    core: Arc<Core<T, E>>,
    work: W,
}

impl<T, E, W, F> Work<T, E> for Plain<W, T, E>
where
    T: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
    W: FnOnce() -> F + Send + 'static,
    F: Future<Output = Result<T, E>> + Send + 'static,
{
    type Own = Result<T, E>;

    fn fits(&self, _: &T) -> bool {
        true
    }

    fn run(
        self,
        _: Option<LeaseHandle>,
    ) -> impl Future<Output = Captured<Self::Own, Result<T, E>>> + Send + 'static {
        let core = self.core;
        let work = (self.work)();
        async move {
            let own = work.await;
            Captured {
                shared: core.format.to_share(&own),
                own,
            }
        }
    }
}

impl<T: Clone + Send + Sync + 'static> SingleFlight<T> {
    /// Runs `work`, which cannot fail, or returns the answer of another caller's run of the same key.
    ///
    /// # Errors
    ///
    /// The errors of [`RunError::Flight`], as listed at [`try_run`](Self::try_run).
    ///
    /// # Panics
    ///
    /// Panics if the caller's own work panics.
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

debug!(SingleFlight<T, E>, 0.name);

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
