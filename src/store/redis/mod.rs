//! The Redis store: connections, scripts, time-outs and breakers. Nothing outside this folder names `redis`.

mod batch;
mod breaker;
pub(crate) mod client;
mod failure;
mod link;
mod plan;
mod queue;
mod reply;
mod runtime;
mod script;
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

use deadpool_redis::redis;
pub(crate) use deadpool_redis::redis::Value;
use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, sleep_until};

use self::link::Link;
use self::plan::Call;
use self::queue::Budget;
pub(in crate::store) use self::queue::{MOST_BYTES, MOST_OPERATIONS};
use self::reply::Reply;
use self::runtime::{Route, RuntimeLinks};
pub(super) use self::script::Loaded;
use self::source::{Source, Subscriber};
use self::subscription::Subscription;
use super::background::Background;
use super::builder::Limits;
use super::in_memory::lock;
use super::key::Key;
use super::notifier::{Link as Pushes, Notifier};
use super::operation::Script;
use super::owed::Owed;
use super::ping::Ping;
use super::scheduler::Scheduler;
use crate::Error;
use crate::error::{Cause, Outage};
use crate::telemetry::Server;

/// The clock that is put before every script: `now`, in µs.
pub(crate) const CLOCK: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/lib/clock.lua"));

/// After how long without a reply a connection may have been closed for being idle.
const IDLE: Duration = Duration::from_secs(1);

/// When a timer fires so much too late, the runtime was not running: then the reply may be there, unread.
const LATE: Duration = Duration::from_millis(20);

pub(crate) struct RedisStore {
    pub(crate) prefix: String,
    source: Source,
    limits: Limits,
    clock: &'static str,
    hasher: RandomState,
    runtimes: Mutex<Vec<Arc<RuntimeLinks>>>,
    budget: Budget,
    overloaded: OnceLock<Error>,
    /// By their text: the same script may be joined with other pieces.
    scripts: Mutex<HashMap<&'static str, Arc<Loaded>>>,
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) background: Background,
    pub(crate) owed: Owed,
    subscription: Subscription,
    telemetry: Server,
    /// The connections are made by the URL that is subscribed to first.
    by_url: bool,
}

/// How an attempt to run a script failed.
struct Failed {
    outage: Outage,
    /// When it was sent; `None`: there was no connection.
    sent: Option<Instant>,
    /// Whether anything may have been written.
    written: bool,
    /// Whether the server answered others meanwhile: then it is slow, not away.
    answers: bool,
}

impl Failed {
    /// Whether the connection was closed when the call came to it, so that it can be made again.
    fn was_closed(&self, was_idle: bool) -> bool {
        self.sent.is_some() && self.outage.cause == Cause::Disconnected && (was_idle || !self.written)
    }
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
            by_url: matches!(source, Source::Url(..)),
            subscription: Subscription::new(wakeups, telemetry.clone()),
            telemetry,
            scheduler: Scheduler::new(notifier.link(), Some(background.clone())),
            notifier,
            background,
            prefix,
            budget: Budget::new(limits.max_queued, limits.max_queued_bytes),
            overloaded: OnceLock::new(),
            limits,
            clock,
            source,
            hasher: RandomState::new(),
            runtimes: Mutex::default(),
            scripts: Mutex::default(),
            owed: Owed::default(),
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

    /// Whether the server that runs the scripts is certainly the one that is subscribed to, and so can tell who hears
    /// nothing.
    pub(super) fn counts_hearers(&self) -> bool {
        self.by_url && self.subscription.has_one_place()
    }

    /// Subscribes to the channel of this process, unless it is at it.
    pub(super) fn subscribe(&self) {
        let channel = format!("{}{}", self.channels(), self.notifier.process());
        self.subscription.start(channel, &self.notifier, &self.background);
    }

    /// What the store has on a runtime, made on first use.
    fn links(self: &Arc<Self>, runtime: &Handle) -> Arc<RuntimeLinks> {
        let known = |runtimes: &[Arc<RuntimeLinks>]| {
            let mut links = runtimes.iter().filter(|links| links.id == runtime.id() && !links.has_ended());
            links.next().map(Arc::clone)
        };
        if let Some(links) = known(&lock(&self.runtimes)) {
            return links;
        }
        // Not under the lock, which is taken when the runtime ends: it may have ended.
        let fresh = RuntimeLinks::new(self, runtime);
        let mut runtimes = lock(&self.runtimes);
        let ended: Vec<_> = runtimes.extract_if(.., |links| links.has_ended()).collect();
        let links = known(&runtimes).unwrap_or_else(|| {
            runtimes.push(Arc::clone(&fresh));
            fresh
        });
        drop(runtimes);
        ended.iter().for_each(|ended| ended.retire());
        links
    }

