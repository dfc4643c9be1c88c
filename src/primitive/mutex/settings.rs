//! The settings of mutexes that are not options of their leases.

use std::sync::Arc;
use std::time::Duration;

use crate::primitive::lease::Wait;
use crate::random;

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) wait: Wait,
    /// `None`: on one store wait in the queue; on a quorum 32.
    pub(super) tries: Option<u32>,
    pub(super) delay: Delay,
    pub(super) value: Option<Arc<dyn Fn() -> String + Send + Sync>>,
    pub(super) exact_names: bool,
    pub(super) strict_fifo: bool,
    pub(super) timeout_factor: f64,
    pub(super) fail_fast: bool,
    pub(super) shuffle_nodes: bool,
    pub(super) cancel_when_lost: bool,
}

#[derive(Clone)]
pub(super) enum Delay {
    /// A random pause between the two.
    Random(Duration, Duration),
    Fixed(Duration),
    By(Arc<dyn Fn(u32) -> Duration + Send + Sync>),
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            wait: Wait::FOR_EVER,
            tries: None,
            delay: Delay::Random(Duration::from_millis(50), Duration::from_millis(250)),
            value: None,
            exact_names: false,
            strict_fifo: false,
            timeout_factor: 0.05,
            fail_fast: false,
            shuffle_nodes: false,
            cancel_when_lost: true,
        }
    }
}

impl Settings {
    /// Whether waiters poll, as in other libraries, instead of standing in the queue.
    pub(super) fn polls(&self) -> bool {
        self.exact_names && !self.strict_fifo
    }

    /// The name under which mutexes share their state. All mutexes with exact names are in one namespace.
    pub(super) fn shared_name<'a>(&self, name: &'a str) -> &'a str {
        if self.exact_names { "" } else { name }
    }

    /// The pause after `tried` attempts.
    pub(super) fn retry_delay(&self, tried: u32) -> Duration {
        match &self.delay {
            Delay::Random(least, most) => *least + (*most - *least).mul_f64(random::fraction()),
            Delay::Fixed(delay) => *delay,
            Delay::By(delay) => delay(tried),
        }
    }
}

debug!(Settings, wait, tries, exact_names);
