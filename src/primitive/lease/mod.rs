//! What is held for a while: [`Lease`], under permits and the guards of locks.
//!
//! A lease is held until it is [released](Lease::release) or dropped, and no longer than its time to live unless it
//! is renewed: by a watchdog, at a third of its time to live. So what a crashed process held is free again after
//! that time.
//!
//! # What a lease promises
//!
//! Its validity is counted from the moment when the call that got it was *sent*, less an allowance for clocks that
//! run at different speeds; so while [`is_held`](Lease::is_held) says yes, nobody else has been granted it.
//! [`lost`](Lease::lost) ends no later than the lease may, even if a renewal hangs and even if the store is
//! out of reach. What it cannot promise, see [`guarantees`](crate::guarantees).

mod acquire;
mod admission;
#[cfg(test)]
pub(crate) mod agreement;
mod belief;
mod complete;
mod granting;
mod handle;
mod handover;
mod heartbeats;
mod keeper;
pub(crate) mod key_state;
pub(crate) mod kind;
mod line;
#[cfg(test)]
mod model;
pub(crate) mod operations;
mod options;
pub(crate) mod outcome;
pub(crate) mod queue;
mod releases;
mod renewals;
mod schedule;
mod seat;
mod state;
mod table;

pub(crate) use self::acquire::{Ask, Wait};
pub(crate) use self::admission::{Admission, Leases};
pub(crate) use self::belief::{Anchor, Belief, Drift};
pub(crate) use self::handle::Keeper;
pub use self::handle::{Lease, LeaseHandle};
#[cfg(test)]
pub(crate) use self::line::LONGEST_TURN;
pub(crate) use self::options::{LeaseOptions, micros};
pub(crate) use self::releases::GiveBack;
pub(crate) use self::renewals::Renewals;
pub(crate) use self::seat::Got;
pub(crate) use self::state::{Granted, LeaseState, Tenure};
