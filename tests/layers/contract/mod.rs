//! What every layer owes to the services around it, whatever it decides by.

mod away;
mod dropped;
mod inner_calls;
mod readiness;
mod refused;
mod shared;
pub(crate) mod subjects;
#[cfg(all(feature = "http", feature = "tonic"))]
pub(crate) mod told;
