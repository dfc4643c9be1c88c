//! The task that sends the batches of a queue, on the runtime of their callers.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::store::operation::Operation;
use crate::store::redis::batch::Batch;
use crate::store::redis::queue::{QueueHandle, SendQueue};

/// How often a flusher yields before it sends again, so that callers that just got their replies can submit their next
/// operation to the batch. With more yields, throughput does not rise.
const YIELDS: usize = 2;

impl<O: Operation> SendQueue<O> {
    /// Whether another flusher must start after an operation was added at `index` of its batch. If so, counts it.
    pub(super) fn needs_flusher(&mut self, index: usize) -> bool {
        let most = if O::IN_ORDER { 1 } else { O::FLUSHERS };
        // The first operation of a batch has started a flusher, or all flushers are running.
        let is_needed = index == 0 && self.flushers < most;
        self.flushers += usize::from(is_needed);
        is_needed
    }
}

impl<O: Operation> QueueHandle<O> {
    /// Spawns a flusher that is already counted.
    pub(super) fn spawn_flusher(self) {
        let runtime = self.links.runtime.clone();
        let flusher = Flusher {
            queue: self,
            batch: None,
            done: false,
        };
        runtime.spawn(flusher.flush());
    }
}

/// A task that sends batches until none is left. It is counted while it exists.
struct Flusher<O: Operation> {
    queue: QueueHandle<O>,
    /// The batch in flight.
    batch: Option<Arc<Batch<O>>>,
    done: bool,
}

impl<O: Operation> Flusher<O> {
    async fn flush(mut self) {
        while let Some(batch) = self.next() {
            let QueueHandle {
                client,
                links,
                route,
                ..
            } = &self.queue;
            if batch.since.elapsed() > client.store.limits.queue_timeout {
                let operations = batch.state().items.len();
                let store = &client.store;
                let error = store.overloaded(&route.link, &links.budget, operations);
                batch.fail(&error, true);
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
                Some(batch) => queue.expected_size = batch.state().items.len(),
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
