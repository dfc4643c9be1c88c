//! Tests of how a process follows a setting, with state that only unit tests can set.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, SystemTime};

use super::FleetSetting;
use super::operations::Stored;
use crate::bucket::quotas::Quotas;
use crate::fleet::version::SettingVersion;
use crate::store::Store;
use crate::store::notifier::Link;
use support::eventually;
use support::patient;
use support::redis_server::RedisServer;

const SOON: Duration = Duration::from_secs(20);

const KEY: &str = "td:{api:}:setting:quotas";

fn setting(store: &Store) -> FleetSetting<Quotas> {
    FleetSetting::new(store, "api", "1/s").unwrap()
}

fn shown(setting: &FleetSetting<Quotas>) -> String {
    setting.current().to_string()
}

/// A setting on the server that is subscribed and has read the store.
async fn following(server: &RedisServer) -> (Store, FleetSetting<Quotas>) {
    let store = patient!(server.url());
    let setting = setting(&store);
    eventually("a subscription", SOON, async || {
        store.notifier().current_link() != Link::Down
    })
    .await;
    setting.refresh().await.unwrap();
    (store, setting)
}

fn version(number: u64, at: u64, text: &str) -> SettingVersion {
    let at = SystemTime::UNIX_EPOCH + Duration::from_micros(at);
    SettingVersion {
        number,
        text: Some(text.into()),
        who: "ann".into(),
        at,
    }
}

fn stored(versions: &[&SettingVersion]) -> Stored {
    Stored {
        versions: versions.iter().map(|version| (*version).clone()).collect(),
        is_recognised: true,
    }
}

#[test]
fn an_answer_that_is_older_than_a_message_changes_nothing() {
    let setting = setting(&Store::in_memory());
    let follower = &setting.follower;
    let (one, two) = (version(1, 10, "1/h"), version(2, 20, "2/h"));
    let before = follower.changes();
    follower.hear_of(&two);
    follower.learn(before, &stored(&[&one]));
    assert_eq!((shown(&setting), setting.version()), ("2/h".into(), 2));
    follower.learn(before, &stored(&[]));
    assert_eq!((shown(&setting), setting.version()), ("2/h".into(), 2));
    // A late copy of a message, from another node of a Cluster.
    follower.hear_of(&one);
    assert_eq!(setting.version(), 2);
    // A read without a change meanwhile is authoritative: after a failover the last version can be lost.
    follower.learn(follower.changes(), &stored(&[&one]));
    assert_eq!((shown(&setting), setting.version()), ("1/h".into(), 1));
    // The number of this version was used before.
    follower.hear_of(&version(2, 30, "3/h"));
    assert_eq!((shown(&setting), setting.version()), ("3/h".into(), 2));
    follower.learn(follower.changes(), &stored(&[]));
    assert_eq!((shown(&setting), setting.version()), ("3/h".into(), 0));
    follower.hear_of(&version(1, 40, "4/h"));
    assert_eq!((shown(&setting), setting.version()), ("4/h".into(), 1));
}

#[test]
fn a_text_that_cannot_be_read_leaves_the_last_known_value_in_force() {
    let setting = setting(&Store::in_memory());
    let follower = &setting.follower;
    follower.hear_of(&version(1, 10, "10/fortnight"));
    assert_eq!(
        (shown(&setting), setting.version()),
        ("1/s".into(), 1),
        "the default"
    );
    follower.hear_of(&version(2, 20, "2/h"));
    for (number, text) in [
        (3, "10/fortnight"),
        (4, ""),
        (5, "1/0s"),
        (6, "1/s, burst"),
        (7, "-1 in all"),
    ] {
        follower.hear_of(&version(number, number * 10, text));
        assert_eq!(
            (shown(&setting), setting.version()),
            ("2/h".into(), number),
            "{text:?}"
        );
    }
    follower.hear_of(&version(8, 80, "8/h"));
    assert_eq!(shown(&setting), "8/h");
}

