//! Requests that are handled once for many: what the layer owes to the services around it, held against services that
//! forgive nothing, real stacks over sockets, and users who must not get what is another's.

mod asked;
mod bounds;
mod caching;
mod grpc;
mod hyper_server;
mod outcomes;
mod privacy;
mod readiness;
mod tower_around;
