//! The harness's own tests: each piece does once what the other tests rely on.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use deadpool_redis::redis::{self, RedisError, RedisResult, Value};
use support::client::Client;
use support::eventually;
use support::keys::keys_without_ttl;
use support::processes::{Child, is_child, setting, tell};
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;
use support::role;

const SOON: Duration = Duration::from_secs(10);
/// For what must not happen: long enough for a local round trip a hundred times over.
const SILENCE: Duration = Duration::from_millis(200);

#[tokio::test]
#[should_panic(expected = "for the moon to fall")]
async fn eventually_names_what_it_waited_for() {
    eventually("the moon to fall", Duration::from_millis(20), async || {
        false
    })
    .await;
}

#[tokio::test]
async fn servers_die_with_the_test_process() {
    let mut owner = Child::spawn("harness::role_server_owner", &[]);
    let port: u16 = owner.next_line().await.parse().unwrap();
    let dir = owner.next_line().await;
    assert!(is_listening(port));

    owner.kill9();
    eventually("the watcher to kill the server", SOON, async || {
        !is_listening(port)
    })
    .await;
    eventually("the watcher to remove its directory", SOON, async || {
        !Path::new(&dir).exists()
    })
    .await;
}

role!(role_server_owner, async {
    let server = RedisServer::start().await;
    tell(&server.port().to_string());
    tell(server.dir().to_str().unwrap());
    std::future::pending().await
});

/// One mode after the other, each of which is healed.
#[tokio::test]
async fn a_proxy_stalls_holds_back_loses_and_cuts() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let connect = || Client::with_timeout(proxy.port(), SILENCE).unwrap();
    let stored = |key: &str| server.cli(&["GET", key]);
    // First, while no other reply is under way.
    let [mut client, mut lucky] = [connect(), connect()];
    proxy.drop_replies();
    assert_timed_out(incr(&mut client, "lost"));
    assert_eq!((&*stored("lost"), proxy.replies_dropped()), ("1", 1));
    proxy.heal();
    // A later reply would be taken for the lost one.
    assert!(incr(&mut client, "lost").is_err());
    assert_eq!(incr(&mut lucky, "lost"), Ok(2));

    let mut client = connect();
    assert_eq!(incr(&mut client, "stall"), Ok(1));
    proxy.stall();
    assert_timed_out(incr(&mut client, "stall"));
    assert_eq!(stored("stall"), "1");
    proxy.heal();
    eventually("the stalled command", SOON, async || stored("stall") == "2").await;

    // What the gone have sent comes late, and a client that has waited reads the late reply first.
    let [mut client, mut gone] = [connect(), connect()];
    assert_eq!(
        [incr(&mut client, "held"), incr(&mut gone, "held")],
        [Ok(1), Ok(2)]
    );
    proxy.hold_back();
    assert_timed_out(incr(&mut client, "held"));
    let mut pipeline = redis::pipe();
    pipeline.rpush("order", "first").rpush("order", "last");
    assert!(gone.query_all::<u64>(&pipeline).is_err());
    drop(gone);
    eventually("all to be held back", SOON, async || proxy.held_back() == 3).await;
    assert_eq!(incr(&mut connect(), "new"), Ok(1));
    assert_eq!(stored("held"), "2");
    proxy.let_through();
    assert_eq!(
        (
            proxy.held_back(),
            &*server.cli(&["LRANGE", "order", "0", "-1"])
        ),
        (0, "first\nlast")
    );
    assert_eq!(
        [incr(&mut client, "held"), incr(&mut client, "held")],
        [Ok(3), Ok(4)]
    );

    proxy.cut();
    assert!(is_broken(incr(&mut lucky, "cut")));
    assert!(is_broken(
        Client::connect(proxy.port()).and_then(|mut client| incr(&mut client, "cut"))
    ));
    proxy.heal();
    assert_eq!(incr(&mut connect(), "cut"), Ok(1));
}

