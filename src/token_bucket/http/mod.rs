//! Rate limits in HTTP responses.

pub(crate) mod fields;
pub(crate) mod learn;
pub(crate) mod meter_body;
pub(crate) mod retry_after;
