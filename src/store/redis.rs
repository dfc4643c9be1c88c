//! The Redis store: the common state of all calls to a server, and the shutdown. Nothing outside of this folder uses
//! the crate `redis`.
//!
//! The path of a call: `queue` takes an operation and sends it alone or in a `batch`; `command` makes script calls of a
//! batch; `call` sends each of them within its time limit, once or several times (`retry`); `link` has the
//! `connection`; and the batch passes each caller its part of the reply.

mod batch;
mod breaker;
mod budget;
mod call;
#[cfg(feature = "cluster")]
pub(in crate::store) mod cluster;
mod command;
pub(crate) mod commands;
mod connection;
pub(in crate::store) mod endpoint;
mod errors;
mod flusher;
mod functions;
#[cfg(interleavings)]
pub(crate) mod interleavings;
pub(crate) mod library;
pub(crate) mod limits;
mod link;
mod loading;
pub(crate) mod names;
#[cfg(any(feature = "cluster", feature = "sentinel"))]
mod nodes;
mod pipeline;
pub(crate) mod pool;
pub(crate) mod queue;
mod retry;
#[cfg(feature = "sentinel")]
pub(in crate::store) mod sentinel;
#[cfg_attr(
    not(feature = "cluster"),
    allow(dead_code, unused_imports, unused_variables)
)]
pub(in crate::store) mod slots;
pub(crate) mod source;
mod subscription;
#[cfg(test)]
mod tests;
#[cfg(any(feature = "rustls", feature = "native-tls"))]
pub(crate) mod tls;

use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, timeout};

pub(super) use self::library::Clock;
use crate::error::Error;
use crate::error::reasons::Cause;
use crate::store::background::Background;
use crate::store::base::Base;
use crate::store::detached::Left;
use crate::store::notifier::{ALL, Link as Pushes};
use crate::store::operation::{Operation, Script};
use crate::store::owed::Owed;
use crate::store::redis::batch::Batch;
use crate::store::redis::budget::Budget;
use crate::store::redis::command::Loaded;
use crate::store::redis::library::Library;
use crate::store::redis::limits::Limits;
use crate::store::redis::link::{Link, LinkSettings, RuntimeLinks};
use crate::store::redis::slots::{Masters, Refused};
use crate::store::redis::source::Source;
use crate::store::redis::subscription::Subscription;
use crate::store::stats::{BreakerState, StoreStats};
use crate::sync::lock;
use crate::telemetry::server::Server;

/// A store on Redis.
pub(crate) struct RedisStore {
    pub(in crate::store) base: Base,
    /// The process that made the store.
    process: u32,
    pub(in crate::store) source: Source,
    /// The masters of the slots of a Cluster.
    masters: Option<Arc<Masters>>,
    pub(in crate::store) limits: Limits,
    clock: Clock,
    hasher: RandomState,
    runtimes: Mutex<Vec<Arc<RuntimeLinks>>>,
    overloaded: OnceLock<Error>,
    library: Arc<Library>,
    /// The scripts by name.
    scripts: Mutex<HashMap<String, Arc<Loaded>>>,
    pub(crate) owed: Owed,
    /// The outcomes of flights that are not stored yet, although their callers have them.
    pub(crate) publications: Arc<Owed>,
    subscription: Subscription,
    pub(in crate::store) refused: Refused,
    telemetry: Server,
    /// Whether the store was shut down and has not been called by a user since.
    is_shut_down: AtomicBool,
    /// The numbers of operations and batches that were sent.
    operations: AtomicU64,
    batches: AtomicU64,
}

impl RedisStore {
    pub(crate) fn new(
        source: Source,
        prefix: String,
        limits: Limits,
        clock: Clock,
        wakeups: Vec<Source>,
        background: Background,
    ) -> Self {
        let telemetry = Server::new(&source.to_string());
        Self {
            subscription: Subscription::new(wakeups, telemetry.clone()),
            telemetry,
            base: Base::new(prefix, Pushes::Down, background, false),
            process: std::process::id(),
            overloaded: OnceLock::new(),
            limits,
            clock,
            masters: source.masters().map(Arc::clone),
            source,
            hasher: RandomState::new(),
            runtimes: Mutex::default(),
            library: Library::with_clock(clock),
            scripts: Mutex::default(),
            owed: Owed::default(),
            publications: Arc::default(),
            refused: Refused::default(),
            is_shut_down: AtomicBool::new(false),
            operations: AtomicU64::new(0),
            batches: AtomicU64::new(0),
        }
    }

    fn load(&self, script: Script) -> Arc<Loaded> {
        let load = || Arc::new(Loaded::new(self.clock, script, &self.library));
        Arc::clone(
            lock(&self.scripts)
                .entry(script.name())
                .or_insert_with(load),
        )
    }

    /// The prefix of the channels for wake-ups.
    pub(in crate::store) fn channels(&self) -> String {
        format!("{}:wake:", self.base.prefix)
    }

