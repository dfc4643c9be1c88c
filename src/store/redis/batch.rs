//! A batch: operations that are sent together, and the replies to their script calls. Each
//! reply is stored in the batch once; each caller decodes its own part in its own task.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use redis::{Cmd, Value};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::error::Error;
use crate::error::reasons::Cause;
use crate::key::Key;
use crate::store::notifier::{END, Push};
use crate::store::operation::{Fields, Garbled, Operation, Repeat};
use crate::store::redis::budget::{Budget, Weight};
use crate::sync::{Mutex, MutexGuard, lock};

type Replies = Box<[OnceLock<Result<Reply, Error>>]>;

/// Operations that are sent together.
pub(super) struct Batch<O: Operation> {
    state: Mutex<State<O>>,
    /// The replies by call. Set when the batch is sent.
    replies: OnceLock<Replies>,
    /// The budget that the waiting operations use.
    budget: Arc<Budget>,
    /// When its first operation started to wait.
    pub(super) since: Instant,
}

pub(super) struct State<O: Operation> {
    pub(super) items: Vec<Item<O>>,
    /// The part of the budget that its operations use.
    pub(super) weight: Weight,
    pub(super) bytes: usize,
    /// The number of operations whose callers are gone.
    left: usize,
    /// Whether the batch was taken from the queue.
    is_closed: bool,
}

/// An operation in a batch.
pub(super) struct Item<O: Operation> {
    /// `None` after the reply was decoded.
    pub(super) operation: Option<O>,
    pub(super) key: Key,
    /// The hash slot on a Cluster.
    pub(super) slot: Option<u16>,
    /// Whether it counts in [`Owed`](crate::store::Owed), and is sent even if its caller is dropped.
    pub(super) owed: bool,
    /// The part of the budget that it uses while it waits.
    pub(super) weight: Weight,
    /// Whether it is sent first, and waits without a time limit.
    pub(super) reserved: bool,
    pub(super) phase: Phase<O>,
}

pub(super) enum Phase<O: Operation> {
    Waiting(Option<Waker>),
    /// Its caller is gone.
    Left,
    /// The reply has arrived.
    Arrived(ReplySlot),
    /// The reply is decoded, or there will be none. `None` after its caller has taken it.
    Decoded(Option<Box<Result<O::Reply, Error>>>),
}

/// The position of an operation's part in the replies. All numbers are below the bounds of a batch.
#[derive(Clone, Copy)]
pub(super) struct ReplySlot {
    call: u32,
    /// The position of its run in the call, in units of `size`.
    at: u32,
    size: u32,
    /// The index of the operation in its run.
    nth: u32,
}

/// The effects of an arrived reply beyond its callers.
pub(super) struct Deliveries<O: Operation> {
    /// The number of owed operations that are done.
    pub(super) owed: usize,
    pub(super) pushes: Vec<Push>,
    /// The replies whose callers are gone, by run.
    pub(super) orphans: Vec<(Key, Vec<O::Reply>)>,
}

impl<O: Operation> Item<O> {
    /// Whether it must be sent.
    pub(super) fn is_wanted(&self) -> bool {
        self.owed || matches!(self.phase, Phase::Waiting(_))
    }

    fn is_gone(&self) -> bool {
        !self.owed && matches!(self.phase, Phase::Left)
    }
}

impl ReplySlot {
    /// Decodes the reply to an operation whose call counts.
    fn decode<O: Operation>(
        self,
        operation: Option<O>,
        replies: Option<&Replies>,
    ) -> Result<O::Reply, Error> {
        let reply = self.reply(replies)?;
        match &reply.unconfirmed {
            Some(error) => Err(error.clone()),
            None => self.read(operation, reply),
        }
    }

    /// Decodes the reply to an operation.
    fn read<O: Operation>(self, operation: Option<O>, reply: &Reply) -> Result<O::Reply, Error> {
        let operation = operation.ok_or_else(lost)?;
        let fields = reply.fields(self.at as usize..(self.at + self.size) as usize);
        operation
            .decode(self.nth as usize, reply.now, fields)
            .map_err(|Garbled(text)| {
                let cause = match text.split(' ').next() {
                    Some("WRONGTYPE") => Cause::WrongType,
                    Some("OOM") => Cause::NotServing,
                    _ => Cause::Unexpected,
                };
                Error::unavailable(cause, text)
            })
    }

    fn reply(self, replies: Option<&Replies>) -> Result<&Reply, Error> {
        let Some(replies) = replies else {
            return Err(lost());
        };
        let reply = replies.get(self.call as usize).and_then(OnceLock::get);
        match reply {
            Some(Ok(reply)) => Ok(reply),
            Some(Err(error)) => Err(error.clone()),
            None => Err(lost()),
        }
    }
}

impl<O: Operation> State<O> {
    /// Adds an operation and returns its index.
    pub(super) fn push(&mut self, item: Item<O>, bytes: usize) -> usize {
        self.bytes += bytes;
        self.weight += item.weight;
        self.items.push(item);
        self.items.len() - 1
    }

