//! Settings of a single flight.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::lease::options::LeaseOptions;
use crate::macros::{in_range, setters};
use crate::single_flight::SingleFlight;
use crate::single_flight::flight::{Core, Settings};
use crate::single_flight::outcome::{Codec, Failures, Format, Pass};
use crate::store::Store;
use crate::store::failure::StoreFailure;

/// A builder for a [`SingleFlight`].
///
/// ```
/// use std::time::Duration;
/// use tower_distributed::single_flight::{Postcard, RunError};
/// use tower_distributed::{SingleFlight, Store};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let rates = SingleFlight::<Vec<f64>, String>::builder(Postcard)
///     .version("2")                                     // of the answer's type
///     .ttl(Duration::from_secs(30))                     // later callers get an answer for 30 s,
///     .stale_while_revalidate(Duration::from_secs(300)) // and for 5 min more while a fresh one is made
///     .local_cache(1 << 20)                             // from up to 1 MiB in this process
///     .share_errors(Postcard)                           // callers that wait get the leader's error,
///     .error_ttl(Duration::from_secs(5))                // and later callers for 5 s
///     .max_wait(Duration::from_secs(10))                // a caller follows for 10 s at most
///     .max_run(Duration::from_secs(20))                 // a run leads for 20 s at most
///     .lease_ttl(Duration::from_secs(2))                // a follower takes over 2 s after a crash
///     .build(&Store::in_memory(), "rates")?;
///
/// let first = rates.try_run("EUR", || async { Err("the bank is closed".to_owned()) }).await;
/// assert!(matches!(first, Err(RunError::Failed(_))));
/// let second = rates.try_run("EUR", || async { unreachable!("the error is shared") }).await;
/// assert!(matches!(second, Err(RunError::Failed(_))));
/// # Ok(()) }
/// ```
#[must_use = "a builder does nothing until it is built"]
pub struct SingleFlightBuilder<T, E> {
    settings: Settings,
    options: LeaseOptions,
    version: String,
    error_ttl: Option<Duration>,
    format: Format<T, E>,
    spans: Vec<(&'static str, Duration)>,
}

const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(86_400);

impl<T: Clone + Send + Sync + 'static, E: Send + Sync + 'static> SingleFlight<T, E> {
    /// Returns a builder for flights whose answers are encoded by `codec`.
    pub fn builder(codec: impl Codec<T>) -> SingleFlightBuilder<T, E> {
        SingleFlightBuilder::new(codec)
    }
}

impl<T: Clone + Send + Sync + 'static, E: Send + Sync + 'static> SingleFlightBuilder<T, E> {
    pub(super) fn new(codec: impl Codec<T>) -> Self {
        Self {
            settings: Settings::default(),
            options: LeaseOptions {
                ttl: Duration::from_secs(5),
                ..LeaseOptions::default()
            },
            version: String::new(),
            error_ttl: None,
            format: Format {
                codec: Arc::new(codec),
                ttl: Arc::new(|_| Some(Duration::from_secs(1))),
                failures: None,
                stale: Duration::ZERO,
                pass: Duration::from_secs(10),
            },
            spans: Vec::new(),
        }
    }

    /// Sets how long an answer is served to callers that come after it was published. 1 ms to 1 day; default: 1 s.
    ///
    /// Followers are woken at once. An answer of up to 8 KiB is part of the message that wakes them. Followers read a
    /// larger answer from the store, which keeps it for at least 1 s. While one caller of a process reads the store,
    /// later callers of the process wait and share its answer. So an answer may be older than the TTL by the time of
    /// one call to the store.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.spans.push(("ttl", ttl));
        self.format.ttl = Arc::new(move |_| Some(ttl));
        self
    }

