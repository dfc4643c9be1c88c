//! Settings of a single flight.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::SingleFlight;
use super::codec::Codec;
use super::core::{Core, Settings};
use super::early::Early;
use super::verdict::{Failures, Format};
use crate::primitive::lease::LeaseOptions;
use crate::{Error, Store, StoreFailure};

/// Who gets an answer that cannot be published, since it is too large or cannot be encoded, besides the caller
/// whose run it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unpublished {
    /// The callers of its process; in each other process one runs for all of it.
    #[default]
    InMemory,
    /// Nobody: all run themselves, at once.
    ToNobody,
}

/// Settings of a [`SingleFlight`].
#[must_use = "a builder does nothing until it is built"]
pub struct SingleFlightBuilder<T, E> {
    settings: Settings,
    options: LeaseOptions,
    version: String,
    max_parallel: Option<u32>,
    error_ttl: Option<Duration>,
    format: Format<T, E>,
    spans: Vec<(&'static str, Duration)>,
}

const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(86_400);

impl<T: Clone + Send + Sync + 'static, E: Send + Sync + 'static> SingleFlightBuilder<T, E> {
    pub(super) fn new(codec: impl Codec<T>) -> Self {
        Self {
            settings: Settings::default(),
            options: LeaseOptions { ttl: Duration::from_secs(5), ..LeaseOptions::default() },
            version: String::new(),
            max_parallel: None,
            error_ttl: None,
            format: Format {
                codec: Arc::new(codec),
                ttl: Arc::new(|_| Some(Duration::from_secs(1))),
                failures: None,
            },
            spans: Vec::new(),
        }
    }

    /// Which version of the answer's type this is, where the codec does not tell: 0 to 64 visible ASCII characters but
    /// `+`. Answers of other versions are not read, and replaced: while two versions run side by side, as during a
    /// deployment, there are more runs. Default: none.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// For how long an answer is served to those who come after it was published, 1 ms to 1 day. Followers are told of
    /// it at once, and get small ones (8 KiB) with the news; larger ones they read, within that time. Default: 1 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.spans.push(("the ttl of an answer", ttl));
        self.format.ttl = Arc::new(move |_| Some(ttl));
        self
    }

    /// The same for each answer, by a closure; more than a day counts as a day. `None`: it is private, for the caller alone
    /// whose run it was. Callers that wait run themselves, at once, and so do later ones [for a while](Self::pass_for).
    pub fn ttl_with(mut self, ttl: impl Fn(&T) -> Option<Duration> + Send + Sync + 'static) -> Self {
        self.format.ttl = Arc::new(move |answer| ttl(answer).map(|ttl| ttl.clamp(SHORTEST, LONGEST)));
        self
    }

    /// For how long after its ttl an answer is served while a fresh one is made in the background, 1 ms to 1 day.
    /// Where that fails, the next caller has it tried again: one at a time in the fleet, without a pause. Default: not
    /// at all.
    pub fn stale_while_revalidate(mut self, stale: Duration) -> Self {
        self.spans.push(("how long an answer is served after its ttl", stale));
        self.settings.times.stale = stale;
        self
    }

    /// For how long the callers of a key do not wait for each other after an answer that was private, 1 ms to 1 day: each
    /// runs at once. Default: 10 s.
    pub fn pass_for(mut self, pass: Duration) -> Self {
        self.spans.push(("for how long a key is passed", pass));
        self.settings.times.pass = pass;
        self
    }

    /// Keeps answers in this process as well, up to so many bytes as the codec writes them, at least 64 KiB: who asks again
    /// within their ttl gets them without a call of the store. Default: not at all.
    ///
    /// [`forget`](SingleFlight::forget) takes an answer out of all processes, by a message that takes as long as a message
    /// of Redis does. While this process hears no messages nothing is served from here, and what was kept before is not
    /// served after that. A connection that is lost without a word is noticed within 20 s: so what was forgotten is served
    /// for as long at most, and never beyond its ttl.
    pub fn local_cache(mut self, bytes: u64) -> Self {
        self.settings.local_cache = Some(bytes);
        self
    }

