//! Every name that is told: events, metrics and the values of their labels.

use crate::Error;
use crate::primitive::token_bucket::Decision;

/// An enum whose variants have names.
macro_rules! named {
    ($(#[$doc:meta])* $enum:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(not(any(feature = "tracing", feature = "metrics")), allow(dead_code))]
        pub(crate) enum $enum { $($(#[$variant_doc])* $variant,)+ }

        #[cfg(any(feature = "tracing", feature = "metrics"))]
        impl $enum {
            #[allow(dead_code)]
            pub(super) const ALL: &[Self] = &[$(Self::$variant),+];

            #[allow(dead_code)]
            pub(super) const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

named! {
    /// What should not go unnoticed.
    Event {
        /// The first breaker of a server has opened.
        OutageBegan = "outage_began",
        /// The last one has closed.
        OutageEnded = "outage_ended",
        BreakerOpened = "breaker_opened",
        BreakerHalfOpen = "breaker_half_open",
        BreakerClosed = "breaker_closed",
        /// A connection was made in the place of another.
        Reconnected = "reconnected",
        SubscriptionLost = "subscription_lost",
        SubscriptionBack = "subscription_back",
        /// The store refused an operation for want of room.
        Overloaded = "overloaded",
        /// A lease ended before it was released.
        LeaseLost = "lease_lost",
        /// A layer decided without the store.
        Degraded = "degraded",
        /// An answer was not shared with other processes: it is too large, or cannot be encoded.
        AnswerTooLarge = "answer_too_large",
        AnswerNotEncodable = "answer_not_encodable",
        /// It was not stored: this process has stored as much as it is to.
        AnswerOverBudget = "answer_over_budget",
        /// It was not shared since the store was away.
        AnswerNotPublished = "answer_not_published",
        /// It was not shared since the lease of its leader had been lost.
        FlightLost = "flight_lost",
        /// A run took so long that the next caller runs.
        FlightGivenUp = "flight_given_up",
        /// An answer in the store was taken for none: another codec or version wrote it, or it cannot be decoded.
        AnswerForeign = "answer_foreign",
        AnswerGarbled = "answer_garbled",
        /// A claim was lost while its item was handled: somebody else may have handled it too.
        ClaimLost = "claim_lost",
        /// An item was handled, which could not be noted: it may be handled again.
        ClaimNotConfirmed = "claim_not_confirmed",
        /// The filter of a deduplication has crossed 80 % of its capacity, or all of it.
        FilterNearlyFull = "filter_nearly_full",
        FilterFull = "filter_full",
        /// A request has no address of its peer: the server does not provide it.
        PeerMissing = "peer_missing",
        /// A request has a forwarding header, and its peer is not a trusted proxy.
        HeaderUntrusted = "forwarding_header_untrusted",
    }
}

named! {
    /// What became of a request.
    Outcome {
        Admitted = "admitted",
        Refused = "refused",
        /// Without asking the store.
        RefusedFromCache = "refused_from_cache",
        /// It got the answer of another run of a single flight.
        Shared = "shared",
        /// The store failed: admitted, refused, or admitted under this process's share.
        FailedOpen = "failed_open",
        FailedClosed = "failed_closed",
        LocalShare = "local_share",
        /// The store refused it for want of room.
        Overloaded = "overloaded",
        /// It would have been refused, in shadow mode.
        Shadowed = "shadowed",
        /// A filter beyond its capacity took it for a duplicate: it was handled.
        FilterFull = "filter_full",
    }
}

impl Outcome {
    pub(crate) fn of(decision: &Decision) -> Self {
        match (decision.is_admitted(), decision.is_local()) {
            (true, _) => Self::Admitted,
            (false, false) => Self::Refused,
            (false, true) => Self::RefusedFromCache,
        }
    }

    pub(crate) fn of_error(error: &Error) -> Self {
        if error.is_overloaded() {
            Self::Overloaded
        } else if error.is_unavailable() {
            Self::FailedClosed
        } else {
            Self::Refused
        }
    }
}

/// The target of all events.
#[cfg(feature = "tracing")]
pub(super) const TARGET: &str = "tower_distributed";

/// A metric: its name, what kind it is, its labels and its unit.
#[cfg(any(feature = "tracing", feature = "metrics"))]
#[derive(Debug)]
#[cfg_attr(not(all(test, feature = "metrics")), allow(dead_code))]
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) labels: &'static [&'static str],
    pub(super) unit: &'static str,
}

/// Declares the metrics, and a list of them all.
macro_rules! metrics {
    ($($metric:ident = $name:literal, $kind:ident, [$($label:ident),*], $unit:ident;)+) => {
        $(
            #[cfg(any(feature = "tracing", feature = "metrics"))]
            pub(super) const $metric: Metric = Metric {
                name: $name,
                kind: stringify!($kind),
                labels: &[$(stringify!($label)),*],
                unit: stringify!($unit),
            };
        )+

        #[cfg(all(test, feature = "tracing", feature = "metrics"))]
        pub(super) const METRICS: &[Metric] = &[$($metric),+];
    };
}

metrics! {
    DECISIONS = "tower_distributed_decisions_total", counter, [limiter, namespace, outcome], decisions;
    EVENTS = "tower_distributed_events_total", counter, [event, namespace, server], events;
    CALL = "tower_distributed_call_seconds", histogram, [server, result], seconds;
    BATCH = "tower_distributed_batch_operations", histogram, [server], operations;
    QUEUE = "tower_distributed_queue_operations", gauge, [server], operations;
    RECONNECTS = "tower_distributed_reconnects_total", counter, [server], connections;
    BREAKERS_OPEN = "tower_distributed_breakers_open", gauge, [server], breakers;
    LEASES_HELD = "tower_distributed_leases_held", gauge, [kind, namespace], leases;
    LEASES_LOST = "tower_distributed_leases_lost_total", counter, [kind, namespace], leases;
    LEASES_RENEWED = "tower_distributed_leases_renewed_total", counter, [kind, namespace], renewals;
    FILTER_FILL = "tower_distributed_filter_fill_ratio", gauge, [namespace], ratio;
}
