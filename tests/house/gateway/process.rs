//! The examples `gateway` and `llm_gateway` as processes.

use support::example::ServingExample;

/// A running gateway, which dies with this value.
pub(crate) struct Gateway {
    process: ServingExample,
    name: &'static str,
    pub(crate) base: String,
}

impl Gateway {
    pub(crate) fn start(redis_url: Option<&str>) -> Self {
        Self::start_example("gateway", redis_url)
    }

    /// Starts the one with budgets of tokens.
    pub(crate) fn start_llm(redis_url: Option<&str>) -> Self {
        Self::start_example("llm_gateway", redis_url)
    }

    fn start_example(name: &'static str, redis_url: Option<&str>) -> Self {
        let process = ServingExample::start(name, redis_url);
        Self {
            base: process.base.clone(),
            name,
            process,
        }
    }

    /// Stops the process: its connections stay open, and nothing is answered.
    pub(crate) fn pause(&self) {
        self.process.pause();
    }

    pub(crate) fn resume(&self) {
        self.process.resume();
    }

    /// Ends the process, and starts another one on its port.
    pub(crate) fn restart(&mut self) {
        self.process.restart(self.name);
    }
}
