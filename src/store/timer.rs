//! Timers that also work outside of a tokio runtime, where the background thread drives them.

use std::future::pending;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep};

use crate::store::background::Background;

/// How long to block the thread at a time if no other timer is available.
const BLOCKING: Duration = Duration::from_millis(10);

/// Waits until a point in time, by the clock of the caller's runtime.
pub(crate) async fn sleep_until(deadline: Instant) {
    if Handle::try_current().is_ok() {
        return tokio::time::sleep_until(deadline).await;
    }
    let thread = Background::thread();
    match sleep_on(&thread, deadline) {
        Some(sleep) => sleep.await,
        None => block_until(deadline).await,
    }
}

/// Waits on the caller's thread if the system cannot start another. It yields after each short sleep, so that other
/// tasks can run.
async fn block_until(deadline: Instant) {
    while let left = deadline.saturating_duration_since(Instant::now())
        && !left.is_zero()
    {
        std::thread::sleep(left.min(BLOCKING));
        tokio::task::yield_now().await;
    }
}

/// Waits until the deadline, if there is one. The timer is boxed once the wait begins: it is large, and in memory most
/// callers have their result before.
pub(crate) async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => Box::pin(sleep_until(deadline)).await,
        None => pending().await,
    }
}

/// Waits for a span of time.
pub(crate) async fn sleep(span: Duration) {
    let now = Instant::now();
    // A span that overflows the clock never ends.
    match now.checked_add(span) {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

/// Awaits a future for at most `span`. `None` if it did not finish.
pub(crate) async fn within<T>(span: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        outcome = future => Some(outcome),
        () = sleep(span) => None,
    }
}

fn sleep_on(thread: &Background, deadline: Instant) -> Option<Sleep> {
    let runtime = thread.handle().ok()?;
    let _inside = runtime.enter();
    Some(tokio::time::sleep_until(deadline))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nor_a_thread() {
        let deadline = Instant::now() + Duration::from_millis(20);
        futures::executor::block_on(block_until(deadline));
        assert!(Instant::now() >= deadline);
    }

    #[test]
    fn no_runtime_is_needed() {
        let began = std::time::Instant::now();
        let span = Duration::from_millis(20);
        futures::executor::block_on(sleep(span));
        assert_eq!(
            futures::executor::block_on(within(span, std::future::pending::<()>())),
            None
        );
        assert!(began.elapsed() >= 2 * span);
    }

    /// A task that waits on its own thread is woken at once, to check again.
    #[test]
    fn the_background_thread_drives_the_timer() {
        let mut sleep = tokio_test::task::spawn(sleep(Duration::from_secs(3600)));
        assert!(sleep.poll().is_pending() && !sleep.is_woken());
    }

    #[tokio::test(start_paused = true)]
    async fn the_callers_clock_is_followed() {
        sleep(Duration::from_secs(3600)).await;
    }
}
