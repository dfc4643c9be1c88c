//! What a new user writes. `lines.sh` counts the lines between `// user: …` and `// end`, which is all that a program needs of
//! this crate besides a store and what it is built with.

mod cron;
mod grpc;
mod net;
mod outbound;
mod web;
mod workers;