#[tokio::test]
async fn forged_state_and_messages_leave_the_last_known_value_in_force() {
    let server = RedisServer::start().await;
    let (_store, reader) = following(&server).await;
    let (_other, writer) = following(&server).await;
    reader.poll_every(Duration::from_millis(20));
    writer.set("2/s", "ann").await.unwrap();
    eventually("the message", SOON, async || reader.version() == 1).await;

    let publish = |message: &str| server.cli(&["PUBLISH", "td:wake:all", message]);
    let begin = "setting:quotas\napi\n";
    for message in [
        "",
        "7 1 0\nx\n",
        "7 1 0\nx\n1/s",
        "7 99999999999999999999 0\nx\n+9/s",
        "\u{0}",
        "7 1 0\nx\n+9/s",
    ] {
        publish(&format!("{begin}{message}"));
    }
    publish("setting:quotas\nother\n7 8888888888888888 0\nx\n+9/s");
    publish("setting:limit\napi\n7 8888888888888888 0\nx\n+9/s");
    for forged in [
        "",
        "\u{1b}[2J",
        "1/s",
        "7 1 0\nx\n1000000/s",
        "9007199254740992 1 0\nx\n+9/s",
    ] {
        server.cli(&["RPUSH", KEY, forged]);
        assert!(
            writer.refresh().await.unwrap_err().is_wrong_type(),
            "{forged:?}"
        );
        assert!(
            writer.history().await.is_err()
                && writer.set("3/s", "ann").await.unwrap_err().is_wrong_type()
        );
        assert!(writer.undo("ann").await.unwrap_err().is_wrong_type());
        assert_eq!(
            (shown(&reader), shown(&writer)),
            ("2/s".into(), "2/s".into())
        );
        // An undo to a version that cannot be parsed fails.
        server.cli(&["RPUSH", KEY, "2 8888888888 0a\nx\n+4/s"]);
        assert_eq!(writer.refresh().await.unwrap(), 2);
        assert!(
            writer.undo("ann").await.unwrap_err().is_wrong_type(),
            "{forged:?}"
        );
        server.cli(&["RPOP", KEY, "2"]);
        // An earlier read may still be in flight.
        eventually("the true one", SOON, async || {
            let read = (
                reader.refresh().await.unwrap(),
                writer.refresh().await.unwrap(),
            );
            read == (1, 1) && shown(&reader) == "2/s"
        })
        .await;
    }
    // A key of another type, and no key.
    server.cli(&["SET", KEY, "10/s"]);
    assert!(writer.refresh().await.unwrap_err().is_wrong_type());
    assert!(writer.set("3/s", "ann").await.unwrap_err().is_wrong_type());
    server.cli(&["DEL", KEY]);
    eventually("the loss", SOON, async || reader.version() == 0).await;
    assert_eq!(
        (shown(&reader), shown(&writer)),
        ("2/s".into(), "2/s".into())
    );
    let error = writer.set_if(1, "3/s", "ann").await.unwrap_err();
    assert!(
        error.is_conflict() && error.to_string().contains("what was stored is lost"),
        "{error}"
    );
    assert_eq!(writer.set("3/s", "ann").await.unwrap().number, 1);
    eventually("the new one", SOON, async || shown(&reader) == "3/s").await;
}

/// Following needs no running task of a caller.
#[test]
fn an_idle_runtime_follows() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let server = runtime().block_on(RedisServer::start());
    let idle = runtime();
    let (store, reader) = idle.block_on(following(&server));
    runtime().block_on(async {
        let (_other, writer) = following(&server).await;
        writer.set("2/s", "ann").await.unwrap();
        eventually("the message", SOON, async || shown(&reader) == "2/s").await;
        // Made outside of any runtime.
        let name = server.url();
        let made = std::thread::spawn(move || setting(&patient!(name)))
            .join()
            .unwrap();
        eventually("the stored one", SOON, async || shown(&made) == "2/s").await;
    });
    drop((store, idle));
}

#[tokio::test]
async fn a_store_that_is_shut_down_reads_no_more_until_it_is_used() {
    let server = RedisServer::start().await;
    let (store, reader) = following(&server).await;
    reader.poll_every(Duration::from_millis(5));
    store.shutdown(SOON).await.unwrap();
    assert!(!reader.follower.is_followed());
    let (_other, writer) = following(&server).await;
    writer.set("2/s", "ann").await.unwrap();
    assert_eq!(reader.refresh().await.unwrap(), 1);
    assert!(reader.follower.is_followed());
    writer.set("3/s", "ann").await.unwrap();
    eventually("the next one", SOON, async || shown(&reader) == "3/s").await;
}

/// After the last handle is dropped, nothing reads the store.
#[tokio::test]
async fn a_setting_without_handles_ends() {
    let server = RedisServer::start().await;
    let (store, reader) = following(&server).await;
    reader.poll_every(Duration::from_millis(5));
    let follower = std::sync::Arc::downgrade(&reader.follower);
    drop(reader);
    eventually("the end", SOON, async || follower.strong_count() == 0).await;
    drop(store);
}
