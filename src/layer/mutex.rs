//! Requests under mutexes. See the public module `mutex`.

use std::sync::Arc;
use std::time::Duration;

use crate::layer::leased::{Away, Config, Leasing, Provide, UntilResponse, settings};
use crate::{AsError, Error, Extracted, KeyExtractor, Mutex, MutexGuard, Store, StoreFailure};

/// A [`Layer`](tower_layer::Layer) that handles requests under a mutex; see the [module](crate::mutex) for the whole story.
///
/// Its parameters are the type of the requests, [until when](Self::hold) a lock is held, and what becomes of
/// [refusals](Self::reject_with).
pub struct MutexLayer<Req, H = UntilResponse, R = AsError> {
    config: Config<Req, Locks, H, R>,
}

/// Which locks requests need.
#[derive(Clone, Debug)]
struct Locks {
    mutex: Mutex,
    max_wait: Option<Duration>,
    away: Away<Result<Mutex, Error>>,
}

impl<Req> MutexLayer<Req> {
    /// Handles requests under the mutexes of a namespace, each by its key.
    #[must_use]
    pub fn new(mutex: Mutex, key: impl KeyExtractor<Req> + Send + Sync + 'static) -> Self {
        let locks = Locks { mutex, max_wait: None, away: Away::FailClosed };
        Self { config: Config::new(Arc::new(key), locks) }
    }
}

impl<Req, H, R> MutexLayer<Req, H, R> {
    /// Lets requests wait for their turn up to this long. How many may wait is the mutex's
    /// [`max_waiters`](crate::mutex::MutexBuilder::max_waiters).
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.config.provide.max_wait = Some(max_wait);
        self
    }

    /// What to do while the store gives no answer. [`StoreFailure::FailOpen`] handles requests without a lock;
    /// [`StoreFailure::LocalShare`] one at a time in each process, however many replicas there are. Default:
    /// [`StoreFailure::FailClosed`].
    #[must_use]
    pub fn on_store_failure(mut self, on_store_failure: StoreFailure) -> Self {
        let locks = &mut self.config.provide;
        locks.away = match on_store_failure {
            StoreFailure::FailClosed => Away::FailClosed,
            StoreFailure::FailOpen => Away::FailOpen,
            StoreFailure::LocalShare { .. } => {
                Away::LocalShare(Mutex::new(&Store::in_memory(), locks.mutex.name()))
            }
        };
        self
    }
}

settings!(MutexLayer);

impl<Req> Provide<Req> for Locks {
    fn lease(&self, key: Extracted, _: &Req) -> Leasing {
        let Self { mutex, max_wait, away } = self.clone();
        Box::pin(async move {
            let Some(key) = mutex.decisions().extracted(key.await)? else { return Ok(None) };
            let asked = mutex.acquire(key.clone(), max_wait).await;
            let local = |local: Result<Mutex, Error>, _| async move { local?.acquire(key, max_wait).await };
            let settled = away.settle(asked, local).await;
            Ok(mutex.decisions().settle(settled)?.map(MutexGuard::into_lease))
        })
    }
}
