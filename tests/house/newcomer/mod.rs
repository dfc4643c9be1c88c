//! What a new user writes, as complete programs. `lines.sh` counts the lines between `// user` and `// end`, which is all
//! that a program needs of this crate besides a store and what it is built with.

mod cron;
mod document;
mod grpc;
mod net;
mod outbound;
mod per_ip;
mod per_user;
mod response_cost;
mod several;
mod stampede;
mod tiers;
mod webhook;
mod workers;
