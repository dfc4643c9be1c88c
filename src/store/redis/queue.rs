//! The queues of one kind of operation, and its future: an operation that finds its queue idle is sent at once, from
//! the task of its caller. Operations that arrive while others are in flight are sent together, in a batch.
//!
//! Each runtime has its own queues, one for each of its routes. A *flusher* sends the batches: a task on the same
//! runtime. So no caller depends on another caller's future being polled, or on another runtime.

use std::collections::VecDeque;
use std::hash::BuildHasher as _;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use derive_where::derive_where;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream;
use tokio::runtime::Handle;

use crate::error::Error;
use crate::key::Key;
use crate::store::operation::Operation;
use crate::store::redis::batch::{Batch, Item, Phase};
use crate::store::redis::budget::{Budget, weight};
use crate::store::redis::call::CallGuard;
use crate::store::redis::command::{Calls, Loaded};
use crate::store::redis::link::{Route, RuntimeLinks};
use crate::store::redis::names::KeySpace;
use crate::store::redis::{RedisStore, ended, slots};
use crate::sync::{Mutex, MutexGuard, Padded, lock};

/// A submitted operation.
pub(crate) struct OperationFuture<O: Operation>(pub(in crate::store) Step<O>);

pub(in crate::store) enum Step<O: Operation> {
    /// Not polled yet; `None` after it was sent.
    Submitted(Option<(Arc<RedisClient<O>>, Key, O)>),
    Queued(Queued<O>),
    /// Done; `None` once the reply was taken.
    Done(Option<Result<O::Reply, Error>>),
}

/// An operation in a batch.
pub(in crate::store) struct Queued<O: Operation> {
    client: Arc<RedisClient<O>>,
    pub(super) batch: Arc<Batch<O>>,
    pub(super) index: usize,
    /// Whether the batch already has the waker of the task that polls next.
    pub(super) fresh: bool,
    /// The batch in flight from this task, and its runtime. If the caller is dropped, a spawned task completes it, so
    /// that a grant is known and can be undone.
    sending: Option<(BoxFuture<'static, ()>, Handle)>,
}

impl<O: Operation> Queued<O> {
    /// Makes an operation that is sent from the task of its caller.
    fn sending(
        client: Arc<RedisClient<O>>,
        guard: SendingGuard<O>,
        batch: Arc<Batch<O>>,
        runtime: Handle,
    ) -> Self {
        let sent = Arc::clone(&batch);
        let sending = Box::pin(async move { guard.0.send(&sent).await });
        Self {
            client,
            batch,
            index: 0,
            fresh: false,
            sending: Some((sending, runtime)),
        }
    }
}

impl<O: Operation> Unpin for OperationFuture<O> {}

impl<O: Operation> Future for OperationFuture<O> {
    type Output = Result<O::Reply, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self(step) = self.get_mut();
        loop {
            match step {
                Step::Submitted(submitted) => {
                    let Some((client, key, operation)) = submitted.take() else {
                        return Poll::Pending;
                    };
                    let here = Handle::try_current().ok();
                    let waker = Some(context.waker().clone());
                    *step = client.enqueue(here, key, operation, waker, false);
                }
                Step::Queued(queued) => {
                    if let Some((sending, _)) = &mut queued.sending {
                        ready!(sending.as_mut().poll(context));
                        queued.sending = None;
                    }
                    // The batch already has the waker.
                    if std::mem::take(&mut queued.fresh) {
                        return Poll::Pending;
                    }
                    let reply = ready!(queued.batch.poll(queued.index, context));
                    *step = Step::Done(None);
                    return Poll::Ready(reply);
                }
                Step::Done(reply) => return reply.take().map_or(Poll::Pending, Poll::Ready),
            }
        }
    }
}

impl<O: Operation> Drop for OperationFuture<O> {
    fn drop(&mut self) {
        let Step::Queued(queued) = &mut self.0 else {
            return;
        };
        if let Some((key, reply)) = queued.batch.leave(queued.index) {
            queued.client.take_back(key, &[reply]);
        }
        // A future that has panicked cannot be polled again.
        if let Some((sending, runtime)) = queued.sending.take()
            && !std::thread::panicking()
        {
            runtime.spawn(sending);
        }
    }
}

type Undo<O> = Box<dyn Fn(Key, <O as Operation>::Undo) + Send + Sync>;