    /// Drops what the store has on a runtime that has ended.
    fn forget(&self, runtime: Id) {
        let mut runtimes = lock(&self.runtimes);
        let ended = runtimes.iter().position(|links| links.id == runtime);
        let ended = ended.map(|ended| runtimes.swap_remove(ended));
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
    fn overloaded(&self, link: &Link, operations: usize) -> Error {
        let Limits { timeout, max_queued, max_queued_bytes, queue_timeout, .. } = self.limits;
        if !link.answers(timeout) {
            let text = format!("no reply within {timeout:?}, and the queue is full");
            return Error::unavailable(Cause::NotSent, text);
        }
        self.telemetry.overloaded(operations, || self.budget.operations());
        // Made once: there may be hundreds of thousands.
        let overloaded = self.overloaded.get_or_init(|| {
            Error::overloaded(format!(
                "the store's queue is full: at most {max_queued} operations and {max_queued_bytes} bytes may wait, for \
                 {queue_timeout:?} at most"
            ))
        });
        overloaded.clone()
    }

    /// Runs a script. It is sent once: only where the server says that it does not know it, and so has not run
    /// it, is it sent again, in full (in full rather than by SCRIPT LOAD: that could be flushed in between,
    /// and on a Cluster would have to reach the right node first); and where a connection turns out to be closed before
    /// anything is written, or after it has been idle, as servers and balancers do to idle ones.
    async fn run(
        &self,
        runtime: &Handle,
        route: &Route,
        script: &Loaded,
        call: &Call,
    ) -> Result<Reply, Error> {
        route.breaker.check()?;
        let was_idle = !route.link.answered_within(IDLE);
        let began = Instant::now();
        let mut outcome = self.attempt(runtime, &route.link, script, call).await;
        if matches!(&outcome, Err(failed) if failed.was_closed(was_idle)) {
            outcome = self.attempt(runtime, &route.link, script, call).await;
        }
        let outage = match outcome {
            Ok(reply) => {
                route.breaker.succeeded();
                self.telemetry.call(began, true);
                return Ok(reply);
            }
            Err(Failed { outage, .. }) if !failure::is_outage(outage.cause) => {
                route.breaker.succeeded();
                outage
            }
            Err(Failed { outage, sent, answers, .. }) => {
                if !answers {
                    route.link.failed();
                    route.breaker.failed(sent.unwrap_or(began), &outage, sent.is_none());
                }
                outage
            }
        };
        self.telemetry.call(began, false);
        Err(outage.into())
    }

    /// Sends a call.
    async fn attempt(
        &self,
        runtime: &Handle,
        link: &Arc<Link>,
        script: &Loaded,
        call: &Call,
    ) -> Result<Reply, Failed> {
        let mut held = link.hold(runtime).await.map_err(|outage| Failed {
            outage: Outage { cause: Cause::NotSent, ..outage },
            sent: None,
            written: false,
            answers: false,
        })?;
        let sent = Instant::now();
        let mut written = true;
        let mut reply = self.in_time(sent, held.connection.send_noting(&call.command, &mut written)).await;
        if matches!(&reply, Some(Err(error)) if failure::is_no_script(error)) {
            let full = script.in_full(&call.command);
            reply = self.in_time(Instant::now(), held.connection.send(&full)).await;
        }
        let outage = match reply {
            Some(Ok(reply)) => match Reply::parse(reply, call.size()) {
                Some(reply) => {
                    link.answered(sent);
                    return Ok(reply);
                }
                None => {
                    let text = format!("{} answered something else", script.name).into();
                    Outage { cause: Cause::Unexpected, text, source: None }
                }
            },
            Some(Err(error)) => failure::outage(error),
            None => self.timed_out(),
        };
        // A server that answered what was sent before is slow.
        let answers = outage.cause == Cause::TimedOut && link.answered_since(sent);
        if self.source.is_lost(outage.cause) && !answers {
            link.discard(&held);
        } else if failure::is_outage(outage.cause) {
            self.source.look_for_masters(held.connection, runtime);
        }
        Err(Failed { outage, sent: Some(sent), written, answers })
    }

    fn timed_out(&self) -> Outage {
        let text = format!("no reply within {:?}", self.limits.timeout).into();
        Outage { cause: Cause::TimedOut, text, source: None }
    }

    /// What comes of a call within the time-out; `None`: nothing. Time in which the runtime stood still does not count:
    /// the reply may be there, but nobody has read it.
    async fn in_time<T>(&self, sent: Instant, reply: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(reply);
        let mut deadline = sent + self.limits.timeout;
        loop {
            tokio::select! {
                biased;
                reply = &mut reply => return Some(reply),
                () = sleep_until(deadline) => {
                    let late = deadline.elapsed();
                    if late < LATE {
                        return None;
                    }
                    deadline = Instant::now() + late.min(self.limits.timeout);
                }
            }
        }
    }

    /// Waits until nothing is owed, then closes all connections. How much is still owed, where that takes longer.
    pub(super) async fn shutdown(&self, limit: Duration) -> Result<(), usize> {
        let none = tokio::time::timeout(limit, self.owed.none()).await;
        self.subscription.stop();
        let runtimes = lock(&self.runtimes).clone();
        runtimes.iter().for_each(|links| links.close());
        none.map_err(|_| self.owed.count())
    }

    /// Asks the server for a sign of life, whether or not the breaker is open.
    pub(super) async fn ping(self: &Arc<Self>, runtime: &Handle) -> Result<Ping, Error> {
        let links = self.links(runtime);
        let route = links.route(0);
        let breaker = links.breaker();
        let mut held = route.link.hold(runtime).await?;
        let sent = Instant::now();
        let mut connection = held.connection.clone();
        let outcome = match self.in_time(sent, async { connection.send(&redis::cmd("PING")).await }).await {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(failure::outage(error)),
            None => Err(self.timed_out()),
        };
        held.connection = connection;
        match outcome {
            Ok(()) => {
                route.link.answered(sent);
                route.breaker.succeeded();
                let version = route.link.version().map(|version| version.to_string());
                Ok(Ping::new(sent.elapsed(), version, breaker))
            }
            Err(outage) => {
                if failure::is_outage(outage.cause) {
                    route.link.discard(&held);
                    route.breaker.failed(sent, &outage, false);
                }
                Err(outage.into())
            }
        }
    }
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
