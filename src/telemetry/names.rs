//! The names of all events and metrics, and the values of their labels.

use crate::error::Error;

/// Declares an enum whose variants have names.
macro_rules! named {
    ($(#[$doc:meta])* $enum:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $enum { $($(#[$variant_doc])* $variant,)+ }

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
    /// The events.
    Event {
        /// The first breaker of a server has opened.
        OutageBegan = "outage_began",
        /// The last open breaker of a server has closed.
        OutageEnded = "outage_ended",
        BreakerOpened = "breaker_opened",
        BreakerHalfOpen = "breaker_half_open",
        BreakerClosed = "breaker_closed",
        /// A new connection has replaced another.
        Reconnected = "reconnected",
        SubscriptionLost = "subscription_lost",
        SubscriptionBack = "subscription_back",
        /// Calls are sent as scripts, because the server has no functions, or denies them.
        FunctionsMissing = "functions_missing",
        /// The store refused an operation because a bound is reached.
        Overloaded = "overloaded",
        /// A lease ended before it was released.
        LeaseLost = "lease_lost",
        /// A response body continued without its lease.
        BodyOutlivedLease = "body_outlived_lease",
        /// A layer or a single flight continued without the store.
        Degraded = "degraded",
        /// An answer was not shared with other processes: it is too large, or cannot be encoded.
        AnswerTooLarge = "answer_too_large",
        AnswerNotEncodable = "answer_not_encodable",
        /// An answer was not stored: this process has reached `max_stored`.
        AnswerOverBudget = "answer_over_budget",
        /// An answer was not shared: the store was unavailable.
        AnswerNotPublished = "answer_not_published",
        /// An answer was not shared: the leader had lost its lease.
        FlightLost = "flight_lost",
        /// A run exceeded `max_run`: the next caller runs.
        FlightGivenUp = "flight_given_up",
        /// A run whose client had disconnected was dropped at its time limit.
        DetachedGivenUp = "detached_given_up",
        /// An answer in the store was ignored: another codec or version wrote it, or it cannot be decoded.
        AnswerForeign = "answer_foreign",
        AnswerGarbled = "answer_garbled",
        /// A claim was lost while its item was handled: another process may have handled the item too.
        ClaimLost = "claim_lost",
        /// An item was handled, but the store could not record it: the item may be handled again.
        ClaimNotConfirmed = "claim_not_confirmed",
        /// The filter of a deduplication has reached 80 % of its capacity, or all of it.
        FilterNearlyFull = "filter_nearly_full",
        FilterFull = "filter_full",
        /// The extensions of a request do not contain the address of its peer.
        PeerMissing = "peer_missing",
        /// A request lacks the extension from which its key is extracted.
        ExtensionMissing = "extension_missing",
        /// A request was refused because a layer or its primitive is misconfigured.
        Misconfigured = "misconfigured",
        /// A header field with an upstream's limit was ignored, or its numbers were reduced to the range of a quota.
        UpstreamFieldIgnored = "upstream_field_ignored",
        UpstreamFieldClamped = "upstream_field_clamped",
        /// A request has a forwarding header, and its peer is not a trusted proxy.
        HeaderUntrusted = "forwarding_header_untrusted",
        /// A setting of the fleet has another value.
        SettingChanged = "setting_changed",
        /// The stored value of a setting of the fleet cannot be used: the last known value stays in force.
        SettingIgnored = "setting_ignored",
    }
}

named! {
    /// The outcome of a request.
    Outcome {
        Admitted = "admitted",
        Refused = "refused",
        /// Without a call to the store.
        RefusedFromCache = "refused_from_cache",
        /// The request got the answer of another run of a single flight.
        Shared = "shared",
        /// The store failed: the request was admitted, refused, or admitted by this process's share.
        FailedOpen = "failed_open",
        FailedClosed = "failed_closed",
        LocalShare = "local_share",
        /// The store refused the request because a bound is reached.
        Overloaded = "overloaded",
        /// In shadow mode: the request would have been refused or delayed.
        Shadowed = "shadowed",
        /// A filter above its capacity reported a duplicate: the item was handled.
        FilterFull = "filter_full",
    }
}

impl Outcome {
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

/// A metric: its name, its kind, its labels, its unit and its description.
#[derive(Debug)]
#[cfg_attr(not(feature = "metrics"), allow(dead_code))]
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) labels: &'static [&'static str],
    pub(super) unit: &'static str,
    pub(super) help: &'static str,
}

/// Declares the metrics, and a list of all of them.
macro_rules! metrics {
    ($($metric:ident = $name:literal, $kind:ident, [$($label:ident),*], $unit:ident, $help:literal;)+) => {
        $(
            pub(super) const $metric: Metric = Metric {
                name: $name,
                kind: stringify!($kind),
                labels: &[$(stringify!($label)),*],
                unit: stringify!($unit),
                help: $help,
            };
        )+

        #[cfg(feature = "metrics")]
        pub(super) const METRICS: &[Metric] = &[$($metric),+];
    };
}

metrics! {
    DECISIONS = "tower_distributed_decisions_total", counter, [limiter, namespace, outcome], decisions,
        "The outcomes of requests, from layers and from calls of a primitive.";
    EVENTS = "tower_distributed_events_total", counter, [event, namespace, server], events,
        "Events, each with its namespace or its server.";
    CALL = "tower_distributed_call_seconds", histogram, [server, result], seconds,
        "The time from the start of a script call to its reply, without the wait in the queue.";
    BATCH = "tower_distributed_batch_operations", histogram, [server], operations,
        "The number of operations in a batch.";
    QUEUE = "tower_distributed_queue_operations", gauge, [server], operations,
        "The number of operations that wait to be sent.";
    RECONNECTS = "tower_distributed_reconnects_total", counter, [server], connections,
        "Connections that replaced failed ones.";
    BREAKERS_OPEN = "tower_distributed_breakers_open", gauge, [server], breakers,
        "Breakers that are open or half-open.";
    LEASES_HELD = "tower_distributed_leases_held", gauge, [kind, namespace], leases,
        "Leases that this process has and has not released, including lost leases that are not dropped yet.";
    LEASES_LOST = "tower_distributed_leases_lost_total", counter, [kind, namespace], leases,
        "Leases that ended before they were released.";
    LEASES_RENEWED = "tower_distributed_leases_renewed_total", counter, [kind, namespace], renewals,
        "Successful renewals.";
    FILTER_FILL = "tower_distributed_filter_fill_ratio", gauge, [namespace], ratio,
        "How full the filter of a deduplication is: 1 at its capacity.";
    ADAPTIVE_LIMIT = "tower_distributed_adaptive_limit", gauge, [namespace], permits,
        "The limit of a WaitGroup that adapts, as the store returned it last.";
    ADAPTIVE_IN_FLIGHT = "tower_distributed_adaptive_in_flight", gauge, [namespace], permits,
        "The permits in flight of all processes in the last window.";
    ADAPTIVE_LATENCY = "tower_distributed_adaptive_latency_seconds", gauge, [namespace], seconds,
        "The mean latency of the successes in the last window.";
}