/// Sends one kind of operation of one namespace.
pub(crate) struct RedisClient<O: Operation> {
    pub(in crate::store) store: Arc<RedisStore>,
    pub(super) keys: Arc<KeySpace>,
    pub(super) script: Arc<Loaded>,
    runtimes: Padded<Mutex<Vec<RuntimeQueues<O>>>>,
    /// Runs the operations that undo replies whose callers are gone. It hides its client, because the type of the undo
    /// operation has an undo operation too.
    undo: OnceLock<Undo<O>>,
}

impl<O: Operation> RedisClient<O> {
    pub(crate) fn new(store: Arc<RedisStore>, keys: Arc<KeySpace>) -> Arc<Self> {
        let script = store.load(O::SCRIPT);
        Arc::new(Self {
            store,
            keys,
            script,
            runtimes: Padded::default(),
            undo: OnceLock::new(),
        })
    }

    /// Runs an owed operation without a waiting caller, on the background thread.
    pub(crate) fn detach(self: &Arc<Self>, key: Key, operation: O) {
        drop(Arc::clone(self).enqueue(None, key, operation, None, true));
    }

    /// Sends an operation, or adds it to a batch, which is sent before all operations that are submitted there later,
    /// even if its future is not polled. `here` is the runtime of the caller; without one, the background thread sends
    /// it. `waker`: of the task that polls the result at once. `owed`: it counts as owed, and its reply has no
    /// receiver.
    pub(in crate::store) fn enqueue(
        self: Arc<Self>,
        here: Option<Handle>,
        key: Key,
        operation: O,
        waker: Option<Waker>,
        owed: bool,
    ) -> Step<O> {
        // Operations with `IN_ORDER` are sent only by a flusher.
        let can_send = here.is_some() && waker.is_some() && !O::IN_ORDER;
        let runtime = match here.map_or_else(|| self.store.base.background.handle(), Ok) {
            Ok(runtime) => runtime,
            Err(error) => return Step::Done(Some(Err(error))),
        };
        let link = self.link_of(&key);
        let bytes = key.as_bytes().len() + operation.payload();
        let (mut item, is_bounded) = self.item(key, operation, owed);

        let Some((mut runtimes, at)) = self.queues(&runtime) else {
            return Step::Done(Some(Err(ended())));
        };
        let master = match (&self.store.masters, item.slot) {
            (Some(masters), Some(slot)) => masters.of(slot),
            _ => 0,
        };
        let number = runtimes[at].links.number(master, link);
        let (links, queue) = runtimes[at].queue(number);
        let is_idle = !queue.is_sending && queue.flushers == 0 && queue.batches.is_empty();
        if can_send && is_idle {
            queue.is_sending = true;
            let guard = SendingGuard(queue.handle(&self, links));
            let batch = Batch::of(item, bytes, &links.budget, 1);
            drop(runtimes);
            return Step::Queued(Queued::sending(self, guard, batch, runtime));
        }
        let fresh = waker.is_some();
        item.phase = Phase::Waiting(waker);
        item.weight = if is_bounded { weight(bytes) } else { 0 };
        if is_bounded && !links.budget.take(item.weight) {
            let refused = queue.handle(&self, links);
            drop(runtimes);
            let error = self
                .store
                .overloaded(&refused.route.link, &refused.links.budget, 1);
            return Step::Done(Some(Err(error)));
        }
        self.store.owed.add(usize::from(owed));
        let half_the_time = self.store.limits.queue_timeout / 2;
        let (batch, index) = queue.push(item, bytes, &links.budget, half_the_time);
        if queue.needs_flusher(index) {
            let handle = queue.handle(&self, links);
            drop(runtimes);
            handle.spawn_flusher();
        } else {
            drop(runtimes);
        }
        Step::Queued(Queued {
            client: self,
            batch,
            index,
            fresh,
            sending: None,
        })
    }

    /// Returns the number of the link for the operations on a key. It is always the same, so that they can be sent
    /// together.
    pub(super) fn link_of(&self, key: &Key) -> usize {
        let store = &*self.store;
        match store.limits.connections {
            links if O::BULK => links,
            1 => 0,
            links => store.hasher.hash_one(key) as usize % links,
        }
    }

