//! The queue of operations that wait to be sent by one route, in batches.

use std::collections::VecDeque;
use std::sync::Arc;

use super::batch::{Batch, Item};
use super::budget::Budget;
use super::client::RedisClient;
use super::runtime::{Route, RuntimeLinks};
use crate::store::operation::Operation;

/// The maximum number of operations in one batch, and of bytes.
const MOST_OPERATIONS: usize = 1024;
const MOST_BYTES: usize = 4 << 20;

/// The queues of one runtime, by the numbers of its routes.
pub(super) struct RuntimeQueues<O: Operation> {
    pub(super) links: Arc<RuntimeLinks>,
    pub(super) by_route: Vec<Option<SendQueue<O>>>,
}

pub(super) struct SendQueue<O: Operation> {
    pub(super) route: Arc<Route>,
    /// The waiting batches. The first leaves next.
    pub(super) batches: VecDeque<Arc<Batch<O>>>,
    /// Whether an operation is in flight from the task of its caller.
    pub(super) inline: bool,
    /// The number of running flushers.
    pub(super) flushers: usize,
    /// The number of operations in the last batch.
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
    /// Adds an operation to a batch. A reserved operation joins the first batch with room. Any other operation
    /// joins the last batch, unless that has waited for half the queue timeout, which means that its runtime was
    /// blocked.
    pub(super) fn push(
        &mut self,
        client: &Arc<RedisClient<O>>,
        item: Item<O>,
        bytes: usize,
        budget: &Arc<Budget>,
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
            // With many operations, the clock is not read for each.
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
