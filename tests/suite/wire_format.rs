//! State in the forms of the page `wire_format` is honoured, as another version with the same minor version has left it, and
//! what is written has these forms. Do not change the commands within a minor version.

use std::time::Duration;

use deadpool_redis::redis::{self, Value};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use tokio::time::timeout;
use tower_distributed::dedupe::Claimed;
use tower_distributed::fleet::RefusedKeys;
use tower_distributed::operator::Operator;
use tower_distributed::single_flight::Postcard;
use tower_distributed::token_bucket::FleetTable;
use tower_distributed::wait_group::{FleetLimit, PermitId};
use tower_distributed::{
    BloomFilter, Dedupe, Error, FleetQuotas, Mutex, Quota, RateLimitLayer, RwLock, SingleFlight, Store,
    StoreFailure, TokenBucket, WaitGroup,
};

use crate::stores::SOON;
use support::eventually;
use support::redis_server::RedisServer;

const HOUR: i64 = 3_600_000_000;

/// From here on, scores of `beats` are those of tombstones.
const TOMBSTONE: i64 = 1 << 52;

/// A server, and a store on it.
pub(crate) struct Scene {
    pub(crate) server: RedisServer,
    pub(crate) store: Store,
}

impl Scene {
    pub(crate) async fn new() -> Self {
        let server = RedisServer::start().await;
        let store = Store::builder().timeout(Duration::from_secs(10)).redis(&server.url()).unwrap();
        Self { server, store }
    }

    pub(crate) fn now(&self) -> i64 {
        let (seconds, micros): (i64, i64) = self.server.query(&["TIME"]).unwrap();
        seconds * 1_000_000 + micros
    }

    /// Runs commands, one on each line, as redis-cli takes them: a word may be in quotes, with `\xNN` for a byte.
    /// `<NOW+9s>` is a time of the server, `<TOMBSTONE+9s>` the score of a tombstone that is kept until then, `<HOUR-1>` the
    /// hour before this one since 1970, `<HOUR%3>` this hour modulo 3.
    pub(crate) fn run(&self, commands: &str) {
        let now = self.now();
        let mut client = self.server.client().unwrap();
        for line in commands.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let words = words(&filled(line, now));
            let mut command = redis::cmd(std::str::from_utf8(&words[0]).unwrap());
            for word in &words[1..] {
                command.arg(word.as_slice());
            }
            client.query::<Value>(&command).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    fn get(&self, key: &str) -> String {
        let value: Option<Vec<u8>> = self.server.query(&["GET", key]).unwrap();
        String::from_utf8_lossy(&value.unwrap_or_default()).into_owned()
    }

    fn ttl(&self, key: &str) -> i64 {
        self.server.query(&["PTTL", key]).unwrap()
    }

    fn members(&self, key: &str) -> Vec<String> {
        self.server.query(&["ZRANGE", key, "0", "-1"]).unwrap()
    }

    pub(crate) fn keys(&self, pattern: &str) -> Vec<String> {
        let mut keys: Vec<String> = self.server.query(&["KEYS", pattern]).unwrap();
        keys.sort();
        keys
    }

    /// Subscribes as the process `fedcba9876543210`.
    pub(crate) async fn other_process(&self) -> Heard {
        let client = redis::Client::open(self.server.url()).unwrap();
        let mut connection = client.get_async_pubsub().await.unwrap();
        connection.subscribe("td:wake:fedcba9876543210").await.unwrap();
        let messages = connection.into_on_message();
        Heard(messages.map(|message| message.get_payload::<String>().unwrap()).boxed())
    }
}

/// The messages to another process.
pub(crate) struct Heard(BoxStream<'static, String>);

impl Heard {
    pub(crate) async fn next(&mut self) -> String {
        timeout(SOON, self.0.next()).await.expect("no message comes").unwrap()
    }
}

/// Replaces what stands in angle brackets.
fn filled(line: &str, now: i64) -> String {
    let mut parts = line.split('<');
    let mut filled = parts.next().unwrap().to_owned();
    for part in parts {
        let (what, rest) = part.split_once('>').unwrap();
        let (what, modulo) = what.split_once('%').map_or((what, None), |(what, by)| (what, by.parse().ok()));
        let at = what.find(['+', '-']).unwrap_or(what.len());
        let by: i64 = what[at..].trim_end_matches('s').parse().unwrap_or(0);
        let number = match &what[..at] {
            "NOW" => now + by * 1_000_000,
            "TOMBSTONE" => TOMBSTONE + now + by * 1_000_000,
            "HOUR" => now / HOUR + by,
            other => panic!("{other}"),
        };
        let number = modulo.map_or(number, |modulo: i64| number % modulo);
        filled = format!("{filled}{number}{rest}");
    }
    filled
}

/// Splits a command into its words.
fn words(line: &str) -> Vec<Vec<u8>> {
    let (mut words, mut quoted, mut is_open) = (Vec::<Vec<u8>>::new(), false, false);
    let mut bytes = line.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b' ' if !quoted => is_open = false,
            b'"' if quoted => quoted = false,
            _ => {
                if !is_open {
                    words.push(Vec::new());
                    is_open = true;
                }
                match byte {
                    b'"' => quoted = true,
                    b'\\' => {
                        assert_eq!(bytes.next(), Some(b'x'), "{line}");
                        let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                        let digits = std::str::from_utf8(&digits).unwrap();
                        words.last_mut().unwrap().push(u8::from_str_radix(digits, 16).unwrap());
                    }
                    byte => words.last_mut().unwrap().push(byte),
                }
            }
        }
    }
    words
}

/// Whether a text has a form: `#` stands for decimal digits, `@` for hexadecimal ones.
fn has_form(text: &str, form: &str) -> bool {
    let mut text = text.chars().peekable();
    for c in form.chars() {
        let is_digit =
            |other: &char| if c == '#' { other.is_ascii_digit() } else { other.is_ascii_hexdigit() };
        match c {
            '#' | '@' if text.next_if(is_digit).is_some() => while text.next_if(is_digit).is_some() {},
            '#' | '@' => return false,
            c if text.next() == Some(c) => {}
            _ => return false,
        }
    }
    text.next().is_none()
}

#[track_caller]
fn assert_form(text: &str, form: &str) {
    assert!(has_form(text, form), "{text:?} is not {form:?}");
}

/// A token of another process.
const OLD: &str = "0123456789abcdef";

fn is_refused<T>(outcome: &Result<T, Error>) -> bool {
    outcome.as_ref().is_err_and(Error::is_refused)
}

