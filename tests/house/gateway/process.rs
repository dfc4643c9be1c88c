//! The `gateway` example as a process.

use support::example::ServingExample;

/// A running gateway, which dies with this value.
pub(crate) struct Gateway {
    _process: ServingExample,
    pub(crate) base: String,
}

impl Gateway {
    pub(crate) fn start(redis_url: Option<&str>) -> Self {
        let process = ServingExample::start("gateway", redis_url);
        Self {
            base: process.base.clone(),
            _process: process,
        }
    }
}
