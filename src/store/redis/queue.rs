//! Combining: operations that arrive while others are in flight leave together.
//!
//! An operation that finds its lane idle is sent at once, from the caller's own task. One that does not waits
//! in a queue for one of the lane's *carriers*, tasks that send all that is waiting, hand out the answers, and
//! begin again until nobody waits. So nobody depends on another caller's future being polled.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use futures_util::future::{BoxFuture, join_all};
use smallvec::SmallVec;
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep_until};

use super::plan::{Call, plan};
use super::{Loaded, RedisStore, Reply};
use crate::Error;
use crate::error::Cause;
use crate::store::in_memory::lock;
use crate::store::key::Key;
use crate::store::namespace::{Namespace, detach};
use crate::store::operation::{Fields, Garbled, Operation};

/// How often a carrier lets others run before it sends again, so that those who were just answered can ask anew
/// and leave with it. At twice, throughput no longer rises.
const YIELDS: usize = 2;

/// All calls of one operation of one namespace.
#[derive(Debug)]
pub(crate) struct Queue<O: Operation> {
    store: Arc<RedisStore>,
    namespace: Namespace<O::Cell>,
    script: Arc<Loaded>,
    lanes: Box<[Mutex<Waiting<O>>]>,
}

#[derive(Debug)]
struct Waiting<O: Operation> {
    pending: Vec<Pending<O>>,
    /// Since when the first of them waits.
    since: Instant,
    /// A single operation is in flight from its caller's task.
    single: bool,
    /// Carriers at work.
    carriers: usize,
    /// The runtime that all of them are on; `None` if they are not on one.
    home: Option<Id>,
}

/// An operation that is yet to be answered.
#[derive(Debug)]
pub(super) struct Pending<O: Operation> {
    pub(super) operation: O,
    pub(super) key: Key,
    /// On a Cluster.
    pub(super) slot: Option<u16>,
    answer: oneshot::Sender<Delivery<O>>,
}

/// An answer, with the key by which it can be taken back.
type Delivery<O> = (Key, Result<<O as Operation>::Reply, Error>);

impl<O: Operation> Pending<O> {
    /// What leaves together stands together by this.
    pub(super) fn place(&self) -> (Option<u16>, usize, &[u8]) {
        (self.slot, self.operation.group(), self.key.as_bytes())
    }

    pub(super) fn is_repeated_by(&self, other: &Self) -> bool {
        self.key == other.key && self.operation.repeats(&other.operation)
    }
}

impl<O: Operation> Queue<O> {
    pub(crate) fn new(store: Arc<RedisStore>, namespace: Namespace<O::Cell>) -> Self {
        let waiting = || {
            Mutex::new(Waiting {
                pending: Vec::new(),
                since: Instant::now(),
                single: false,
                carriers: 0,
                home: None,
            })
        };
        Self {
            script: store.load(O::SCRIPT),
            lanes: (0..store.connections()).map(|_| waiting()).collect(),
            store,
            namespace,
        }
    }

    /// Asks for an operation, which may run even where nobody waits for the answer; the answer is then taken
    /// back.
    ///
    /// Where its answer is not awaited here, it is better off with a carrier: then it leaves before all that is asked
    /// for later, whoever polls what first.
    pub(crate) fn ask(self: &Arc<Self>, key: Key, operation: O, awaited: bool) -> Answer<O> {
        let lane = self.store.lane_of(&key);
        let slot = self.store.slot(|| self.namespace.redis_key(&key));
        let (answer, reply) = oneshot::channel();
        let (mut single, mut deadline) = (Flight(None), None);
        match self.enqueue(lane, Pending { operation, key, slot, answer }, awaited) {
            Sender::Own => {}
            Sender::Foreign => {
                deadline = Some(Box::pin(sleep_until(self.store.deadline(Instant::now()))));
            }
            Sender::Caller(item) => {
                let guard = Single { queue: Arc::clone(self), lane };
                let flight = async move { guard.queue.fly(lane, vec![item], Instant::now()).await };
                single.0 = Some(Box::pin(flight));
            }
        }
        Answer { single, reply, deadline, queue: Arc::clone(self) }
    }