#[tokio::test]
async fn permits() {
    let scene = Scene::new().await;
    let mut heard = scene.other_process().await;
    scene.run(
        r#"
        ZADD td:{permits:k}:permits:holders <NOW+60s> 0123456789abcdef-100000.3938700/2/5
        ZADD td:{permits:k}:permits:holders <NOW+61s> 0123456789abcdef-200000.3938700/1/5
        ZADD td:{permits:k}:permits:holders 4503599627370497 excess
        PEXPIRE td:{permits:k}:permits:holders 172800000
        ZADD td:{permits:k}:permits:waiters 0 fedcba9876543210-3.3938700/5/5
        ZADD td:{permits:k}:permits:beats <NOW+60s> fedcba9876543210-3.3938700/5/5
        ZADD td:{permits:k}:permits:beats <TOMBSTONE+60s> fedcba9876543210-4.3938700/1/5
        PEXPIRE td:{permits:k}:permits:waiters 60000
        PEXPIRE td:{permits:k}:permits:beats 60000
        "#,
    );
    let group = WaitGroup::new(&scene.store, "permits", 5).unwrap();
    let snapshot = group.inspect("k").await.unwrap();
    assert_eq!((snapshot.in_use, snapshot.waiting), (3, 1));
    let weights: Vec<_> = snapshot.holders.iter().map(|holder| (holder.token(), holder.weight)).collect();
    let [two, one] = [format!("{OLD}-100000.3938700/2/5"), format!("{OLD}-200000.3938700/1/5")];
    assert_eq!(weights, [(&*two, 2), (&*one, 1)]);
    assert!(is_refused(&group.try_add("k").await), "the first waiter has its turn");
    for (token, left) in [(two, 1), (one, 5)] {
        assert!(group.done(&format!("permits:k:{token}").parse::<PermitId>().unwrap()).await.unwrap());
        assert_eq!(group.count("k").await.unwrap(), left);
    }
    let holders = "td:{permits:k}:permits:holders";
    assert_eq!(scene.members(holders), ["fedcba9876543210-3.3938700/5/5", "excess"]);
    let expiry: String = scene.server.query(&["ZSCORE", holders, "fedcba9876543210-3.3938700/5/5"]).unwrap();
    // Its waiter has not renewed it yet.
    assert_eq!(heard.next().await, format!("{} 0 3", expiry.strip_suffix(".5").unwrap()));

    scene.run(
        r#"
        ZADD td:{permits:idle}:permits:holders <NOW+60s> 0123456789abcdef-5.3938700/1/5
        PEXPIRE td:{permits:idle}:permits:holders 172800000
        ZADD td:{permits:idle}:permits:waiters 4503599627370496 fedcba9876543210-6.3938700/idle
        ZADD td:{permits:idle}:permits:beats <NOW+60s> fedcba9876543210-6.3938700/idle
        PEXPIRE td:{permits:idle}:permits:waiters 60000
        PEXPIRE td:{permits:idle}:permits:beats 60000
        "#,
    );
    assert!(group.try_add("idle").await.unwrap().done().await.unwrap(), "it takes no permit");
    let id = format!("permits:idle:{OLD}-5.3938700/1/5").parse::<PermitId>().unwrap();
    assert!(group.done(&id).await.unwrap());
    assert_form(&heard.next().await, "# 0 6");
    assert_eq!(scene.keys("td:{permits:idle}:*"), [""; 0]);

    let permit = group.add_n("own", 2).await.unwrap();
    let members = scene.members("td:{permits:own}:permits:holders");
    assert_form(&members[0], "@-@.@/2/5");
    assert_eq!((&members[1..], permit.token()), (&["excess".to_owned()][..], &*members[0]));
    assert_eq!(scene.keys("td:{permits:own}:*"), ["td:{permits:own}:permits:holders"]);
}

/// Flow b is before flow a, and both are before class 1. Whoever has no flow comes between them.
#[tokio::test]
async fn turns() {
    let scene = Scene::new().await;
    let mut heard = scene.other_process().await;
    scene.run(
        r#"
        ZADD td:{permits:k}:permits:holders <NOW+60s> 0123456789abcdef-1.3938700/1/1
        PEXPIRE td:{permits:k}:permits:holders 172800000
        ZADD td:{permits:k}:permits:waiters 140737488358400 fedcba9876543210-2.3938700/1/1/a.1..
        ZADD td:{permits:k}:permits:waiters 281474976710656 fedcba9876543210-3.3938700/1/1/a.1..
        ZADD td:{permits:k}:permits:waiters 140737488357376 fedcba9876543210-4.3938700/1/1/b.1..
        ZADD td:{permits:k}:permits:waiters 562949953421312 fedcba9876543210-5.3938700/1/1/..2.
        ZADD td:{permits:k}:permits:waiters 0 fedcba9876543210-6.3938700/1/1
        ZADD td:{permits:k}:permits:flows 1024 v0 3072 0:a 2048 0:b -4194305 #0:a -2 #0:b 4503599627370498 N0
        ZADD td:{permits:k}:permits:flows 4503599627373156 s0 -1125899906842624 "o 1 86400000 0 0 2"
        ZADD td:{permits:k}:permits:beats <NOW+60s> fedcba9876543210-2.3938700/1/1/a.1..
        ZADD td:{permits:k}:permits:beats <NOW+60s> fedcba9876543210-3.3938700/1/1/a.1..
        ZADD td:{permits:k}:permits:beats <NOW+60s> fedcba9876543210-4.3938700/1/1/b.1..
        ZADD td:{permits:k}:permits:beats <NOW+60s> fedcba9876543210-5.3938700/1/1/..2.
        ZADD td:{permits:k}:permits:beats <NOW+60s> fedcba9876543210-6.3938700/1/1
        PEXPIRE td:{permits:k}:permits:waiters 60000
        PEXPIRE td:{permits:k}:permits:flows 60000
        PEXPIRE td:{permits:k}:permits:beats 60000
        "#,
    );
    let held = served(&scene, &mut heard, &[4, 6, 2, 3]).await;
    // What flow a was served, it has yet to pass.
    let mut members = scene.members("td:{permits:k}:permits:flows");
    members.retain(|member| !member.starts_with("o "));
    assert_eq!(members, ["#0:a", "v0", "0:a", "N0", "s0", "t1"]);
    let time: String = scene.server.query(&["ZSCORE", "td:{permits:k}:permits:flows", "v0"]).unwrap();
    assert_eq!(time, "5120");
    // The last one leaves nothing of the queue.
    let group = WaitGroup::new(&scene.store, "permits", 1).unwrap();
    assert!(group.done(&format!("permits:k:{held}").parse::<PermitId>().unwrap()).await.unwrap());
    assert_eq!(scene.keys("td:{permits:k}:*"), ["td:{permits:k}:permits:holders"]);
}

