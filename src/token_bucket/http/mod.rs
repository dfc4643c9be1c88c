//! Rate limits in HTTP responses.

pub(crate) mod learn;
pub(crate) mod origin;
pub(crate) mod values;