    /// Whether both stores were certainly made for the same server and database, or for the same Cluster.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.subscription.is_same(&other.subscription)
    }

    /// The time within which a call ends.
    pub(super) fn call_limit(&self) -> Duration {
        let Limits {
            timeout,
            connect_timeout,
            queue_timeout,
            ..
        } = self.limits;
        timeout + connect_timeout + queue_timeout
    }

    /// Returns the statistics. `runtime`: the runtime of the caller.
    pub(super) fn stats(&self, runtime: Option<Id>) -> StoreStats {
        let runtimes = lock(&self.runtimes).clone();
        let here = runtimes
            .iter()
            .find(|links| runtime.is_some_and(|runtime| links.is_of(runtime)));
        StoreStats {
            breaker: here.map_or(BreakerState::Closed, |links| links.breaker()),
            server_version: here.and_then(|links| links.server_version()),
            functions: here.and_then(|links| links.have_functions()),
            queued: runtimes.iter().map(|links| links.budget.operations()).sum(),
            operations: self.operations.load(Ordering::Relaxed),
            batches: self.batches.load(Ordering::Relaxed),
        }
    }

    /// Runs a task on the runtime of the caller; outside of any runtime, on the background thread.
    pub(super) async fn anywhere<T, F>(
        self: &Arc<Self>,
        task: impl FnOnce(Arc<Self>, Handle) -> F,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        match Handle::try_current() {
            Ok(runtime) => Ok(task(Arc::clone(self), runtime).await),
            Err(_) => {
                self.base
                    .background
                    .run(task(Arc::clone(self), self.base.background.handle()?))
                    .await
            }
        }
    }

    /// Subscribes to the channels of this process and of all processes, unless the subscription is running.
    pub(super) fn subscribe(&self) {
        let channels =
            [self.base.notifier.process(), ALL].map(|whose| format!("{}{whose}", self.channels()));
        self.subscription
            .start(channels, &self.base.notifier, &self.base.background);
    }

    /// Returns the links of a runtime, made on first use.
    fn links(self: &Arc<Self>, runtime: &Handle) -> Arc<RuntimeLinks> {
        let known = |runtimes: &[Arc<RuntimeLinks>]| {
            runtimes
                .iter()
                .find(|links| links.is_of(runtime.id()))
                .map(Arc::clone)
        };
        if let Some(links) = known(&lock(&self.runtimes)) {
            return links;
        }
        // Not under the lock: if the runtime has ended, the cleanup takes the lock.
        let fresh = self.new_links(runtime);
        let mut runtimes = lock(&self.runtimes);
        let ended: Vec<_> = runtimes.extract_if(.., |links| links.has_ended()).collect();
        let links = known(&runtimes);
        if links.is_none() {
            runtimes.push(Arc::clone(&fresh));
        }
        drop(runtimes);
        drop(ended);
        links.unwrap_or(fresh)
    }

    fn new_links(self: &Arc<Self>, runtime: &Handle) -> Arc<RuntimeLinks> {
        let settings = LinkSettings {
            source: self.source.clone(),
            limits: self.limits,
            process: self.process,
            telemetry: self.telemetry.clone(),
            library: self.limits.functions.then(|| Arc::clone(&self.library)),
        };
        let store = Arc::downgrade(self);
        let id = runtime.id();
        RuntimeLinks::new(runtime, settings, move || {
            if let Some(store) = store.upgrade() {
                store.forget(id);
            }
        })
    }

    /// Fails a batch whose runtime has ended.
    fn fail<O: Operation>(&self, batch: &Batch<O>) {
        drop(batch.close());
        self.owed.done(batch.fail(&ended(), false));
    }

    /// Drops the links of a runtime that has ended.
    fn forget(&self, runtime: Id) {
        let mut runtimes = lock(&self.runtimes);
        let ended: Vec<_> = runtimes
            .extract_if(.., |links| links.id == runtime && links.has_ended())
            .collect();
        drop(runtimes);
        ended.iter().for_each(|ended| ended.retire());
    }

    /// Returns the error for operations that found the queue full or waited too long: overloaded if the server still
    /// replies to other calls, otherwise unavailable.
    fn overloaded(&self, link: &Link, budget: &Budget, operations: usize) -> Error {
        let Limits {
            timeout,
            max_queued,
            max_queued_bytes,
            queue_timeout,
            ..
        } = self.limits;
        if !link.answers(timeout) {
            let text = format!(
                "the queue is full or the queue_timeout of {queue_timeout:?} is over, and no reply within {timeout:?}"
            );
            return Error::unavailable(Cause::NotSent, text);
        }
        self.telemetry
            .overloaded(operations, || budget.operations());
        // Prepared once, because there may be hundreds of thousands.
        let overloaded = self.overloaded.get_or_init(|| {
            Error::overloaded(format!(
                "the queue is full (max_queued {max_queued}, max_queued_bytes {max_queued_bytes}) or the \
                 queue_timeout of {queue_timeout:?} is over"
            ))
        });
        overloaded.clone()
    }

    /// Waits until no detached work runs and no operation is pending, then closes all connections. Returns the work and
    /// operations that are left after `limit`.
    pub(super) async fn shutdown(&self, limit: Duration) -> Left {
        let began = Instant::now();
        let left = || limit.saturating_sub(began.elapsed());
        let for_releases = (limit / 4).min(Duration::from_secs(1));
        _ = timeout(limit - for_releases, self.base.detached.none()).await;
        // Publications come first: the end of a lease could overtake the outcome that its holder has published. They
        // get half of the time, so that a blocked runtime with a publication leaves time for all others.
        _ = timeout(left() / 2, self.publications.none()).await;
        let work = self.base.detached.leave();
        self.base.scheduler.shut_down();
        self.base.scheduler.hurry();
        let none = timeout(left(), async {
            self.publications.none().await;
            self.owed.none().await;
        })
        .await;
        self.subscription.stop();
        self.is_shut_down.store(true, Ordering::Relaxed);
        let runtimes = lock(&self.runtimes).clone();
        runtimes.iter().for_each(|links| links.close());
        self.source.stop();
        let operations = if none.is_ok() {
            0
        } else {
            self.owed.count() + self.publications.count()
        };
        Left { work, operations }
    }
}

/// Returns the error of a call whose runtime has ended.
pub(in crate::store) fn ended() -> Error {
    Error::unavailable(Cause::Ended, "the runtime of the call has ended")
}

debug!(RedisStore, source, base.prefix, base.background, limits);
