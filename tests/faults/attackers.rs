//! What those who share a server can do: a neighbour, a reader, and a process that is not ours any more. See SECURITY.md.

use std::time::Duration;

use deadpool_redis::redis::{Cmd, Value, cmd};
use tower_distributed::operator::{Entry, Kind, Operator};
use tower_distributed::{
    Credentials, Error, Mutex, MutexGuard, Quota, RwLock, Store, TokenBucket, WaitGroup,
};

use support::client::Client;
use support::eventually;
use support::redis_server::RedisServer;

const SOON: Duration = Duration::from_secs(20);
const KEY: &str = "td:{x:k}:tat";

/// A connection of a user.
fn connected(server: &RedisServer, user: &str) -> Client {
    let mut client = server.client().unwrap();
    client
        .query::<()>(cmd("AUTH").arg(user).arg("secret"))
        .unwrap();
    client
}

fn words(command: &[&str]) -> Cmd {
    let mut words = cmd(command[0]);
    words.arg(&command[1..]);
    words
}

fn is_denied(client: &mut Client, command: &[&str]) -> bool {
    client.query::<Value>(&words(command)).is_err_and(|error| {
        // In a script of Redis 7.0, and since 7.2, it is told otherwise.
        let text = error.to_string();
        let is_of_a_script =
            text.contains("can't access") || text.contains("ACL failure in script");
        error.code() == Some("NOPERM") || is_of_a_script
    })
}

async fn is_admitted(store: &Store) -> bool {
    let bucket = TokenBucket::new(store, "x", Quota::non_refilling(2)).unwrap();
    bucket.allow("k").await.unwrap().is_admitted()
}

/// Of two services on one server, each with the rule of its own prefix. A prefix may begin with the other.
#[tokio::test]
async fn a_neighbour_with_another_prefix_reaches_nothing() {
    let server = RedisServer::start().await;
    let service = |prefix: &str, user: &str| {
        let builder = Store::builder()
            .prefix(prefix)
            .credentials(Credentials::new(user, "secret"));
        let store = builder.redis(&server.url()).unwrap();
        server.set_user(&store.acl_rule(user).unwrap(), &["on", ">secret"]);
        store
    };
    let (store, neighbour) = (service("td", "app"), service("td2", "neighbour"));
    assert!(is_admitted(&store).await);
    assert!(
        is_admitted(&neighbour).await,
        "the same name is another bucket"
    );
    let mut client = connected(&server, "neighbour");
    let before = server.query::<Vec<u8>>(&["DUMP", KEY]).unwrap();
    for command in [
        &["GET", KEY][..],
        &["SET", KEY, "1"],
        &["DEL", KEY],
        &["EVAL", "return redis.call('GET', KEYS[1])", "1", KEY],
        // Also if the script does not say which keys it uses.
        &["EVAL", "return redis.call('DEL', 'td:{x:k}:tat')", "0"],
        &["PUBLISH", "td:wake:all", "forget\nx\nk"],
        &["SUBSCRIBE", "td:wake:all"],
        &["KEYS", "*"],
        &["SCAN", "0"],
        &["FLUSHALL"],
        &["SCRIPT", "FLUSH"],
        &["CONFIG", "SET", "maxmemory", "1"],
        &["CLIENT", "KILL", "TYPE", "normal"],
        &["MONITOR"],
        &["ACL", "LIST"],
    ] {
        assert!(is_denied(&mut client, command), "{command:?}");
    }
    assert_eq!(server.query::<Vec<u8>>(&["DUMP", KEY]).unwrap(), before);
    // Nor by our own calls, whatever the key is.
    let bucket = TokenBucket::new(&neighbour, "x", Quota::non_refilling(2)).unwrap();
    for key in ["}:td:{x:k", "k}:tat", "../td:{x:k", "\0", ""] {
        bucket.allow(key).await.unwrap();
    }
    let keys: Vec<String> = server.query(&["KEYS", "*"]).unwrap();
    assert_eq!(
        keys.iter()
            .filter(|key| !key.starts_with("td2:"))
            .collect::<Vec<_>>(),
        [KEY]
    );
}

