//! Which operations are sent at once, which wait, and which are refused.

use std::task::{Context, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::advance;

use super::*;
use crate::Error;
use crate::store::redis::budget::Budget;
use crate::store::redis::future::{OperationFuture, Step};
use crate::store::redis::send_queue::RuntimeQueues;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Submits an operation from this runtime.
fn submit<O: Operation>(client: &Arc<RedisClient<O>>, key: &str, operation: O, owed: bool) -> Step<O> {
    client.enqueue(Some(Handle::current()), key.into(), operation, Some(Waker::noop().clone()), owed)
}

/// Awaits the answer from this task, whose waker the batch does not have yet.
async fn answer<O: Operation>(mut step: Step<O>) -> Result<O::Reply, Error> {
    if let Step::Queued(queued) = &mut step {
        queued.fresh = false;
    }
    OperationFuture(step).await
}

fn is_sent_at_once<O: Operation>(step: &Step<O>) -> bool {
    matches!(step, Step::Queued(queued) if queued.sending.is_some())
}

fn refusal<O: Operation>(step: Step<O>) -> Option<Error> {
    match step {
        Step::Done(Some(Err(error))) => Some(error),
        _ => None,
    }
}

/// Whether an operation is in flight from its caller's task, the flushers, and the batches that wait.
fn queue<O: Operation>(client: &RedisClient<O>) -> (bool, usize, usize) {
    let runtimes = client.runtimes.0.lock().unwrap();
    let queue = runtimes[0].by_route[0].as_ref().unwrap();
    (queue.inline, queue.flushers, queue.batches.len())
}

#[tokio::test]
async fn an_operation_is_sent_at_once_only_from_the_task_that_polls_it() {
    let here = || Some(Handle::current());
    let waker = || Some(Waker::noop().clone());
    for (here, waker, is_sent) in [(here(), waker(), true), (None, waker(), false), (here(), None, false)] {
        let client = client::<Ask>(Store::builder());
        assert_eq!(is_sent_at_once(&client.enqueue(here, "a".into(), ask(1), waker, false)), is_sent);
    }
    let client = client::<Ask<true>>(Store::builder());
    let steps = [1, 2].map(|word| submit(&client, "a", ask(word), false));
    assert!(!steps.iter().any(is_sent_at_once), "they are in order");
    assert_eq!(queue(&client), (false, 1, 1), "one flusher");
}

#[tokio::test]
async fn only_reserved_operations_without_a_payload_are_never_refused() {
    let client = client::<Ask>(Store::builder().max_queued(1));
    // The first does not wait, and the second takes the place.
    let _first = [1, 2].map(|word| submit(&client, "a", ask(word), false));
    for (reserved, owed, payload, is_refused) in [
        (false, false, 0, true),
        (true, false, 0, false),
        (false, true, 0, false),
        (true, false, 1, true),
        (true, true, 1, true),
    ] {
        let step = submit(&client, "a", Ask { reserved, payload, ..ask(3) }, owed);
        let refusal = refusal(step);
        assert_eq!(refusal.as_ref().is_some_and(Error::is_overloaded), is_refused, "{refusal:?}");
    }
    assert_eq!(client.store.owed.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn operations_join_the_batch_that_leaves_next_if_they_are_reserved_or_else_the_last() {
    let client = client::<Ask>(Store::builder().queue_timeout(TIMEOUT));
    let links = client.store.links(&Handle::current());
    let mut queues = RuntimeQueues { links, by_route: Vec::new() };
    let budget = Arc::new(Budget::new(1, 1));
    let mut push = |number, reserved, bytes| {
        let (_, queue) = queues.queue(number);
        let (batch, index) = queue.push(&client, Item { reserved, ..waiting("a", ask(1)) }, bytes, &budget);
        (queue.batches.iter().position(|other| Arc::ptr_eq(other, &batch)).unwrap(), index)
    };
    assert!((0..1024).all(|index| push(0, false, 1) == (0, index)));
    assert_eq!(push(0, false, 1), (1, 0));
    assert!((1024..2048).all(|index| push(0, true, 1) == (0, index)));
    assert_eq!(push(0, true, 1), (1, 1));
    // The bytes of a batch are bounded too.
    const MOST: usize = 4 << 20;
    assert_eq!([push(1, false, MOST - 1), push(1, false, 1), push(1, false, 1)], [(0, 0), (0, 1), (1, 0)]);

    // A batch that has waited for long is left to its operations, and to the reserved ones.
    assert_eq!(push(2, false, 1), (0, 0));
    advance(TIMEOUT / 2 - Duration::from_millis(1)).await;
    assert_eq!(push(2, false, 1), (0, 1));
    advance(Duration::from_millis(1)).await;
    assert_eq!([push(2, false, 1), push(2, true, 1)], [(1, 0), (0, 2)]);
    assert!((0..64).all(|index| push(3, false, 1) == (0, index)));
    advance(TIMEOUT / 2).await;
    assert_eq!(push(3, false, 1), (1, 0));
}

/// The clock goes on before the flusher runs.
#[tokio::test(start_paused = true)]
async fn an_operation_that_has_waited_for_too_long_is_not_sent_unless_it_is_reserved() {
    for (waits, is_sent) in
        [(TIMEOUT - Duration::from_millis(1), true), (TIMEOUT + Duration::from_millis(1), false)]
    {
        let client = client::<Ask<true>>(Store::builder().queue_timeout(TIMEOUT));
        let links = client.store.links(&Handle::current());
        links.route(0).link.failed();
        let steps = [false, true].map(|reserved| submit(&client, "a", Ask { reserved, ..ask(1) }, false));
        // It is polled once, so that the flusher does not run before the clock has gone on.
        let poll = Box::pin(advance(waits)).as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll.is_pending());
        for (step, is_sent) in steps.into_iter().zip([is_sent, true]) {
            let error = answer(step).await.unwrap_err();
            assert_eq!(error.to_string().contains("no connection to"), is_sent, "{error}");
        }
    }
}
