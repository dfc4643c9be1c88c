//! Counts the bytes of bodies that are held in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes of all bodies that are held, and their bound.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) most: usize,
    bytes: Arc<AtomicUsize>,
}

/// The counted bytes of one body. They are given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    of: Reading,
    bytes: usize,
}

impl Reading {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            bytes: Arc::default(),
        }
    }

    /// The same count with a lower bound.
    pub(crate) fn up_to(&self, most: usize) -> Self {
        Self {
            most,
            bytes: Arc::clone(&self.bytes),
        }
    }

    pub(crate) fn begin(&self) -> Taken {
        Taken {
            of: self.clone(),
            bytes: 0,
        }
    }
}

impl Taken {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts more bytes. Returns whether all bodies are within the bound.
    pub(crate) fn add(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        self.of.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.of.most
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
