//! Real stacks: servers and clients as people build them, each end to end over a socket.

#[cfg(feature = "axum")]
mod axum_addresses;
mod axum_routes;
mod hyper_client;
mod hyper_server;
mod reqwest_client;
#[cfg(feature = "tonic")]
mod tonic_client;
#[cfg(feature = "tonic")]
mod tonic_server;
mod tower_layers;
mod upstream_limits;
mod upstream_says_stop;
