//! What all processes have told.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::message::{BIN, Counts, Done, Message, Note};
use crate::recorder::histogram;

const BINS_A_SECOND: usize = (1_000_000 / BIN) as usize;

#[derive(Debug)]
pub(crate) struct Totals {
    pub(crate) processes: Vec<Process>,
    /// Counts of all processes, for each tenth of a second.
    pub(crate) bins: Vec<Counts>,
    pub(crate) notes: Vec<Note>,
    /// Whether the user stopped the run.
    pub(crate) interrupted: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Process {
    pub(crate) counts: Counts,
    /// `None` if it died before the end.
    pub(crate) done: Option<Done>,
    has_ended: bool,
    /// What went wrong with it.
    pub(crate) trouble: Option<String>,
}

impl Totals {
    pub(crate) fn new(processes: usize) -> Self {
        let processes = (0..processes).map(|_| Process::default()).collect();
        Self {
            processes,
            bins: Vec::new(),
            notes: Vec::new(),
            interrupted: false,
        }
    }

    pub(crate) fn hear(&mut self, process: usize, message: Message) {
        let Some(process) = self.processes.get_mut(process) else {
            return;
        };
        match message {
            Message::Ready => {}
            Message::Failed(error) => process.trouble = Some(error),
            Message::Done(done) => process.done = Some(done),
            Message::Progress(progress) => {
                for (bin, counts) in progress.bins {
                    process.counts.add(counts);
                    if self.bins.len() <= bin {
                        self.bins.resize(bin + 1, Counts::default());
                    }
                    self.bins[bin].add(counts);
                }
                self.notes.extend(progress.notes);
            }
        }
    }

    /// A process has ended, or told what is no message.
    pub(crate) fn ended(&mut self, process: usize, how: &str) {
        let Some(process) = self.processes.get_mut(process) else {
            return;
        };
        process.has_ended = true;
        if process.done.is_none() {
            process.trouble.get_or_insert_with(|| how.to_owned());
        }
    }

    pub(crate) fn all_ended(&self) -> bool {
        self.processes.iter().all(|process| process.has_ended)
    }

    pub(crate) fn counts(&self) -> Counts {
        sum(&self.bins)
    }

    /// Counts of the last full second before `passed`.
    pub(crate) fn last_second(&self, passed: Duration) -> Counts {
        // The newest bin may not have been told yet.
        let newest =
            (usize::try_from(passed.as_micros()).unwrap_or(0) / BIN as usize).saturating_sub(2);
        let newest = newest.min(self.bins.len());
        sum(&self.bins[newest.saturating_sub(BINS_A_SECOND)..newest])
    }

    /// Returns the latencies of all processes in one histogram.
    pub(crate) fn latencies(&self) -> Option<Histogram<u64>> {
        let mut all = histogram().ok()?;
        for process in &self.processes {
            all.add(process.latencies()?).ok()?;
        }
        Some(all)
    }

    /// Sums up a map of what the processes told at the end.
    pub(crate) fn texts(
        &self,
        of: impl Fn(&Done) -> &BTreeMap<String, u64>,
    ) -> BTreeMap<&str, u64> {
        let mut sum = BTreeMap::new();
        for (text, count) in self.done().flat_map(of) {
            *sum.entry(text.as_str()).or_default() += count;
        }
        sum
    }

    pub(crate) fn done(&self) -> impl Iterator<Item = &Done> {
        self.processes
            .iter()
            .filter_map(|process| process.done.as_ref())
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.processes
            .iter()
            .all(|process| process.trouble.is_none())
    }
}

impl Process {
    pub(crate) fn latencies(&self) -> Option<Histogram<u64>> {
        let mut histogram = histogram().ok()?;
        for &(value, count) in self.done.iter().flat_map(|done| &done.latencies) {
            histogram.saturating_record_n(value, count);
        }
        Some(histogram)
    }
}

fn sum(bins: &[Counts]) -> Counts {
    let mut sum = Counts::default();
    bins.iter().for_each(|bin| sum.add(*bin));
    sum
}