#[tokio::test]
async fn a_password_that_reads_changes_nothing() {
    let server = RedisServer::start().await;
    server.cli(&[
        "ACL", "SETUSER", "reader", "on", ">secret", "~td:*", "+@read", "+auth",
    ]);
    let store = Store::redis(&server.url()).unwrap();
    assert!(is_admitted(&store).await);
    let guard = Mutex::new(&store, "x").unwrap().lock("k").await.unwrap();
    let mut client = connected(&server, "reader");
    let script = "return redis.call('SET', KEYS[1], 'x')";
    for command in [
        &["SET", KEY, "1"][..],
        &["DEL", KEY],
        &["EVAL", script, "1", KEY],
        &["EVAL_RO", script, "1", KEY],
        &["PUBLISH", "td:wake:all", "forget\nx\nk"],
        &["GETDEL", "td:{x:k}:lock"],
        &["PEXPIRE", KEY, "1"],
    ] {
        let denied = client.query::<Value>(&words(command)).unwrap_err();
        let is_unknown = denied.to_string().contains("unknown command");
        assert!(
            denied.code() == Some("NOPERM") || is_unknown,
            "{command:?}: {denied}"
        );
    }
    // It reads what is stored, as it is: keys, tokens, answers.
    let lock: String = client.query(cmd("GET").arg("td:{x:k}:lock")).unwrap();
    assert_eq!(lock, guard.token());
    assert!(guard.unlock().await.unwrap() && is_admitted(&store).await);
}

/// A lock, a waiter of another process, and the channel and the id of the waiter.
struct Waiting {
    server: RedisServer,
    holder: MutexGuard,
    waiter: tokio::task::JoinHandle<Result<MutexGuard, Error>>,
    channel: String,
    id: String,
}

impl Waiting {
    async fn new() -> Self {
        let server = RedisServer::start().await;
        let mutex = || Mutex::new(&Store::redis(&server.url()).unwrap(), "x").unwrap();
        let holder = mutex().lock("k").await.unwrap();
        let waiter = tokio::spawn({
            let mutex = mutex();
            async move { mutex.lock("k").await }
        });
        let waiters = async || {
            server
                .query::<Vec<String>>(&["ZRANGE", "td:{x:k}:waiters", "0", "-1"])
                .unwrap()
        };
        eventually("a waiter", SOON, async || waiters().await.len() == 1).await;
        let token = waiters().await.remove(0);
        let (process, rest) = token.split_once('-').unwrap();
        let channel = format!("td:wake:{process}");
        let id = rest.split('.').next().unwrap().to_owned();
        let heard = async || {
            server
                .query::<Vec<String>>(&["PUBSUB", "CHANNELS", &channel])
                .unwrap()
                .len()
                == 1
        };
        eventually("a subscription", SOON, heard).await;
        Self {
            holder,
            waiter,
            channel,
            id,
            server,
        }
    }

    fn publish(&self, message: &str) {
        self.server.cli(&["PUBLISH", &self.channel, message]);
    }
}

/// A process with write access can make a waiter believe in a grant, however long it says that this lasts: until the next
/// renewal of the waiter. The holder keeps its lock.
#[tokio::test]
async fn a_forged_grant_ends_with_the_first_renewal() {
    let waiting = Waiting::new().await;
    waiting.publish(&format!("4503599627370495 7 {}", waiting.id));
    let deceived = tokio::time::timeout(SOON, waiting.waiter)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    tokio::time::timeout(SOON, deceived.handle().lost())
        .await
        .unwrap();
    assert!(!deceived.is_held());
    assert!(waiting.holder.is_held() && waiting.holder.unlock().await.unwrap());
}

