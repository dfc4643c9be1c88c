//! Requests that are handled under leases: what their layers owe to the services around them, held against services
//! that forgive nothing, and real stacks over sockets.

mod adaptive;
mod adaptive_clients;
mod asked;
mod away;
mod bodies;
mod lost;
mod servers;
mod stalled_bodies;
mod taken;
mod turns;
mod upgrades;
