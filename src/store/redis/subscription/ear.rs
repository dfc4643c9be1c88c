//! What the connections of a subscription share, and how each passes its messages on.

use std::borrow::Borrow;
use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use redis::{Msg, Value};
use tokio::time::{Instant, timeout};

use super::Attempt;
use super::duplicates::Duplicates;
use crate::error::Outage;
use crate::store::notifier::{News, Notifier, Push};
use crate::store::redis::endpoint::Endpoint;
use crate::store::redis::failure::disconnected;
use crate::sync::lock;
use crate::telemetry::Server;

/// How long connecting may take.
pub(super) const CONNECT: Duration = Duration::from_secs(5);

/// How long to wait for a message before a ping checks the connection.
pub(super) const CHECK: Duration = Duration::from_secs(15);

pub(super) const NOT_IN_TIME: &str = "no connection in time";

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

    /// Passes the messages on until the connection fails, or is to be left.
    pub(super) async fn hear<S: Borrow<Endpoint>>(
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
        let (open, since) = (Open::new(self, false), Instant::now());
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

    /// Notes that a connection has failed.
    pub(super) fn closed(&self, open: Open<'_>) {
        drop(open);
        // If the store was dropped, this is not a loss.
        if *lock(&self.open) == 0 && self.notifier.strong_count() > 0 {
            self.telemetry.subscription(false);
        }
    }

    /// Passes a message on. `several`: whether other connections receive the same messages. Returns `false` if the store
    /// was dropped.
    pub(super) fn passes_on(&self, message: &Msg, several: bool) -> bool {
        let Some(notifier) = self.notifier.upgrade() else { return false };
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
        true
    }

    /// Tells why there is no subscription, if there is none at all.
    pub(super) fn failed(&self, outage: &Outage) -> Attempt {
        if *lock(&self.open) == 0 && self.notifier.strong_count() > 0 {
            self.telemetry.subscription_failed(&outage.text);
        }
        Attempt::of(outage)
    }
}

/// A connection is subscribed while this value lives. Pushes arrive while there is one: at a Cluster each node has all
/// messages, though those of other nodes come later.
pub(super) struct Open<'a>(&'a Ear);

impl<'a> Open<'a> {
    /// `own`: whether the connection receives messages that the others do not. Such messages may have been missed.
    pub(super) fn new(ear: &'a Ear, own: bool) -> Self {
        let mut open = lock(&ear.open);
        *open += 1;
        let Some(notifier) = ear.notifier.upgrade().filter(|_| own || *open == 1) else { return Self(ear) };
        if *open == 1 {
            ear.telemetry.subscription(true);
        }
        notifier.relink();
        Self(ear)
    }