/// Releases what is held, one after the other, and expects that these waiters are served then. Returns the token of the last one.
async fn served(scene: &Scene, heard: &mut Heard, ids: &[u32]) -> String {
    let group = WaitGroup::new(&scene.store, "permits", 1).unwrap();
    let (mut held, mut lost) = (format!("{OLD}-1.3938700/1/1"), None);
    for next in ids {
        assert!(group.done(&format!("permits:k:{held}").parse::<PermitId>().unwrap()).await.unwrap());
        // Another process has released what the waiter held.
        if let Some(lost) = lost {
            assert_form(&heard.next().await, &format!("0 0 {lost}"));
        }
        assert_form(&heard.next().await, &format!("# 0 {next}"));
        held = scene.members("td:{permits:k}:permits:holders").remove(0);
        lost = Some(next);
    }
    held
}

/// There have been waiters since the epoch, so the newest is before the first.
#[tokio::test]
async fn newest_first() {
    let scene = Scene::new().await;
    let mut heard = scene.other_process().await;
    scene.run(
        r#"
        ZADD td:{permits:k}:permits:holders <NOW+60s> 0123456789abcdef-1.3938700/1/1
        PEXPIRE td:{permits:k}:permits:holders 172800000
        ZADD td:{permits:k}:permits:waiters 0 fedcba9876543210-2.3938700/1/1
        ZADD td:{permits:k}:permits:waiters 1 fedcba9876543210-3.3938700/1/1
        ZADD td:{permits:k}:permits:waiters 562949953421312 fedcba9876543210-4.3938700/1/1
        ZADD td:{permits:k}:permits:flows 4503599627370496 n0 -1125899906842624 "o 1 0 100000"
        ZADD td:{permits:k}:permits:beats <NOW+60s> fedcba9876543210-2.3938700/1/1
        ZADD td:{permits:k}:permits:beats <NOW+60s> fedcba9876543210-3.3938700/1/1
        ZADD td:{permits:k}:permits:beats <NOW+60s> fedcba9876543210-4.3938700/1/1
        PEXPIRE td:{permits:k}:permits:waiters 60000
        PEXPIRE td:{permits:k}:permits:flows 60000
        PEXPIRE td:{permits:k}:permits:beats 60000
        "#,
    );
    served(&scene, &mut heard, &[3, 2, 4]).await;
}

#[tokio::test]
async fn mutexes() {
    let scene = Scene::new().await;
    let mut heard = scene.other_process().await;
    scene.run(
        r#"
        SET td:{mutex:k}:lock 0123456789abcdef-1.3938700 PX 60000
        SET td:{mutex:k}:fence "4000000000000000 " PX 691200000
        ZADD td:{mutex:k}:waiters 0 fedcba9876543210-2.3938700 1 fedcba9876543210-3.3938700 2 fedcba9876543210-a.3938700~36ee80
        ZADD td:{mutex:k}:beats <NOW+60s> fedcba9876543210-2.3938700
        ZADD td:{mutex:k}:beats <NOW-1s> fedcba9876543210-3.3938700
        ZADD td:{mutex:k}:beats <NOW+60s> fedcba9876543210-a.3938700~36ee80
        PEXPIRE td:{mutex:k}:waiters 60000
        PEXPIRE td:{mutex:k}:beats 60000
        "#,
    );
    let mutex = Mutex::new(&scene.store, "mutex").unwrap();
    let snapshot = mutex.inspect("k").await.unwrap();
    let holder = &snapshot.holders[0];
    assert_eq!((holder.fence, snapshot.waiting), (Some(4_000_000_000_000_000), 3));
    assert_eq!(holder.token(), format!("{OLD}-1.3938700"));
    assert!(is_refused(&mutex.try_lock("k").await));
    assert!(mutex.revoke("k", holder).await.unwrap());
    assert_form(&heard.next().await, "# 4000000000000032 2");
    // The grant ends, or is taken: the next one is dead, and the one after it decides how long the fence is kept.
    eventually("the next grant", SOON, async || {
        let snapshot = mutex.inspect("k").await.unwrap();
        match snapshot.holders.first() {
            Some(holder) => mutex.revoke("k", holder).await.unwrap(),
            None => is_refused(&mutex.try_lock("k").await),
        }
    })
    .await;
    let mut message = heard.next().await;
    if message == "0 0 2" {
        message = heard.next().await; // it was revoked
    }
    assert_form(&message, "# 4000000000000064 a");
    assert_eq!(scene.get("td:{mutex:k}:fence"), "4000000000000064 ");
    assert!((3_000_000..=3_600_000).contains(&scene.ttl("td:{mutex:k}:fence")));
    assert!(scene.server.query::<u8>(&["EXISTS", "td:{mutex:k}:waiters", "td:{mutex:k}:beats"]) == Ok(0));

    scene.run(
        r#"
        SET td:{mutex:value}:lock host-7 PX 60000
        SET td:{mutex:value}:fence "4000000000000000 0123456789abcdef-6.3938700:host-7" PX 691200000
        "#,
    );
    let hosts = Mutex::builder().value_with(|| "host-7".to_owned()).build(&scene.store, "mutex").unwrap();
    let holder = hosts.inspect("value").await.unwrap().holders[0].clone();
    assert_eq!((holder.token(), holder.fence), ("host-7", Some(4_000_000_000_000_000)));
    assert!(is_refused(&hosts.try_lock("value").await), "another holder with this value has it");
    assert!(hosts.revoke("value", &holder).await.unwrap());
    let guard = hosts.try_lock("value").await.unwrap();
    assert_eq!((guard.fence(), scene.get("td:{mutex:value}:lock")), (4_000_000_000_000_032, "host-7".into()));
    assert_form(&scene.get("td:{mutex:value}:fence"), "4000000000000032 @-@.@:host-7");

    scene.run(
        r#"
        ZADD td:{mutex:own}:beats <TOMBSTONE+60s> fedcba9876543210-7.3938700
        PEXPIRE td:{mutex:own}:beats 60000
        "#,
    );
    let guard = mutex.try_lock("own").await.unwrap();
    assert_form(&scene.get("td:{mutex:own}:lock"), "@-@.@");
    assert_eq!(scene.get("td:{mutex:own}:fence"), guard.fence().to_string());
    let short = Mutex::builder().fence_ttl(Duration::from_secs(60)).build(&scene.store, "mutex").unwrap();
    let guard = short.try_lock("short").await.unwrap();
    assert_form(&scene.get("td:{mutex:short}:lock"), "@-@.@~ea60");
    assert_eq!(scene.get("td:{mutex:short}:fence"), format!("{} ", guard.fence()));
}