    /// Sets the TTL of each answer by a closure. A TTL outside of 1 ms to 1 day is set to the nearest bound.
    ///
    /// `None` means that the answer is private: only the caller that ran gets it. Callers that wait run at once,
    /// and so do later callers [for some time](Self::pass_for).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{SingleFlight, Store, single_flight::Postcard};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let names = SingleFlight::<Option<String>>::builder(Postcard)
    ///     .ttl_with(|name: &Option<String>| name.as_ref().map(|_| Duration::from_secs(60))) // `None` is not shared
    ///     .pass_for(Duration::from_secs(1)) // after `None`, the callers of a key do not wait for each other,
    ///     .max_parallel(4)                  // but no more than four run at once in a process
    ///     .build(&Store::in_memory(), "names")?;
    ///
    /// assert_eq!(names.run("user-7", || async { None }).await?, None);
    /// assert_eq!(names.run("user-7", || async { Some("Ann".to_owned()) }).await?.as_deref(), Some("Ann"));
    /// # Ok(()) }
    /// ```
    pub fn ttl_with(
        mut self,
        ttl: impl Fn(&T) -> Option<Duration> + Send + Sync + 'static,
    ) -> Self {
        self.format.ttl =
            Arc::new(move |answer| ttl(answer).map(|ttl| ttl.clamp(SHORTEST, LONGEST)));
        self
    }

    /// Sets how long after its TTL an answer is served while a fresh one is computed in the background. 1 ms to 1 day;
    /// default: stale answers are not served.
    ///
    /// If the run fails, the next caller starts another one: one at a time across all processes, without a pause.
    pub fn stale_while_revalidate(mut self, stale: Duration) -> Self {
        self.spans.push(("stale_while_revalidate", stale));
        self.format.stale = stale;
        self
    }

    /// Sets how long the callers of a key do not wait for each other after a private answer: each runs at once. 1 ms to
    /// 1 day; default: 10 s.
    pub fn pass_for(mut self, pass: Duration) -> Self {
        self.spans.push(("pass_for", pass));
        self.format.pass = pass;
        self
    }

    /// Shares errors too: callers that wait get the leader's error, in all processes. Later callers run, unless
    /// [`error_ttl`](Self::error_ttl) is set. Default: only the caller that ran gets its error, and callers that
    /// wait run at once.
    pub fn share_errors(mut self, codec: impl Codec<E>) -> Self
    where
        E: Clone,
    {
        self.format.failures = Some(Failures {
            codec: Arc::new(codec),
            clone: E::clone,
            ttl: Duration::ZERO,
        });
        self
    }

    /// Sets how long a [shared](Self::share_errors) error is also returned to later callers. 1 ms to 1 day; default:
    /// later callers run. Needs `share_errors`.
    pub fn error_ttl(mut self, ttl: Duration) -> Self {
        self.spans.push(("error_ttl", ttl));
        self.error_ttl = Some(ttl);
        self
    }

    /// Sets how long a run has the lead. 1 ms to 1 day; default: ten times [`lease_ttl`](Self::lease_ttl), 5 min at
    /// most.
    ///
    /// After that time its lease is released and the next caller runs, in this process or another. Only the caller
    /// that passed the work gets its result then, and the run is dropped with that caller.
    pub fn max_run(mut self, longest: Duration) -> Self {
        self.spans.push(("max_run", longest));
        self.settings.max_run = Some(longest);
        self
    }

    /// Creates the flights of the namespace `name` in a store. All users of the same store and name share them.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the name is not 1 to 64 of `A-Z a-z 0-9 - _ . /`, or a setting is out
    /// of range.
    pub fn build(mut self, store: &Store, name: &str) -> Result<SingleFlight<T, E>, Error> {
        self.options.check()?;
        for (setting, span) in self.spans {
            in_range(setting, SHORTEST..=LONGEST, "1 ms to 1 day", span)?;
        }
        let Settings {
            largest,
            local_cache,
            refresh_early,
            max_parallel,
            ..
        } = self.settings;
        in_range(
            "largest_answer",
            1..=64 << 20,
            "1 byte to 64 MiB (67108864 bytes)",
            largest,
        )?;
        let least = self.settings.least_stored();
        let must = format!("at least {least} bytes (1 KiB more than largest_answer)");
        in_range("max_stored", least.., &must, self.settings.max_stored)?;
        in_range(
            "the beta of refresh_early",
            0.01..=100.0,
            "0.01 to 100",
            refresh_early,
        )?;
        in_range(
            "local_cache",
            65536..,
            "at least 64 KiB (65536 bytes)",
            local_cache,
        )?;
        in_range("max_parallel", 1.., "at least 1", max_parallel)?;
        match (self.error_ttl, &mut self.format.failures) {
            (Some(ttl), Some(failures)) => failures.ttl = ttl,
            (Some(ttl), None) => {
                return Err(Error::invalid(format!(
                    "error_ttl is {ttl:?}, but errors are not shared: call share_errors"
                )));
            }
            (None, _) => {}
        }
        let codec = self.format.name(&self.version)?;
        Ok(SingleFlight(Arc::new(Core::new(
            store,
            name,
            codec,
            self.settings,
            self.options,
            self.format,
        )?)))
    }
}

