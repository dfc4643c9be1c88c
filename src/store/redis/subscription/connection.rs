//! One connection of a subscription: how it passes its messages on, and the state that it shares with the others of its
//! store.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::future::Future;
use std::hash::{BuildHasher as _, RandomState};
use std::pin::pin;
use std::sync::{Mutex, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use redis::{Msg, Value};
use tokio::time::{Instant, timeout};

use crate::error::reasons::Outage;
use crate::store::notifier::{Notifier, Push, PushKind};
use crate::store::redis::breaker::Attempt;
use crate::store::redis::endpoint::Endpoint;
use crate::store::redis::errors::disconnected;
use crate::sync::lock;
use crate::telemetry::server::Server;

/// How long connecting may take.
pub(super) const CONNECT: Duration = Duration::from_secs(5);

/// How long to wait for a message before a ping checks the connection.
pub(super) const CHECK: Duration = Duration::from_secs(15);

pub(super) const NOT_IN_TIME: &str = "no connection in time";

/// The common state of the connections of a subscription.
pub(super) struct Subscriber {
    /// The channel of this process, and the channel of all processes.
    channels: [String; 2],
    notifier: Weak<Notifier>,
    telemetry: Server,
    /// The number of connections that are subscribed.
    open: Mutex<usize>,
    duplicates: Mutex<Duplicates>,
}

impl Subscriber {
    pub(super) fn new(channels: [String; 2], notifier: Weak<Notifier>, telemetry: Server) -> Self {
        Self {
            channels,
            notifier,
            telemetry,
            open: Mutex::default(),
            duplicates: Mutex::default(),
        }
    }

    /// The prefix of the channels of the groups of slots, and of this process.
    #[cfg(feature = "cluster")]
    pub(super) fn shards(&self) -> (&str, &str) {
        let own = &self.channels[0];
        own.split_at(own.rfind(':').map_or(0, |colon| colon + 1))
    }

    #[cfg(feature = "cluster")]
    pub(super) fn channels(&self) -> &[String; 2] {
        &self.channels
    }

    /// Passes the messages on until the connection fails, or `left` completes.
    pub(super) async fn receive<S: Borrow<Endpoint>>(
        &self,
        server: impl Future<Output = Result<S, Outage>>,
        left: impl Future<Output = ()>,
    ) -> Attempt {
        let subscribe = async { server.await?.borrow().subscribe(&self.channels).await };
        let (mut sink, mut stream) = match timeout(CONNECT, subscribe).await {
            Ok(Ok(connection)) => connection.split(),
            Ok(Err(outage)) => return self.failed(&outage),
            Err(_) => return self.failed(&disconnected(NOT_IN_TIME)),
        };
        let open = Open::new(self, false);
        let since = Instant::now();
        let mut left = pin!(left);
        loop {
            let next = tokio::select! {
                next = timeout(CHECK, stream.next()) => next,
                () = &mut left => break,
            };
            match next {
                Ok(Some(message)) => {
                    if !self.passes_on(&message, false) {
                        break;
                    }
                }
                Ok(None) => break,
                // Nothing has arrived for a long time. Without a ping, a server that vanished would not be noticed.
                Err(_) => match timeout(CONNECT, sink.ping::<Value>()).await {
                    Ok(Ok(_)) => {}
                    _ => break,
                },
            }
        }
        self.closed(open);
        Attempt::Lasted(since.elapsed())
    }

    /// Records that a connection has failed.
    pub(super) fn closed(&self, open: Open<'_>) {
        drop(open);
        // If the store was dropped, this is not a loss.
        if *lock(&self.open) == 0 && self.notifier.strong_count() > 0 {
            self.telemetry.subscription(false);
        }
    }

    /// Passes a message on. `several`: whether other connections receive the same messages. Returns `false` if the
    /// store was dropped.
    pub(super) fn passes_on(&self, message: &Msg, several: bool) -> bool {
        let Some(notifier) = self.notifier.upgrade() else {
            return false;
        };
        let channel = message.get_channel_name();
        let payload = message.get_payload_bytes();
        if channel == self.channels[1] {
            notifier.broadcast(payload);
        } else if let Some(push) = Push::parse(payload) {
            // Other messages may arrive twice: they have no effect on a waiter that has left.
            let is_grant = matches!(push.news, PushKind::Granted { .. });
            if !several || !is_grant || lock(&self.duplicates).is_new(payload) {
                notifier.deliver(push);
            }
        }
        true
    }

    /// Reports why there is no subscription, if no connection is subscribed.
    pub(super) fn failed(&self, outage: &Outage) -> Attempt {
        if *lock(&self.open) == 0 && self.notifier.strong_count() > 0 {
            self.telemetry.subscription_failed(&outage.text);
        }
        Attempt::of(outage)
    }
}

/// Counts a connection as subscribed while this value lives. Pushes arrive while there is at least one: on a Cluster
/// each node has all messages, though those of other nodes arrive later.
pub(super) struct Open<'a>(&'a Subscriber);

impl<'a> Open<'a> {
    /// `own`: whether the connection receives messages that the others do not. Such messages may have been missed.
    pub(super) fn new(subscriber: &'a Subscriber, own: bool) -> Self {
        let mut open = lock(&subscriber.open);
        *open += 1;
        let Some(notifier) = subscriber.notifier.upgrade().filter(|_| own || *open == 1) else {
            return Self(subscriber);
        };
        if *open == 1 {
            subscriber.telemetry.subscription(true);
        }
        notifier.relink();
        Self(subscriber)
    }

    /// Records that messages of one master may have been missed.
    #[cfg(feature = "cluster")]
    pub(super) fn missed(&self) {
        let _open = lock(&self.0.open);
        self.0
            .notifier
            .upgrade()
            .into_iter()
            .for_each(|notifier| notifier.relink());
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let mut open = lock(&self.0.open);
        *open -= 1;
        if *open == 0
            && let Some(notifier) = self.0.notifier.upgrade()
        {
            notifier.unlink();
        }
    }
}

/// How long a grant is remembered, at least. This is longer than a grant to a waiter lasts: a copy that arrives later
/// belongs to a lease that has ended.
const WINDOW: Duration = Duration::from_secs(10);

/// How many grants are remembered; up to twice as many.
const MOST: usize = 1 << 18;

/// The recent grants, to detect those that arrive over several connections: once from each node of a Cluster. No two
/// grants have the same text: it contains the waiter, the expiry in µs, and the fence.
#[derive(Debug)]
struct Duplicates {
    hasher: RandomState,
    current: HashSet<u64>,
    previous: HashSet<u64>,
    since: Instant,
}

impl Default for Duplicates {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            current: HashSet::new(),
            previous: HashSet::new(),
            since: Instant::now(),
        }
    }
}

impl Duplicates {
    /// Remembers a grant. Returns whether it is new.
    fn is_new(&mut self, grant: &[u8]) -> bool {
        if self.since.elapsed() > WINDOW || self.current.len() >= MOST {
            self.previous = std::mem::take(&mut self.current);
            self.since = Instant::now();
        }
        let grant = self.hasher.hash_one(grant);
        !self.previous.contains(&grant) && self.current.insert(grant)
    }
}

#[cfg(test)]
#[cfg(feature = "cluster")]
pub(super) mod tests;
