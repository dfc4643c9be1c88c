//! How long a reply is awaited, and the effect of a failure on the connection.

use std::future::{pending, ready};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use redis::RedisError;
use support::patient;
use support::redis_server::RedisServer;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, advance, sleep};

use super::*;
use crate::error::reasons::Cause;
use crate::store::redis::connection::was_written;
use crate::store::redis::errors;

const TIMEOUT: Duration = Duration::from_secs(1);

/// Awaits a reply, while the server replies to other calls at these times. Returns when the wait was over.
async fn waited<T>(answers: &[Duration], reply: impl Future<Output = T>) -> (Option<T>, Duration) {
    let client = client::<Ask>(Store::builder().timeout(TIMEOUT));
    let (store, runtime, began) = (&client.store, Handle::current(), Instant::now());
    let (route, reply) = (store.links(&runtime).route(0), pin!(reply));
    let others = async {
        for answer in answers {
            tokio::time::sleep_until(began + *answer).await;
            route.link.answered();
        }
        pending::<()>().await;
    };
    tokio::select! {
        biased;
        () = others => unreachable!(),
        reply = store.in_time(&runtime, &route.link, reply) => (reply, began.elapsed()),
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_is_awaited_for_longer_while_others_arrive() {
    assert_eq!(waited(&[], pending::<()>()).await, (None, TIMEOUT));
    let later = async { sleep(TIMEOUT / 2).await };
    assert_eq!(waited(&[], later).await, (Some(()), TIMEOUT / 2));
    assert_eq!(
        waited(&[TIMEOUT / 4], pending::<()>()).await,
        (None, TIMEOUT + TIMEOUT / 4)
    );
    let often: Vec<_> = (1..20).map(|nth| nth * TIMEOUT / 2).collect();
    assert_eq!(waited(&often, pending::<()>()).await, (None, 4 * TIMEOUT));
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_another_task_reads_at_the_last_moment_counts() {
    let (sender, reply) = oneshot::channel();
    let reads = async move {
        sleep(TIMEOUT).await;
        tokio::task::yield_now().await;
        sender.send(()).unwrap();
    };
    tokio::spawn(reads);
    assert_eq!(waited(&[], reply).await.0, Some(Ok(())));
}

/// The reply arrives after the deadline, during which the runtime did not run.
#[tokio::test(start_paused = true)]
async fn time_in_which_the_runtime_stood_still_does_not_count_once() {
    const STILL: Duration = Duration::from_millis(100);
    for (times, is_read) in [(1, true), (2, false)] {
        let (sender, reply) = oneshot::channel();
        let call = tokio::spawn(async { waited(&[], reply).await.0 });
        tokio::task::yield_now().await;
        advance(TIMEOUT + STILL).await;
        for _ in 1..times {
            tokio::task::yield_now().await;
            advance(2 * STILL).await;
        }
        sleep(STILL / 2).await;
        let _ = sender.send(());
        assert_eq!(call.await.unwrap().is_some(), is_read, "{times} times");
    }
}

#[tokio::test]
async fn a_call_was_written_unless_its_connection_had_ended() {
    let broken = || RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
    let refused = || redis::make_extension_error("ERR".into(), None);
    let mut pending_once = true;
    let later = std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::take(&mut pending_once) {
            Poll::Pending
        } else {
            Poll::Ready(Err(broken()))
        }
    });
    let mut written = [true; 4];
    let [first, second, third, fourth] = &mut written;
    assert!(was_written(pin!(ready(Ok(()))), first).await.is_ok());
    assert!(
        was_written(pin!(ready(Err::<(), _>(broken()))), second)
            .await
            .is_err()
    );
    assert!(
        was_written(pin!(ready(Err::<(), _>(refused()))), third)
            .await
            .is_err()
    );
    assert!(was_written::<()>(pin!(later), fourth).await.is_err());
    assert_eq!(written, [true, false, true, true]);
}

#[tokio::test]
async fn a_connection_is_left_if_it_is_broken_but_not_if_the_server_is_slow() {
    let server = RedisServer::start().await;
    let store = patient!(server.url());
    let (store, runtime) = (store.on_redis().unwrap(), Handle::current());
    let link = &store.links(&runtime).route(0).link;
    for (cause, has_answered, answers, is_kept) in [
        (Cause::TimedOut, true, true, true),
        (Cause::TimedOut, false, false, false),
        (Cause::Disconnected, true, false, false),
        (Cause::Unexpected, false, false, true),
    ] {
        let held = store.hold(&runtime, link).await.ok().unwrap();
        let sent = if has_answered {
            Instant::now()
        } else {
            Instant::now() + Duration::from_millis(1)
        };
        link.answered();
        let failed = store.failed(link, &held, sent, errors::of(cause, "x"));
        assert_eq!(
            (failed.answers, link.version().is_some()),
            (answers, is_kept),
            "{cause:?}"
        );
    }
}