    /// Makes the item of an operation, at first as one that is sent from its caller's task: it does not wait and needs
    /// no waker. Also returns whether the number of such waiting operations is bounded.
    fn item(&self, key: Key, operation: O, owed: bool) -> (Item<O>, bool) {
        let store = &*self.store;
        let reserved = owed || operation.is_reserved();
        // A call by a user: connections that are made from now on stay open.
        if !reserved && store.is_shut_down.load(Ordering::Relaxed) {
            store.is_shut_down.store(false, Ordering::Relaxed);
        }
        // Reserved operations that publish answers of any size are bounded too.
        let is_bounded = !reserved || operation.payload() > 0;
        // On a Cluster, the slot of its keys decides the master.
        let is_cluster = store.masters.is_some();
        let slot = is_cluster.then(|| slots::slot(&self.keys.key(key.as_bytes())));
        let item = Item {
            slot,
            operation: Some(operation),
            key,
            owed,
            reserved,
            weight: 0,
            phase: Phase::Waiting(None),
        };
        (item, is_bounded)
    }

    /// Returns the queues of all runtimes, and the index of those of `runtime`. Operations that wait on ended runtimes
    /// fail. `None`: `runtime` has ended.
    fn queues(&self, runtime: &Handle) -> Option<(MutexGuard<'_, Vec<RuntimeQueues<O>>>, usize)> {
        let mut runtimes = lock(&self.runtimes.0);
        if let Some(at) = RuntimeQueues::find(&runtimes, runtime) {
            return Some((runtimes, at));
        }
        let of_ended: Vec<_> = runtimes
            .extract_if(.., |queues| queues.links.has_ended())
            .collect();
        // Nothing is dropped, woken or spawned under the lock.
        drop(runtimes);
        for queues in of_ended {
            let waiting = queues
                .by_route
                .iter()
                .flatten()
                .flat_map(|queue| &queue.batches);
            waiting.for_each(|batch| self.store.fail(batch));
        }
        let links = self.store.links(runtime);
        runtimes = lock(&self.runtimes.0);
        if RuntimeQueues::find(&runtimes, runtime).is_none() {
            runtimes.push(RuntimeQueues {
                links,
                by_route: Vec::new(),
            });
        }
        let at = RuntimeQueues::find(&runtimes, runtime)?;
        Some((runtimes, at))
    }

    pub(super) fn take_back(&self, key: Key, replies: &[O::Reply]) {
        let together = if O::UNDONE_ALONE {
            1
        } else {
            replies.len().max(1)
        };
        for undo in replies.chunks(together).filter_map(O::undo) {
            let take_back = self.undo.get_or_init(|| {
                let client =
                    RedisClient::<O::Undo>::new(Arc::clone(&self.store), Arc::clone(&self.keys));
                Box::new(move |key, undo| client.detach(key, undo))
            });
            take_back(key.clone(), undo);
        }
    }
}

/// The maximum number of operations in one batch, and of bytes.
const MOST_OPERATIONS: usize = 1024;
const MOST_BYTES: usize = 4 << 20;

/// The queues of one runtime, by the numbers of its routes.
struct RuntimeQueues<O: Operation> {
    links: Arc<RuntimeLinks>,
    by_route: Vec<Option<SendQueue<O>>>,
}

/// The operations that wait to be sent by one route, in batches.
pub(super) struct SendQueue<O: Operation> {
    route: Arc<Route>,
    /// The number of the route.
    number: usize,
    /// The waiting batches. The first is sent next.
    pub(super) batches: VecDeque<Arc<Batch<O>>>,
    /// Whether an operation is in flight from the task of its caller.
    is_sending: bool,
    /// The number of running flushers.
    pub(super) flushers: usize,
    /// The number of operations in the last batch.
    pub(super) expected_size: usize,
}

impl<O: Operation> RuntimeQueues<O> {
    fn find(runtimes: &[Self], runtime: &Handle) -> Option<usize> {
        runtimes
            .iter()
            .position(|queues| queues.links.is_of(runtime.id()))
    }

    fn queue(&mut self, number: usize) -> (&Arc<RuntimeLinks>, &mut SendQueue<O>) {
        if self.by_route.len() <= number {
            self.by_route.resize_with(number + 1, || None);
        }
        let links = &self.links;
        let queue = self.by_route[number].get_or_insert_with(|| SendQueue {
            route: links.route(number),
            number,
            batches: VecDeque::new(),
            is_sending: false,
            flushers: 0,
            expected_size: 1,
        });
        (links, queue)
    }
}

impl<O: Operation> SendQueue<O> {
    fn handle(&self, client: &Arc<RedisClient<O>>, links: &Arc<RuntimeLinks>) -> QueueHandle<O> {
        QueueHandle {
            client: Arc::clone(client),
            links: Arc::clone(links),
            route: Arc::clone(&self.route),
            number: self.number,
        }
    }

