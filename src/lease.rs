//! Leases: [`Lease`], the base of permits and of the guards of locks.
//!
//! A lease is held until it is [released](crate::Lease::release) or dropped, or until its ttl ends. A watchdog
//! renews it every third of its ttl. So a lease of a crashed process expires after its ttl.
//!
//! # Guarantees
//!
//! * The process counts the ttl from the moment when it *sent* the call that acquired the lease, less an allowance
//!   for clocks that run at different speeds. So while [`is_held`](crate::LeaseHandle::is_held) returns `true`, the store
//!   has not granted the lease to another holder.
//! * [`lost`](crate::LeaseHandle::lost) completes no later than the lease ends, even if a renewal hangs or the store is
//!   unavailable.
//!
//! See [`guarantees`](crate::guarantees) for what a lease cannot guarantee.

pub use crate::layer::leased::*;
pub use crate::primitive::lease::*;
