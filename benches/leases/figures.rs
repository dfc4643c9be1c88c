//! The cells of the table, and the figures that come from them.

use crate::contestants::Kind::{self, Mutex, Rslock, RslockEager, WaitGroup};
use crate::load::Load::{
    self, Crowd, FourProcesses, FourProcessesGreedy, KeyEachGreedy, OneKey, OneKeyGreedy,
};
use crate::sample::Sample;

/// One contestant under one load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    pub kind: Kind,
    pub load: Load,
}

const fn cell(kind: Kind, load: Load) -> Cell {
    Cell { kind, load }
}

/// From top to bottom.
pub const CELLS: [Cell; 13] = [
    cell(Mutex, OneKey),
    cell(Rslock, OneKey),
    cell(RslockEager, OneKey),
    cell(Mutex, OneKeyGreedy),
    cell(Rslock, OneKeyGreedy),
    cell(RslockEager, OneKeyGreedy),
    cell(Mutex, FourProcesses),
    cell(Rslock, FourProcesses),
    cell(Mutex, FourProcessesGreedy),
    cell(Rslock, FourProcessesGreedy),
    cell(Mutex, KeyEachGreedy),
    cell(Rslock, KeyEachGreedy),
    cell(WaitGroup, Crowd),
];

pub struct Figure {
    pub name: &'static str,
    /// Ours first, then the peer's if there is one.
    pub cells: &'static [Cell],
    /// From the samples of these cells in one round.
    pub value: fn(&[Sample]) -> f64,
}

pub const FIGURES: [Figure; 9] = [
    Figure {
        name: "mutex-contended-vs-rslock",
        cells: &[cell(Mutex, OneKey), cell(Rslock, OneKey)],
        value: throughput,
    },
    Figure {
        name: "mutex-contended-p99-vs-rslock",
        cells: &[cell(Mutex, OneKey), cell(Rslock, OneKey)],
        value: p99,
    },
    Figure {
        name: "mutex-greedy-vs-rslock",
        cells: &[cell(Mutex, OneKeyGreedy), cell(Rslock, OneKeyGreedy)],
        value: throughput,
    },
    Figure {
        name: "mutex-4x16-vs-rslock",
        cells: &[cell(Mutex, FourProcesses), cell(Rslock, FourProcesses)],
        value: throughput,
    },
    Figure {
        name: "mutex-greedy-4x16-vs-rslock",
        cells: &[cell(Mutex, FourProcessesGreedy), cell(Rslock, FourProcessesGreedy)],
        value: throughput,
    },
    Figure {
        name: "mutex-greedy-4x16-p99-vs-rslock",
        cells: &[cell(Mutex, FourProcessesGreedy), cell(Rslock, FourProcessesGreedy)],
        value: p99,
    },
    // Of the greedy load: where all lock equally often, none has less than its share.
    Figure {
        name: "mutex-4x16-least-share",
        cells: &[cell(Mutex, FourProcessesGreedy)],
        value: |samples| samples[0].least_share,
    },
    Figure {
        name: "mutex-uncontended-vs-rslock",
        cells: &[cell(Mutex, KeyEachGreedy), cell(Rslock, KeyEachGreedy)],
        value: throughput,
    },
    Figure {
        name: "wait-group-pairs-vs-mutex-contended-rslock",
        cells: &[cell(WaitGroup, Crowd), cell(Rslock, OneKey)],
        value: throughput,
    },
];

fn throughput(samples: &[Sample]) -> f64 {
    samples[0].per_second / samples[1].per_second
}

fn p99(samples: &[Sample]) -> f64 {
    samples[0].p99 / samples[1].p99
}
