//! Leases. See the public module `lease`.

mod acquire;
mod admission;
#[cfg(test)]
pub(crate) mod agreement;
mod belief;
mod complete;
mod fence_ttl;
mod granting;
mod handle;
mod handover;
mod heartbeats;
mod keeper;
pub(crate) mod key_state;
pub(crate) mod kind;
mod line;
mod local_share;
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
pub(crate) mod snapshot;
mod state;
mod table;
mod watch;

pub(crate) use self::acquire::{Ask, Wait};
pub(crate) use self::admission::{Admission, Leases};
pub(crate) use self::belief::{Anchor, Belief, Drift};
pub(crate) use self::fence_ttl::kept_until;
pub(crate) use self::handle::Keeper;
pub use self::handle::{Lease, LeaseHandle};
#[cfg(test)]
pub(crate) use self::line::LONGEST_TURN;
pub(crate) use self::options::{LeaseOptions, micros};
pub(crate) use self::releases::GiveBack;
pub(crate) use self::renewals::Renewals;
pub(crate) use self::seat::Got;
pub use self::snapshot::{Holder, Snapshot};
pub(crate) use self::state::{Granted, LeaseState, Tenure};
pub(crate) use self::watch::Watch;
