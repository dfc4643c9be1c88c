//! The way of one kind of operation to Redis, and combining: operations that arrive while others are in flight leave
//! together.
//!
//! Each runtime has lanes of its own, one for each of its routes. An operation that finds its lane idle is sent from its
//! caller's own task. One that does not joins a batch, which a *flusher* sends: a task of the same runtime that sends
//! batches until none is left. So nobody depends on another caller's future being polled, nor on another runtime.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::Waker;

use futures_util::StreamExt as _;
use futures_util::stream;
use tokio::runtime::Handle;

use super::batch::{Batch, Item, Phase};
use super::future::{Queued, RedisFuture, Sending, Step};
use super::plan::Plan;
use super::queue::{self, Budget};
use super::runtime::{Route, RuntimeLinks};
use super::{Loaded, RedisStore, ended};
use crate::Error;
use crate::store::in_memory::lock;
use crate::store::key::Key;
use crate::store::namespace::Namespace;
use crate::store::operation::Operation;

/// How often a flusher lets others run before it sends again, so that those who were just answered can ask anew and leave
/// with it. At twice, throughput no longer rises.
const YIELDS: usize = 2;

/// How many operations leave in one batch, and how many bytes.
const MOST_OPERATIONS: usize = 1024;
const MOST_BYTES: usize = 4 << 20;

/// How many calls of a batch are in flight at once.
const IN_FLIGHT: usize = 64;

/// All calls of one operation of one namespace.
pub(crate) struct RedisClient<O: Operation> {
    store: Arc<RedisStore>,
    namespace: Namespace<O::Cell>,
    script: Arc<Loaded>,
    runtimes: Padded<Mutex<Vec<Lanes<O>>>>,
    /// What takes back replies that nobody is left to receive.
    undo: OnceLock<Box<dyn TakeBack<O>>>,
}

/// What has a cache line of its own, since all callers write to it.
#[derive(Default)]
#[repr(align(128))]
struct Padded<T>(T);

/// The lanes of one runtime, by the numbers of its routes.
struct Lanes<O: Operation> {
    links: Arc<RuntimeLinks>,
    lanes: Vec<Option<Lane<O>>>,
}

struct Lane<O: Operation> {
    route: Arc<Route>,
    /// What waits, the next to leave first.
    batches: VecDeque<Arc<Batch<O>>>,
    /// Whether an operation is in flight from its caller's task.
    inline: bool,
    /// The flushers at work.
    flushers: usize,
    /// How many operations the last batch had.
    likely: usize,
}

/// Whom an operation is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    Caller,
    /// It is sent, whether or not its caller waits.
    Begun,
    /// It is sent, and counted as owed.
    Nobody,
}

/// A lane as those who send by it know it.
struct LaneOf<O: Operation> {
    client: Arc<RedisClient<O>>,
    links: Arc<RuntimeLinks>,
    route: Arc<Route>,
    number: usize,
}

impl<O: Operation> RedisClient<O> {
    pub(crate) fn new(store: Arc<RedisStore>, namespace: Namespace<O::Cell>) -> Arc<Self> {
        let script = store.load(O::SCRIPT);
        Arc::new(Self { store, namespace, script, runtimes: Padded::default(), undo: OnceLock::new() })
    }

    /// Runs an operation, which is sent when it is first polled. It may run even where nobody waits for the reply any
    /// more; what it granted is then taken back.
    pub(crate) fn submit(self: &Arc<Self>, key: Key, operation: O) -> RedisFuture<O> {
        RedisFuture::new(Step::Asked(Some((Arc::clone(self), key, operation))))
    }

    /// The same for a task that polls it at once, whose waker this is: it is sent now.
    pub(crate) fn start(self: &Arc<Self>, key: Key, operation: O, waker: Waker) -> Step<O> {
        self.enqueue(Handle::try_current().ok(), key, operation, Some(waker), For::Caller)
    }

