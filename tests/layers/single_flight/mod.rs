//! Requests that are handled once for many: what the layer owes to the services around it, held against services that
//! forgive nothing, real stacks over sockets, and users who must not get what is another's.

mod asked;
mod axum_apps;
mod bodies;
mod bounds;
mod caching;
mod clients;
mod dropped;
mod grpc;
mod hyper_server;
mod messages;
mod our_layers;
mod outcomes;
mod privacy;
mod readiness;
#[cfg(feature = "tracing")]
mod told;
mod tower_around;
