//! Events and counters for what should not go unnoticed, behind the features `tracing` and `metrics`.
//!
//! Each is an event of level WARN on the target `tower_distributed` with the fields `namespace` and `event`, and counts in
//! `tower_distributed_events_total`, labelled alike. No key is ever told.

pub(crate) mod store;

use std::fmt;

/// What should not go unnoticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// An answer was not shared with other processes: it is too large, or cannot be encoded.
    AnswerTooLarge,
    AnswerNotEncodable,
    /// It was not shared since the store was away.
    AnswerNotPublished,
    /// It was not shared since the lease of its leader had been lost.
    FlightLost,
    /// An answer in the store was taken for none: another codec or version wrote it, or it cannot be decoded.
    AnswerForeign,
    AnswerGarbled,
    /// A claim was lost while its item was handled: somebody else may have handled it too.
    ClaimLost,
    /// An item was handled, which could not be noted: it may be handled again.
    ClaimNotConfirmed,
}

impl Event {
    #[cfg(any(feature = "tracing", feature = "metrics"))]
    fn name(self) -> &'static str {
        match self {
            Self::AnswerTooLarge => "answer_too_large",
            Self::AnswerNotEncodable => "answer_not_encodable",
            Self::AnswerNotPublished => "answer_not_published",
            Self::FlightLost => "flight_lost",
            Self::AnswerForeign => "answer_foreign",
            Self::AnswerGarbled => "answer_garbled",
            Self::ClaimLost => "claim_lost",
            Self::ClaimNotConfirmed => "claim_not_confirmed",
        }
    }
}

/// Tells of an event in a namespace.
pub(crate) fn tell(namespace: &str, event: Event, detail: impl fmt::Display) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "tower_distributed", namespace, event = event.name(), "{detail}");
    #[cfg(feature = "metrics")]
    metrics::counter!("tower_distributed_events_total", "namespace" => namespace.to_owned(), "event" => event.name())
        .increment(1);
    let _ = (namespace, event, detail);
}

/// For what runs in a task of its own: in the span of who began it.
#[cfg(feature = "tracing")]
pub(crate) fn in_current_span<F: Future>(future: F) -> impl Future<Output = F::Output> {
    tracing::Instrument::in_current_span(future)
}

#[cfg(not(feature = "tracing"))]
pub(crate) fn in_current_span<F: Future>(future: F) -> F {
    future
}
