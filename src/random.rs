//! Random numbers that need not be secret: for names, pauses and samples.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

/// Returns 64 random bits. The standard hasher has random seeds, which differ with each call.
pub(crate) fn bits() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Returns a random number above 0, up to and including 1.
pub(crate) fn fraction() -> f64 {
    ((bits() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}
