//! Sends the queued operations: from the caller's task if the queue is idle, otherwise from a flusher.

use std::collections::VecDeque;
use std::sync::Arc;

use derive_where::derive_where;
use futures_util::StreamExt as _;
use futures_util::stream;

use super::UnderWay;
use super::batch::Batch;
use super::client::RedisClient;
use super::plan::Plan;
use super::runtime::{Route, RuntimeLinks};
use super::send_queue::SendQueue;
use crate::Error;
use crate::store::operation::Operation;
use crate::sync::lock;

/// How often a flusher yields before it sends again, so that callers that were just answered can submit their next
/// operation to the batch. With more yields, throughput does not rise.
const YIELDS: usize = 2;

/// The number of calls of a batch that are in flight at once.
const IN_FLIGHT: usize = 64;

/// A reference to a queue, for the tasks that send from it.
#[derive_where(Clone)]
pub(super) struct QueueRef<O: Operation> {
    pub(super) client: Arc<RedisClient<O>>,
    pub(super) links: Arc<RuntimeLinks>,
    pub(super) route: Arc<Route>,
    pub(super) number: usize,
}

impl<O: Operation> QueueRef<O> {
    /// Sends a batch. The callers of a call get their replies when the reply to the call arrives.
    pub(super) async fn send(&self, batch: &Arc<Batch<O>>) {
        let RedisClient {
            store,
            script,
            keys,
            ..
        } = &*self.client;
        let _under_way = UnderWay(store, &self.links);
        let plan = {
            let state = batch.depart();
            Plan::new(script, keys, &state.items)
        };
        store.departs(plan.order.len(), &self.links.budget);
        batch.departs(plan.calls.len());
        let send = async |number: usize| {
            let call = &plan.calls[number];
            let reply = store.run(&self.links, &self.route, script, call).await;
            let landing = batch.land(number, call, &plan.order, reply);
            for push in landing.pushes {
                store.base.notifier.deliver(push);
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
                stream::iter(0..calls)
                    .map(send)
                    .buffer_unordered(depth)
                    .collect::<()>()
                    .await;
            }
        }
    }

    /// Changes the queue. `None` if its runtime was removed.
    fn with<R>(&self, change: impl FnOnce(&mut SendQueue<O>) -> R) -> Option<R> {
        let mut runtimes = lock(&self.client.runtimes.0);
        let queues = runtimes
            .iter_mut()
            .find(|queues| Arc::ptr_eq(&queues.links, &self.links))?;
        queues.by_route.get_mut(self.number)?.as_mut().map(change)
    }

    /// Returns the error for operations that the queue refuses.
    pub(super) fn overloaded(&self, operations: usize) -> Error {
        self.client
            .store
            .overloaded(&self.route.link, &self.links.budget, operations)
    }

    /// Spawns a flusher that is already counted.
    pub(super) fn spawn_flusher(self) {
        let runtime = self.links.runtime.clone();
        runtime.spawn(
            Flusher {
                queue: self,
                batch: None,
                done: false,
            }
            .flush(),
        );
    }
}

/// Marks a queue as idle when the operation that is sent from its caller's task ends for any reason.
pub(super) struct Inline<O: Operation>(pub(super) QueueRef<O>);

impl<O: Operation> Drop for Inline<O> {
    fn drop(&mut self) {
        // If others wait, a flusher sends them already.
        self.0.with(|queue| queue.inline = false);
    }
}

/// A task that sends batches until none is left. It is counted while it exists.
struct Flusher<O: Operation> {
    queue: QueueRef<O>,
    /// The batch in flight.
    batch: Option<Arc<Batch<O>>>,
    done: bool,
}

impl<O: Operation> Flusher<O> {
    async fn flush(mut self) {
        while let Some(batch) = self.next() {
            if batch.since.elapsed() > self.queue.client.store.limits.queue_timeout {
                let operations = batch.state().items.len();
                batch.fail(&self.queue.overloaded(operations), true);
            }
            self.queue.send(self.batch.insert(batch)).await;
            self.batch = None;
            for _ in 0..YIELDS {
                tokio::task::yield_now().await;
            }
        }
    }

    fn next(&mut self) -> Option<Arc<Batch<O>>> {
        self.queue.with(|queue| {
            let batch = queue.batches.pop_front();
            match &batch {
                Some(batch) => queue.likely = batch.state().items.len(),
                None => {
                    queue.flushers -= 1;
                    self.done = true;
                }
            }
            batch
        })?
    }
}

/// If a flusher ends early with its runtime, the operations of its batch fail. If it was the last flusher, the
/// waiting operations fail too.
impl<O: Operation> Drop for Flusher<O> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let client = &self.queue.client;
        if let Some(batch) = &self.batch {
            client.store.fail(batch);
        }
        let waiting = self.queue.with(|queue| {
            queue.flushers -= 1;
            if queue.flushers == 0 {
                std::mem::take(&mut queue.batches)
            } else {
                VecDeque::new()
            }
        });
        waiting
            .iter()
            .flatten()
            .for_each(|batch| client.store.fail(batch));
    }
}
