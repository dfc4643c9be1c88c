//! Work that goes on without its caller, such as a release after a drop.

use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// Sees work to its end: as a task of the present runtime, and where that shuts down first, or there is none, from
/// the beginning on a thread that is kept for this. A `first` attempt may be under way already; it says whether it has
/// done the work.
///
/// A process that ends takes the thread with it. Who must know that something was released awaits the release.
pub(crate) fn see_to_the_end<F>(
    first: Option<BoxFuture<'static, bool>>,
    work: impl Fn() -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let begin: Work = Box::new(move || Box::pin(work()));
    match Handle::try_current() {
        Ok(runtime) => {
            let rest = begin();
            let present = Box::pin(async move {
                let done = match first {
                    Some(first) => first.await,
                    None => false,
                };
                if !done {
                    rest.await;
                }
            });
            drop(runtime.spawn(Detached { present, begin: Some(begin) }));
        }
        Err(_) => hand_over(begin),
    }
}

type Work = Box<dyn Fn() -> BoxFuture<'static, ()> + Send>;

struct Detached {
    present: BoxFuture<'static, ()>,
    /// `None` once it is done.
    begin: Option<Work>,
}

impl Future for Detached {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let outcome = self.present.as_mut().poll(context);
        if outcome.is_ready() {
            self.begin = None;
        }
        outcome
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        if let Some(begin) = self.begin.take() {
            hand_over(begin);
        }
    }
}

fn hand_over(work: Work) {
    if let Some(executor) = executor() {
        // It listens as long as the process lives.
        let _ = executor.send(work);
    }
}

/// The thread, started when it is first needed; `None` where the system grants none.
fn executor() -> Option<&'static UnboundedSender<Work>> {
    static EXECUTOR: OnceLock<Option<UnboundedSender<Work>>> = OnceLock::new();
    let start = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        let (sender, mut work) = unbounded_channel::<Work>();
        let execute = move || {
            runtime.block_on(async {
                while let Some(work) = work.recv().await {
                    tokio::spawn(work());
                }
            });
        };
        std::thread::Builder::new().name("leases".into()).spawn(execute).ok()?;
        Some(sender)
    };
    EXECUTOR.get_or_init(start).as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_outlives_its_runtime() {
        let (done, outcome) = std::sync::mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            see_to_the_end(None, move || {
                let done = done.clone();
                async move {
                    tokio::task::yield_now().await;
                    done.send(7).unwrap();
                }
            });
        });
        drop(runtime);
        assert_eq!(outcome.recv_timeout(std::time::Duration::from_secs(10)), Ok(7));
    }

    #[test]
    fn work_needs_no_runtime() {
        let (done, outcome) = std::sync::mpsc::channel();
        see_to_the_end(None, move || {
            let done = done.clone();
            async move { done.send(7).unwrap() }
        });
        assert_eq!(outcome.recv_timeout(std::time::Duration::from_secs(10)), Ok(7));
    }
}