    /// Adds an operation to a batch. A reserved operation joins the first batch with room. Any other operation joins
    /// the last batch, unless that has waited for half the queue timeout (`half_the_time`), which means that its
    /// runtime was blocked.
    fn push(
        &mut self,
        item: Item<O>,
        bytes: usize,
        budget: &Arc<Budget>,
        half_the_time: Duration,
    ) -> (Arc<Batch<O>>, usize) {
        let first = if item.reserved {
            0
        } else {
            self.batches.len().saturating_sub(1)
        };
        for batch in self.batches.range(first..) {
            let mut state = batch.state();
            let count = state.items.len();
            let most = if item.reserved {
                2 * MOST_OPERATIONS
            } else {
                MOST_OPERATIONS
            };
            // With many operations, the clock is not read for each of them.
            let looks = !item.reserved && (count < 16 || count.is_multiple_of(64));
            if count < most
                && state.bytes + bytes <= MOST_BYTES
                && !(looks && batch.since.elapsed() >= half_the_time)
            {
                return (Arc::clone(batch), state.push(item, bytes));
            }
        }
        let batch = Batch::of(item, bytes, budget, self.expected_size);
        self.batches.push_back(Arc::clone(&batch));
        (batch, 0)
    }
}

/// The number of calls of a batch that are in flight at once.
const IN_FLIGHT: usize = 64;

/// A reference to a queue, for the tasks that send from it.
#[derive_where(Clone)]
pub(super) struct QueueHandle<O: Operation> {
    pub(super) client: Arc<RedisClient<O>>,
    pub(super) links: Arc<RuntimeLinks>,
    pub(super) route: Arc<Route>,
    number: usize,
}

impl<O: Operation> QueueHandle<O> {
    /// Sends a batch.
    pub(super) async fn send(&self, batch: &Batch<O>) {
        let RedisClient {
            store,
            script,
            keys,
            ..
        } = &*self.client;
        let _under_way = CallGuard(store, &self.links);
        let calls = {
            let state = batch.close();
            Calls::new(script, keys, &state.items)
        };
        let operations = calls.order.len();
        // There are none if all callers of the batch are gone.
        if operations > 0 {
            store
                .operations
                .fetch_add(operations as u64, Ordering::Relaxed);
            store.batches.fetch_add(1, Ordering::Relaxed);
            store
                .telemetry
                .batch(operations, || self.links.budget.operations());
        }
        batch.note_sent(calls.list.len());
        if let [_] = calls.list[..] {
            return self.send_call(batch, &calls, 0).await;
        }
        let depth = if O::IN_ORDER { 1 } else { IN_FLIGHT };
        stream::iter(0..calls.list.len())
            .map(|number| self.send_call(batch, &calls, number))
            .buffer_unordered(depth)
            .collect::<()>()
            .await;
    }

    /// Sends one call of a batch. Its callers get their results when the reply arrives.
    async fn send_call(&self, batch: &Batch<O>, calls: &Calls, number: usize) {
        let RedisClient { store, script, .. } = &*self.client;
        let call = &calls.list[number];
        let reply = store.run(&self.links, &self.route, script, call).await;
        let deliveries = batch.deliver(number, call, &calls.order, reply);
        for push in deliveries.pushes {
            store.base.notifier.deliver(push);
        }
        for (key, orphans) in deliveries.orphans {
            self.client.take_back(key, &orphans);
        }
        if deliveries.owed > 0 {
            store.owed.done(deliveries.owed);
        }
    }

    /// Changes the queue. `None` if its runtime was removed.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut SendQueue<O>) -> R) -> Option<R> {
        let mut runtimes = lock(&self.client.runtimes.0);
        for queues in runtimes.iter_mut() {
            if Arc::ptr_eq(&queues.links, &self.links) {
                return queues.by_route.get_mut(self.number)?.as_mut().map(change);
            }
        }
        None
    }
}

/// Marks a queue as idle when the operation that is sent from its caller's task ends for any reason.
struct SendingGuard<O: Operation>(QueueHandle<O>);

impl<O: Operation> Drop for SendingGuard<O> {
    fn drop(&mut self) {
        // If other operations wait, a flusher is already sending them.
        self.0.with(|queue| queue.is_sending = false);
    }
}
