//! What becomes of leases when Redis, the way to it, or their holders fail: what a simulation cannot show.

mod bad_calls;
pub(crate) mod bad_settings;
mod beside_a_line;
mod crowds;
mod dropped;
mod grants;
pub(crate) mod kinds;
mod late;
mod max_hold;
mod nodes;
mod one_line;
mod one_master;
mod out_of_memory;
mod outage;
mod places;
mod quorum;
mod quorum_states;
mod restarts;
mod server_clock;
mod unpolled;
mod validity;
mod values;
mod wakes;
mod watchdog;
mod wrong_types;
