#![doc = include_str!("lease/page.md")]

pub(crate) mod acquire;
pub(crate) mod acquire_all;
#[cfg(test)]
pub(crate) mod agreement;
pub(crate) mod handle;
pub(crate) mod hold_time;
pub(crate) mod holders;
pub(crate) mod key_state;
pub(crate) mod kind;
pub(crate) mod look;
#[cfg(test)]
mod model;
pub(crate) mod namespace;
pub(crate) mod operations;
pub(crate) mod options;
pub(crate) mod order;
pub(crate) mod perform;
pub(crate) mod process;
pub(crate) mod queue;
pub(crate) mod release;
pub(crate) mod settings;
#[cfg(test)]
mod tests;
pub(crate) mod token;
pub(crate) mod waiter;
pub(crate) mod watch;

pub use self::handle::{Lease, LeaseHandle};
pub use self::look::{Holder, Snapshot};
pub use crate::layers::lease::{Hold, LeaseLayer, OnLease, UntilResponse};
