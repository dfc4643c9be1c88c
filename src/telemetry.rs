// The module's documentation is src/docs/telemetry.md. Nothing else in the crate names `tracing` or `metrics`.

mod names;

pub(crate) mod counters;
pub(crate) mod emit;
pub(crate) mod server;
#[cfg(all(test, feature = "tracing", feature = "metrics"))]
mod tests;
mod throttle;

pub(crate) use self::{
    counters::{Fill, Leases},
    names::{Event, Outcome},
};

/// Whether events are emitted or metrics are counted.
const IS_ON: bool = cfg!(any(feature = "tracing", feature = "metrics"));

/// Describes all metrics, with their units, to the recorder that is installed. Each [`Store`](crate::Store) does so when it is
/// built: call it if the recorder is installed later.
///
/// ```
/// use tower_distributed::telemetry::describe_metrics;
///
/// // metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder()?;
/// describe_metrics();
/// ```
#[cfg(feature = "metrics")]
pub fn describe_metrics() {
    emit::describe();
}

/// Makes a future that is spawned as a task run in the span of its caller.
#[cfg(feature = "tracing")]
pub(crate) fn in_current_span<F: Future>(future: F) -> impl Future<Output = F::Output> {
    tracing::Instrument::in_current_span(future)
}

#[cfg(not(feature = "tracing"))]
pub(crate) fn in_current_span<F: Future>(future: F) -> F {
    future
}

/// Makes a function that is called with a reply run in the span of the caller.
pub(crate) fn answered_in_current_span<A>(then: impl FnOnce(A)) -> impl FnOnce(A) {
    #[cfg(feature = "tracing")]
    let span = tracing::Span::current();
    move |answer| {
        #[cfg(feature = "tracing")]
        let _entered = span.entered();
        then(answer);
    }
}
