//! What a process notes about its calls.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::clock;
use crate::message::{BIN, Counts, Done, Held, Note, Progress};

/// Different texts of errors that are kept; the others are counted as one.
const MOST_ERRORS: usize = 20;

/// How a call ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    Admitted,
    Refused,
    Failed,
}

/// Collects what all tasks of a process have to tell. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    start: Duration,
    tally: Arc<Mutex<Tally>>,
}

#[derive(Debug)]
struct Tally {
    progress: Progress,
    latencies: Histogram<u64>,
    done: Done,
}

/// One call.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) recorder: &'a Recorder,
    /// Counts the calls of the process.
    pub(crate) number: u64,
    /// When it had to begin: its latency counts from here.
    pub(crate) due: Duration,
    /// When it began.
    pub(crate) from: Duration,
}

impl Recorder {
    pub(crate) fn new(start: Duration) -> Result<Self, hdrhistogram::CreationError> {
        let (progress, done) = (Progress::default(), Done::default());
        let tally = Tally {
            progress,
            latencies: histogram()?,
            done,
        };
        Ok(Self {
            start,
            tally: Arc::new(Mutex::new(tally)),
        })
    }

    /// Takes what has happened since the last call.
    pub(crate) fn progress(&self) -> Progress {
        std::mem::take(&mut self.tally().progress)
    }

    /// Takes what is told at the end.
    pub(crate) fn done(&self, not_started: u64) -> Done {
        let mut tally = self.tally();
        let latencies = tally
            .latencies
            .iter_recorded()
            .map(|value| (value.value_iterated_to(), value.count_at_value()));
        let latencies = latencies.collect();
        Done {
            latencies,
            not_started,
            ..std::mem::take(&mut tally.done)
        }
    }

    pub(crate) fn note(&self, note: Note) {
        self.tally().progress.notes.push(note);
    }

    /// Notes that a lease of `key` was held, unless it was lost meanwhile.
    pub(crate) fn held(&self, from: Duration, is_held: impl FnOnce() -> bool, lease: Held) {
        let to = clock::now();
        if !is_held() {
            self.tally().done.lost += 1;
            return;
        }
        // Rounded to the inside: it was held for longer than is told.
        self.note(Note::Held(Held {
            from: self.after(from),
            to: self.before(to),
            ..lease
        }));
    }

    /// Notes that the claim of an item was lost.
    pub(crate) fn claim_lost(&self, item: u64) {
        let mut tally = self.tally();
        tally.done.lost += 1;
        tally.progress.notes.push(Note::Unknown(item));
    }

    /// Counts the text of an error.
    pub(crate) fn trouble(&self, text: &str) {
        let errors = &mut self.tally().done.errors;
        let is_kept = errors.len() < MOST_ERRORS || errors.contains_key(text);
        *errors
            .entry(if is_kept { text } else { "others" }.to_owned())
            .or_default() += 1;
    }

    /// The last µs of the run's clock that is not later than `at`.
    fn before(&self, at: Duration) -> u64 {
        u64::try_from(at.saturating_sub(self.start).as_micros()).unwrap_or(u64::MAX)
    }

    /// The first µs that is not earlier than `at`.
    fn after(&self, at: Duration) -> u64 {
        u64::try_from(at.saturating_sub(self.start).as_nanos().div_ceil(1000)).unwrap_or(u64::MAX)
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Call<'_> {
    /// Counts the answer, which has just come.
    pub(crate) fn answered(&self, outcome: Outcome, answer: &str) {
        self.count(clock::now(), outcome, answer);
    }

    /// Counts the answer, and for an admission notes between which times it happened: since the call began, and
    /// before `to`.
    pub(crate) fn decided(&self, key: u64, to: Duration, outcome: Outcome, answer: &str) {
        if matches!(outcome, Outcome::Admitted) {
            // Rounded to the outside.
            let (from, to) = (self.recorder.before(self.from), self.recorder.after(to));
            self.recorder.note(Note::Admitted { key, from, to });
        }
        self.answered(outcome, answer);
    }

    pub(crate) fn failed(&self, text: &str) {
        self.answered(Outcome::Failed, "error");
        self.recorder.trouble(text);
    }

    /// Counts an error of the crate: a refusal, or a failure.
    pub(crate) fn error(&self, error: &tower_distributed::Error) {
        if error.is_refused() {
            let queue_full = error.is_queue_full();
            self.answered(
                Outcome::Refused,
                if queue_full {
                    "queue full"
                } else {
                    "waited too long"
                },
            );
        } else {
            self.failed(&error.to_string());
        }
    }

    fn count(&self, at: Duration, outcome: Outcome, answer: &str) {
        let mut counts = Counts::default();
        match outcome {
            Outcome::Admitted => counts.admitted = 1,
            Outcome::Refused => counts.refused = 1,
            Outcome::Failed => counts.errors = 1,
        }
        let bin = usize::try_from(self.recorder.before(at) / BIN).unwrap_or(0);
        let latency = u64::try_from(at.saturating_sub(self.due).as_micros()).unwrap_or(u64::MAX);
        let mut tally = self.recorder.tally();
        tally.progress.bins.entry(bin).or_default().add(counts);
        tally.latencies.saturating_record(latency);
        match tally.done.answers.get_mut(answer) {
            Some(count) => *count += 1,
            None => drop(tally.done.answers.insert(answer.to_owned(), 1)),
        }
    }
}

/// Latencies from 1 µs to an hour, with three digits.
pub(crate) fn histogram() -> Result<Histogram<u64>, hdrhistogram::CreationError> {
    Histogram::new_with_bounds(1, 3_600_000_000, 3)
}
