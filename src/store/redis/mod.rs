//! The Redis store: lanes, scripts, deadline and breaker. Nothing outside this folder names `redis`.

mod breaker;
mod failure;
mod lane;
mod plan;
pub(crate) mod pool;
pub(crate) mod queue;
#[cfg(feature = "cluster")]
mod slot;
mod subscription;
mod version;

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use deadpool_redis::redis::{self, Cmd, Value};
use tokio::time::{Instant, timeout_at};

use self::breaker::Breaker;
use self::lane::Lane;
use self::plan::Call;
use self::pool::Pool;
use self::subscription::Subscription;
use super::in_memory::lock;
use super::key::{Key, RedisKey};
use super::notifier::{Link, Notifier};
use super::operation::{Field, Script};
use super::scheduler::Scheduler;
use crate::Error;
use crate::error::{Cause, Outage};

/// The clock that is put before every script: `now`, in µs.
pub(crate) const CLOCK: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/lib/clock.lua"));

/// After how long without an answer a connection may have been closed for being idle.
const IDLE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct RedisStore {
    pub(crate) prefix: String,
    timeout: Duration,
    clock: &'static str,
    pool: Pool,
    lanes: Box<[Arc<Lane>]>,
    hasher: RandomState,
    breakers: Box<[Breaker]>,
    /// By their text: the same script may be joined with other pieces.
    scripts: Mutex<HashMap<&'static str, Arc<Loaded>>>,
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) scheduler: Arc<Scheduler>,
    subscription: Subscription,
    /// The pool was made of the URL that is subscribed to first.
    by_url: bool,
}

/// A script ready to be called.
pub(crate) struct Loaded {
    name: &'static str,
    text: String,
    sha: String,
}

impl RedisStore {
    pub(crate) fn new(
        pool: Pool,
        prefix: String,
        timeout: Duration,
        lanes: usize,
        clock: &'static str,
        wakeups: Vec<redis::Client>,
        by_url: bool,
    ) -> Self {
        let notifier = Arc::new(Notifier::new(Link::Down));
        Self {
            subscription: Subscription::new(wakeups),
            by_url,
            scheduler: Scheduler::new(notifier.link()),
            notifier,
            prefix,
            timeout,
            clock,
            lanes: (0..lanes).map(|_| Arc::new(Lane::new(pool.clone()))).collect(),
            breakers: (0..pool.breakers()).map(|_| Breaker::default()).collect(),
            pool,
            hasher: RandomState::new(),
            scripts: Mutex::default(),
        }
    }

    pub(super) fn load(&self, script: Script) -> Arc<Loaded> {
        let load = || {
            let text = format!("{}{}", self.clock, script.body);
            let sha = redis::Script::new(&text).get_hash().to_owned();
            Arc::new(Loaded { name: script.name, text, sha })
        };
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
        self.subscription.start(channel, &self.notifier);
    }

    pub(super) fn connections(&self) -> usize {
        self.lanes.len()
    }

    /// The lane that a key's calls leave by: always the same, so that they can leave together.
    pub(super) fn lane_of(&self, key: &Key) -> usize {
        match self.lanes.len() {
            1 => 0,
            lanes => self.hasher.hash_one(key) as usize % lanes,
        }
    }

    /// The hash slot of a key; `None` where one server has them all.
    #[cfg_attr(not(feature = "cluster"), expect(unused_variables))]
    pub(super) fn slot(&self, key: impl FnOnce() -> RedisKey) -> Option<u16> {
        match &self.pool {
            #[cfg(feature = "cluster")]
            Pool::Cluster(_) => Some(slot::slot(&key())),
            _ => None,
        }
    }

    pub(super) fn deadline(&self, since: Instant) -> Instant {
        since + self.timeout
    }

    /// Runs a script. It is sent once: only where the server says that it does not know it, and so has not run
    /// it, is it sent again, in full (in full rather than by SCRIPT LOAD: that could be flushed in between,
    /// and on a Cluster would have to reach the right node first); and where a connection that has been idle
    /// turns out to be closed, as servers and balancers do to idle ones.
    async fn run(
        self: &Arc<Self>,
        lane: usize,
        script: &Loaded,
        call: &Call,
        deadline: Instant,
    ) -> Result<Reply, Error> {
        let breaker = &self.breakers[breaker_of(call.slot)];
        breaker.check()?;
        let lane = &self.lanes[lane];
        let was_idle = lane.idle_for() >= IDLE;
        let mut outcome = self.attempt(lane, script, &call.command, deadline).await;
        if was_idle && matches!(&outcome, Err((outage, true)) if outage.cause == Cause::Disconnected) {
            outcome = self.attempt(lane, script, &call.command, deadline).await;
        }
        match &outcome {
            Err((outage, _)) if failure::is_outage(outage.cause) => {
                if breaker.failed(outage) {
                    let (store, breaker) = (Arc::downgrade(self), breaker_of(call.slot));
                    let prober = Prober { store, breaker, key: call.key.clone(), succeeded: false };
                    tokio::spawn(prober.run());
                }
            }
            _ => breaker.succeeded(),
        }
        outcome.map_err(|(outage, _)| outage.into())
    }

