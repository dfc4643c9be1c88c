//! What HTTP messages have in common.

pub(crate) mod lists;
pub(crate) mod message;
pub(crate) mod reading;
