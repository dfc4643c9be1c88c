//! How much is read at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes that are being read, of all bodies.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) most: usize,
    bytes: Arc<AtomicUsize>,
}

/// Those of one body, until it is dropped.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    of: &'a Reading,
    bytes: usize,
}

impl Reading {
    pub(super) fn new(most: usize) -> Self {
        Self { most, bytes: Arc::default() }
    }

    pub(super) fn begin(&self) -> Taken<'_> {
        Taken { of: self, bytes: 0 }
    }
}

impl Taken<'_> {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts more of them. Whether there is room for all that are read.
    pub(super) fn add(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        self.of.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.of.most
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
