#![doc = include_str!("page.md")]

mod acquire;
mod admission;
#[cfg(test)]
pub(crate) mod agreement;
pub(crate) mod all;
pub(crate) mod ends;
pub(crate) mod flows;
mod handle;
mod hold_time;
pub(crate) mod holder;
mod keep;
pub(crate) mod key_state;
pub(crate) mod kind;
#[cfg(test)]
mod model;
pub(crate) mod operations;
mod options;
pub(crate) mod outcome;
pub(crate) mod percent;
pub(crate) mod perform;
pub(crate) mod queue;
pub(crate) mod settings;
pub(crate) mod snapshot;
pub(crate) mod state;
#[cfg(test)]
mod tests;
pub(crate) mod token;
pub(crate) mod tokens;
mod validity;
mod waiter;
mod watch;
mod young;

pub(crate) use self::acquire::{Ask, Got, Wait};
pub(crate) use self::admission::{Admission, Completed, Leases, rules};
pub use self::handle::Lease;
pub(crate) use self::handle::{Keeper, guard};
pub(crate) use self::options::{LeaseOptions, micros};
pub use self::snapshot::{Holder, Snapshot};
pub use self::state::LeaseHandle;
pub(crate) use self::state::LeaseState;
#[cfg(test)]
pub(crate) use self::tokens::LONGEST_TURN;
pub(crate) use self::validity::{Anchor, Drift, Validity};
pub(crate) use self::watch::Watch;
pub(crate) use crate::layers::lease as layer; // moved
pub use crate::layers::lease::{Hold, LeaseLayer, OnLease, UntilResponse};