    /// Makes answers anew before their ttl is over, at random: the likelier the nearer the end is, the longer runs took of
    /// late in this process, and the larger `beta` is, 0.01 to 100. 1 is a good choice. Who asks gets the answer that there
    /// is; the run is in the background, one at a time in the fleet. Default: not at all.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_distributed::{SingleFlight, Store, single_flight::Postcard};
    /// let rates = SingleFlight::<f64>::builder(Postcard).ttl(Duration::from_secs(30)).refresh_early(1.0);
    /// let rates = rates.build(&Store::in_memory(), "rates")?;
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    ///
    /// By what is known as XFetch: Vattani, Chierichetti and Lowenstein, "Optimal Probabilistic Cache Stampede Prevention",
    /// 2015.
    pub fn refresh_early(mut self, beta: f64) -> Self {
        self.settings.refresh_early = Some(Early(beta));
        self
    }

    /// How many bytes of unexpired answers this value and its clones have in the store at most, 1 KiB more than the
    /// [largest answer](Self::largest_answer) at least: so that requests that nobody sends twice do not fill the server. An
    /// answer beyond that is for callers that wait alone, and is not stored where there are none; the event
    /// `answer_over_budget` tells of it. An answer counts by what the codec writes, its key, and 256 bytes. That a key is
    /// [passed](Self::pass_for) is noted in any case. Default: 64 MiB, or what the largest answer needs.
    ///
    /// ```
    /// # use tower_distributed::{SingleFlight, Store, single_flight::Postcard};
    /// let pages = SingleFlight::<String>::builder(Postcard).largest_answer(64 << 10).max_stored(16 << 20);
    /// let pages = pages.build(&Store::in_memory(), "pages")?;
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    pub fn max_stored(mut self, bytes: u64) -> Self {
        self.settings.max_stored = Some(bytes);
        self
    }

    /// How many callers of a key run at once in one process where nothing is shared, at least 1; the others wait. Default:
    /// any number.
    pub fn max_parallel(mut self, most: u32) -> Self {
        self.max_parallel = Some(most);
        self
    }

    /// Shares errors too: callers that wait fail as the leader did, in all processes. Later callers run. Default: an error
    /// is for the caller alone whose run it was, and callers that wait run themselves, at once.
    pub fn share_errors(mut self, codec: impl Codec<E>) -> Self
    where
        E: Clone,
    {
        self.format.failures =
            Some(Failures { codec: Arc::new(codec), clone: E::clone, ttl: Duration::ZERO });
        self
    }

    /// For how long an error that is [shared](Self::share_errors) is given to those too who come later, 1 ms to 1 day.
    /// Default: not at all.
    pub fn error_ttl(mut self, ttl: Duration) -> Self {
        self.spans.push(("the ttl of an error", ttl));
        self.error_ttl = Some(ttl);
        self
    }

    /// How long to follow, counted from the call; then the caller is refused. It is to be longer than it takes to ask the
    /// store. Default: 30 s.
    pub fn max_wait(mut self, longest: Duration) -> Self {
        self.settings.max_wait = longest;
        self
    }

    /// How long a run has the lead, 1 ms to 1 day: then its lease is given back and the next caller runs, here or elsewhere.
    /// What comes of the run after that is for the caller alone whose it is, and it ends when that goes away. Default: ten
    /// times the [time to live](Self::lease_ttl), and 5 min at most.
    pub fn max_run(mut self, longest: Duration) -> Self {
        self.spans.push(("the longest run", longest));
        self.settings.max_run = Some(longest);
        self
    }

    /// How many bytes an answer that is published has at most, 1 to 64 MiB. Default: 1 MiB.
    ///
    /// While it is written or read, a process takes about three times as much memory for it as it has bytes, and then once,
    /// for as long as any of its callers has it: measured with 63 MiB over HTTP by `cargo bench --bench once -- large`.
    pub fn largest_answer(mut self, bytes: usize) -> Self {
        self.settings.largest = bytes;
        self
    }

