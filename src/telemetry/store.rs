//! What a store tells of: outages, breakers, connections, batches, load.

use std::time::Duration;

use crate::error::Outage;
use crate::store::BreakerState;

/// A breaker has opened: an outage has begun.
pub(crate) fn outage_began(_outage: &Outage) {}

/// A breaker has closed again.
pub(crate) fn outage_ended() {}

/// A breaker is in another state.
pub(crate) fn breaker(_state: BreakerState) {}

/// A connection was made; `again`: in the place of another.
pub(crate) fn connected(_again: bool) {}

/// The subscription is there, or lost.
pub(crate) fn subscription(_up: bool) {}

/// A batch has left.
pub(crate) fn batch(_operations: usize) {}

/// A call has ended.
pub(crate) fn call(_took: Duration, _succeeded: bool) {}

/// An operation was refused for want of room.
pub(crate) fn overloaded() {}
