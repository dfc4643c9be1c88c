//! Replacements that do nothing, for builds with neither `tracing` nor `metrics`.

use std::fmt;

use super::names::{Event, Outcome};
use crate::Error;
use crate::error::Outage;

pub(crate) fn tell(_: &str, _: Event, _: impl fmt::Display) {}

#[derive(Clone, Debug)]
pub(crate) struct Decisions;

impl Decisions {
    pub(crate) fn new(_: &'static str, _: &str) -> Self {
        Self
    }

    pub(crate) fn count(&self, _: Outcome) {}

    pub(crate) fn settle<T>(&self, settled: Result<(T, Outcome), Error>) -> Result<T, Error> {
        settled.map(|(granted, _)| granted)
    }

    pub(crate) fn admitted<T>(&self, granted: Result<T, Error>) -> Result<T, Error> {
        granted
    }

    pub(crate) fn extracted<T>(&self, key: Result<T, Error>) -> Result<T, Error> {
        key
    }
}

#[derive(Debug)]
pub(crate) struct Often;

impl Often {
    pub(crate) fn new(_: &str, _: Event) -> Self {
        Self
    }

    pub(crate) fn tell(&self, _: impl fmt::Display) {}
}

#[derive(Debug)]
pub(crate) struct Fill;

impl Fill {
    pub(crate) fn new(_: &str) -> Self {
        Self
    }

    pub(crate) fn set(&self, _: f64) {}
}

#[derive(Clone, Debug)]
pub(crate) struct Leases;

impl Leases {
    pub(crate) fn new(_: &'static str, _: &str) -> Self {
        Self
    }

    pub(crate) fn lease(&self) -> LeaseCounts {
        LeaseCounts
    }
}

#[derive(Debug)]
pub(crate) struct LeaseCounts;

impl LeaseCounts {
    pub(crate) fn began(&self) {}
    pub(crate) fn ended(&self) {}
    pub(crate) fn renewed(&self) {}
    pub(crate) fn lost(&self) {}
}

#[derive(Clone, Debug)]
pub(crate) struct Server;

impl Server {
    pub(crate) fn new(_: &str) -> Self {
        Self
    }

    pub(crate) fn breaker_opened(&self, _: &Outage) {}
    pub(crate) fn breaker_reopened(&self, _: &Outage) {}
    pub(crate) fn breaker_half_open(&self) {}
    pub(crate) fn breaker_closed(&self) {}
    pub(crate) fn breaker_dropped(&self) {}
    pub(crate) fn connected(&self, _: bool) {}
    pub(crate) fn subscription(&self, _: bool) {}
    pub(crate) fn subscription_failed(&self, _: &str) {}
    pub(crate) fn batch(&self, _: usize, _: impl FnOnce() -> u64) {}
    pub(crate) fn call(&self, _: tokio::time::Instant, _: bool) {}
    pub(crate) fn overloaded(&self, _: usize, _: impl FnOnce() -> u64) {}
}
