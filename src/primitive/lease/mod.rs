//! Leases: [`Lease`] is what permits and lock guards are built on.
//!
//! A lease is held until it is [released](Lease::release), dropped, or expires. It expires after its time to live
//! (ttl) unless it is renewed. A watchdog renews it every third of its ttl. The lease of a crashed process is
//! therefore free again after at most one ttl.
//!
//! # What a lease promises
//!
//! The validity of a lease counts from the moment when the acquiring call was *sent*, less an allowance for clock
//! drift. While [`is_held`](Lease::is_held) returns `true`, the store has granted the lease to no other holder.
//! [`lost`](Lease::lost) completes no later than the lease ends, even if a renewal hangs or the store is
//! unavailable. [`guarantees`](crate::guarantees) lists the limits of these promises.

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
