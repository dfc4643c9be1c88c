//! The Redis store: connections, scripts, time-outs and breakers. Nothing outside this folder names `redis`.

mod batch;
mod breaker;
pub(crate) mod client;
mod failure;
pub(crate) mod future;
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

use self::batch::Batch;
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
use super::operation::{Operation, Script};
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

/// How many turns all other tasks have before a reply counts as missing.
const TURNS: usize = 8;

pub(crate) struct RedisStore {
    pub(crate) prefix: String,
    /// The process that made it.
    process: u32,
    source: Source,
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
                self.succeeded(route);
                self.telemetry.call(began, true);
                return Ok(reply);
            }
            Err(Failed { outage, .. }) if !failure::is_outage(outage.cause) => {
                self.succeeded(route);
                outage
            }
            Err(Failed { outage, sent, answers, .. }) => {
                if answers {
                    self.succeeded(route);
                } else {
                    route.link.failed();
                    route.breaker.failed(sent.unwrap_or(began), &outage, sent.is_none());
                }
                outage
            }
        };
        self.telemetry.call(began, false);
        Err(outage.into())
    }

    /// The server has answered. Where that ends an outage, all other runtimes look for themselves at once.
    fn succeeded(&self, route: &Route) {
        if route.breaker.succeeded() {
            let runtimes = lock(&self.runtimes).clone();
            runtimes.iter().for_each(|links| links.half_open());
        }
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
        let sending = held.connection.send_noting(&call.command, &mut written);
        let mut reply = self.in_time(runtime, link, sending).await;
        if matches!(&reply, Some(Err(error)) if failure::is_no_script(error)) {
            let full = script.in_full(&call.command);
            reply = self.in_time(runtime, link, held.connection.send(&full)).await;
        }
        let outage = match reply {
            Some(Ok(reply)) => match Reply::parse(reply, call.size()) {
                Some(reply) => {
                    link.answered();
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
        let answers = outage.cause == Cause::TimedOut && link.answered_since(sent).is_some();
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

    /// What comes of a call that is sent now within the time-out; `None`: nothing.
    ///
    /// Replies come in the order of the calls: as long as others arrive, it is waited for up to four time-outs. And time in
    /// which the runtime stood still does not count, once: the reply may be there, but nobody has read it.
    async fn in_time<T>(&self, runtime: &Handle, link: &Link, reply: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(reply);
        let (sent, timeout) = (Instant::now(), self.limits.timeout);
        let (mut deadline, mut was_late) = (sent + timeout, false);
        loop {
            // The caller may be polled outside of its runtime by now.
            let elapsed = {
                let _inside = runtime.enter();
                sleep_until(deadline)
            };
            tokio::select! {
                biased;
                reply = &mut reply => return Some(reply),
                () = elapsed => {}
            }
            let (now, late) = (Instant::now(), deadline.elapsed());
            let progress = link.answered_since(sent).map(|last| (last + timeout).min(sent + 4 * timeout));
            deadline = match progress {
                Some(later) if later > now => later,
                _ if late >= LATE && !was_late => {
                    was_late = true;
                    now + late.min(timeout)
                }
                _ => break,
            };
        }
        // The reply may have come, and who reads it waits for its turn behind a crowd.
        for _ in 0..TURNS {
            tokio::select! {
                biased;
                reply = &mut reply => return Some(reply),
                () = tokio::task::yield_now() => {}
            }
        }
        None
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

    /// Asks the server for a sign of life, whether or not the breaker is open.
    pub(super) async fn ping(self: &Arc<Self>, runtime: &Handle) -> Result<Ping, Error> {
        let links = self.links(runtime);
        let route = links.route(0);
        let breaker = links.breaker();
        let mut held = route.link.hold(runtime).await?;
        let sent = Instant::now();
        let ping = redis::cmd("PING");
        let outage = match self.in_time(runtime, &route.link, held.connection.send(&ping)).await {
            Some(Ok(_)) => {
                route.link.answered();
                // On a Cluster any node may have answered.
                if !self.source.is_cluster() {
                    self.succeeded(&route);
                }
                let version = route.link.version().map(|version| version.to_string());
                return Ok(Ping::new(sent.elapsed(), version, breaker));
            }
            Some(Err(error)) => failure::outage(error),
            None => self.timed_out(),
        };
        if self.source.is_lost(outage.cause) {
            route.link.discard(&held);
        }
        if failure::is_outage(outage.cause) && !self.source.is_cluster() {
            route.breaker.failed(sent, &outage, false);
        }
        Err(outage.into())
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
