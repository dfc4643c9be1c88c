//! Real stacks: servers and clients as people build them, each end to end over a socket; and the order of their layers.

mod order;
#[cfg(feature = "tonic")]
mod tonic_client;
mod tower_layers;
mod upstream_limits;
