//! Rate limits in HTTP responses.

pub(crate) mod fields;
pub(crate) mod learn;
pub(crate) mod meter_body;
mod origin;
pub(crate) mod retry_after;
mod values;
