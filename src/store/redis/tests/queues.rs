//! Which operations are sent at once, which wait, and which are refused.

use std::task::{Context, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::advance;

use super::*;
use crate::error::Error;
use crate::store::redis::queue::{OperationFuture, Step};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Submits an operation from this runtime.
fn submit<O: Operation>(
    client: &Arc<RedisClient<O>>,
    key: &str,
    operation: O,
    owed: bool,
) -> Step<O> {
    Arc::clone(client).enqueue(
        Some(Handle::current()),
        key.into(),
        operation,
        Some(Waker::noop().clone()),
        owed,
    )
}

/// Awaits the reply from this task, whose waker the batch does not have yet.
async fn answer<O: Operation>(mut step: Step<O>) -> Result<O::Reply, Error> {
    if let Step::Queued(queued) = &mut step {
        queued.fresh = false;
    }
    OperationFuture(step).await
}

fn refusal<O: Operation>(step: Step<O>) -> Option<Error> {
    match step {
        Step::Done(Some(Err(error))) => Some(error),
        _ => None,
    }
}

#[tokio::test]
async fn only_reserved_operations_without_a_payload_are_never_refused() {
    let client = client::<Ask>(Store::builder().max_queued(1));
    // The first does not wait, and the second uses the budget.
    let _first = [1, 2].map(|word| submit(&client, "a", ask(word), false));
    for (reserved, owed, payload, is_refused) in [
        (false, false, 0, true),
        (true, false, 0, false),
        (false, true, 0, false),
        (true, false, 1, true),
        (true, true, 1, true),
    ] {
        let step = submit(
            &client,
            "a",
            Ask {
                reserved,
                payload,
                ..ask(3)
            },
            owed,
        );
        let refusal = refusal(step);
        assert_eq!(
            refusal.as_ref().is_some_and(Error::is_overloaded),
            is_refused,
            "{refusal:?}"
        );
    }
    assert_eq!(client.store.owed.count(), 1);
}

/// The clock advances before the flusher runs.
#[tokio::test(start_paused = true)]
async fn an_operation_that_has_waited_for_too_long_is_not_sent_unless_it_is_reserved() {
    for (waits, is_sent) in [
        (TIMEOUT - Duration::from_millis(1), true),
        (TIMEOUT + Duration::from_millis(1), false),
    ] {
        let client = client::<Ask<true>>(Store::builder().queue_timeout(TIMEOUT));
        let links = client.store.links(&Handle::current());
        links.route(0).link.failed();
        let steps =
            [false, true].map(|reserved| submit(&client, "a", Ask { reserved, ..ask(1) }, false));
        // It is polled once, so that the flusher does not run before the clock has advanced.
        let poll = Box::pin(advance(waits))
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll.is_pending());
        for (step, is_sent) in steps.into_iter().zip([is_sent, true]) {
            let error = answer(step).await.unwrap_err();
            assert_eq!(
                error.to_string().contains("no connection to"),
                is_sent,
                "{error}"
            );
        }
    }
}