    /// Runs an operation that is owed: it leaves before all that is submitted from here on, whoever polls what.
    pub(crate) fn begin(self: &Arc<Self>, key: Key, operation: O) -> RedisFuture<O> {
        let here = Handle::try_current().ok();
        RedisFuture::new(self.enqueue(here, key, operation, None, For::Begun))
    }

    /// Runs an operation that is owed and that nobody waits for, on the store's own thread.
    pub(crate) fn detach(self: &Arc<Self>, key: Key, operation: O) {
        drop(self.enqueue(None, key, operation, None, For::Nobody));
    }

    /// Sends an operation, or puts it into a batch. `here`: the caller's runtime; without one the store's own serves it.
    fn enqueue(
        self: &Arc<Self>,
        here: Option<Handle>,
        key: Key,
        operation: O,
        waker: Option<Waker>,
        whom: For,
    ) -> Step<O> {
        // What must run in order leaves by a flusher alone.
        let can_send = here.is_some() && waker.is_some() && !O::IN_ORDER;
        let runtime = match here.map_or_else(|| self.store.background.handle(), Ok) {
            Ok(runtime) => runtime,
            Err(error) => return Step::Failed(error),
        };
        let store = &*self.store;
        let slot = store.source.slot(|| self.namespace.redis_key(&key));
        let link = if O::BULK { store.limits.connections } else { store.link_of(&key) };
        let (owed, counted) = (whom != For::Caller, whom == For::Nobody);
        let reserved = owed || operation.is_reserved();
        let bytes = key.as_bytes().len() + operation.payload();
        let weight = if reserved { 0 } else { queue::weight(bytes) };
        // As one that is sent from its caller's task, which neither waits nor needs waking.
        let (phase, operation) = (Phase::Waiting(None), Some(operation));
        let mut item = Item { operation, key, slot, owed, counted, reserved, weight: 0, phase };

        let Some((mut runtimes, at)) = self.lanes(&runtime) else { return Step::Failed(ended()) };
        let lanes = &mut runtimes[at];
        let number = lanes.links.number(store.source.master(slot), link);
        let (links, lane) = lanes.lane(number);
        let this = |lane: &Lane<O>| LaneOf {
            client: Arc::clone(self),
            links: Arc::clone(links),
            route: Arc::clone(&lane.route),
            number,
        };
        if can_send && !lane.inline && lane.flushers == 0 && lane.batches.is_empty() {
            lane.inline = true;
            let (inline, batch) = (Inline(this(lane)), Batch::of(self, item, bytes, &links.budget, 1));
            drop(runtimes);
            let sent = Arc::clone(&batch);
            let sending = Box::pin(async move { inline.0.send(&sent).await });
            return Step::Sending(Sending::new(sending, runtime), Queued { batch, index: 0, fresh: false });
        }
        let fresh = waker.is_some();
        (item.phase, item.weight) = (Phase::Waiting(waker), weight);
        if !reserved && !links.budget.take(weight) {
            let refused = this(lane);
            drop(runtimes);
            return Step::Failed(refused.overloaded(1));
        }
        store.owed.add(usize::from(counted));
        let (batch, index) = lane.push(self, item, bytes, &links.budget);
        let most = if O::IN_ORDER { 1 } else { O::FLUSHERS };
        let flusher = (lane.flushers < most).then(|| {
            lane.flushers += 1;
            this(lane)
        });
        drop(runtimes);
        if let Some(lane) = flusher {
            lane.spawn_flusher();
        }
        Step::Queued(Queued { batch, index, fresh })
    }

