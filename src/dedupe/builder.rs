//! The builder of a `Dedupe` on a filter.

use std::time::Duration;

use super::Dedupe;
use crate::lease::LeaseOptions;
use crate::{BloomFilter, Error};

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

/// What to do with an item that a filter above its capacity reports as a duplicate.
///
/// Above its capacity, a filter reports more new items as duplicates than its false-positive rate says. For
/// example, a filter with a rate of 10⁻⁴ reports about 16 % of the new items at three times its capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterFull {
    /// The item can be claimed and is handled. No new item is lost, but real duplicates are handled again. Each is
    /// counted with the outcome `filter_full` in the [decisions](crate::telemetry). This is the default.
    #[default]
    FailOpen,
    /// The item is a duplicate, as below the capacity. New items can be lost.
    FailClosed,
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

/// Implements the setters of a builder of claims: of their leases, and others.
macro_rules! claim_setters {
    ($builder:ident: $($others:tt)*) => {
        $crate::setters::setters! { $builder:
            /// Sets the time to live of a claim, 10 ms to 1 day. Default: 30 s.
            ///
            /// After this time, an item that a crashed process claimed can be claimed again.
            fn ttl(ttl: Duration) => options.ttl = ttl;

            /// Sets whether claims are renewed while they are held, at each third of their ttl. Default: `true`.
            fn watchdog(watchdog: bool) => options.watchdog = watchdog;

            /// Sets how long a claim is held at most, at least the [`ttl`](Self::ttl). Default: as long as it lives.
            ///
            /// The watchdog renews a claim for as long as it is there, also one that was forgotten in a map or leaked.
            /// After this time the claim is lost, as if it had expired: the item can be claimed again,
            /// [`lost`](crate::LeaseHandle::lost) resolves, and the event `claim_lost` tells it when the item is
            /// confirmed. Not without a [`watchdog`](Self::watchdog): there the ttl is the bound.
            fn max_hold(max_hold: Duration) => options.max_hold = Some(max_hold);

            $($others)*
        }
    };
}
pub(super) use claim_setters;

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
