//! What is held for a while: [`Lease`], under permits and the guards of locks.
//!
//! A lease is held until it is [released](crate::Lease::release) or dropped, and no longer than its time to live unless it
//! is renewed: by a watchdog, at a third of its time to live. So what a crashed process held is free again after
//! that time.
//!
//! # What a lease promises
//!
//! Its validity is counted from the moment when the call that got it was *sent*, less an allowance for clocks that
//! run at different speeds; so while [`is_held`](crate::Lease::is_held) says yes, nobody else has been granted it.
//! [`lost`](crate::Lease::lost) ends no later than the lease may, even if a renewal hangs and even if the store is
//! out of reach. What it cannot promise, see [`guarantees`](crate::guarantees).

pub use crate::layer::leased::*;
pub use crate::primitive::lease::*;
