//! Real stacks: servers and clients as people build them, each end to end over a socket.

#[cfg(feature = "tonic")]
mod tonic_client;
mod tower_layers;
mod upstream_limits;