    /// Notes that messages of one master may have been missed.
    #[cfg(feature = "cluster")]
    pub(super) fn missed(&self) {
        let _open = lock(&self.0.open);
        self.0.notifier.upgrade().into_iter().for_each(|notifier| notifier.relink());
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

#[cfg(test)]
#[cfg(feature = "cluster")]
pub(super) mod tests {
    use std::future::{pending, ready};
    use std::sync::Arc;

    use support::eventually;
    use support::redis_server::RedisServer;
    use support::seen::{Event, Seen};

    use super::*;
    use crate::error::Cause;
    use crate::store::notifier::{Ids, Link, Listener, Recipient};
    use crate::store::redis::endpoint::Access;

    const SOON: Duration = Duration::from_secs(20);

    /// What was heard.
    #[derive(Default)]
    pub(in super::super) struct Heard(Mutex<Vec<String>>);

    impl Listener for Heard {
        fn hear(&self, message: &[u8]) {
            lock(&self.0).push(String::from_utf8_lossy(message).into_owned());
        }
    }

    impl Recipient for Heard {
        fn hear(self: Arc<Self>, _: u64, news: News) {
            lock(&self.0).push(format!("{news:?}"));
        }
    }

    pub(in super::super) fn ear(notifier: &Arc<Notifier>) -> Ear {
        let channels = ["own", "all"].map(|whose| format!("td:wake:{whose}"));
        Ear::new(channels, Arc::downgrade(notifier), Server::new("test"))
    }

    /// A notifier with one recipient, which also listens, and the id of its waiter.
    pub(in super::super) fn notifier() -> (Arc<Notifier>, Arc<Heard>, u64) {
        let (notifier, mut id) = (Arc::new(Notifier::new(Link::Down)), 0);
        let heard = notifier.join(|ids: Ids| {
            id = ids.next();
            Arc::<Heard>::default()
        });
        notifier.listen(&heard);
        (notifier, heard, id)
    }

    fn message(channel: &str, text: &str) -> Msg {
        let texts = ["message", channel, text].map(|text| Value::BulkString(text.into()));
        Msg::from_owned_value(Value::Array(texts.into())).unwrap()
    }

    #[test]
    fn a_grant_that_several_connections_bring_is_heard_once() {
        let (notifier, heard, id) = notifier();
        let ear = ear(&notifier);
        let hears = |several, channel, text: &str| {
            assert!(ear.passes_on(&message(channel, text), several));
            std::mem::take(&mut *lock(&heard.0)).len()
        };
        let (grant, gone) = (format!("7 1 {id:x}"), format!("0 0 {id:x}"));
        assert_eq!([(); 2].map(|()| hears(false, "td:wake:own", &grant)), [1, 1]);
        assert_eq!([(); 2].map(|()| hears(true, "td:wake:own", &grant)), [1, 0]);
        assert_eq!([(); 2].map(|()| hears(true, "td:wake:own", &gone)), [1, 1]);
        assert_eq!([(); 2].map(|()| hears(true, "td:wake:all", "x")), [1, 1]);
        assert_eq!(hears(true, "td:wake:own", "no push"), 0);
        drop(notifier);
        assert!(!ear.passes_on(&message("td:wake:all", "x"), false), "the store is gone");
        assert_eq!(ear.shards(), ("td:wake:", "own"));
    }

    #[test]
    fn pushes_arrive_while_a_connection_is_open() {
        let (notifier, ..) = notifier();
        let ear = ear(&notifier);
        let link = || notifier.current_link();
        let first = Open::new(&ear, false);
        let up = link();
        assert_ne!(up, Link::Down);
        let second = Open::new(&ear, false);
        assert_eq!(link(), up, "the first brought all messages meanwhile");
        let third = Open::new(&ear, true);
        assert_ne!(link(), up, "some messages came nowhere");
        let up = link();
        third.missed();
        assert_ne!(link(), up);
        drop((first, third));
        assert_ne!(link(), Link::Down);
        drop(second);
        assert_eq!(link(), Link::Down);
    }

    #[test]
    fn the_loss_of_the_last_connection_is_told_unless_the_store_is_gone() {
        let seen = Seen::default();
        let lost = || {
            let is_lost =
                |event: &&Event| event.get("event").is_some_and(|event| event == "subscription_lost");
            seen.events().iter().filter(is_lost).count()
        };
        seen.events_of(|| {
            let (notifier, ..) = notifier();
            let ear = ear(&notifier);
            let open = || Open::new(&ear, false);
            let (first, second) = (open(), open());
            ear.closed(first);
            let denied = Outage { cause: Cause::Denied, text: "x".into(), source: None };
            assert_eq!(ear.failed(&disconnected("x")), Attempt::FAILED);
            assert_eq!(ear.failed(&denied), Attempt::Refused);
            assert_eq!(lost(), 0, "another is open");
            ear.closed(second);
            assert_eq!(lost(), 1);
            drop(open());
            ear.failed(&denied);
            assert_eq!(lost(), 2);
            let last = open();
            drop(notifier);
            ear.closed(last);
            ear.failed(&denied);
            assert_eq!(lost(), 2);
        });
    }

    /// Publishes to a subscription, and lets the server be silent for so long that a ping is sent, some times.
    pub(in super::super) async fn publishes(server: &RedisServer, notifier: &Notifier, heard: &Heard) {
        eventually("the subscription", SOON, async || notifier.current_link() != Link::Down).await;
        let publish = || server.query::<()>(&["PUBLISH", "td:wake:all", "x"]).unwrap();
        publish();
        // A message that was heard shows that what was sent before has arrived, too.
        for nth in 1..4 {
            eventually("it hears", SOON, async || lock(&heard.0).len() == nth).await;
            server.query::<()>(&["CONFIG", "RESETSTAT"]).unwrap();
            tokio::time::pause();
            tokio::time::advance(CHECK + Duration::from_millis(1)).await;
            tokio::time::resume();
            eventually("it pings", SOON, async || server.calls_of("ping") > 0).await;
            publish();
        }
    }

    /// A ping tells a silent server from one that has vanished.
    #[tokio::test]
    async fn a_subscription_stays_while_the_server_is_silent() {
        let server = RedisServer::start().await;
        let endpoint = Endpoint::new(&server.url(), &Access::default()).unwrap();
        let (notifier, heard, _) = notifier();
        let ear = ear(&notifier);
        tokio::select! {
            _ = ear.hear(ready(Ok(&endpoint)), pending()) => panic!("it has ended"),
            () = publishes(&server, &notifier, &heard) => {}
        }
    }
}
