//! Requests that are handled under leases: what their layers owe to the services around them, held against services
//! that forgive nothing, and real stacks over sockets.

mod adaptive;
mod adaptive_clients;
mod asked;
mod away;
mod axum_locks;
mod axum_permits;
mod bodies;
mod chosen;
mod clients;
mod decided_first;
mod dropped;
mod hyper_server;
mod late;
mod lost;
mod refused;
mod stalled_bodies;
mod statuses;
mod taken;
mod tonic_server;
mod turns;
mod upgrades;