#[tokio::test]
async fn a_proxy_loses_the_right_reply_of_a_pipeline_among_pushes() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();

    proxy.drop_next_reply_after(b"unlucky");
    let commands = [
        "HELLO 3",
        "SUBSCRIBE channel",
        "INCRBY a 11",
        "PUBLISH channel hello",
        "INCRBY unlucky 22",
        "INCRBY b 33",
    ];
    client
        .write_all(format!("{}\r\n", commands.join("\r\n")).as_bytes())
        .unwrap();
    let mut received = Vec::new();
    // The connection may be reset rather than closed.
    let _ = client.read_to_end(&mut received);
    let received = String::from_utf8(received).unwrap();
    for (text, comes) in [
        (">3\r\n$9\r\nsubscribe", true),
        (":11\r\n", true),
        ("hello", true),
        (":22", false),
        (":33", false),
    ] {
        assert_eq!(received.contains(text), comes, "{text}: {received}");
    }
    assert_eq!(
        (&*server.cli(&["GET", "unlucky"]), proxy.replies_dropped()),
        ("22", 1)
    );
    assert_eq!(
        incr(&mut Client::connect(proxy.port()).unwrap(), "unlucky"),
        Ok(23)
    );
    assert_eq!(proxy.requests_containing(b"unlucky"), 2);
}

#[tokio::test]
async fn a_proxy_delays_each_reply_and_not_one_after_the_other() {
    let server = RedisServer::start().await;
    let delay = Duration::from_secs(1);
    let proxy = FaultProxy::start(server.port()).await;
    proxy.delay_replies(delay);
    let mut client = Client::connect(proxy.port()).unwrap();
    let began = Instant::now();
    let mut pipeline = redis::pipe();
    for _ in 0..100 {
        pipeline.incr("n", 1);
    }
    assert!(
        client
            .query_all::<u64>(&pipeline)
            .unwrap()
            .into_iter()
            .eq(1..=100)
    );
    assert!(
        (delay..100 * delay).contains(&began.elapsed()),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn children_tell_lines_end_fail_and_are_killed() {
    let count_to = |last| Child::spawn("harness::role_counter", &[("COUNT_TO", last)]);
    let mut child = count_to("3");
    for number in ["1", "2", "3"] {
        assert_eq!(child.next_line().await, number);
    }
    assert_eq!(child.try_next_line().await, None);
    assert!(child.wait().await.success());
    assert!(
        !count_to("no number").wait().await.success(),
        "its role panics"
    );

    let mut child = count_to("1000000000");
    assert_eq!(child.next_line().await, "1");
    child.pause();
    child.kill9();
    assert!(!Path::new("/proc").join(child.id().to_string()).exists());
    assert!(!child.wait().await.success());
}

#[tokio::test]
#[should_panic(expected = "no ignored test is called role_missspelt")]
async fn child_must_have_a_role() {
    let _child = Child::spawn("role_missspelt", &[]);
}

#[test]
#[ignore = "a role, started by the tests of child processes"]
fn role_counter() {
    if !is_child() {
        return;
    }
    let last: u64 = setting("COUNT_TO").parse().unwrap();
    for number in 1..=last {
        tell(&number.to_string());
    }
}

#[tokio::test]
async fn keys_without_ttl_are_found() {
    let server = RedisServer::start().await;
    let mut pipeline = redis::pipe();
    for number in 0..2_500 {
        pipeline.set_ex(format!("mortal-{number}"), "", 60);
    }
    pipeline.set("immortal", "").set("also immortal", "");
    server
        .client()
        .unwrap()
        .query_all::<Value>(&pipeline)
        .unwrap();
    assert_eq!(keys_without_ttl(&server), ["also immortal", "immortal"]);
}

fn incr(client: &mut Client, key: &str) -> RedisResult<u64> {
    client.query(redis::cmd("INCR").arg(key))
}

fn assert_timed_out(result: RedisResult<u64>) {
    assert!(
        result.as_ref().is_err_and(RedisError::is_timeout),
        "{result:?}"
    );
}

/// The connection was lost, as opposed to a time-out.
fn is_broken<T>(result: RedisResult<T>) -> bool {
    result.is_err_and(|error| error.is_io_error() && !error.is_timeout())
}

fn is_listening(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}
