// The module's documentation is src/docs/telemetry.md. Nothing else in the crate names `tracing` or `metrics`.

mod names;

#[cfg(any(feature = "tracing", feature = "metrics"))]
mod decisions;
#[cfg(any(feature = "tracing", feature = "metrics"))]
mod emit;
#[cfg(any(feature = "tracing", feature = "metrics"))]
mod fill;
#[cfg(any(feature = "tracing", feature = "metrics"))]
mod leases;
#[cfg(not(any(feature = "tracing", feature = "metrics")))]
mod off;
#[cfg(any(feature = "tracing", feature = "metrics"))]
mod often;
#[cfg(any(feature = "tracing", feature = "metrics"))]
mod series;
#[cfg(any(feature = "tracing", feature = "metrics"))]
mod server;
#[cfg(all(test, feature = "tracing", feature = "metrics"))]
mod tests;
#[cfg(feature = "tracing")]
mod throttle;

pub(crate) use self::names::{Event, Outcome};

#[cfg(not(any(feature = "tracing", feature = "metrics")))]
pub(crate) use self::off::{Decisions, Fill, LeaseCounts, Leases, Often, Server, tell};
#[cfg(any(feature = "tracing", feature = "metrics"))]
pub(crate) use self::{
    decisions::Decisions,
    emit::tell,
    fill::Fill,
    leases::{LeaseCounts, Leases},
    often::Often,
    server::Server,
};

/// Makes a future that is spawned as a task run in the span of its caller.
#[cfg(feature = "tracing")]
pub(crate) fn in_current_span<F: Future>(future: F) -> impl Future<Output = F::Output> {
    tracing::Instrument::in_current_span(future)
}

#[cfg(not(feature = "tracing"))]
pub(crate) fn in_current_span<F: Future>(future: F) -> F {
    future
}
