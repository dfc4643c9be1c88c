//! Histories: what the workers asked for, what they were answered, and when they held a lease. One file per worker, one
//! JSON object per line, in the order in which it happened. Times are ns of `CLOCK_MONOTONIC`, which all processes share.
//!
//! A record is written before the next step is taken, so a worker that is killed has told all that it has done.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::worker::ALONE;

#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Primitive {
    #[default]
    TokenBucket,
    WaitGroup,
    Mutex,
    RwLock,
    SingleFlight,
    /// Flights that serve stale answers.
    StaleFlight,
    /// Exact.
    Dedupe,
    /// On a filter.
    FilterDedupe,
    BloomFilter,
    /// Tokens that are held, and captured or released.
    Budget,
}

impl Primitive {
    pub(crate) const ALL: [Self; 10] = [
        Self::TokenBucket,
        Self::WaitGroup,
        Self::Mutex,
        Self::RwLock,
        Self::SingleFlight,
        Self::StaleFlight,
        Self::Dedupe,
        Self::FilterDedupe,
        Self::BloomFilter,
        Self::Budget,
    ];

    pub(crate) fn is_flight(self) -> bool {
        matches!(self, Self::SingleFlight | Self::StaleFlight)
    }

    pub(crate) fn is_dedupe(self) -> bool {
        matches!(self, Self::Dedupe | Self::FilterDedupe)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// A token, an answer, or whether an item is new.
    Ask,
    /// A lease with this share of the key (of the limit), or a run of a flight.
    Acquire(u32),
    /// A claim, also on an item that is known.
    AcquireAnyway,
    /// Its lease was held at this time.
    Held,
    /// A run has made this answer.
    Made(u64),
    Release,
    /// A claim ends, and its item is known from now on; or a token that is held is captured.
    Confirm,
    /// An answer or an item.
    Forget,
    /// Yes: with the remaining tokens.
    Admitted(Option<u32>),
    /// Yes: with the fencing token.
    Granted(u64),
    /// Whether the lease was still held.
    Released(bool),
    Refused,
    /// The item is known.
    Duplicate,
    /// Whether there was anything.
    Forgotten(bool),
    /// The answer of a flight.
    Got(u64),
    /// A refusal that can only come from a state that should be over.
    Overdue(String),
    /// The store has failed: nobody knows whether it was done.
    Failed(String),
    /// It goes on without its caller.
    Unheard,
}

impl Event {
    fn is_question(&self) -> bool {
        matches!(
            self,
            Self::Ask
                | Self::Acquire(_)
                | Self::AcquireAnyway
                | Self::Release
                | Self::Confirm
                | Self::Forget
        )
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) at: u64,
    pub(crate) task: u32,
    pub(crate) primitive: Primitive,
    pub(crate) key: String,
    pub(crate) event: Event,
}

pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

/// Where the tasks of a worker write.
#[derive(Clone)]
pub(crate) struct Journal(Arc<Mutex<File>>);

impl Journal {
    pub(crate) fn create(path: &str) -> Self {
        Self(Arc::new(Mutex::new(File::create(path).unwrap())))
    }

    pub(crate) fn write(&self, at: u64, task: u32, primitive: Primitive, key: &str, event: Event) {
        let record = Record {
            at,
            task,
            primitive,
            key: key.to_owned(),
            event,
        };
        let line = serde_json::to_string(&record).unwrap() + "\n";
        self.0.lock().unwrap().write_all(line.as_bytes()).unwrap();
    }
}

/// A history that is still being written.
pub(crate) struct Tail {
    path: PathBuf,
    read: u64,
    pub(crate) records: Vec<Record>,
}

impl Tail {
    pub(crate) fn of(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            read: 0,
            records: Vec::new(),
        }
    }

    /// Reads on. The last line may not be complete yet.
    pub(crate) fn read_on(&mut self) {
        let Ok(mut file) = File::open(&self.path) else {
            return;
        };
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(self.read)).unwrap();
        file.read_to_end(&mut text).unwrap();
        let complete = text
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1);
        self.read += complete as u64;
        let lines = text[..complete]
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        self.records
            .extend(lines.map(|line| serde_json::from_slice::<Record>(line).unwrap()));
    }
}

/// A question and its answer, which is missing if the worker was killed in between.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    /// The number of the worker.
    pub(crate) process: usize,
    pub(crate) primitive: Primitive,
    pub(crate) key: String,
    pub(crate) asked: Event,
    pub(crate) call: u64,
    pub(crate) answer: Option<(u64, Event)>,
}

