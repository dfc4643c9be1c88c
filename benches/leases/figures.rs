//! The cells of the table, and the figures that come from them.

use crate::common::report::Better::{self, Higher, Lower};
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
    /// With its unit.
    pub measures: &'static str,
    /// Ours first, then the peer's if there is one.
    pub cells: &'static [Cell],
    /// Of a cell in one round.
    pub value: fn(&Sample) -> f64,
    pub better: Better,
}

pub const FIGURES: [Figure; 9] = [
    Figure {
        name: "mutex-contended-vs-rslock",
        measures: "locks/s, one key, 64 callers",
        cells: &[cell(Mutex, OneKey), cell(Rslock, OneKey)],
        value: |sample| sample.per_second,
        better: Higher,
    },
    Figure {
        name: "mutex-contended-p99-vs-rslock",
        measures: "p99 of a wait for a lock, ms, one key, 64 callers",
        cells: &[cell(Mutex, OneKey), cell(Rslock, OneKey)],
        value: |sample| sample.p99 / 1e6,
        better: Lower,
    },
    Figure {
        name: "mutex-greedy-vs-rslock",
        measures: "locks/s, one key, 64 greedy callers",
        cells: &[cell(Mutex, OneKeyGreedy), cell(Rslock, OneKeyGreedy)],
        value: |sample| sample.per_second,
        better: Higher,
    },
    Figure {
        name: "mutex-4x16-vs-rslock",
        measures: "locks/s, one key, 4 processes × 16",
        cells: &[cell(Mutex, FourProcesses), cell(Rslock, FourProcesses)],
        value: |sample| sample.per_second,
        better: Higher,
    },
    Figure {
        name: "mutex-greedy-4x16-vs-rslock",
        measures: "locks/s, one key, 4 processes × 16, greedy",
        cells: &[
            cell(Mutex, FourProcessesGreedy),
            cell(Rslock, FourProcessesGreedy),
        ],
        value: |sample| sample.per_second,
        better: Higher,
    },
    Figure {
        name: "mutex-greedy-4x16-p99-vs-rslock",
        measures: "p99 of a wait for a lock, ms, one key, 4 processes × 16, greedy",
        cells: &[
            cell(Mutex, FourProcessesGreedy),
            cell(Rslock, FourProcessesGreedy),
        ],
        value: |sample| sample.p99 / 1e6,
        better: Lower,
    },
    // Of the greedy load: where all lock equally often, none has less than its share.
    Figure {
        name: "mutex-4x16-least-share",
        measures: "least share of a process, of its fair share, one key, 4 processes × 16, greedy",
        cells: &[cell(Mutex, FourProcessesGreedy)],
        value: |sample| sample.least_share,
        better: Higher,
    },
    Figure {
        name: "mutex-uncontended-vs-rslock",
        measures: "locks/s, 64 keys, 64 callers",
        cells: &[cell(Mutex, KeyEachGreedy), cell(Rslock, KeyEachGreedy)],
        value: |sample| sample.per_second,
        better: Higher,
    },
    Figure {
        name: "wait-group-pairs-vs-mutex-contended-rslock",
        measures: "permits/s (16 at once, 256 callers); rslock: locks/s, 64 callers",
        cells: &[cell(WaitGroup, Crowd), cell(Rslock, OneKey)],
        value: |sample| sample.per_second,
        better: Higher,
    },
];
