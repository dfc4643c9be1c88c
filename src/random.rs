//! Random numbers for what needs no secret: names, pauses, draws.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

/// The seeds of the standard hasher are random and differ from each other.
pub(crate) fn bits() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// From 0 to 1, without 0.
pub(crate) fn fraction() -> f64 {
    ((bits() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}
