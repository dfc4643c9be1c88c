//! What every layer owes to the services around it, whatever it decides by.

mod dropped;
mod inner_calls;
mod readiness;
mod refused;
mod shared;
pub(crate) mod subjects;
