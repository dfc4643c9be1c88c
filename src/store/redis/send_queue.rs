//! What waits to leave by one route, in batches.

use std::collections::VecDeque;
use std::sync::Arc;

use super::batch::{Batch, Item};
use super::budget::Budget;
use super::client::RedisClient;
use super::runtime::{Route, RuntimeLinks};
use crate::store::operation::Operation;

/// How many operations leave in one batch, and how many bytes.
const MOST_OPERATIONS: usize = 1024;
const MOST_BYTES: usize = 4 << 20;

/// What has a cache line of its own, since all callers write to it.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

/// The queues of one runtime, by the numbers of its routes.
pub(super) struct RuntimeQueues<O: Operation> {
    pub(super) links: Arc<RuntimeLinks>,
    pub(super) by_route: Vec<Option<SendQueue<O>>>,
}

pub(super) struct SendQueue<O: Operation> {
    pub(super) route: Arc<Route>,
    /// What waits, the next to leave first.
    pub(super) batches: VecDeque<Arc<Batch<O>>>,
    /// Whether an operation is in flight from its caller's task.
    pub(super) inline: bool,
    /// The flushers at work.
    pub(super) flushers: usize,
    /// How many operations the last batch had.
    pub(super) likely: usize,
}

impl<O: Operation> RuntimeQueues<O> {
    pub(super) fn queue(&mut self, number: usize) -> (&Arc<RuntimeLinks>, &mut SendQueue<O>) {
        if self.by_route.len() <= number {
            self.by_route.resize_with(number + 1, || None);
        }
        let links = &self.links;
        let queue = self.by_route[number].get_or_insert_with(|| SendQueue {
            route: links.route(number),
            batches: VecDeque::new(),
            inline: false,
            flushers: 0,
            likely: 1,
        });
        (links, queue)
    }
}

impl<O: Operation> SendQueue<O> {
    /// Puts an operation into a batch: what is reserved into the first that has room for it, everything else into the
    /// last, unless that waits for half the queue time-out: then its runtime stood still.
    pub(super) fn push(
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
