//! Flights of HTTP responses.

pub(crate) mod answer;
pub(crate) mod asked;
pub(crate) mod flight_body;
pub(crate) mod freshness;
pub(crate) mod responses;
pub(crate) mod shareable;