    /// Leaves the operation to a carrier, or returns it where the lane is idle.
    fn enqueue(self: &Arc<Self>, lane: usize, item: Pending<O>, awaited: bool) -> Sender<O> {
        let mut waiting = lock(&self.lanes[lane]);
        if awaited && !waiting.single && waiting.carriers == 0 {
            waiting.single = true;
            return Sender::Caller(item);
        }
        let here = Handle::current().id();
        if waiting.pending.is_empty() {
            waiting.since = Instant::now();
        }
        waiting.pending.push(item);
        // A carrier on another runtime may stand still.
        let crowded =
            waiting.carriers == 0 || waiting.home != Some(here) || waiting.pending.len() >= O::CROWD;
        let one_more = crowded && waiting.carriers < O::CARRIERS;
        if one_more {
            waiting.home = (waiting.carriers == 0 || waiting.home == Some(here)).then_some(here);
            waiting.carriers += 1;
        }
        let sender = if waiting.home == Some(here) { Sender::Own } else { Sender::Foreign };
        drop(waiting);
        if one_more {
            tokio::spawn(Carrier { queue: Arc::clone(self), lane, done: false }.carry());
        }
        sender
    }

    /// Sends the operations and answers each.
    async fn fly(self: &Arc<Self>, lane: usize, mut pending: Vec<Pending<O>>, since: Instant) {
        pending.retain(|item| !item.answer.is_closed());
        let deadline = self.store.deadline(since);
        let calls = plan(&self.script, &self.namespace, &mut pending);
        if let [call] = &calls[..] {
            let reply = self.store.run(lane, &self.script, call, deadline).await;
            self.answer(call, &mut pending.into_iter(), reply);
            return;
        }
        let replies =
            join_all(calls.iter().map(|call| self.store.run(lane, &self.script, call, deadline))).await;
        let mut pending = pending.into_iter();
        for (call, reply) in calls.iter().zip(replies) {
            self.answer(call, &mut pending, reply);
        }
    }

    fn answer(
        self: &Arc<Self>,
        call: &Call,
        pending: &mut impl Iterator<Item = Pending<O>>,
        reply: Result<Reply, Error>,
    ) {
        let sizes: usize = call.runs.iter().map(|run| run.size).sum();
        let width = reply.as_ref().map_or(0, |reply| reply.fields.len() / sizes.max(1));
        let mut position = 0;
        for run in &call.runs {
            let (from, fields) = (position * width, run.size * width);
            position += run.size;
            let decode = |operation: O, nth| match &reply {
                Ok(reply) => {
                    let fields = Fields::new(&reply.fields[from..][..fields]);
                    let reply = operation.decode(nth, reply.now, fields);
                    reply.map_err(|Garbled(text)| {
                        let wrong_type = text.starts_with("WRONGTYPE");
                        let cause = if wrong_type { Cause::WrongType } else { Cause::Unexpected };
                        Error::unavailable(cause, text)
                    })
                }
                Err(error) => Err(error.clone()),
            };
            let mut orphans = Vec::new();
            let mut orphaned = None;
            for (nth, item) in present_first(pending.by_ref().take(run.at.len())).enumerate() {
                let mut reply = decode(item.operation, nth);
                if let Ok(reply) = &mut reply {
                    O::pushes(reply).into_iter().for_each(|push| self.store.notifier.deliver(push));
                }
                let delivery = (item.key, reply);
                if let Err((key, Ok(reply))) = item.answer.send(delivery) {
                    orphans.push(reply);
                    orphaned = Some(key);
                }
            }
            if let Some(key) = orphaned {
                self.take_back(key, &orphans);
            }
        }
    }

    fn take_back(&self, key: Key, replies: &[O::Reply]) {
        if let Some(undo) = O::undo(replies) {
            detach(self.namespace.client().run(key, undo));
        }
    }
}

