//! Settings of claims.

use std::time::Duration;

use super::Dedupe;
use crate::primitive::lease::LeaseOptions;
use crate::{BloomFilter, Error};

/// Settings of a [`Dedupe`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct DedupeBuilder {
    pub(super) options: LeaseOptions,
}

impl Default for DedupeBuilder {
    fn default() -> Self {
        Self { options: LeaseOptions { ttl: Duration::from_secs(30), ..LeaseOptions::default() } }
    }
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

    /// Claims on the items of a filter.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where a setting is out of range.
    pub fn build(self, filter: &BloomFilter) -> Result<Dedupe, Error> {
        self.options.check()?;
        Ok(Dedupe::open(filter, self))
    }
}