/// A lease, from its grant to the last time when its holder believed in it, and how it was released.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) process: usize,
    pub(crate) primitive: Primitive,
    pub(crate) key: String,
    pub(crate) share: u32,
    pub(crate) fence: u64,
    pub(crate) call: u64,
    pub(crate) granted: u64,
    pub(crate) held: u64,
    /// Whether it is a claim on an item that may be known.
    pub(crate) anyway: bool,
    /// The answer of a run, and when it was made.
    pub(crate) made: Option<(u64, u64)>,
    /// How its holder ended it.
    pub(crate) ending: Option<Ending>,
}

/// The end of a lease. Its answer says whether the lease was held until then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    pub(crate) confirms: bool,
    pub(crate) call: u64,
    pub(crate) answer: Option<(u64, bool)>,
}

impl Hold {
    fn ended(&self, was_held: bool) -> Option<u64> {
        self.ending?
            .answer
            .filter(|(_, held)| *held == was_held)
            .map(|(at, _)| at)
    }

    /// When the release was confirmed.
    pub(crate) fn released(&self) -> Option<u64> {
        self.ended(true)
    }

    /// When the release was answered with: it was not held.
    pub(crate) fn denied(&self) -> Option<u64> {
        self.ended(false)
    }
}

/// What was done, over all workers.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) operations: Vec<Operation>,
    pub(crate) holds: Vec<Hold>,
    /// The number of workers so far.
    processes: usize,
}

impl History {
    pub(crate) fn read(files: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut history = Self::default();
        for file in files {
            let mut tail = Tail::of(&file);
            tail.read_on();
            history.add(&tail.records);
        }
        history
    }

    /// Adds what one worker did. Each of its tasks does one thing at a time.
    pub(crate) fn add(&mut self, records: &[Record]) {
        let process = self.processes;
        self.processes += 1;
        let (mut pending, mut holding) = (HashMap::new(), HashMap::new());
        for record in records {
            let (primitive, key, at) = (record.primitive, record.key.clone(), record.at);
            match &record.event {
                Event::Held | Event::Made(_) => {
                    let hold: &usize = holding
                        .get(&record.task)
                        .expect("a lease that nobody asked for");
                    match record.event {
                        Event::Made(answer) => self.holds[*hold].made = Some((answer, at)),
                        _ => self.holds[*hold].held = at,
                    }
                }
                asked if asked.is_question() => {
                    pending.insert(record.task, self.operations.len());
                    let (asked, answer) = (asked.clone(), None);
                    if let (Event::Release | Event::Confirm, Some(hold)) =
                        (&asked, holding.get(&record.task))
                    {
                        let confirms = asked == Event::Confirm;
                        self.holds[*hold].ending = Some(Ending {
                            confirms,
                            call: at,
                            answer: None,
                        });
                    }
                    self.operations.push(Operation {
                        process,
                        primitive,
                        key,
                        asked,
                        call: at,
                        answer,
                    });
                }
                answer => {
                    let operation = pending
                        .remove(&record.task)
                        .expect("an answer that nobody asked for");
                    let operation = &mut self.operations[operation];
                    operation.answer = Some((at, answer.clone()));
                    match (&operation.asked, answer) {
                        (
                            asked @ (Event::Acquire(_) | Event::AcquireAnyway),
                            Event::Granted(fence),
                        ) => {
                            holding.insert(record.task, self.holds.len());
                            let (fence, call, anyway) =
                                (*fence, operation.call, *asked == Event::AcquireAnyway);
                            let share = if let Event::Acquire(share) = asked {
                                *share
                            } else {
                                ALONE
                            };
                            // No belief is proven yet.
                            let (granted, held, made, ending) = (at, call, None, None);
                            self.holds.push(Hold {
                                process,
                                primitive,
                                key,
                                share,
                                fence,
                                call,
                                granted,
                                held,
                                anyway,
                                made,
                                ending,
                            });
                        }
                        (Event::Release | Event::Confirm, answer) => {
                            let hold = holding.remove(&record.task).expect("a release of nothing");
                            if let (Event::Released(held), Some(ending)) =
                                (answer, &mut self.holds[hold].ending)
                            {
                                ending.answer = Some((at, *held));
                            }
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    /// The part of a primitive, by key.
    pub(crate) fn keys(
        &self,
        primitive: Primitive,
    ) -> HashMap<&str, (Vec<&Operation>, Vec<&Hold>)> {
        let mut keys: HashMap<&str, (Vec<&Operation>, Vec<&Hold>)> = HashMap::new();
        for operation in self
            .operations
            .iter()
            .filter(|operation| operation.primitive == primitive)
        {
            keys.entry(&operation.key).or_default().0.push(operation);
        }
        for hold in self.holds.iter().filter(|hold| hold.primitive == primitive) {
            keys.entry(&hold.key).or_default().1.push(hold);
        }
        keys
    }
}