    /// Passes the operations of a run their parts of the reply. `first` is the first slot of the run.
    fn deliver_run(
        &mut self,
        first: ReplySlot,
        indices: &[usize],
        replies: Option<&Replies>,
        deliveries: &mut Deliveries<O>,
        wakers: &mut SmallVec<[Waker; 32]>,
    ) {
        let Self { items, left, .. } = self;
        // The operations without a caller come last, so they have the latest grants, which can be undone.
        let mut later = match *left {
            0 => indices.len(),
            _ => indices
                .iter()
                .filter(|index| !items[**index].is_gone())
                .count(),
        } as u32;
        let mut nth = 0;
        let mut orphans = Vec::new();
        for index in indices {
            let item = &mut items[*index];
            deliveries.owed += usize::from(item.owed);
            let is_gone = item.is_gone();
            let counter = if is_gone { &mut later } else { &mut nth };
            let slot = ReplySlot {
                nth: *counter,
                ..first
            };
            *counter += 1;
            let phase = if O::NOTIFIES || is_gone {
                let reply = slot.reply(replies);
                let mut decoded = match &reply {
                    Ok(reply) => slot.read(item.operation.take(), reply),
                    Err(error) => Err(error.clone()),
                };
                // Messages to waiters are valid even if the call itself does not count.
                if let Ok(decoded) = &mut decoded {
                    deliveries.pushes.extend(O::pushes(decoded));
                }
                if let Ok(reply) = reply
                    && let Some(error) = &reply.unconfirmed
                {
                    decoded = Err(error.clone());
                }
                if is_gone {
                    orphans.extend(decoded);
                    continue;
                }
                Phase::Decoded(Some(Box::new(decoded)))
            } else {
                Phase::Arrived(slot)
            };
            if let Phase::Waiting(waker) = std::mem::replace(&mut item.phase, phase) {
                wakers.extend(waker);
            }
        }
        if !orphans.is_empty() {
            let key = items[indices[0]].key.clone();
            deliveries.orphans.push((key, orphans));
        }
    }
}