/// As other libraries lock.
#[tokio::test]
async fn locks_of_others() {
    let scene = Scene::new().await;
    scene.run(
        r#"
        SET invoice-42 theirs NX PX 60000
        SET {shop}:42 theirs NX PX 60000
        SET {invoice-42}:td:fence 4000000000000000 PX 691200000
        SET {shop}:42:td:=fence 4000000000000000 PX 691200000
        SET td:{mutex:k}:lock theirs NX PX 60000
        "#,
    );
    let exact = Mutex::builder().exact_names().build(&scene.store, "exact").unwrap();
    for key in ["invoice-42", "{shop}:42"] {
        assert!(exact.is_locked(key).await.unwrap() && is_refused(&exact.try_lock(key).await));
        scene.run(&format!("DEL {key}"));
        let guard = exact.try_lock(key).await.unwrap();
        assert_eq!(guard.fence(), 4_000_000_000_000_032);
        assert_form(&scene.get(key), "@-@.@");
        assert!(guard.unlock().await.unwrap());
        assert_eq!(scene.server.query::<u8>(&["EXISTS", key]), Ok(0));
    }
    let mutex = Mutex::new(&scene.store, "mutex").unwrap();
    assert_eq!(mutex.inspect("k").await.unwrap().holders[0].token(), "theirs");
    assert!(is_refused(&mutex.try_lock("k").await));
}

#[tokio::test]
async fn reader_writer_locks() {
    let scene = Scene::new().await;
    let mut heard = scene.other_process().await;
    scene.run(
        r#"
        ZADD td:{rw:k}:rw:holders <NOW+60s> 0123456789abcdef-1.3938700/r
        ZADD td:{rw:k}:rw:holders <NOW+60s> 0123456789abcdef-2.3938700~ea60@app%20one/r
        PEXPIRE td:{rw:k}:rw:holders 172800000
        SET td:{rw:k}:rw:fence "4000000000000000 1" PX 691200000
        "#,
    );
    let locks = RwLock::new(&scene.store, "rw").unwrap();
    let reader = locks.try_read("k").await.unwrap();
    assert_eq!(reader.fence(), Some(4_000_000_000_000_000));
    assert!(reader.release().await.unwrap());
    assert!(is_refused(&locks.try_write("k").await));
    assert!(is_refused(&locks.with_group("blue").unwrap().try_read("k").await));
    scene.run(
        r#"
        ZADD td:{rw:k}:rw:waiters 0 fedcba9876543210-3.3938700/w16
        ZADD td:{rw:k}:rw:beats <NOW+60s> fedcba9876543210-3.3938700/w16
        PEXPIRE td:{rw:k}:rw:waiters 60000
        PEXPIRE td:{rw:k}:rw:beats 60000
        "#,
    );
    assert!(is_refused(&locks.try_read("k").await), "a writer waits");
    for holder in locks.inspect("k").await.unwrap().holders {
        assert!(locks.revoke("k", &holder).await.unwrap());
    }
    assert_form(&heard.next().await, "# 4000000000000001 3");
    assert_eq!(scene.get("td:{rw:k}:rw:fence"), "4000000000000001 0");

    // As many writers in a row as may go before readers that wait.
    scene.run(
        r#"
        ZADD td:{rw:row}:rw:holders <NOW+60s> 0123456789abcdef-4.3938700/w2
        PEXPIRE td:{rw:row}:rw:holders 172800000
        SET td:{rw:row}:rw:fence "4000000000000007 2" PX 691200000
        ZADD td:{rw:row}:rw:waiters 0 fedcba9876543210-5.3938700/w2
        ZADD td:{rw:row}:rw:waiters 562949953421312 fedcba9876543210-6.3938700/rblue
        ZADD td:{rw:row}:rw:beats <NOW+60s> fedcba9876543210-5.3938700/w2 <NOW+60s> fedcba9876543210-6.3938700/rblue
        PEXPIRE td:{rw:row}:rw:waiters 60000
        PEXPIRE td:{rw:row}:rw:beats 60000
        "#,
    );
    let snapshot = locks.inspect("row").await.unwrap();
    assert!(snapshot.waiting == 2 && snapshot.holders[0].is_exclusive);
    assert!(locks.revoke("row", &snapshot.holders[0]).await.unwrap());
    assert_form(&heard.next().await, "# 4000000000000007 6");
    assert_eq!(scene.get("td:{rw:row}:rw:fence"), "4000000000000007 0");

    let writer = locks.try_write("own").await.unwrap();
    assert_form(&scene.members("td:{rw:own}:rw:holders")[0], "@-@.@/w16");
    assert_eq!(scene.get("td:{rw:own}:rw:fence"), format!("{} 0", writer.fence()));
    let reader = locks.with_group("blue").unwrap().try_read("readers").await.unwrap();
    assert_form(&scene.members("td:{rw:readers}:rw:holders")[0], "@-@.@/rblue");
    assert!(reader.release().await.unwrap());
    assert_eq!(scene.keys("td:{rw:readers}:*"), [""; 0]);
}

