//! Runs that continue when the caller leaves: in a task on the caller's runtime, for a bounded time.

use std::future::Future;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::error::Error;
use crate::store::Store;
use crate::store::detached::{DetachedWork, Work};
use crate::store::timer::sleep;
use crate::telemetry::emit::tell;
use crate::telemetry::{Event, in_current_span};

/// How long a run continues after its caller has left.
pub(crate) const AFTER_CALLER: Duration = Duration::from_secs(300);

/// The runs of one name, which continue when their callers leave.
#[derive(Clone, Debug)]
pub(crate) struct Detach {
    work: Arc<DetachedWork>,
    namespace: Arc<str>,
    /// The name in the error of a shutdown that leaves it running: `idempotency "payments"`.
    name: Arc<str>,
    /// How long a run continues without its caller.
    limit: Duration,
}

impl Detach {
    pub(crate) fn new(store: &Store, kind: &str, namespace: &str, limit: Duration) -> Self {
        let name = format!("{kind} \"{namespace}\"").into();
        Self {
            work: Arc::clone(store.detached()),
            namespace: namespace.into(),
            name,
            limit,
        }
    }

    /// Sets how long a run continues without its caller.
    pub(crate) fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Begins a run. A shutdown waits until the returned value is dropped.
    pub(crate) fn begin(&self) -> Work {
        self.work.begin(&self.name)
    }

    /// Runs to the end, even if the caller leaves: in a task on the caller's runtime. If the caller has left, the run
    /// is dropped after the time limit, and an event is emitted. Resumes a panic.
    ///
    /// Without a runtime, it runs in the caller.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: Work,
        run: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Error> {
        let Ok(runtime) = Handle::try_current() else {
            return Ok(work.run(run).await);
        };
        let (mut caller, outcome) = oneshot::channel();
        let namespace = Arc::clone(&self.namespace);
        let limit = self.limit;
        let part = work.run(async move {
            let mut run = pin!(run);
            let outcome = tokio::select! {
                biased;
                outcome = &mut run => outcome,
                () = async { caller.closed().await; sleep(limit).await } => {
                    let text = format_args!("a run was dropped, {limit:?} after its client had left");
                    return tell(&namespace, Event::DetachedGivenUp, text);
                }
            };
            // The outcome is dropped if the caller has left.
            drop(caller.send(outcome));
        });
        let task = runtime.spawn(in_current_span(async move {
            // The work must outlive its part, which holds leases.
            let _work = work;
            part.await;
        }));
        if let Ok(outcome) = outcome.await {
            return Ok(outcome);
        }
        match task.await.map_err(tokio::task::JoinError::try_into_panic) {
            Err(Ok(panic)) => resume_unwind(panic),
            _ => Err(Error::interrupted()),
        }
    }
}
