//! The client for one kind of operation, and its batching: operations that arrive while others are in flight leave
//! together.
//!
//! Each runtime has its own queues, one for each of its routes. An operation that finds its queue idle is sent from
//! the task of its caller. Otherwise it joins a batch, which a *flusher* sends: a task on the same runtime that
//! sends batches until none is left. So no caller depends on another caller's future being polled, or on another
//! runtime.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use tokio::runtime::Handle;

use super::batch::{Batch, Item, Phase};
use super::flusher::{Inline, QueueRef};
use super::future::{Queued, Sending, Step};
use super::send_queue::{RuntimeQueues, SendQueue};
use super::{Loaded, RedisStore, budget, ended};
use crate::store::key::{Key, KeySpace};
use crate::store::operation::Operation;
use crate::sync::Padded;
use crate::sync::{Mutex, MutexGuard, lock};

type Undo<O> = Box<dyn Fn(Key, <O as Operation>::Undo) + Send + Sync>;

/// Sends one kind of operation of one namespace.
pub(crate) struct RedisClient<O: Operation> {
    pub(in crate::store) store: Arc<RedisStore>,
    pub(super) keys: Arc<KeySpace>,
    pub(super) script: Arc<Loaded>,
    pub(super) runtimes: Padded<Mutex<Vec<RuntimeQueues<O>>>>,
    /// Runs the operations that take back replies whose callers are gone. It hides its client, since the type of the undo
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
        drop(self.enqueue(None, key, operation, None, true));
    }

    /// Sends an operation, or adds it to a batch, which leaves before all operations that are submitted there later, even if
    /// its future is not polled. `here` is the runtime of the caller; without one, the background thread serves it. `waker`:
    /// of the task that polls the result at once. `owed`: it counts as owed, and its reply has no receiver.
    pub(in crate::store) fn enqueue(
        self: &Arc<Self>,
        here: Option<Handle>,
        key: Key,
        operation: O,
        waker: Option<Waker>,
        owed: bool,
    ) -> Step<O> {
        // Operations with `IN_ORDER` leave only by a flusher.
        let can_send = here.is_some() && waker.is_some() && !O::IN_ORDER;
        let runtime = match here.map_or_else(|| self.store.base.background.handle(), Ok) {
            Ok(runtime) => runtime,
            Err(error) => return Step::Done(Some(Err(error))),
        };
        let store = &*self.store;
        let slot = store.source.slot(|| self.keys.key(key.as_bytes()));
        let link = if O::BULK {
            store.limits.connections
        } else {
            store.link_of(&key)
        };
        let reserved = owed || operation.is_reserved();
        // A user calls: what is connected from now on stays.
        if !reserved && store.is_shut_down.load(Ordering::Relaxed) {
            store.is_shut_down.store(false, Ordering::Relaxed);
        }
        let bytes = key.as_bytes().len() + operation.payload();
        // Of the reserved operations, those that publish answers of any size are bounded too.
        let is_bounded = !reserved || operation.payload() > 0;
        let weight = if is_bounded { budget::weight(bytes) } else { 0 };
        // At first as an operation that is sent from its caller's task: it does not wait and needs no waker.
        let (phase, operation) = (Phase::Waiting(None), Some(operation));
        let mut item = Item {
            operation,
            key,
            slot,
            owed,
            reserved,
            weight: 0,
            phase,
        };

        let Some((mut runtimes, at)) = self.queues(&runtime) else {
            return Step::Done(Some(Err(ended())));
        };
        let queues = &mut runtimes[at];
        let number = queues.links.number(store.source.master(slot), link);
        let (links, queue) = queues.queue(number);
        let this = |queue: &SendQueue<O>| QueueRef {
            client: Arc::clone(self),
            links: Arc::clone(links),
            route: Arc::clone(&queue.route),
            number,
        };
        if can_send && !queue.inline && queue.flushers == 0 && queue.batches.is_empty() {
            queue.inline = true;
            let (inline, batch) = (
                Inline(this(queue)),
                Batch::of(self, item, bytes, &links.budget, 1),
            );
            drop(runtimes);
            let sent = Arc::clone(&batch);
            let sending = Box::pin(async move { inline.0.send(&sent).await });
            let sending = Some(Sending::new(sending, runtime));
            return Step::Queued(Queued {
                batch,
                index: 0,
                fresh: false,
                sending,
            });
        }
        let fresh = waker.is_some();
        (item.phase, item.weight) = (Phase::Waiting(waker), weight);
        if is_bounded && !links.budget.take(weight) {
            let refused = this(queue);
            drop(runtimes);
            return Step::Done(Some(Err(refused.overloaded(1))));
        }
        store.owed.add(usize::from(owed));
        let (batch, index) = queue.push(self, item, bytes, &links.budget);
        let most = if O::IN_ORDER { 1 } else { O::FLUSHERS };
        // The first operation of a batch has begun a flusher, or all of them are under way.
        let flusher = (index == 0 && queue.flushers < most).then(|| {
            queue.flushers += 1;
            this(queue)
        });
        drop(runtimes);
        if let Some(queue) = flusher {
            queue.spawn_flusher();
        }
        Step::Queued(Queued {
            batch,
            index,
            fresh,
            sending: None,
        })
    }

    /// Returns the queues of all runtimes, and the index of those of `runtime`. Operations that wait on ended
    /// runtimes fail. `None`: `runtime` has ended.
    fn queues(&self, runtime: &Handle) -> Option<(MutexGuard<'_, Vec<RuntimeQueues<O>>>, usize)> {
        let id = runtime.id();
        let find = |runtimes: &[RuntimeQueues<O>]| {
            runtimes.iter().position(|queues| queues.links.is_of(id))
        };
        let mut runtimes = lock(&self.runtimes.0);
        if let Some(at) = find(&runtimes) {
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
        if find(&runtimes).is_none() {
            runtimes.push(RuntimeQueues {
                links,
                by_route: Vec::new(),
            });
        }
        let at = find(&runtimes)?;
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