    /// The lanes of all runtimes, and where among them those of this one are. What still waits on runtimes that have
    /// ended is told so. `None`: this one has ended.
    fn lanes(&self, runtime: &Handle) -> Option<(MutexGuard<'_, Vec<Lanes<O>>>, usize)> {
        let id = runtime.id();
        let find = |runtimes: &[Lanes<O>]| runtimes.iter().position(|lanes| lanes.links.is_of(id));
        let mut runtimes = lock(&self.runtimes.0);
        if let Some(at) = find(&runtimes) {
            return Some((runtimes, at));
        }
        let of_ended: Vec<_> = runtimes.extract_if(.., |lanes| lanes.links.has_ended()).collect();
        // Nothing is dropped, woken or spawned under the lock.
        drop(runtimes);
        for lanes in of_ended {
            let waiting = lanes.lanes.iter().flatten().flat_map(|lane| &lane.batches);
            waiting.for_each(|batch| self.store.fail(batch));
        }
        let links = self.store.links(runtime);
        runtimes = lock(&self.runtimes.0);
        if find(&runtimes).is_none() {
            runtimes.push(Lanes { links, lanes: Vec::new() });
        }
        let at = find(&runtimes)?;
        Some((runtimes, at))
    }

    pub(super) fn take_back(&self, key: Key, replies: &[O::Reply]) {
        if let Some(undo) = O::undo(replies) {
            let client = || -> Box<dyn TakeBack<O>> {
                Box::new(RedisClient::<O::Undo>::new(Arc::clone(&self.store), self.namespace.clone()))
            };
            self.undo.get_or_init(client).run(key, undo);
        }
    }
}

/// What takes back the replies of an operation. A trait, since the operation that takes back has one too.
trait TakeBack<O: Operation>: Send + Sync {
    fn run(&self, key: Key, undo: O::Undo);
}

impl<O: Operation> TakeBack<O> for Arc<RedisClient<O::Undo>> {
    fn run(&self, key: Key, undo: O::Undo) {
        self.detach(key, undo);
    }
}

impl<O: Operation> Lanes<O> {
    fn lane(&mut self, number: usize) -> (&Arc<RuntimeLinks>, &mut Lane<O>) {
        if self.lanes.len() <= number {
            self.lanes.resize_with(number + 1, || None);
        }
        let links = &self.links;
        let lane = self.lanes[number].get_or_insert_with(|| Lane {
            route: links.route(number),
            batches: VecDeque::new(),
            inline: false,
            flushers: 0,
            likely: 1,
        });
        (links, lane)
    }
}

impl<O: Operation> Lane<O> {
    /// Puts an operation into a batch: what is reserved into the first that has room for it, everything else into the
    /// last, unless that waits for half the queue time-out: then its runtime stood still.
    fn push(
        &mut self,
        client: &Arc<RedisClient<O>>,
        item: Item<O>,
        bytes: usize,
        budget: &Arc<Budget>,
    ) -> (Arc<Batch<O>>, usize) {
        let first = if item.reserved { 0 } else { self.batches.len().saturating_sub(1) };
        for batch in self.batches.range(first..) {
            let mut state = batch.state();
            let count = state.items.len();
            let most = if item.reserved { 2 * MOST_OPERATIONS } else { MOST_OPERATIONS };
            // The clock is not read for each of a crowd.
            let looks = !item.reserved && (count < 16 || count.is_multiple_of(64));
            if count < most
                && state.bytes + bytes <= MOST_BYTES
                && !(looks && batch.since.elapsed() >= client.store.limits.queue_timeout / 2)
            {
                return (Arc::clone(batch), state.push(item, bytes));
            }
        }
        let batch = Batch::of(client, item, bytes, budget, self.likely);
        self.batches.push_back(Arc::clone(&batch));
        (batch, 0)
    }
}

impl<O: Operation> LaneOf<O> {
    /// Sends a batch; each call answers its own callers as its reply lands.
    async fn send(&self, batch: &Arc<Batch<O>>) {
        let RedisClient { store, script, namespace, .. } = &*self.client;
        let plan = {
            let state = batch.depart();
            Plan::new(script, namespace, &state.items)
        };
        store.telemetry.batch(plan.order.len(), || self.links.budget.operations());
        batch.departs(plan.calls.len());
        let send = async |number: usize| {
            let call = &plan.calls[number];
            let reply = store.run(&self.links.runtime, &self.route, script, call).await;
            let landing = batch.land(number, call, &plan.order, reply);
            for push in landing.pushes {
                store.notifier.deliver(push);
            }
            for (key, orphans) in landing.orphans {
                self.client.take_back(key, &orphans);
            }
            store.owed.done(landing.owed);
        };
        match plan.calls.len() {
            0 => {}
            1 => send(0).await,
            calls => {
                let depth = if O::IN_ORDER { 1 } else { IN_FLIGHT };
                stream::iter(0..calls).map(send).buffer_unordered(depth).collect::<()>().await;
            }
        }
    }

