//! A subscription ends, and starts again, as its server and its users require.

use std::future::{pending, ready};
use std::sync::Arc;

use support::eventually;
use support::redis_server::RedisServer;

use super::*;
use crate::store::notifier::{Ids, Link, Listener, Recipient};
use crate::store::redis::endpoint::Access;

const SOON: Duration = Duration::from_secs(20);

/// The messages that were received.
#[derive(Default)]
pub(in super::super) struct Heard(Mutex<Vec<String>>);

impl Listener for Heard {
    fn hear(&self, message: &[u8]) {
        lock(&self.0).push(String::from_utf8_lossy(message).into_owned());
    }
}

impl Recipient for Heard {
    fn hear(self: Arc<Self>, _: u64, news: PushKind) {
        lock(&self.0).push(format!("{news:?}"));
    }
}

pub(in super::super) fn subscriber(notifier: &Arc<Notifier>) -> Subscriber {
    let channels = ["own", "all"].map(|whose| format!("td:wake:{whose}"));
    Subscriber::new(channels, Arc::downgrade(notifier), Server::new("test"))
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
    let subscriber = subscriber(&notifier);
    let hears = |several, channel, text: &str| {
        assert!(subscriber.passes_on(&message(channel, text), several));
        std::mem::take(&mut *lock(&heard.0)).len()
    };
    let (grant, gone) = (format!("7 1 {id:x}"), format!("0 0 {id:x}"));
    assert_eq!(
        [(); 2].map(|()| hears(false, "td:wake:own", &grant)),
        [1, 1]
    );
    assert_eq!([(); 2].map(|()| hears(true, "td:wake:own", &grant)), [1, 0]);
    assert_eq!([(); 2].map(|()| hears(true, "td:wake:own", &gone)), [1, 1]);
    assert_eq!([(); 2].map(|()| hears(true, "td:wake:all", "x")), [1, 1]);
    assert_eq!(hears(true, "td:wake:own", "no push"), 0);
    drop(notifier);
    assert!(
        !subscriber.passes_on(&message("td:wake:all", "x"), false),
        "the store is gone"
    );
    assert_eq!(subscriber.shards(), ("td:wake:", "own"));
}

#[test]
fn pushes_arrive_while_a_connection_is_open() {
    let (notifier, ..) = notifier();
    let subscriber = subscriber(&notifier);
    let link = || notifier.current_link();
    let first = Open::new(&subscriber, false);
    let up = link();
    assert_ne!(up, Link::Down);
    let second = Open::new(&subscriber, false);
    assert_eq!(link(), up, "the first brought all messages meanwhile");
    let third = Open::new(&subscriber, true);
    assert_ne!(link(), up, "some messages came nowhere");
    let up = link();
    third.missed();
    assert_ne!(link(), up);
    drop((first, third));
    assert_ne!(link(), Link::Down);
    drop(second);
    assert_eq!(link(), Link::Down);
}

/// Publishes to a subscription, and keeps the server silent until a ping is sent, several times.
pub(in super::super) async fn publishes(server: &RedisServer, notifier: &Notifier, heard: &Heard) {
    eventually("the subscription", SOON, async || {
        notifier.current_link() != Link::Down
    })
    .await;
    let publish = || {
        server
            .query::<()>(&["PUBLISH", "td:wake:all", "x"])
            .unwrap()
    };
    publish();
    // A received message shows that earlier messages have arrived, too.
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

/// A ping distinguishes a silent server from one that has vanished.
#[tokio::test]
async fn a_subscription_stays_while_the_server_is_silent() {
    let server = RedisServer::start().await;
    let endpoint = Endpoint::new(&server.url(), &Access::default()).unwrap();
    let (notifier, heard, _) = notifier();
    let subscriber = subscriber(&notifier);
    tokio::select! {
        _ = subscriber.receive(ready(Ok(&endpoint)), pending()) => panic!("it has ended"),
        () = publishes(&server, &notifier, &heard) => {}
    }
}

#[tokio::test(start_paused = true)]
async fn each_grant_is_passed_on_once_for_a_while() {
    let mut seen = Duplicates::default();
    assert!(seen.is_new(b"a") && seen.is_new(b"b"));
    assert!(!seen.is_new(b"a") && !seen.is_new(b"b"));
    tokio::time::advance(WINDOW + Duration::from_millis(1)).await;
    assert!(!seen.is_new(b"a"), "within the window");
    tokio::time::advance(WINDOW + Duration::from_millis(1)).await;
    assert!(seen.is_new(b"c"));
    assert_eq!((seen.current.len(), seen.previous.len()), (1, 0));
    assert!(seen.is_new(b"a"));
}
