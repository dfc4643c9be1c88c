//! What the connections of a subscription share, and how each passes its messages on.

use std::borrow::Borrow;
use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use redis::Value;
use tokio::time::{Instant, timeout};

use super::duplicates::Duplicates;
use crate::error::Outage;
use crate::store::notifier::{News, Notifier, Push};
use crate::store::redis::endpoint::Endpoint;
use crate::sync::lock;
use crate::telemetry::Server;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);

/// How long to wait for a message before a ping checks the connection.
const CHECK: Duration = Duration::from_secs(15);

pub(super) struct Ear {
    /// The channel of this process, and that of all processes.
    channels: [String; 2],
    notifier: Weak<Notifier>,
    telemetry: Server,
    /// The number of connections that are subscribed.
    open: Mutex<usize>,
    duplicates: Mutex<Duplicates>,
}

impl Ear {
    pub(super) fn new(channels: [String; 2], notifier: Weak<Notifier>, telemetry: Server) -> Self {
        Self { channels, notifier, telemetry, open: Mutex::default(), duplicates: Mutex::default() }
    }

    /// Passes the messages on until the connection fails, or is to be left. Returns for how long it was subscribed.
    /// `several`: whether other connections receive the same messages.
    pub(super) async fn hear<S: Borrow<Endpoint>>(
        &self,
        several: bool,
        server: impl Future<Output = Result<S, Outage>>,
        left: impl Future<Output = ()>,
    ) -> Duration {
        let subscribe = async { server.await?.borrow().subscribe(&self.channels).await };
        let (mut sink, mut stream) = match timeout(CONNECT, subscribe).await {
            Ok(Ok(connection)) => connection.split(),
            Ok(Err(outage)) => return self.failed(&outage.text),
            Err(_) => return self.failed("no connection in time"),
        };
        let (open, since) = (Open::new(self), Instant::now());
        let mut left = pin!(left);
        loop {
            let next = tokio::select! {
                next = timeout(CHECK, stream.next()) => next,
                () = &mut left => break,
            };
            match next {
                Ok(Some(message)) => {
                    let Some(notifier) = self.notifier.upgrade() else { break };
                    let (channel, payload) = (message.get_channel_name(), message.get_payload_bytes());
                    if channel == self.channels[1] {
                        notifier.broadcast(payload);
                    } else if let Some(push) = Push::parse(payload) {
                        // Other messages may be heard twice: a waiter that has left does not mind.
                        let is_grant = matches!(push.news, News::Granted { .. });
                        if !several || !is_grant || lock(&self.duplicates).is_new(payload) {
                            notifier.deliver(push);
                        }
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
        drop(open);
        // If the store was dropped, this is not a loss.
        if *lock(&self.open) == 0 && self.notifier.strong_count() > 0 {
            self.telemetry.subscription(false);
        }
        since.elapsed()
    }

    /// Tells why there is no subscription, if there is none at all. It lasted for no time.
    fn failed(&self, why: &str) -> Duration {
        if *lock(&self.open) == 0 && self.notifier.strong_count() > 0 {
            self.telemetry.subscription_failed(why);
        }
        Duration::ZERO
    }
}

/// A connection is subscribed while this value lives. Pushes arrive while there is one: at a Cluster each node has all
/// messages, though those of other nodes come later.
struct Open<'a>(&'a Ear);

impl<'a> Open<'a> {
    fn new(ear: &'a Ear) -> Self {
        let mut open = lock(&ear.open);
        *open += 1;
        if *open == 1
            && let Some(notifier) = ear.notifier.upgrade()
        {
            ear.telemetry.subscription(true);
            notifier.relink();
        }
        drop(open);
        Self(ear)
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
