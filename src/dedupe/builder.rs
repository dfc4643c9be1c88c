//! The builders of a `Dedupe`: on a filter, and in exact mode.

use std::time::Duration;

use crate::bloom_filter::BloomFilter;
use crate::bloom_filter::layout::check_remember_for;
use crate::dedupe::Dedupe;
use crate::dedupe::claims::FilterFull;
use crate::dedupe::exact::Layout;
use crate::error::Error;
use crate::lease::options::LeaseOptions;
use crate::macros::in_range;
use crate::store::Store;
use crate::store::redis::names::check_name;

impl Dedupe {
    /// Returns a builder for a `Dedupe` on a filter.
    pub fn builder() -> DedupeBuilder {
        DedupeBuilder::default()
    }

    /// Returns a builder for a `Dedupe` without false positives.
    ///
    /// All processes that use the same store and name share its claims and items.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{Dedupe, Store};
    ///
    /// let payments = Dedupe::exact(&Store::in_memory(), "payments")
    ///     .capacity(1_000_000)
    ///     .remember_for(Duration::from_secs(7 * 86_400))
    ///     .build()?;
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    pub fn exact(store: &Store, name: &str) -> ExactBuilder {
        ExactBuilder::new(store, name)
    }
}

/// Implements the setters of a builder of claims: those of lease options, and others.
macro_rules! claim_setters {
    ($builder:ident: $($others:tt)*) => {
        $crate::macros::setters! { $builder:
            /// Sets the time to live of a claim, 10 ms to 1 day. Default: 30 s.
            ///
            /// After this time, an item that a crashed process claimed can be claimed again.
            fn ttl(ttl: Duration) => options.ttl = ttl;

            /// Sets whether claims are renewed while they are held, at each third of their ttl. Default: `true`.
            fn watchdog(watchdog: bool) => options.watchdog = watchdog;

            /// Sets the maximum time for which a claim is held, at least the [`ttl`](Self::ttl). Default: as long as it
            /// lives.
            ///
            /// The watchdog renews a claim as long as it exists, even if it is leaked or left in a map. After this time
            /// the claim is lost, as if it had expired: the item can be claimed again,
            /// [`lost`](crate::LeaseHandle::lost) resolves, and the event `claim_lost` reports it when the item is
            /// confirmed. It needs the [`watchdog`](Self::watchdog): without it, the ttl is the maximum.
            fn max_hold(max_hold: Duration) => options.max_hold = Some(max_hold);

            $($others)*
        }
    };
}

/// Builds a [`Dedupe`] on a filter.
///
/// ```
/// use std::time::Duration;
/// use tower_distributed::dedupe::{Dedupe, FilterFull};
/// use tower_distributed::{BloomFilter, Store};
///
/// let seen = BloomFilter::builder()
///     .capacity(1_000_000)
///     .false_positive_rate(1e-6)
///     .remember_for(Duration::from_secs(7 * 86_400))
///     .build(&Store::in_memory(), "webhooks")?;
/// let webhooks = Dedupe::builder()
///     .ttl(Duration::from_secs(60))
///     .watchdog(false) // a message can be claimed again after 60 s, even if its handler still runs
///     .on_filter_full(FilterFull::FailClosed)
///     .build(&seen)?;
/// # Ok::<(), tower_distributed::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct DedupeBuilder {
    options: LeaseOptions,
    forever: bool,
    when_full: FilterFull,
}

impl Default for DedupeBuilder {
    fn default() -> Self {
        Self {
            options: options(),
            forever: false,
            when_full: FilterFull::default(),
        }
    }
}

/// Returns the default lease options of claims.
pub(super) fn options() -> LeaseOptions {
    LeaseOptions {
        ttl: Duration::from_secs(30),
        ..LeaseOptions::default()
    }
}

claim_setters! { DedupeBuilder:
    /// Allows a filter that never forgets. Default: such a filter is an error.
    ///
    /// The filter fills up. Above its capacity it [fails open](FilterFull::FailOpen), unless set otherwise, until
    /// it is cleared or replaced.
    ///
    /// ```
    /// use tower_distributed::{BloomFilter, Dedupe, Store};
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let seen = BloomFilter::new(&Store::in_memory(), "crawl-2026-11", 10_000_000, 1e-4)?;
    /// assert!(Dedupe::new(&seen).unwrap_err().is_invalid()); // the filter has no `remember_for`
    /// let urls = Dedupe::builder().remember_forever().build(&seen)?;
    /// # Ok(()) }
    /// ```
    fn remember_forever() => forever = true;

    /// Sets what to do with an item that the filter reports as a duplicate above its capacity. Default:
    /// [`FilterFull::FailOpen`].
    fn on_filter_full(on_filter_full: FilterFull) => when_full = on_filter_full;
}