    /// Sends a call. An error comes with whether there was a connection to send it on.
    async fn attempt(
        &self,
        lane: &Arc<Lane>,
        script: &Loaded,
        call: &Cmd,
        deadline: Instant,
    ) -> Result<Reply, (Outage, bool)> {
        let mut held = None;
        let outcome = timeout_at(deadline, async {
            let held = held.insert(lane.hold().await?);
            let reply = match held.connection.send(call).await {
                Err(error) if failure::is_no_script(&error) => {
                    held.connection.send(&script.in_full(call)).await
                }
                reply => reply,
            };
            Reply::parse(reply.map_err(failure::outage)?)
                .ok_or_else(|| unexpected(format!("{} answered something else", script.name)))
        })
        .await;
        let outage = match outcome {
            Ok(Ok(reply)) => {
                lane.used();
                return Ok(reply);
            }
            Ok(Err(outage)) => outage,
            Err(_) if held.is_some() => {
                let text = format!("no answer within {:?}", self.timeout).into();
                Outage { cause: Cause::TimedOut, text, source: None }
            }
            Err(_) => {
                let text = format!("no connection within {:?}", self.timeout).into();
                Outage { cause: Cause::Disconnected, text, source: None }
            }
        };
        if let Some(held) = &held
            && self.pool.is_lost(outage.cause)
        {
            lane.discard(held);
        }
        let sent = held.is_some();
        let cause = if sent { outage.cause } else { Cause::NotSent };
        Err((Outage { cause, ..outage }, sent))
    }

    /// Whether the server that has a key takes a write.
    async fn takes_a_write(&self, key: &RedisKey) -> bool {
        let mut command = redis::cmd("SET");
        command.arg([&key[..], b"probe"].concat()).arg(1).arg("PX").arg(1000);
        let lane = &self.lanes[0];
        let mut held = None;
        let outcome = timeout_at(self.deadline(Instant::now()), async {
            held.insert(lane.hold().await?).connection.send(&command).await.map_err(failure::outage)
        })
        .await;
        let lost = match outcome {
            Ok(Ok(_)) => return true,
            Ok(Err(outage)) => self.pool.is_lost(outage.cause),
            Err(_) => self.pool.is_lost(Cause::TimedOut),
        };
        if let Some(held) = held
            && lost
        {
            lane.discard(&held);
        }
        false
    }
}

/// Which breaker a call goes by: on a Cluster one for each 256 slots, since one node may be away and others not.
fn breaker_of(slot: Option<u16>) -> usize {
    usize::from(slot.unwrap_or(0) / 256)
}

/// Asks in the background until the server takes a write again. Closes the breaker when it is dropped: after its
/// work, or with the runtime that it runs on.
struct Prober {
    store: Weak<RedisStore>,
    breaker: usize,
    key: RedisKey,
    succeeded: bool,
}

impl Prober {
    async fn run(mut self) {
        let mut pause = Duration::from_millis(25);
        while !self.succeeded {
            tokio::time::sleep(pause).await;
            let Some(store) = self.store.upgrade() else { return };
            self.succeeded = store.takes_a_write(&self.key).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        if let Some(store) = self.store.upgrade() {
            store.breakers[self.breaker].close(self.succeeded);
        }
    }
}

impl Loaded {
    /// Starts a call by the digest; keys and ARGV are yet to follow.
    pub(super) fn call(&self, keys: usize) -> Cmd {
        let mut call = redis::cmd("EVALSHA");
        call.arg(&self.sha).arg(keys);
        call
    }

    /// The same call with the text of the script.
    fn in_full(&self, call: &Cmd) -> Cmd {
        let mut full = redis::cmd("EVAL");
        full.arg(&self.text);
        for argument in call.args_iter().skip(2) {
            if let redis::Arg::Simple(bytes) = argument {
                full.arg(bytes);
            }
        }
        full
    }
}

/// What a script answered: the server's time, then the fields of its runs.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) now: i64,
    pub(super) fields: Vec<Field>,
}

impl Reply {
    fn parse(reply: Value) -> Option<Self> {
        let Value::Array(values) = reply else { return None };
        let mut values = values.into_iter();
        let Some(Value::Int(now)) = values.next() else { return None };
        Some(Self { now, fields: values.map(field).collect::<Option<_>>()? })
    }
}

fn field(value: Value) -> Option<Field> {
    match value {
        Value::Int(integer) => Some(Field::Integer(integer)),
        Value::BulkString(text) => Some(Field::Text(text)),
        Value::Array(values) => values.into_iter().map(field).collect::<Option<_>>().map(Field::List),
        _ => None,
    }
}

fn unexpected(text: String) -> Outage {
    Outage { cause: Cause::Unexpected, text: text.into(), source: None }
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Loaded").field(&self.name).finish()
    }
}
