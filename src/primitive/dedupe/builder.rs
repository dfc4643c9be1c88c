//! Settings of claims on the items of a filter.

use std::time::Duration;

use super::Dedupe;
use crate::primitive::lease::LeaseOptions;
use crate::{BloomFilter, Error};

/// Settings of a [`Dedupe`] on a filter.
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

/// What becomes of an item that a filter takes for a duplicate while it holds more than its capacity.
///
/// Beyond its capacity a filter takes more new items for duplicates than its false-positive rate says: with one for 10⁻⁴,
/// about 16 % of them at three times the capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterFull {
    /// It is claimed and handled: the default. No new item is lost, and real duplicates are handled again. Each is counted as
    /// `filter_full` among the [decisions](crate::telemetry).
    #[default]
    FailOpen,
    /// It is a duplicate, as below the capacity.
    FailClosed,
}

impl Default for DedupeBuilder {
    fn default() -> Self {
        Self { options: options(), forever: false, when_full: FilterFull::default() }
    }
}

/// Those of claims.
pub(super) fn options() -> LeaseOptions {
    LeaseOptions { ttl: Duration::from_secs(30), ..LeaseOptions::default() }
}

impl DedupeBuilder {
    /// After what time an item that a crashed process has claimed can be claimed again, 10 ms to 1 day. Default: 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// Whether claims are renewed as long as they are held, every third of their time to live. Default: yes.
    pub fn watchdog(mut self, watchdog: bool) -> Self {
        self.options.watchdog = watchdog;
        self
    }

    /// Takes a filter that never forgets. It fills up: from its capacity on it
    /// [fails open](FilterFull::FailOpen) until it is cleared or replaced. Default: such a filter is refused.
    pub fn remember_forever(mut self) -> Self {
        self.forever = true;
        self
    }

    /// What becomes of an item that the filter takes for a duplicate while it holds more than its capacity. Default:
    /// [`FilterFull::FailOpen`].
    pub fn on_filter_full(mut self, on_filter_full: FilterFull) -> Self {
        self.when_full = on_filter_full;
        self
    }

    /// Claims on the items of a filter.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where a setting is out of range, or the filter has no
    /// [`remember_for`](crate::bloom_filter::BloomFilterBuilder::remember_for) and
    /// [`remember_forever`](Self::remember_forever) is not set, or both are.
    pub fn build(self, filter: &BloomFilter) -> Result<Dedupe, Error> {
        self.options.check()?;
        let name = filter.name();
        match (filter.remember_for(), self.forever) {
            (None, false) => {
                return Err(Error::invalid(format!(
                    "a filter for deduplication must have remember_for, or remember_forever must be set on \
                     the builder of the Dedupe: the filter {name:?} never forgets, so it fills up"
                )));
            }
            (Some(span), true) => {
                return Err(Error::invalid(format!(
                    "remember_forever is set for the filter {name:?}, which has remember_for {span:?}: \
                     only one of the two is allowed"
                )));
            }
            (Some(_), false) | (None, true) => {}
        }
        Ok(Dedupe::on_filter(filter, self.options, self.when_full))
    }
}