#[tokio::test]
async fn settings() {
    let scene = Scene::new().await;
    scene.run(
        r#"
        RPUSH td:{api:}:setting:quotas "6 1795433758100958 0af\x0aann b\x0a+1/s, burst 60"
        RPUSH td:{api:}:setting:quotas "7 1795433758100959 fedcba9876543210\x0aben\x0a+10/s; 1000/h, burst 100"
        RPUSH td:{exports:}:setting:limit "1 1795433758100958 0af\x0aann\x0a+7"
        RPUSH td:{api:}:setting:table "1 1795433758100958 0af\x0aann\x0a+/a = 1/s\x0a/b = 2/s"
        RPUSH td:{undone:}:setting:quotas "1 1795433758100958 0af\x0aann\x0a+5/s"
        RPUSH td:{undone:}:setting:quotas "2 1795433758100959 0b0\x0aann\x0a-"
        "#,
    );
    let store = &scene.store;
    let quotas = FleetQuotas::new(store, "api", "1/s").unwrap();
    let history = quotas.history().await.unwrap();
    assert_eq!((history[0].number, &*history[0].who, &*history[1].who), (7, "ben", "ann b"));
    assert_eq!(quotas.current().to_string(), "10/s; 1000/h, burst 100");
    let micros = history[0].at.duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
    assert_eq!(micros, 1_795_433_758_100_959);
    let limit = FleetLimit::new(store, "exports", 1_u32).unwrap();
    assert_eq!((limit.refresh().await.unwrap(), limit.current()), (1, 7));
    let table = FleetTable::new(store, "api", "").unwrap();
    table.refresh().await.unwrap();
    assert_eq!(table.current().get("/b").unwrap().to_string(), "2/s");
    let undone = FleetQuotas::new(store, "undone", "1/s").unwrap();
    assert_eq!((undone.refresh().await.unwrap(), undone.current().to_string()), (2, "1/s".into()));

    let client = redis::Client::open(scene.server.url()).unwrap();
    let mut connection = client.get_async_pubsub().await.unwrap();
    connection.subscribe("td:wake:all").await.unwrap();
    let messages = connection.into_on_message();
    let mut heard = Heard(messages.map(|message| message.get_payload::<String>().unwrap()).boxed());
    quotas.undo("cleo").await.unwrap();
    let stored: Vec<String> = scene.server.query(&["LRANGE", "td:{api:}:setting:quotas", "0", "-1"]).unwrap();
    assert_form(&stored[2], "8 # @\ncleo\n+1/s, burst 60");
    assert_eq!((stored.len(), scene.ttl("td:{api:}:setting:quotas")), (3, -1));
    assert_eq!(heard.next().await, format!("setting:quotas\napi\n{}", stored[2]));
    undone.set("3/s", "ann").await.unwrap();
    undone.undo("ann").await.unwrap();
    let stored: Vec<String> =
        scene.server.query(&["LRANGE", "td:{undone:}:setting:quotas", "0", "-1"]).unwrap();
    assert_form(&stored[3], "4 # @\nann\n-");

    // Another process sets one.
    eventually("the subscription", SOON, async || {
        scene.server.query::<Vec<(String, usize)>>(&["PUBSUB", "NUMSUB", "td:wake:all"]).unwrap()[0].1 == 2
    })
    .await;
    scene.run(r#"PUBLISH td:wake:all "setting:quotas\x0aapi\x0a9 <NOW+60s> 0af\x0aben\x0a+9/s""#);
    eventually("the message", SOON, async || quotas.version() == 9).await;
    assert_eq!(quotas.current().to_string(), "9/s");
}

#[tokio::test]
async fn counted_processes_and_refused_keys() {
    let scene = Scene::new().await;
    let key = "td:{api:}:members";
    scene.run(
        r#"
        ZADD td:{api:}:members <NOW-5s> 0123456789abcdef <NOW-31s> 1123456789abcdef <NOW+31s> 2123456789abcdef
        SET td:{api:0123456789abcdef}:refused "90 3\x0a70 72 ann\x0a4 4 a%1bb"
        "#,
    );
    let (count, at_least) = (4.try_into().unwrap(), 1.try_into().unwrap());
    let bucket = TokenBucket::new(&scene.store, "api", Quota::non_refilling(1)).unwrap();
    let refused = RefusedKeys::with_plain_keys(&scene.store, "api").unwrap();
    let layer: RateLimitLayer<&str, ()> = RateLimitLayer::new(bucket, |user: &&'static str| *user)
        .on_store_failure(StoreFailure::CountedShare { replicas: count, at_least })
        .count_refused(&refused);
    eventually("this process", SOON, async || scene.members(key).len() == 2).await;
    let (first, own) = (&scene.members(key)[0], &scene.members(key)[1]);
    assert!(first == "0123456789abcdef" && own.len() == 16 && own != first, "{own}");
    let at: f64 = scene.server.query(&["ZSCORE", key, own]).unwrap();
    assert!((0..60_000_000).contains(&(scene.now() - at as i64)), "{at}");
    assert!((1..=30_000).contains(&scene.ttl(key)));

    ["ann", "ann", "ben"].iter().for_each(|key| refused.record(*key));
    let list = format!("td:{{api:{own}}}:refused");
    eventually("the list", SOON, async || scene.get(&list) == "3 0\n2 2 ann\n1 1 ben").await;
    assert!((1..=600_000).contains(&scene.ttl(&list)));
    let top = Operator::new(&scene.store).top_refused("api", 9).await.unwrap();
    let top: Vec<_> = top.iter().map(|one| (one.key.as_str(), one.at_least, one.at_most)).collect();
    assert_eq!(top, [("ann", 72, 74), ("a%1bb", 4, 4), ("ben", 1, 4)]);
    drop(layer);
    eventually("the process to leave", SOON, async || scene.members(key).len() == 1).await;
}

#[tokio::test]
async fn buckets() {
    let scene = Scene::new().await;
    scene.run(
        r#"
        SET td:{bucket:short}:tat "<NOW+180s> 0 60000000 1 5" PX 300000
        SET td:{bucket:debt}:tat "<NOW+600s> 0 60000000 1 5 <NOW>" PX 700000
        SET td:{bucket:blocked}:tat "<NOW+90s> 0 0 0 0 60000000 1 5 <NOW>" PX 90000
        SET td:{bucket:cancelled}:tat "0 <NOW+60s> 0 <NOW+180s> 0 60000000 1 5" PX 300000
        SET td:{bucket:set-back}:tat "<NOW+7800s> 0 60000000 1 5 <NOW+7200s>" PX 8000000
        SET td:{bucket:other}:tat "<NOW+7200s> 0 3600000000 1 5" PX 7300000
        SET td:{two:k}:tat "0 <NOW+180s> 0 <NOW+180s> 0 60000000 1 5 <NOW+3600s> 0 <NOW+3600s> 0 3600000000 1 2" PX 4000000
        SET td:{thirds:k}:tat "<NOW+60s> 2 100000000 3 3" PX 200000
        SET td:{total:k}:tat "3 -1 0 1 10"
        "#,
    );
    let minute = || Quota::per_minute(1).burst(5);
    let bucket = TokenBucket::new(&scene.store, "bucket", minute()).unwrap();
    let left = async |bucket: &TokenBucket, key: &str| bucket.peek(key).await.unwrap().remaining();
    for (key, remaining) in [("short", 2), ("debt", 0), ("cancelled", 4), ("set-back", 0), ("other", 3)] {
        assert_eq!(left(&bucket, key).await, remaining, "{key}");
    }
    let retry = async |key: &str| bucket.allow(key).await.unwrap().retry_after().unwrap().as_secs();
    assert!((340..=360).contains(&retry("debt").await), "five tokens of debt, then one");
    assert!((340..=360).contains(&retry("set-back").await), "as before the clock was set back");
    assert!((70..=90).contains(&retry("blocked").await));
    assert!((70..=90).contains(&bucket.peek("blocked").await.unwrap().blocked_for().as_secs()));
    assert!(bucket.allow_n("short", 2).await.unwrap().is_admitted());
    assert!(!bucket.allow("short").await.unwrap().is_admitted());
    assert_form(&scene.get("td:{bucket:short}:tat"), "# 0 60000000 1 5");
    bucket.charge("short", 7).await.unwrap();
    assert_form(&scene.get("td:{bucket:short}:tat"), "# 0 60000000 1 5 #");
    bucket.block_for("own", Duration::from_secs(60)).await.unwrap();
    assert_form(&scene.get("td:{bucket:own}:tat"), "# 0 0 0 0 60000000 1 5 #");

    let two = TokenBucket::new(&scene.store, "two", [minute(), Quota::per_hour(1).burst(2)]).unwrap();
    let state = two.peek("k").await.unwrap();
    assert_eq!(state.balances().map(|balance| balance.remaining).collect::<Vec<_>>(), [2, 1]);
    assert!(two.allow("k").await.unwrap().is_admitted() && !two.allow("k").await.unwrap().is_admitted());
    assert_form(&scene.get("td:{two:k}:tat"), "0 # 0 # 0 60000000 1 5 # 0 # 0 3600000000 1 2");

    let thirds = Quota::new(3, Duration::from_secs(100)).burst(3);
    let thirds = TokenBucket::new(&scene.store, "thirds", thirds).unwrap();
    assert!(
        thirds.allow("k").await.unwrap().is_admitted() && !thirds.allow("k").await.unwrap().is_admitted()
    );
    assert_form(&scene.get("td:{thirds:k}:tat"), "# # 100000000 3 3");
    let total = TokenBucket::new(&scene.store, "total", Quota::non_refilling(10)).unwrap();
    assert_eq!(left(&total, "k").await, 7);
    assert!(total.allow_n("k", 7).await.unwrap().is_admitted());
    assert_eq!((scene.get("td:{total:k}:tat"), scene.ttl("td:{total:k}:tat")), ("10 -1 0 1 10".into(), -1));

    // A month from the 17th on: (20 + 17) · 2880 + 1440 + 120.
    let month = Quota::per_calendar_month(10).starting(17).at_offset(120);
    let month = TokenBucket::new(&scene.store, "month", month).unwrap();
    assert!(month.allow_n("k", 3).await.unwrap().is_admitted());
    let stored = scene.get("td:{month:k}:tat");
    assert_form(&stored, "0 3 -1 # 0 0 108120 10");
    scene.run(&format!("SET td:{{month:k}}:tat \"{}\" PX 60000", stored.replacen(" 3 ", " 9 ", 1)));
    assert_eq!(left(&month, "k").await, 1);
    assert!(month.allow("k").await.unwrap().is_admitted() && !month.allow("k").await.unwrap().is_admitted());
    let kept = month.peek("k").await.unwrap().reset_after().unwrap() + Duration::from_secs(86_400);
    let ttl = scene.ttl("td:{month:k}:tat");
    assert!(ttl.abs_diff(i64::try_from(kept.as_millis()).unwrap()) < 10_000, "{ttl}, not {kept:?}");
}

#[tokio::test]
async fn answers() {
    let scene = Scene::new().await;
    scene.run(
        r#"
        SET td:{flights:fresh}:flight:answer "<NOW-1s> 60000000 60000000 postcard/1+ +\x07" PX 59000
        SET td:{flights:stale}:flight:answer "<NOW-70s> 60000000 600000000 postcard/1+ +\x07" PX 530000
        SET td:{flights:old}:flight:answer "<NOW-70s> 60000000 60000000 postcard/1+ +\x07" PX 530000
        SET td:{flights:later}:flight:answer "<NOW+70s> 60000000 60000000 postcard/1+ +\x07" PX 530000
        SET td:{flights:foreign}:flight:answer "<NOW-1s> 60000000 60000000 json/1+ +7" PX 59000
        SET td:{flights:each}:flight:answer "<NOW-1s> 60000000 60000000 postcard/1+ *" PX 59000
        SET td:{flights:led}:flight:lock 0123456789abcdef-1.3938700 PX 60000
        "#,
    );
    let builder = || SingleFlight::<u64>::builder(Postcard).ttl(Duration::from_secs(60));
    let flights = builder().build(&scene.store, "flights").unwrap();
    let run = async |key: &str| flights.run(key, || async { 9 }).await.unwrap();
    for (key, answer) in [("fresh", 7), ("old", 9), ("later", 9), ("foreign", 9), ("each", 9)] {
        assert_eq!(run(key).await, answer, "{key}");
    }
    let revalidating =
        builder().stale_while_revalidate(Duration::from_secs(540)).build(&scene.store, "flights");
    assert_eq!(revalidating.unwrap().run("stale", || async { 9 }).await.unwrap(), 7);
    assert_form(&scene.get("td:{flights:old}:flight:answer"), "# 60000000 60000000 postcard/1+ +\t");
    assert_eq!(scene.get("td:{flights:each}:flight:lock"), "");

    // Another process leads. Its answer comes in a message, and nothing is stored.
    let mut follower = tokio::spawn({
        let flights = flights.clone();
        async move { flights.run("led", || async { 9 }).await.unwrap() }
    });
    let queue = "td:{flights:led}:flight:waiters";
    eventually("it to follow", SOON, async || scene.server.query::<u8>(&["ZCARD", queue]) == Ok(1)).await;
    let token = scene.server.query::<Vec<String>>(&["ZRANGE", queue, "0", "0"]).unwrap().remove(0);
    assert_form(&token, "@-@.@");
    let (process, id) = token.split_once('.').unwrap().0.split_once('-').unwrap();
    eventually("it to listen, and to get its answer", SOON, async || {
        scene.run(&format!(r#"PUBLISH td:wake:{process} "0 0 {id}\x0apostcard/1+ 60000000 60000000 +\x08""#));
        timeout(Duration::from_millis(50), &mut follower).await.is_ok_and(|answer| answer.unwrap() == 8)
    })
    .await;

    // A local cache drops what another process tells it to forget.
    let cached = builder().local_cache(1 << 20).build(&scene.store, "cached").unwrap();
    let run = async |answer| cached.run("k", move || async move { answer }).await.unwrap();
    let listens = async || {
        let channels: Vec<String> = scene.server.query(&["PUBSUB", "CHANNELS", "td:wake:all"]).unwrap();
        channels.len() == 1
    };
    eventually("the subscription", SOON, listens).await;
    eventually("it to be cached", SOON, async || {
        run(1).await;
        // The answer is stored before another caller gets it.
        let answer = run(1).await;
        scene.run("DEL td:{cached:k}:flight:answer");
        answer == run(2).await
    })
    .await;
    let before = run(3).await;
    scene.run(r#"PUBLISH td:wake:all "forget\x0acached\x0ak""#);
    eventually("it to be forgotten", SOON, async || run(4).await != before).await;
}

#[tokio::test]
async fn filters_and_their_claims() {
    let scene = Scene::new().await;
    // The hash of `user-7` has these bits. The claim is on the empty item.
    scene.run(
        r#"
        SET td:{filter:0}:config "bloom1 1 1000003 4 0 0"
        SETRANGE td:{filter:0}:bits0 125000 "\x00"
        SETBIT td:{filter:0}:bits0 788376 1
        SETBIT td:{filter:0}:bits0 229938 1
        SETBIT td:{filter:0}:bits0 723424 1
        SETBIT td:{filter:0}:bits0 154789 1
        SET td:{filter:0}:99aa06d3014798d86001c324468d497f:claim 0123456789abcdef-1.3938700 PX 60000
        SET td:{hours:0}:config "bloom1 1 1000003 4 3600000 <HOUR>" PX 25200000
        SETRANGE td:{hours:0}:bits<HOUR%2> 125000 "\x00"
        SETBIT td:{hours:0}:bits<HOUR%2> 788376 1
        SETBIT td:{hours:0}:bits<HOUR%2> 229938 1
        SETBIT td:{hours:0}:bits<HOUR%2> 723424 1
        SETBIT td:{hours:0}:bits<HOUR%2> 154789 1
        PEXPIRE td:{hours:0}:bits<HOUR%2> 10800000
        "#,
    );
    let builder = BloomFilter::builder().bits(1_000_003).hashes(4);
    let hour = Duration::from_secs(3600);
    // One that was dropped may go meanwhile.
    let is_claim = |text: &str| text.is_empty() || has_form(text, "@-@.@");
    for (name, builder) in [("filter", builder), ("hours", builder.remember_for(hour))] {
        let filter = builder.build(&scene.store, name).unwrap();
        assert_eq!(filter.contains_all(["user-7", "user-8"]).await.unwrap(), [true, false], "{name}");
        let dedupe = Dedupe::builder();
        let dedupe = if name == "filter" { dedupe.remember_forever() } else { dedupe };
        let dedupe = dedupe.build(&filter).unwrap();
        assert!(matches!(dedupe.try_claim("user-7").await.unwrap(), Claimed::Duplicate), "{name}");
        assert_eq!(is_refused(&dedupe.try_claim("").await), name == "filter");
        let Claimed::New(claim) = dedupe.try_claim("user-8").await.unwrap() else { panic!("{name}") };
        let claims = scene.keys(&format!("td:{{{name}:0}}:????????????????????????????????:claim"));
        assert!(claims.iter().all(|claim| is_claim(&scene.get(claim))), "{claims:?}");
        assert!(claim.confirm().await.unwrap() && filter.contains("user-8").await.unwrap());
    }
    assert_form(&scene.get("td:{hours:0}:config"), "bloom1 1 1000003 4 3600000 #");
}

#[tokio::test]
async fn handled_items_and_their_claims() {
    let scene = Scene::new().await;
    // The digests of `evt_1` and `evt_2`.
    scene.run(
        r#"
        SET td:{exact:layout}:layout "exact1 1 7200000" PX 18000000
        HSET td:{exact:0}:exact:<HOUR-1%3> s <HOUR-1> "\x7d\x4e\x5a\x76\xea\xe6\xd8\xc1\x65\x41\x0a\xc1\x9f\xe6\x75\x65" ""
        PEXPIRE td:{exact:0}:exact:<HOUR-1%3> 7200000
        SET td:{exact:0}:e7a53ae46b784f8fc1105e6029d8fccf:exact:claim 0123456789abcdef-1.3938700 PX 60000
        "#,
    );
    let dedupe = Dedupe::exact(&scene.store, "exact").capacity(100).remember_for(Duration::from_secs(7200));
    let dedupe = dedupe.build().unwrap();
    assert!(matches!(dedupe.try_claim("evt_1").await.unwrap(), Claimed::Duplicate));
    assert!(is_refused(&dedupe.try_claim("evt_2").await), "another process handles it");
    let Claimed::New(claim) = dedupe.try_claim("evt_3").await.unwrap() else { panic!("it is new") };
    let claims = scene.keys("td:{exact:0}:*:exact:claim");
    assert!(
        claims.len() == 2 && claims.iter().all(|claim| has_form(&scene.get(claim), "@-@.@")),
        "{claims:?}"
    );
    assert!(claim.confirm().await.unwrap());
    let slices = scene.keys("td:{exact:0}:exact:?");
    let fields = |hash: &String| scene.server.query::<u64>(&["HLEN", hash]).unwrap();
    assert_eq!(slices.iter().map(fields).collect::<Vec<_>>(), [2, 2], "{slices:?}");
    for slice in &slices {
        let number: i64 = scene.server.query(&["HGET", slice, "s"]).unwrap();
        assert!(slice.ends_with(&format!(":{}", number % 3)) && (scene.now() / HOUR - number) < 3, "{slice}");
    }
    assert!(dedupe.forget("evt_1").await.unwrap());
}

#[cfg(feature = "http")]
mod idempotency {
    use std::convert::Infallible;

    use axum::body::Body;
    use axum::http::{Method, Request, Response, StatusCode};
    use http_body_util::BodyExt as _;
    use tower::{ServiceExt as _, service_fn};
    use tower_distributed::web;
    use tower_layer::Layer as _;

    use super::{Scene, assert_form};

    async fn send(scene: &Scene, key: &str, body: &'static str) -> (StatusCode, Option<String>, String) {
        let layer = web::idempotency(&scene.store, "payments", |_: &Request<Body>| "ann").build().unwrap();
        let handler = |_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::from("handled"))) };
        let request = Request::builder().method(Method::POST).uri("/payments?v=1");
        let request = request.header("host", "shop.example").header("content-type", "text/plain");
        let request = request.header("idempotency-key", key).body(Body::from(body)).unwrap();
        let response = layer.layer(service_fn(handler)).oneshot(request).await.unwrap();
        let call = response.headers().get("x-call").map(|call| call.to_str().unwrap().to_owned());
        let (status, body) = (response.status(), response.into_body().collect().await.unwrap().to_bytes());
        (status, call, String::from_utf8(body.to_vec()).unwrap())
    }

    /// The records of the key `8e03978e` of the principal `ann`, for a request with the body `10 EUR`.
    #[tokio::test]
    async fn records() {
        let scene = Scene::new().await;
        let name = "td:{payments:idempotency:0d1d3e3a962f3135c4fd89369f7f0df244d3df2bc9ec5298c801ca0610e7b32d}:flight:answer";
        let head = format!(r#"SET {name} "<NOW-1s> 86400000000 86400000000 "#);
        let print = r"p\xa2\x30\xee\xd4\x03\x71\x2e\xe6\x86\xdf\x45\x88\x97\xe0\x3f\xc7\x7a\x2a\x79\xeb\x6a\x71\x03\x65\x36\x09\x55\x77\xa8\xce\x2b\x95";
        let response = concat!(
            r"1\x00\xc9\x00\x00\x00\x00\x6a\xfd\x86\xc0\x00\x00\x00\x02\x00\x0ccontent-type\x00\x00\x00\x0atext/plain",
            r"\x00\x06x-call\x00\x00\x00\x011\x00\x00\x00\x00\x00\x00\x00\x04paid"
        );
        scene.run(&format!(r#"{head}idempotency/3+http/3 {print}{response}" PX 86400000"#));
        let replayed = (StatusCode::CREATED, Some("1".to_owned()), "paid".to_owned());
        assert_eq!(send(&scene, "8e03978e", "10 EUR").await, replayed);
        assert_eq!(send(&scene, "8e03978e", "11 EUR").await.0, StatusCode::UNPROCESSABLE_ENTITY);
        for record in [
            format!(r#"{head}idempotency/3+http/3 {print}" PX 86400000"#),
            format!(r#"{head}idempotency/1+http/2 {print}1xyz" PX 86400000"#),
            format!(r#"SET {name} "in another form" PX 86400000"#),
        ] {
            scene.run(&record);
            assert_eq!(send(&scene, "8e03978e", "10 EUR").await.0, StatusCode::CONFLICT, "{record}");
        }
        let (status, _, body) = send(&scene, "own", "10 EUR").await;
        assert_eq!((status, &*body), (StatusCode::OK, "handled"));
        let names = scene.keys("td:{payments:idempotency:*}:flight:answer");
        let own = names.iter().find(|other| **other != name).unwrap();
        let record: Vec<u8> = scene.server.query(&["GET", own]).unwrap();
        let codec = record.iter().enumerate().filter(|(_, byte)| **byte == b' ').nth(3).unwrap().0;
        let head = String::from_utf8(record[..codec].to_vec()).unwrap();
        assert_form(&head, "# 86400000000 86400000000 idempotency/3+http/3");
        assert_eq!((record[codec + 34], &record[codec + 35..codec + 37]), (b'1', &[0, 200][..]));
    }
}

#[tokio::test]
async fn names() {
    let scene = Scene::new().await;
    let mutex = Mutex::new(&scene.store, "names").unwrap();
    let mut held = Vec::new();
    for key in ["", "a:b", "{a}%", &"x".repeat(257)] {
        held.push(mutex.lock(key).await.unwrap());
    }
    let digest = "15eb95a462ee20bd91a415ae2d4aed34";
    let names = scene.keys("td:{names:*}:lock");
    let long = names.iter().find(|name| name.contains("%#")).unwrap();
    let expected = ["td:{names:%7ba%7d%25}:lock", "td:{names:a:b}:lock", "td:{names:}:lock"];
    let others: Vec<_> = names.iter().filter(|name| *name != long).collect();
    assert_eq!(others, expected);
    assert!(long.len() == "td:{names:%#}:lock".len() + 64 && long.contains(digest), "{long}");
}

/// What is in another form is an error, or is respected, as the page says. It is left as it is, except for answers.
#[tokio::test]
async fn forms_that_are_not_recognised() {
    let scene = Scene::new().await;
    let kept = [
        ("td:{bucket:k}:tat", "tat2 1 2 3"),
        ("td:{mutex:fence}:fence", "fence2:1"),
        ("td:{rw:fence}:rw:fence", "1 2 3"),
        ("td:{filter:0}:config", "bloom2 x"),
        ("td:{exact:layout}:layout", "exact2 x"),
    ];
    for (key, text) in kept {
        scene.run(&format!("SET {key} \"{text}\" PX 60000"));
    }
    scene.run(
        r#"
        SET td:{mutex:lock}:lock "another form" PX 60000
        ZADD td:{permits:k}:permits:holders <NOW+1s> another-form <NOW+60s> 0123456789abcdef-1.3938700/1/2
        PEXPIRE td:{permits:k}:permits:holders 172800000
        ZADD td:{rw:k}:rw:holders <NOW+60s> another-form
        PEXPIRE td:{rw:k}:rw:holders 172800000
        ZADD td:{permits:waiters}:permits:waiters 0 another-form
        ZADD td:{permits:waiters}:permits:beats <NOW+60s> another-form
        PEXPIRE td:{permits:waiters}:permits:waiters 60000
        PEXPIRE td:{permits:waiters}:permits:beats 60000
        ZADD td:{mutex:waiters}:waiters 0 another-form
        ZADD td:{mutex:waiters}:beats <NOW+60s> another-form
        PEXPIRE td:{mutex:waiters}:waiters 60000
        PEXPIRE td:{mutex:waiters}:beats 60000
        HSET td:{other:0}:exact:<HOUR%3> s another-form "\x7d\x4e\x5a\x76\xea\xe6\xd8\xc1\x65\x41\x0a\xc1\x9f\xe6\x75\x65" ""
        PEXPIRE td:{other:0}:exact:<HOUR%3> 7200000
        SET td:{flights:k}:flight:answer "another form" PX 60000
        "#,
    );
    let is_wrong_type = |error: Error| error.is_wrong_type() && error.is_unavailable();
    let bucket = TokenBucket::new(&scene.store, "bucket", Quota::per_minute(1)).unwrap();
    assert!(is_wrong_type(bucket.allow("k").await.unwrap_err()));
    let mutex = Mutex::new(&scene.store, "mutex").unwrap();
    assert!(is_wrong_type(mutex.try_lock("fence").await.unwrap_err()));
    assert!(is_refused(&mutex.try_lock("lock").await));
    let locks = RwLock::new(&scene.store, "rw").unwrap();
    assert!(is_wrong_type(locks.try_write("fence").await.unwrap_err()));
    assert_eq!(scene.keys("td:{rw:fence}:rw:holders"), [""; 0], "it holds in spite of the error");
    assert!(is_refused(&locks.try_write("k").await) && is_refused(&locks.try_read("k").await));
    let filter = BloomFilter::new(&scene.store, "filter", 1000, 0.01).unwrap();
    assert!(filter.insert("a").await.unwrap_err().is_invalid());
    let exact = |name| {
        Dedupe::exact(&scene.store, name)
            .capacity(100)
            .remember_for(Duration::from_secs(7200))
            .build()
            .unwrap()
    };
    assert!(exact("exact").try_claim("a").await.unwrap_err().is_invalid());
    assert!(is_wrong_type(exact("other").try_claim("evt_1").await.unwrap_err()));
    for (key, text) in kept {
        assert_eq!(scene.get(key), text);
    }

    let group = WaitGroup::new(&scene.store, "permits", 2).unwrap();
    assert!(is_refused(&group.try_add("k").await), "each counts as one");
    let mut permit = None;
    eventually("the permit in another form to expire", SOON, async || {
        permit = group.try_add("k").await.ok();
        permit.is_some()
    })
    .await;
    assert_eq!(group.count("k").await.unwrap(), 2);
    assert!(timeout(SOON, group.add("waiters")).await.unwrap().unwrap().done().await.unwrap());
    assert!(timeout(SOON, mutex.lock("waiters")).await.unwrap().unwrap().unlock().await.unwrap());
    let flights = SingleFlight::<u64>::builder(Postcard)
        .ttl(Duration::from_secs(60))
        .build(&scene.store, "flights")
        .unwrap();
    assert_eq!(flights.run("k", || async { 9 }).await.unwrap(), 9);
    eventually("the answer to be stored", SOON, async || {
        has_form(&scene.get("td:{flights:k}:flight:answer"), "# 60000000 60000000 postcard/1+ +\t")
    })
    .await;
}