    /// Who gets an answer that cannot be published. Default: [`Unpublished::InMemory`].
    pub fn unpublished(mut self, unpublished: Unpublished) -> Self {
        self.settings.unpublished = unpublished;
        self
    }

    /// After what time a follower takes over from a leader that was killed, 10 ms to 1 day. Default: 5 s.
    pub fn lease_ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// Whether a run goes on when the last caller of its process has gone away. Default: no.
    pub fn go_on(mut self, go_on: bool) -> Self {
        self.settings.go_on = go_on;
        self
    }

    /// Whether a run is dropped when its lease is lost: the caller whose it was is told [so](Error::is_lost), and others
    /// take over. Default: no; it goes on for its own process.
    pub fn cancel_when_lost(mut self, cancel: bool) -> Self {
        self.settings.cancel_when_lost = cancel;
        self
    }

    /// Sets what happens while the store gives no answer. Default: [`StoreFailure::FailOpen`].
    ///
    /// [`StoreFailure::FailOpen`] and [`StoreFailure::LocalShare`] (however many replicas there are) run the work once per
    /// process and share its answer there. [`StoreFailure::FailClosed`] returns the outage.
    pub fn on_store_failure(mut self, on_store_failure: StoreFailure) -> Self {
        self.settings.runs_alone = on_store_failure != StoreFailure::FailClosed;
        self
    }

    /// The flights of the namespace `name` in a store. Whoever uses the same store and name shares them.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where the name is not 1 to 64 of `A-Z a-z 0-9 - _ . /`, or a setting is
    /// out of range.
    pub fn build(mut self, store: &Store, name: &str) -> Result<SingleFlight<T, E>, Error> {
        self.options.check()?;
        for (what, span) in &self.spans {
            if !(SHORTEST..=LONGEST).contains(span) {
                return Err(Error::invalid(format!("{what} must be 1 ms to 1 day, is {span:?}")));
            }
        }
        let largest = self.settings.largest;
        if !(1..=64 << 20).contains(&largest) {
            return Err(Error::invalid(format!(
                "the largest answer must be 1 byte to 64 MiB (67108864), is {largest}"
            )));
        }
        let (stored, least) = (self.settings.most_stored(), self.settings.least_stored());
        if stored < least {
            return Err(Error::invalid(format!(
                "max_stored must be 1 KiB more than the largest answer at least ({least} bytes), is {stored}"
            )));
        }
        if let Some(Early(beta)) = self.settings.refresh_early
            && !Early::BETAS.contains(&beta)
        {
            return Err(Error::invalid(format!("the beta of refresh_early must be 0.01 to 100, is {beta}")));
        }
        if let Some(bytes @ ..65536) = self.settings.local_cache {
            return Err(Error::invalid(format!(
                "a local cache must be of 64 KiB (65536) at least, is of {bytes} bytes"
            )));
        }
        if let Some(most) = self.max_parallel {
            self.settings.max_parallel = NonZeroU32::new(most);
            if most == 0 {
                return Err(Error::invalid("max_parallel must be at least 1, is 0"));
            }
        }
        match (self.error_ttl, &mut self.format.failures) {
            (Some(ttl), Some(failures)) => failures.ttl = ttl,
            (Some(ttl), None) => {
                return Err(Error::invalid(format!(
                    "errors are to live for {ttl:?}, but are not shared (share_errors)"
                )));
            }
            (None, _) => {}
        }
        let codec = self.format.name(&self.version)?;
        Ok(SingleFlight(Arc::new(Core::new(store, name, codec, self.settings, self.options, self.format)?)))
    }
}

impl<T, E> fmt::Debug for SingleFlightBuilder<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleFlightBuilder").field("settings", &self.settings).finish_non_exhaustive()
    }
}