setters! { SingleFlightBuilder<T, E>:
    /// Sets the version of the answer's type, for a codec whose name does not change with the type: 0 to 64 visible
    /// ASCII characters except `+`. Default: empty.
    ///
    /// An answer of another version is not read; it is replaced. So there are more runs while two versions run side
    /// by side, for example during a deployment.
    fn version(version: impl Into<String>) => version = version.into();

    /// Also caches answers in this process, up to this many bytes. Later callers get them within their TTL without a
    /// call to the store. At least 65536 (64 KiB); default: no local cache. An answer counts with its encoded length,
    /// its key and 256 bytes.
    ///
    /// [`forget`](SingleFlight::forget) removes an answer from the caches of all processes by a message through Redis.
    /// While this process receives no messages, it serves nothing from the cache; after reconnecting, it does not serve
    /// answers that it cached before. A connection that is lost without notice is detected within 20 s. So a removed
    /// answer is served for at most 20 s, and never after its TTL.
    fn local_cache(bytes: u64) => settings.local_cache = Some(bytes);

    /// Refreshes answers at random before their TTL ends. Default: no early refresh.
    ///
    /// A refresh is more likely the closer the end of the TTL is, the longer recent runs took in this process, and the
    /// larger `beta` is. `beta`: 0.01 to 100; 1 is a good choice. The caller gets the current answer; the run is in the
    /// background, one at a time across all processes.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_distributed::{SingleFlight, Store, single_flight::Postcard};
    /// let rates = SingleFlight::<f64>::builder(Postcard).ttl(Duration::from_secs(30)).refresh_early(1.0);
    /// let rates = rates.build(&Store::in_memory(), "rates")?;
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    ///
    /// The method is known as XFetch: Vattani, Chierichetti and Lowenstein, "Optimal Probabilistic Cache Stampede
    /// Prevention", 2015.
    fn refresh_early(beta: f64) => settings.refresh_early = Some(beta);

    /// Bounds the bytes of unexpired answers that this value and its clones have in the store, so that requests with
    /// many different keys do not fill the server. At least 1 KiB more than the [largest answer](Self::largest_answer).
    /// Default: 64 MiB, or that minimum if it is larger.
    ///
    /// An answer beyond the bound is sent only to the callers that wait for it, and is not stored if there are none;
    /// the event `answer_over_budget` reports it. An answer counts with its encoded length, its key and 256 bytes. The
    /// record that a key is [passed](Self::pass_for) is always stored.
    ///
    /// ```
    /// # use tower_distributed::{SingleFlight, Store, single_flight::Postcard};
    /// let pages = SingleFlight::<String>::builder(Postcard).largest_answer(64 << 10).max_stored(16 << 20);
    /// let pages = pages.build(&Store::in_memory(), "pages")?;
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    fn max_stored(bytes: u64) => settings.max_stored = Some(bytes);

    /// Sets how many callers of a key run at once in one process when the result is not shared; further callers
    /// wait. At least 1; default: unlimited.
    fn max_parallel(most: u32) => settings.max_parallel = Some(most);

    /// Sets the maximum time that a caller follows, counted from its call; after that it is refused. It should be
    /// longer than a call to the store takes. Default: 30 s.
    fn max_wait(longest: Duration) => settings.max_wait = longest;

    /// Sets the maximum size of a published answer in bytes. 1 byte to 64 MiB; default: 1 MiB.
    ///
    /// While an answer is written or read, a process needs about three times its size in memory; after that, once
    /// its size until the last caller has dropped it. This was measured with 63 MiB over HTTP by
    /// `cargo bench --bench once -- large`.
    fn largest_answer(bytes: usize) => settings.largest = bytes;

    /// Sets whether an answer that cannot be published, because it is too large or cannot be encoded, is shared within
    /// its process: in each other process one caller runs and shares its answer there. With `false`, all other callers
    /// run at once. The caller that ran always gets its answer. Default: `true`.
    ///
    /// ```
    /// use tower_distributed::{SingleFlight, Store, single_flight::Postcard};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let files = SingleFlight::<Vec<u8>>::builder(Postcard)
    ///     .largest_answer(64 << 10)
    ///     .share_unpublished(false)
    ///     .build(&Store::in_memory(), "files")?;
    /// let large = files.run("logo.png", || async { vec![0; 100 << 10] }).await?; // too large to be shared
    /// assert_eq!(large.len(), 100 << 10);
    /// # Ok(()) }
    /// ```
    fn share_unpublished(share: bool) => settings.unpublished = if share { Pass::Process } else { Pass::Caller };

    /// Sets the ttl of the leader's lease: the time after which a follower takes over from a leader that was
    /// killed. 10 ms to 1 day; default: 5 s.
    fn lease_ttl(ttl: Duration) => options.ttl = ttl;

    /// Sets whether a run continues after the last caller of its process was dropped, for up to
    /// [`max_run`](Self::max_run). Default: `false`. [`Store::shutdown`] waits for such runs, as for refreshes in the
    /// background.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{SingleFlight, Store, single_flight::Postcard};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let reports = SingleFlight::<u32>::builder(Postcard).go_on(true).build(&Store::in_memory(), "reports")?;
    /// let work = || async {
    ///     tokio::time::sleep(Duration::from_millis(200)).await;
    ///     7
    /// };
    /// // The caller gives up after 10 ms, and the run continues.
    /// assert!(tokio::time::timeout(Duration::from_millis(10), reports.run("2026-11", work)).await.is_err());
    /// assert_eq!(reports.run("2026-11", || async { unreachable!("the first run answers") }).await?, 7);
    /// # Ok(()) }
    /// ```
    fn go_on(go_on: bool) => settings.go_on = go_on;

    /// Sets whether a run is dropped when its lease is lost. Then the caller that passed the work gets an
    /// [`is_lost`](Error::is_lost) error, and another caller takes over. Default: `false`; the run finishes for its
    /// own process.
    fn cancel_when_lost(cancel: bool) => settings.cancel_when_lost = cancel;

    /// Sets the behaviour while the store is unavailable. Default: [`StoreFailure::FailOpen`].
    ///
    /// [`StoreFailure::FailOpen`] and [`StoreFailure::LocalShare`] (for any number of replicas) run the work once per
    /// process and share its answer there. [`StoreFailure::FailClosed`] returns the outage.
    ///
    /// ```
    /// use tower_distributed::single_flight::{Postcard, RunError};
    /// use tower_distributed::{SingleFlight, Store, StoreFailure};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let store = Store::redis("redis://127.0.0.1:1/")?; // no server listens there
    /// let invoices = SingleFlight::<u64, String>::builder(Postcard)
    ///     .on_store_failure(StoreFailure::FailClosed)
    ///     .cancel_when_lost(true) // an error rather than a second run at the same time
    ///     .build(&store, "invoices")?;
    ///
    /// match invoices.try_run("2026-11", || async { Ok(42) }).await {
    ///     Err(RunError::Flight(error)) => assert!(error.is_unavailable()),
    ///     outcome => unreachable!("the store is down, so nothing runs: {outcome:?}"),
    /// }
    /// # Ok(()) }
    /// ```
    fn on_store_failure(on_store_failure: StoreFailure) => settings.runs_alone = on_store_failure != StoreFailure::FailClosed;
}

debug!(SingleFlightBuilder<T, E>, settings);