/// Whatever is published to a process: it goes on.
#[tokio::test]
async fn forged_messages_stop_nobody() {
    let waiting = Waiting::new().await;
    let id = &waiting.id;
    for message in [
        // Grants that ended before the server's clock began.
        format!("-9223372036854775808 -1 {id}"),
        format!("-9223372036854775808 9223372036854775807 {id}"),
        String::new(),
        "1".into(),
        "x y z".into(),
        format!("9223372036854775807 9223372036854775807 {}", "f".repeat(16)),
        "-9223372036854775808 -9223372036854775808 0".into(),
        format!("99999999999999999999 0 {id}"),
        format!("0 0 {id}"),
        format!("0 0 {id}\n"),
        format!("0 0 {id}\n\x01\x02{}", "x".repeat(100_000)),
    ] {
        waiting.publish(&message);
    }
    assert!(waiting.holder.unlock().await.unwrap());
    let next = tokio::time::timeout(SOON, waiting.waiter)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(next.is_held() && next.unlock().await.unwrap());
}

/// Times that no clock tells, in each kind of lease: calls are refused or wait, and nothing panics.
#[tokio::test]
async fn forged_times_of_holders_stop_no_process() {
    let server = RedisServer::start().await;
    let store = Store::redis(&server.url()).unwrap();
    let operator = Operator::new(&store);
    for time in ["1e300", "inf", "9007199254740993", "9223372036854775807"] {
        server.cli(&["FLUSHALL"]);
        for key in ["td:{x:p}:permits:holders", "td:{x:r}:rw:holders"] {
            // Its ttl, to which a lease is cut that lasts longer, is a day.
            server.cli(&["ZADD", key, time, "0123456789abcdef-1.141dd76000/1/1"]);
        }
        server.cli(&[
            "SET",
            "td:{x:m}:lock",
            "foreign",
            "PX",
            "9000000000000000000",
        ]);
        let short = Duration::from_millis(300);
        let permits = WaitGroup::builder(1)
            .max_wait(short)
            .build(&store, "x")
            .unwrap();
        let (shared, mutex) = (
            RwLock::new(&store, "x").unwrap(),
            Mutex::new(&store, "x").unwrap(),
        );
        assert!(
            permits.try_add("p").await.unwrap_err().is_refused(),
            "{time}"
        );
        assert!(
            shared.try_write("r").await.unwrap_err().is_refused(),
            "{time}"
        );
        assert!(
            mutex.try_lock("m").await.unwrap_err().is_refused(),
            "{time}"
        );
        // A waiter is told when the lease of the holder ends.
        let waited = tokio::time::timeout(SOON, permits.add("p"))
            .await
            .unwrap()
            .unwrap_err();
        assert!(
            waited.is_refused() || waited.is_wrong_type(),
            "{time}: {waited}"
        );
        for (kind, key) in [
            (Kind::WaitGroup, "p"),
            (Kind::RwLock, "r"),
            (Kind::Mutex, "m"),
        ] {
            let entry = Entry::new(kind, "x", key).unwrap();
            let state = operator.inspect(&entry).await.unwrap().unwrap();
            assert_eq!(state.leases().unwrap().holders.len(), 1, "{time} {entry}");
        }
    }
}

/// Permits are counted as one each, and what they weigh besides as a sum. A sum that is less than nothing lets no more in.
#[tokio::test]
async fn a_forged_sum_of_weights_admits_no_more() {
    let server = RedisServer::start().await;
    let permits = WaitGroup::new(&Store::redis(&server.url()).unwrap(), "x", 2).unwrap();
    for sum in ["-inf", "-1e300", "0", "4503599627370400"] {
        server.cli(&["FLUSHALL"]);
        let holders = "td:{x:k}:permits:holders";
        server.cli(&["ZADD", holders, sum, "excess"]);
        let mut held = Vec::new();
        while let Ok(permit) = permits.try_add("k").await {
            held.push(permit);
            server.cli(&["ZADD", holders, sum, "excess"]);
            assert!(held.len() <= 2, "{} at once with {sum}", held.len());
        }
        assert_eq!(permits.inspect("k").await.unwrap().holders.len(), 2);
        for permit in held {
            assert!(permit.done().await.unwrap(), "{sum}");
        }
        assert_eq!(permits.count("k").await.unwrap(), 0, "{sum}");
    }
}
