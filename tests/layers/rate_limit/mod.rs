//! What every layer owes to the services around it, held against services that forgive nothing.

mod asked;
mod away;
mod bounds;
mod closed;
mod dropped;
mod hooks;
mod keys;
#[cfg(feature = "http")]
mod learned;
mod limits;
mod overloaded;
mod several;
