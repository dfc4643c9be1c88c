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

pub(crate) use crate::layers::lease as layer; // moved

pub(crate) use self::acquire_all as all; // moved
pub(crate) use self::handle as state; // moved
pub(crate) use self::handle::{Keeper, LeaseState, guard}; // moved
pub(crate) use self::holders as ends; // moved
pub(crate) use self::holders as holder; // moved
pub(crate) use self::kind as outcome; // moved
pub(crate) use self::look as snapshot; // moved
pub(crate) use self::namespace::{Admission, Completed, Leases}; // moved
pub(crate) use self::options::{LeaseOptions, micros, rules}; // moved
pub(crate) use self::order as flows; // moved
#[cfg(test)]
pub(crate) use self::process::entry::LONGEST_TURN; // moved
pub(crate) use self::token::percent; // moved
pub(crate) use self::waiter::{Ask, Got, Wait}; // moved
pub(crate) use self::watch::Watch; // moved
pub(crate) use crate::store::validity::{Anchor, Drift, Validity}; // moved

pub(crate) mod tokens {
    pub(crate) use super::options::Rules; // moved
    pub(crate) use super::process::Tokens; // moved
    pub(crate) use super::process::event::{Effect, Event, Grant, Now, Release, Renewed}; // moved
    pub(crate) use super::process::hold::first_renewal; // moved
}