/// Puts those whose caller is gone last: what they are granted is then the latest, which can be taken back.
fn present_first<O: Operation>(run: impl Iterator<Item = Pending<O>>) -> impl Iterator<Item = Pending<O>> {
    let (mut present, mut gone) = (SmallVec::<[_; 1]>::new(), Vec::new());
    for item in run {
        if item.answer.is_closed() { gone.push(item) } else { present.push(item) }
    }
    present.into_iter().chain(gone)
}

/// Who sends an operation.
enum Sender<O: Operation> {
    /// The lane is idle: its caller does.
    Caller(Pending<O>),
    /// A carrier on the caller's own runtime.
    Own,
    /// A carrier on a runtime that may stand still while the caller's does not.
    Foreign,
}

/// The answer to an operation.
pub(crate) struct Answer<O: Operation> {
    /// The call itself, where it is this caller who sends it.
    single: Flight,
    reply: oneshot::Receiver<Delivery<O>>,
    /// Set where nobody else is sure to see to the time-out.
    deadline: Option<Pin<Box<Sleep>>>,
    queue: Arc<Queue<O>>,
}

impl<O: Operation> Future for Answer<O> {
    type Output = Result<O::Reply, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(flight) = &mut self.single.0 {
            ready!(flight.as_mut().poll(context));
            self.single.0 = None;
        }
        match (Pin::new(&mut self.reply).poll(context), &mut self.deadline) {
            (Poll::Ready(Ok((_, reply))), _) => Poll::Ready(reply),
            (Poll::Ready(Err(_)), _) => {
                let gone = "the runtime that carried the call is gone";
                Poll::Ready(Err(Error::unavailable(Cause::Disconnected, gone)))
            }
            (Poll::Pending, Some(deadline)) => deadline.as_mut().poll(context).map(|()| {
                let stands = "no answer in time: the runtime that carries the call stands still";
                Err(Error::unavailable(Cause::TimedOut, stands))
            }),
            (Poll::Pending, None) => Poll::Pending,
        }
    }
}

impl<O: Operation> Drop for Answer<O> {
    fn drop(&mut self) {
        // From here on it is seen by the sender that nobody waits; what has come already is taken back here.
        self.reply.close();
        if let Ok((key, Ok(reply))) = self.reply.try_recv() {
            self.queue.take_back(key, &[reply]);
        }
    }
}

/// A single operation in flight. Where the caller goes away, a task of its own sees it to its end, so that
/// what was granted is known and can be taken back.
struct Flight(Option<BoxFuture<'static, ()>>);

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(flight) = self.0.take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(flight);
        }
    }
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Flight")
    }
}

/// Marks the lane idle when a single flight is over, however it ends.
struct Single<O: Operation> {
    queue: Arc<Queue<O>>,
    lane: usize,
}

impl<O: Operation> Drop for Single<O> {
    fn drop(&mut self) {
        lock(&self.queue.lanes[self.lane]).single = false;
    }
}

/// A carrier, counted while it exists.
struct Carrier<O: Operation> {
    queue: Arc<Queue<O>>,
    lane: usize,
    done: bool,
}

impl<O: Operation> Carrier<O> {
    async fn carry(mut self) {
        while let Some((pending, since)) = self.next() {
            self.queue.fly(self.lane, pending, since).await;
            for _ in 0..YIELDS {
                tokio::task::yield_now().await;
            }
        }
    }

    fn next(&mut self) -> Option<(Vec<Pending<O>>, Instant)> {
        let mut waiting = lock(&self.queue.lanes[self.lane]);
        if waiting.pending.is_empty() {
            waiting.carriers -= 1;
            self.done = true;
            return None;
        }
        // The next batch is likely as large.
        let room = Vec::with_capacity(waiting.pending.len());
        Some((std::mem::replace(&mut waiting.pending, room), waiting.since))
    }
}

/// Where the last carrier ends early, as its runtime shuts down, those who wait are told.
impl<O: Operation> Drop for Carrier<O> {
    fn drop(&mut self) {
        if !self.done {
            let mut waiting = lock(&self.queue.lanes[self.lane]);
            waiting.carriers -= 1;
            if waiting.carriers == 0 {
                waiting.pending.clear();
            }
        }
    }
}
