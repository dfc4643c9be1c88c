//! Counts the bytes of bodies that are being read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes of all bodies that are being read, and their bound.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) most: usize,
    bytes: Arc<AtomicUsize>,
}

/// The counted bytes of one body. They are given back when this is dropped.
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

    /// Counts more bytes. Returns whether all bodies are within the bound.
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