impl<O: Operation> Batch<O> {
    /// Creates a batch with one operation, with capacity for `expected_size` operations.
    pub(super) fn of(
        item: Item<O>,
        bytes: usize,
        budget: &Arc<Budget>,
        expected_size: usize,
    ) -> Arc<Self> {
        let weight = item.weight;
        let mut items = Vec::with_capacity(expected_size.max(1));
        items.push(item);
        let state = State {
            weight,
            items,
            bytes,
            left: 0,
            is_closed: false,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            replies: OnceLock::new(),
            budget: Arc::clone(budget),
            since: Instant::now(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State<O>> {
        lock(&self.state)
    }

    /// Marks the batch as taken from the queue, and returns its budget.
    pub(super) fn close(&self) -> MutexGuard<'_, State<O>> {
        let mut state = lock(&self.state);
        state.is_closed = true;
        let weight = std::mem::take(&mut state.weight);
        if weight > 0 {
            self.budget.give_back(weight);
        }
        state
    }

    /// Sets the number of calls of the batch, which is sent now.
    pub(super) fn note_sent(&self, calls: usize) {
        let replies = std::iter::repeat_with(OnceLock::new).take(calls);
        // A batch is sent once.
        let _ = self.replies.set(replies.collect());
    }

    /// Stores the reply to a call. The runs of the call refer to the items in `order`.
    pub(super) fn deliver(
        &self,
        number: usize,
        call: &Call,
        order: &[usize],
        reply: Result<Reply, Error>,
    ) -> Deliveries<O> {
        let mut deliveries = Deliveries {
            owed: 0,
            pushes: Vec::new(),
            orphans: Vec::new(),
        };
        let replies = self.replies.get();
        if let Some(replies) = replies
            && let Some(cell) = replies.get(number)
        {
            // Each reply arrives once.
            let _ = cell.set(reply);
        }
        let mut wakers: SmallVec<[Waker; 32]> = SmallVec::new();
        let mut state = lock(&self.state);
        let mut at = 0;
        for run in &call.runs {
            let first = ReplySlot {
                call: number as u32,
                at,
                size: run.size as u32,
                nth: 0,
            };
            let indices = &order[run.at.clone()];
            state.deliver_run(first, indices, replies, &mut deliveries, &mut wakers);
            at += run.size as u32;
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        deliveries
    }

    /// Fails the operations that still wait, or all except reserved ones. Returns how many of them were owed.
    pub(super) fn fail(&self, error: &Error, but_reserved: bool) -> usize {
        let mut wakers = Vec::new();
        let mut owed = 0;
        for item in self
            .state()
            .items
            .iter_mut()
            .filter(|item| !(but_reserved && item.reserved))
        {
            match std::mem::replace(&mut item.phase, Phase::Decoded(None)) {
                Phase::Waiting(waker) => {
                    wakers.extend(waker);
                    item.phase = Phase::Decoded(Some(Box::new(Err(error.clone()))));
                    owed += usize::from(item.owed);
                }
                Phase::Left => owed += usize::from(item.owed),
                arrived => item.phase = arrived,
            }
        }
        wakers.into_iter().for_each(Waker::wake);
        owed
    }

    /// Returns the reply to an operation, for its caller.
    pub(super) fn poll(
        &self,
        index: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<O::Reply, Error>> {
        let mut state = lock(&self.state);
        let item = &mut state.items[index];
        match &mut item.phase {
            Phase::Waiting(Some(waker)) => {
                waker.clone_from(context.waker());
                Poll::Pending
            }
            Phase::Waiting(waker) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            Phase::Arrived(slot) => {
                let slot = *slot;
                let operation = item.operation.take();
                item.phase = Phase::Decoded(None);
                drop(state);
                Poll::Ready(slot.decode(operation, self.replies.get()))
            }
            Phase::Decoded(decoded) => match decoded.take() {
                Some(decoded) => Poll::Ready(*decoded),
                None => Poll::Pending,
            },
            Phase::Left => Poll::Pending,
        }
    }

    /// Records that the caller of an operation was dropped. Returns its key and its reply, if that has arrived.
    pub(super) fn leave(&self, index: usize) -> Option<(Key, O::Reply)> {
        let mut state = self.state();
        let State {
            items,
            left,
            weight,
            is_closed,
            ..
        } = &mut *state;
        let item = &mut items[index];
        let reply = match std::mem::replace(&mut item.phase, Phase::Decoded(None)) {
            Phase::Waiting(_) => {
                item.phase = Phase::Left;
                *left += 1;
                if !*is_closed && !item.owed {
                    *weight -= item.weight;
                    self.budget.give_back(item.weight);
                }
                None
            }
            Phase::Arrived(slot) => slot.decode(item.operation.take(), self.replies.get()).ok(),
            Phase::Decoded(decoded) => decoded.and_then(|decoded| decoded.ok()),
            Phase::Left => {
                item.phase = Phase::Left;
                None
            }
        };
        reply.map(|reply| (item.key.clone(), reply))
    }
}

fn lost() -> Error {
    Error::unavailable(Cause::Unexpected, "the reply to the operation is missing")
}

/// One script call. The runs are in the order of its keys.
pub(super) struct Call {
    pub(super) command: Cmd,
    /// The hash slot of its keys on a Cluster.
    pub(super) slot: Option<u16>,
    pub(super) runs: Runs,
    pub(super) repeat: Repeat,
}

/// Usually one run.
pub(super) type Runs = SmallVec<[Run; 1]>;

/// Equal operations on one key, next to each other.
pub(super) struct Run {
    /// The positions in the order of the operations.
    pub(super) at: Range<usize>,
    /// The size in runs, see [`Operation::size`].
    pub(super) size: usize,
}

impl Call {
    /// The size in runs, see [`Operation::size`].
    pub(super) fn size(&self) -> usize {
        let mut size = 0;
        for run in &self.runs {
            size += run.size;
        }
        size
    }
}

/// The server's time, then the fields of the runs: the same number for each run, in the order of the call.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) now: i64,
    values: Vec<Value>,
    width: usize,
    /// Whether the call was sent twice. The other copy may still run later.
    twice: bool,
    /// Why the call does not count, although it has run: too few replicas have received it.
    pub(super) unconfirmed: Option<Error>,
}

impl Reply {
    /// Parses the reply to a call of `runs` runs: a list, or one of the forms that cost the server less: numbers in a
    /// text, or the time alone.
    pub(super) fn parse(reply: Value, runs: usize) -> Option<Self> {
        let values = match reply {
            Value::Array(values) => values,
            Value::BulkString(text) => numbers(&text)?,
            now @ Value::Int(_) => vec![now],
            _ => return None,
        };
        let Some(&Value::Int(now @ 0..END)) = values.first() else {
            return None;
        };
        Some(Self {
            now,
            width: (values.len() - 1) / runs.max(1),
            values,
            twice: false,
            unconfirmed: None,
        })
    }

    /// Marks the reply as one to a call that was sent twice.
    pub(super) fn sent_twice(self) -> Self {
        Self {
            twice: true,
            ..self
        }
    }

    /// The fields of these runs.
    fn fields(&self, runs: Range<usize>) -> Fields<'_> {
        let range = 1 + runs.start * self.width..1 + runs.end * self.width;
        Fields::new(self.values.get(range).unwrap_or_default(), self.twice)
    }
}

/// Parses integers that are separated by single spaces.
fn numbers(text: &[u8]) -> Option<Vec<Value>> {
    let mut values = Vec::with_capacity(8);
    for word in text.split(|byte| *byte == b' ') {
        let is_negative = word.first() == Some(&b'-');
        let digits = &word[usize::from(is_negative)..];
        // A number of at most 18 digits fits.
        if !(1..=18).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let mut number = 0;
        for digit in digits {
            number = 10 * number + i64::from(digit - b'0');
        }
        values.push(Value::Int(if is_negative { -number } else { number }));
    }
    Some(values)
}

#[cfg(test)]
mod tests;
