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
    eventually("the moon to fall", Duration::from_millis(20), async || false).await;
}

#[tokio::test]
async fn redis_server_dies_and_comes_back_empty_on_its_port() {
    let began = Instant::now();
    let server = RedisServer::with_args(&["--enable-debug-command", "yes"]).await;
    println!("redis-server: {:?}", began.elapsed());
    let url = server.url();
    assert_eq!(server.cli(&["SET", "key", "value"]), "OK");
    assert_eq!(server.cli(&["GET", "key"]), "value");
    assert_eq!(server.cli(&["DEBUG", "SLEEP", "0"]), "OK");

    server.kill9();
    assert!(!is_listening(server.port()));

    server.restart().await;
    assert_eq!(server.url(), url);
    assert_eq!(server.cli(&["GET", "key"]), "");

    let (port, dir) = (server.port(), server.dir());
    assert!(dir.exists());
    drop(server);
    assert!(!is_listening(port));
    assert!(!dir.exists());
}

#[tokio::test]
async fn servers_die_with_the_test_process() {
    let mut owner = Child::spawn("harness::role_server_owner", &[]);
    let port: u16 = owner.next_line().await.parse().unwrap();
    let dir = owner.next_line().await;
    assert!(is_listening(port));

    owner.kill9();
    eventually("the watcher to kill the server", SOON, async || !is_listening(port)).await;
    eventually("the watcher to remove its directory", SOON, async || !Path::new(&dir).exists()).await;
}

role!(role_server_owner, async {
    let server = RedisServer::start().await;
    tell(&server.port().to_string());
    tell(server.dir().to_str().unwrap());
    std::future::pending().await
});

#[tokio::test]
async fn proxy_stalls_and_delivers_late() {
    let (server, proxy) = proxied().await;
    let mut client = impatient(proxy.port());
    assert_eq!(incr(&mut client, "n"), Ok(1));

    proxy.stall();
    assert_timed_out(incr(&mut client, "n"));
    assert!(is_listening(proxy.port()));
    assert_eq!(server.cli(&["GET", "n"]), "1");

    proxy.heal();
    eventually("the stalled command", SOON, async || server.cli(&["GET", "n"]) == "2").await;
}

#[tokio::test]
async fn proxy_holds_back_what_the_gone_have_sent_and_lets_it_through_late() {
    let (server, proxy) = proxied().await;
    let mut client = impatient(proxy.port());
    assert_eq!(incr(&mut client, "n"), Ok(1));

    proxy.hold_back();
    assert_timed_out(incr(&mut client, "n"));
    let mut pipeline = redis::pipe();
    pipeline.incr("n", 1).rpush("order", "first").rpush("order", "last");
    assert!(client.query_all::<u64>(&pipeline).is_err());
    drop(client);
    eventually("all to be held back", SOON, async || proxy.held_back() == 4).await;
    assert_eq!(incr(&mut impatient(proxy.port()), "new"), Ok(1));
    assert_eq!(server.cli(&["GET", "n"]), "1");

    proxy.let_through();
    assert_eq!(proxy.held_back(), 0);
    assert_eq!(server.cli(&["GET", "n"]), "3");
    assert_eq!(server.cli(&["LRANGE", "order", "0", "-1"]), "first\nlast");
    eventually("the late connection to close", SOON, async || {
        !server.cli(&["CLIENT", "LIST"]).contains("cmd=rpush")
    })
    .await;
}

#[tokio::test]
async fn proxy_lets_a_client_go_on_that_was_held_back() {
    let (_server, proxy) = proxied().await;
    let mut client = impatient(proxy.port());
    assert_eq!(incr(&mut client, "n"), Ok(1));
    proxy.hold_back();
    assert_timed_out(incr(&mut client, "n"));
    proxy.let_through();
    // The late reply is the first that it reads.
    assert_eq!(incr(&mut client, "n"), Ok(2));
    assert_eq!(incr(&mut client, "n"), Ok(3));
}

#[tokio::test]
async fn proxy_runs_commands_and_drops_their_replies() {
    let (server, proxy) = proxied().await;
    let mut client = impatient(proxy.port());
    let mut lucky = impatient(proxy.port());

    proxy.drop_replies();
    assert_timed_out(incr(&mut client, "n"));
    assert_eq!(server.cli(&["GET", "n"]), "1");
    assert_eq!(proxy.replies_dropped(), 1);

    proxy.heal();
    // A later reply would be taken for the lost one.
    assert!(incr(&mut client, "n").is_err());
    assert_eq!(incr(&mut lucky, "n"), Ok(2));
}

#[tokio::test]
async fn proxy_cuts_connections_and_heals() {
    let (_server, proxy) = proxied().await;
    let mut client = impatient(proxy.port());
    assert_eq!(incr(&mut client, "n"), Ok(1));

    proxy.cut();
    assert!(is_broken(incr(&mut client, "n")));
    assert!(is_broken(Client::connect(proxy.port()).and_then(|mut client| incr(&mut client, "n"))));

    proxy.heal();
    assert_eq!(incr(&mut impatient(proxy.port()), "n"), Ok(2));
}

#[tokio::test]
async fn proxy_loses_one_reply_and_its_connection() {
    let (server, proxy) = proxied().await;
    let mut client = impatient(proxy.port());
    let mut other = impatient(proxy.port());

    proxy.drop_next_reply_after(b"unlucky");
    assert_eq!(incr(&mut client, "n"), Ok(1));
    assert!(is_broken(incr(&mut client, "unlucky")));
    assert_eq!(server.cli(&["GET", "unlucky"]), "1");
    assert_eq!(proxy.replies_dropped(), 1);
    assert_eq!(incr(&mut other, "unlucky"), Ok(2));
    assert_eq!(incr(&mut impatient(proxy.port()), "unlucky"), Ok(3));
}

