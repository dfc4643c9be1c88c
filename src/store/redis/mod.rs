//! The Redis store: connections, scripts, time-outs and breakers. Nothing outside this folder names `redis`.

mod batch;
mod breaker;
mod budget;
mod call;
pub(crate) mod client;
mod failure;
mod flusher;
pub(crate) mod future;
mod link;
mod plan;
mod reply;
mod runtime;
mod script;
pub(in crate::store) mod send_queue;
#[cfg(feature = "cluster")]
mod slots;
pub(crate) mod source;
mod subscription;
mod version;

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

pub(crate) use deadpool_redis::redis::Value;
use tokio::runtime::{Handle, Id};

use self::batch::Batch;
use self::budget::Budget;
pub(in crate::store) use self::budget::{MOST_BYTES, MOST_OPERATIONS};
use self::link::Link;
use self::runtime::RuntimeLinks;
pub(super) use self::script::Loaded;
use self::source::{Source, Subscriber};
use self::subscription::Subscription;
use super::background::Background;
use super::builder::Limits;
use super::in_memory::lock;
use super::key::Key;
use super::names::Names;
use super::notifier::{ALL, Link as Pushes, Notifier};
use super::operation::{Operation, Script};
use super::owed::Owed;
use super::scheduler::Scheduler;
use crate::Error;
use crate::error::Cause;
use crate::telemetry::Server;

/// The clock that is put before every script: `now`, in µs.
pub(crate) const CLOCK: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/lib/clock.lua"));

pub(crate) struct RedisStore {
    pub(crate) prefix: String,
    /// The process that made it.
    process: u32,
    pub(in crate::store) source: Source,
    limits: Limits,
    clock: &'static str,
    hasher: RandomState,
    runtimes: Mutex<Vec<Arc<RuntimeLinks>>>,
    overloaded: OnceLock<Error>,
    /// By their text: the same script may be joined with other pieces.
    scripts: Mutex<HashMap<&'static str, Arc<Loaded>>>,
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) background: Background,
    pub(crate) owed: Owed,
    pub(crate) names: Names,
    subscription: Subscription,
    telemetry: Server,
}

impl RedisStore {
    pub(crate) fn new(
        source: Source,
        prefix: String,
        limits: Limits,
        clock: &'static str,
        wakeups: Vec<Subscriber>,
        background: Background,
    ) -> Self {
        let notifier = Arc::new(Notifier::new(Pushes::Down));
        let telemetry = Server::new(&source.to_string());
        Self {
            subscription: Subscription::new(wakeups, telemetry.clone()),
            telemetry,
            scheduler: Scheduler::new(notifier.link(), background.clone(), false),
            notifier,
            background,
            process: std::process::id(),
            prefix,
            overloaded: OnceLock::new(),
            limits,
            clock,
            source,
            hasher: RandomState::new(),
            runtimes: Mutex::default(),
            scripts: Mutex::default(),
            owed: Owed::default(),
            names: Names::default(),
        }
    }

    fn load(&self, script: Script) -> Arc<Loaded> {
        let load = || Arc::new(Loaded::new(self.clock, script));
        Arc::clone(lock(&self.scripts).entry(script.body).or_insert_with(load))
    }

    /// What the names of channels begin with.
    pub(super) fn channels(&self) -> String {
        format!("{}:wake:", self.prefix)
    }

    /// Whether both were made of the same address and database.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.subscription.place().is_some_and(|place| Some(place) == other.subscription.place())
    }

    /// Within what time a call has come to an end.
    pub(super) fn call_limit(&self) -> Duration {
        let Limits { timeout, connect_timeout, queue_timeout, .. } = self.limits;
        timeout + connect_timeout + queue_timeout
    }

    /// Subscribes to the channels of this process and of all, unless it is at it.
    pub(super) fn subscribe(&self) {
        let channels = [self.notifier.process(), ALL].map(|whose| format!("{}{whose}", self.channels()));
        self.subscription.start(channels, &self.notifier, &self.background);
    }

    /// What the store has on a runtime, made on first use.
    fn links(self: &Arc<Self>, runtime: &Handle) -> Arc<RuntimeLinks> {
        let known = |runtimes: &[Arc<RuntimeLinks>]| {
            runtimes.iter().find(|links| links.is_of(runtime.id())).map(Arc::clone)
        };
        if let Some(links) = known(&lock(&self.runtimes)) {
            return links;
        }
        // Not under the lock, which is taken when the runtime ends: it may have ended.
        let fresh = RuntimeLinks::new(self, runtime);
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

    /// Ends a batch whose runtime has ended.
    fn fail<O: Operation>(&self, batch: &Batch<O>) {
        drop(batch.depart());
        self.owed.done(batch.fail(&ended(), false));
    }

    /// Drops what the store has on a runtime that has ended.
    fn forget(&self, runtime: Id) {
        let mut runtimes = lock(&self.runtimes);
        let ended: Vec<_> =
            runtimes.extract_if(.., |links| links.id == runtime && links.has_ended()).collect();
        drop(runtimes);
        ended.iter().for_each(|ended| ended.retire());
    }

    /// The link that a key's calls leave by: always the same, so that they can leave together.
    fn link_of(&self, key: &Key) -> usize {
        match self.limits.connections {
            1 => 0,
            links => self.hasher.hash_one(key) as usize % links,
        }
    }

    /// What those are told for whom there is no room, or who have waited too long: where the server still answers, that
    /// this process asks too much of it.
    fn overloaded(&self, link: &Link, budget: &Budget, operations: usize) -> Error {
        let Limits { timeout, max_queued, max_queued_bytes, queue_timeout, .. } = self.limits;
        if !link.answers(timeout) {
            let text = format!(
                "no room to wait, or none for longer than {queue_timeout:?}, and no reply within {timeout:?}"
            );
            return Error::unavailable(Cause::NotSent, text);
        }
        self.telemetry.overloaded(operations, || budget.operations());
        // Made once: there may be hundreds of thousands.
        let overloaded = self.overloaded.get_or_init(|| {
            Error::overloaded(format!(
                "the store's queue is full: at most {max_queued} operations and {max_queued_bytes} bytes may wait, for \
                 {queue_timeout:?} at most"
            ))
        });
        overloaded.clone()
    }

    /// Waits until nothing is owed, then closes all connections. How much is still owed, where that takes longer.
    pub(super) async fn shutdown(&self, limit: Duration) -> Result<(), usize> {
        self.scheduler.hurry();
        let none = tokio::time::timeout(limit, self.owed.none()).await;
        self.subscription.stop();
        let runtimes = lock(&self.runtimes).clone();
        runtimes.iter().for_each(|links| links.close());
        none.map_err(|_| self.owed.count())
    }
}

fn ended() -> Error {
    Error::unavailable(Cause::Disconnected, "the runtime that the call was made on has ended")
}

/// Tells the scheduler, whose tasks have gone with their store.
impl Drop for RedisStore {
    fn drop(&mut self) {
        self.scheduler.look_again();
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("source", &self.source)
            .field("prefix", &self.prefix)
            .field("limits", &self.limits)
            .field("background", &self.background)
            .finish_non_exhaustive()
    }
}