impl DedupeBuilder {
    /// Builds the `Dedupe` on a filter.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if a setting is out of range. Also if neither or both of the filter's
    /// [`remember_for`](crate::bloom_filter::BloomFilterBuilder::remember_for) and
    /// [`remember_forever`](Self::remember_forever) are set.
    pub fn build(self, filter: &BloomFilter) -> Result<Dedupe, Error> {
        self.options.check()?;
        let name = filter.name();
        match (filter.size().remember_for, self.forever) {
            (None, false) => {
                return Err(Error::invalid(format!(
                    "the filter {name:?} has no remember_for, so it fills up: set remember_for on the filter, \
                     or remember_forever on the DedupeBuilder"
                )));
            }
            (Some(span), true) => {
                return Err(Error::invalid(format!(
                    "the filter {name:?} has remember_for {span:?}, and the DedupeBuilder has \
                     remember_forever: only one of the two is allowed"
                )));
            }
            (Some(_), false) | (None, true) => {}
        }
        Ok(Dedupe::on_filter(filter, self.when_full, self.options))
    }
}

/// Builds a [`Dedupe`] in exact mode.
///
/// ```
/// use std::time::Duration;
/// use tower_distributed::{Dedupe, Store};
///
/// let payments = Dedupe::exact(&Store::in_memory(), "payments")
///     .remember_for(Duration::from_secs(7 * 86_400)) // must be set
///     .capacity(1_000_000)                           // items within these 7 days
///     .ttl(Duration::from_secs(60))                  // a claim of a crashed process expires after 60 s
///     .watchdog(false)                               // and so does a claim whose handler takes longer
///     .build()?;
/// # Ok::<(), tower_distributed::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct ExactBuilder {
    store: Store,
    name: String,
    capacity: u64,
    remember_for: Option<Duration>,
    options: LeaseOptions,
}

const MOST: u64 = 100_000_000_000;

claim_setters! { ExactBuilder:
    /// Sets how long an item is remembered at least after it was confirmed, 1 second to 10 years in whole
    /// milliseconds. There is no default: it must be set.
    ///
    /// An item is forgotten after 1.5 times as long at the latest. The server's clock counts.
    fn remember_for(span: Duration) => remember_for = Some(span);

    /// Sets how many items are expected within `remember_for`, 1 to 10¹¹. Default: one million.
    ///
    /// The capacity determines over how many keys the items are spread. With many more or far fewer items, an item
    /// takes more memory: with a capacity of 10⁶, 25 bytes with 10⁵ items, and 47 bytes with 10⁴. The answers stay
    /// exact.
    fn capacity(items: u64) => capacity = items;
}

impl ExactBuilder {
    pub(crate) fn new(store: &Store, name: &str) -> Self {
        let store = store.clone();
        let name = name.to_owned();
        Self {
            store,
            name,
            capacity: 1_000_000,
            remember_for: None,
            options: options(),
        }
    }

    /// Builds the `Dedupe`.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if `remember_for` is missing, a setting is out of range, or the name is
    /// not 1 to 64 of `A-Z a-z 0-9 - _ . /`. If other settings are stored under the name, the first call returns
    /// the error.
    pub fn build(self) -> Result<Dedupe, Error> {
        self.options.check()?;
        let missing = || {
            let name = &self.name;
            Error::invalid(format!(
                "remember_for must be set for {name:?}: 1 s to 10 years, in whole milliseconds"
            ))
        };
        let span = check_remember_for(self.remember_for.ok_or_else(missing)?)?;
        in_range(
            "capacity",
            1..=MOST,
            format_args!("1 to {MOST}"),
            self.capacity,
        )?;
        check_name("the name of a namespace", &self.name)?;
        let layout = Layout::new(self.capacity, span);
        Ok(Dedupe::exactly(
            &self.store,
            &self.name,
            layout.into(),
            self.options,
        ))
    }
}