#[tokio::test]
async fn proxy_loses_the_right_reply_of_a_pipeline_among_pushes() {
    let (server, proxy) = proxied().await;
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
    client.write_all(format!("{}\r\n", commands.join("\r\n")).as_bytes()).unwrap();
    let mut received = Vec::new();
    // The connection may be reset rather than closed.
    let _ = client.read_to_end(&mut received);
    let received = String::from_utf8(received).unwrap();
    assert!(received.contains(">3\r\n$9\r\nsubscribe"), "{received}");
    assert!(received.contains(":11\r\n"), "{received}");
    assert!(received.contains("hello"), "{received}");
    assert!(!received.contains(":22"), "{received}");
    assert!(!received.contains(":33"), "{received}");
    assert_eq!(server.cli(&["GET", "unlucky"]), "22");
    assert_eq!(proxy.replies_dropped(), 1);
}

#[tokio::test]
async fn proxy_counts_requests_also_in_pipelines() {
    let (_server, proxy) = proxied().await;
    let mut client = impatient(proxy.port());
    let mut pipeline = redis::pipe();
    pipeline.incr("a", 1).incr("b", 1).get("a");
    let replies: Vec<u64> = client.query_all(&pipeline).unwrap();
    assert_eq!(replies, [1, 1, 1]);
    assert_eq!(proxy.requests_containing(b"INCR"), 2);
    assert_eq!(proxy.requests_containing(b"\r\na\r\n"), 2);
    assert_eq!(proxy.requests_containing(b"EVALSHA"), 0);
}

#[tokio::test]
async fn proxy_passes_what_takes_many_packets() {
    let (_server, proxy) = proxied().await;
    let mut client = Client::connect(proxy.port()).unwrap();
    let large = vec![b'x'; 3_000_000];
    let reply: String = client.query(redis::cmd("SET").arg("large").arg(&large)).unwrap();
    assert_eq!(reply, "OK");
    let back: Vec<u8> = client.query(redis::cmd("GET").arg("large")).unwrap();
    assert!(back == large);
}

#[tokio::test]
async fn proxy_delays_each_reply_and_not_one_after_the_other() {
    let server = RedisServer::start().await;
    let delay = Duration::from_secs(1);
    let proxy = FaultProxy::start(server.port()).await;
    proxy.delay_replies(delay);
    let port = proxy.port();
    let mut client = Client::connect(port).unwrap();
    let began = Instant::now();
    let mut pipeline = redis::pipe();
    pipeline.incr("n", 1).incr("n", 1).incr("n", 1);
    assert_eq!(client.query_all::<u64>(&pipeline).unwrap(), [1, 2, 3]);
    assert!(began.elapsed() >= delay && began.elapsed() < 3 * delay, "{:?}", began.elapsed());

    proxy.cut();
    assert!(is_broken(incr(&mut client, "n")));
    assert!(is_broken(Client::connect(port).and_then(|mut client| incr(&mut client, "n"))));
    proxy.heal();
    proxy.delay_replies(Duration::ZERO);
    assert_eq!(incr(&mut Client::connect(port).unwrap(), "n"), Ok(4));
    assert_eq!(proxy.accepted().len(), 3);
}

#[tokio::test]
async fn child_tells_lines_and_ends() {
    let mut child = Child::spawn("harness::role_counter", &[("COUNT_TO", "3")]);
    for number in ["1", "2", "3"] {
        assert_eq!(child.next_line().await, number);
    }
    assert_eq!(child.try_next_line().await, None);
    assert!(child.wait().await.success());
}

#[tokio::test]
async fn child_fails_if_its_role_panics() {
    let mut child = Child::spawn("harness::role_counter", &[("COUNT_TO", "no number")]);
    assert!(!child.wait().await.success());
}

#[tokio::test]
async fn child_can_be_killed_while_paused() {
    let mut child = Child::spawn("harness::role_counter", &[("COUNT_TO", "1000000000")]);
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
    let mut client = server.client().unwrap();
    let mut pipeline = redis::pipe();
    for number in 0..2_500 {
        pipeline.set_ex(format!("mortal-{number}"), "", 60).ignore();
    }
    pipeline.set("immortal", "").ignore().set("also immortal", "").ignore();
    client.query_all::<Value>(&pipeline).unwrap();
    assert_eq!(keys_without_ttl(&server), ["also immortal", "immortal"]);
}

async fn proxied() -> (RedisServer, FaultProxy) {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    (server, proxy)
}

/// A client whose commands fail when they are not answered soon.
fn impatient(port: u16) -> Client {
    Client::with_timeout(port, SILENCE).unwrap()
}

fn incr(client: &mut Client, key: &str) -> RedisResult<u64> {
    client.query(redis::cmd("INCR").arg(key))
}

fn assert_timed_out(result: RedisResult<u64>) {
    assert!(result.as_ref().is_err_and(RedisError::is_timeout), "{result:?}");
}

/// The connection was lost, as opposed to a time-out.
fn is_broken<T>(result: RedisResult<T>) -> bool {
    result.is_err_and(|error| error.is_io_error() && !error.is_timeout())
}

fn is_listening(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}