    /// Changes the lane; `None` where its runtime is forgotten.
    fn with<R>(&self, change: impl FnOnce(&mut Lane<O>) -> R) -> Option<R> {
        let mut runtimes = lock(&self.client.runtimes.0);
        let lanes = runtimes.iter_mut().find(|lanes| Arc::ptr_eq(&lanes.links, &self.links))?;
        lanes.lanes.get_mut(self.number)?.as_mut().map(change)
    }

    /// What those are told for whom there is no room.
    fn overloaded(&self, operations: usize) -> Error {
        self.client.store.overloaded(&self.route.link, &self.links.budget, operations)
    }

    /// Begins a flusher, which is counted already.
    fn spawn_flusher(self) {
        let runtime = self.links.runtime.clone();
        runtime.spawn(Flusher { lane: self, batch: None, done: false }.flush());
    }
}

/// Marks a lane idle when the operation that is sent from its caller's task is over, however it ends.
struct Inline<O: Operation>(LaneOf<O>);

impl<O: Operation> Drop for Inline<O> {
    fn drop(&mut self) {
        let flushes = self.0.with(|lane| {
            lane.inline = false;
            let flushes = lane.flushers == 0 && !lane.batches.is_empty();
            lane.flushers += usize::from(flushes);
            flushes
        });
        if flushes == Some(true) {
            self.0.clone().spawn_flusher();
        }
    }
}

/// A task that sends batches until none is left, counted while it exists.
struct Flusher<O: Operation> {
    lane: LaneOf<O>,
    /// What is in flight.
    batch: Option<Arc<Batch<O>>>,
    done: bool,
}

impl<O: Operation> Flusher<O> {
    async fn flush(mut self) {
        while let Some(batch) = self.next() {
            if batch.since.elapsed() > self.lane.client.store.limits.queue_timeout {
                let operations = batch.state().items.len();
                batch.fail(&self.lane.overloaded(operations), true);
            }
            self.lane.send(self.batch.insert(batch)).await;
            self.batch = None;
            for _ in 0..YIELDS {
                tokio::task::yield_now().await;
            }
        }
    }

    fn next(&mut self) -> Option<Arc<Batch<O>>> {
        self.lane.with(|lane| {
            let batch = lane.batches.pop_front();
            match &batch {
                Some(batch) => lane.likely = batch.state().items.len(),
                None => {
                    lane.flushers -= 1;
                    self.done = true;
                }
            }
            batch
        })?
    }
}

/// Where a flusher ends early, with its runtime, its callers are told; and those who wait, where it was the last.
impl<O: Operation> Drop for Flusher<O> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let client = &self.lane.client;
        if let Some(batch) = &self.batch {
            client.store.fail(batch);
        }
        let waiting = self.lane.with(|lane| {
            lane.flushers -= 1;
            if lane.flushers == 0 { std::mem::take(&mut lane.batches) } else { VecDeque::new() }
        });
        waiting.iter().flatten().for_each(|batch| client.store.fail(batch));
    }
}

impl<O: Operation> Clone for LaneOf<O> {
    fn clone(&self) -> Self {
        Self {
            client: Arc::clone(&self.client),
            links: Arc::clone(&self.links),
            route: Arc::clone(&self.route),
            number: self.number,
        }
    }
}

impl<O: Operation> fmt::Debug for RedisClient<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisClient").field(&self.script).finish()
    }
}
