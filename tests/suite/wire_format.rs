//! What each primitive stores in Redis and publishes there, in the forms of the page `wire_format`. The forms are those that all
//! versions with the same minor version have: do not change them within a minor version.

mod answers;
mod limits;
mod locks;
mod others;
mod permits;

use std::future::ready;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use deadpool_redis::redis::{self, Value};
use futures::StreamExt as _;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tower_distributed::{Error, Store};

use crate::stores::SOON;
use support::client::Client;
use support::eventually;
use support::patient;
use support::redis_server::RedisServer;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// The score of a tombstone is this and a time.
const TOMBSTONE: i64 = 1 << 52;

/// A server, two processes that use it, and what was published there.
struct Scene {
    server: RedisServer,
    here: Store,
    there: Store,
    published: Arc<Mutex<Vec<String>>>,
}

impl Scene {
    async fn new() -> Self {
        let server = RedisServer::start().await;
        let [here, there] = [(); 2].map(|()| patient!(server.url()));
        let client = redis::Client::open(server.url()).unwrap();
        let mut connection = client.get_async_pubsub().await.unwrap();
        connection.psubscribe("td:wake:*").await.unwrap();
        let published = Arc::<Mutex<Vec<String>>>::default();
        let all = Arc::clone(&published);
        tokio::spawn(connection.into_on_message().for_each(move |message| {
            let text = format!(
                "{} | {}",
                message.get_channel_name(),
                escaped(message.get_payload_bytes())
            );
            all.lock().unwrap().push(text);
            ready(())
        }));
        Self {
            server,
            here,
            there,
            published,
        }
    }

    /// Makes a call. Then there must be these keys, of all that have `name` in theirs, and these messages among those that were
    /// published since.
    async fn row<T>(
        &self,
        name: &str,
        call: impl AsyncFnOnce() -> T,
        stored: &str,
        published: &str,
    ) {
        self.published.lock().unwrap().clear();
        let _kept = call().await;
        let (mut keys, mut messages) = (Vec::new(), Vec::new());
        let as_expected = async {
            loop {
                keys = self.stored(name);
                messages.clone_from(&self.published.lock().unwrap());
                if are_stored(&keys, stored) && are_published(&messages, published) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = timeout(SOON, as_expected).await;
        assert!(
            waited.is_ok(),
            "{name}: {keys:#?}\n{messages:#?}\nare not\n{stored}\n{published}"
        );
    }

    /// The name, the ttl (ms) and the content of each key with this part in its name.
    fn stored(&self, name: &str) -> Vec<(String, i64, String)> {
        let mut client = self.server.client().unwrap();
        let keys: Vec<Vec<u8>> = client
            .query(redis::cmd("KEYS").arg(format!("*{name}*")))
            .unwrap();
        let of = |key: Vec<u8>| {
            let ttl = client.query(redis::cmd("PTTL").arg(&key)).unwrap();
            (escaped(&key), ttl, content(&mut client, &key))
        };
        keys.into_iter().map(of).collect()
    }

    /// Makes a call wait for what `name` limits, as the waiter of this number.
    async fn behind<T: Send + 'static>(
        &self,
        name: &str,
        waiters: usize,
        call: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> JoinHandle<Result<T, Error>> {
        let call = tokio::spawn(call);
        eventually(&format!("{waiters} wait for {name}"), SOON, async || {
            let lines: Vec<String> = self
                .server
                .query(&["KEYS", &format!("td:{{{name}:*waiters")])
                .unwrap();
            let count = |line: &String| self.server.query::<usize>(&["ZCARD", line]).unwrap();
            lines.iter().map(count).sum::<usize>() == waiters
        })
        .await;
        call
    }

    /// A time of the server so many seconds from now, µs.
    fn after(&self, seconds: i64) -> String {
        let (now, _): (i64, i64) = self.server.query(&["TIME"]).unwrap();
        ((now + seconds) * 1_000_000).to_string()
    }

    fn set(&self, commands: &[&[&str]]) {
        commands
            .iter()
            .for_each(|command| drop(self.server.query::<Value>(command).unwrap()));
    }
}

/// Bytes that cannot be printed, those that stand for others in forms, and a space at the end as `\xNN`.
fn escaped(bytes: &[u8]) -> String {
    let shown = |(at, byte): (usize, &u8)| match byte {
        b'#' | b'@' | b'?' | b'\\' => format!("\\x{byte:02x}"),
        b' ' if at + 1 == bytes.len() => "\\x20".to_owned(),
        b' '..=b'~' => char::from(*byte).to_string(),
        byte => format!("\\x{byte:02x}"),
    };
    bytes.iter().enumerate().map(shown).collect()
}

/// What a key holds: a string; the members of a set with their scores; the items of a list; the positions of bits.
fn content(client: &mut Client, key: &[u8]) -> String {
    let kind: String = client.query(redis::cmd("TYPE").arg(key)).unwrap();
    let command: &[&str] = match &*kind {
        "zset" => &["ZRANGE", "0", "-1", "WITHSCORES"],
        "list" => &["LRANGE", "0", "-1"],
        "hash" => &["HGETALL"],
        _ => {
            let bytes: Option<Vec<u8>> = client.query(redis::cmd("GET").arg(key)).unwrap();
            let bytes = bytes.unwrap_or_default();
            let is_set = |bit: &usize| bytes[bit / 8] & (128 >> (bit % 8)) != 0;
            let bits: Vec<_> = (0..8 * bytes.len())
                .filter(is_set)
                .map(|bit| bit.to_string())
                .collect();
            let is_array = String::from_utf8_lossy(key).contains(":bits");
            return if is_array {
                format!("{} of {}", bits.join(" "), bytes.len())
            } else {
                escaped(&bytes)
            };
        }
    };
    let command = redis::cmd(command[0]).arg(key).arg(&command[1..]).clone();
    let words: Vec<Vec<u8>> = client.query(&command).unwrap();
    let words: Vec<_> = words.iter().map(|word| escaped(word)).collect();
    if kind == "list" {
        return words.join(" | ");
    }
    let score = |text: &String| match text.parse::<i64>() {
        Ok(score) if score >= TOMBSTONE => format!("2^52+{}", score - TOMBSTONE),
        _ => text.clone(),
    };
    let pairs = words.chunks(2).map(|pair| {
        format!("{} {}", pair[0], score(&pair[1]))
            .trim_end()
            .to_owned()
    });
    pairs.collect::<Vec<_>>().join(", ")
}

/// Whether a text has a form: `#` stands for decimal digits, `@` for hexadecimal ones, `?` for a byte.
fn has_form(text: &str, form: &str) -> bool {
    let mut text = text.chars().peekable();
    for c in form.chars() {
        let is_digit = |other: &char| {
            if c == '#' {
                other.is_ascii_digit()
            } else {
                other.is_ascii_hexdigit()
            }
        };
        match c {
            '#' | '@' if text.next_if(is_digit).is_some() => {
                while text.next_if(is_digit).is_some() {}
            }
            '?' if text.next_if_eq(&'\\').is_some() => _ = text.nth(2),
            '?' if text.next().is_some() => {}
            '#' | '@' | '?' => return false,
            c if text.next() == Some(c) => {}
            _ => return false,
        }
    }
    text.next().is_none()
}

/// Whether the parts of a content have these forms, in any order. `…` stands for any others.
fn has_forms(content: &str, forms: &str) -> bool {
    let mut parts: Vec<_> = content.split(", ").collect();
    for form in forms.split(", ").filter(|form| *form != "…") {
        let Some(at) = parts.iter().position(|part| has_form(part, form)) else {
            return false;
        };
        parts.swap_remove(at);
    }
    parts.is_empty() || forms.ends_with('…')
}

/// Whether a ttl (ms) is as a row says: `-` for none, `*` for any, or the most seconds, of which half may be over.
fn is_ttl(ttl: i64, form: &str) -> bool {
    match form {
        "-" => ttl == -1,
        "*" => ttl >= 0,
        seconds => {
            let most = 1000 * seconds.parse::<i64>().unwrap();
            (most / 2..=most + 1000).contains(&ttl)
        }
    }
}

/// The lines of a row.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

fn are_stored(keys: &[(String, i64, String)], rows: &str) -> bool {
    let mut left: Vec<_> = keys.iter().collect();
    for row in lines(rows) {
        let [name, ttl, forms] = row.splitn(3, " | ").collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let is_it = |(key, lasts, content): &&(String, i64, String)| {
            has_form(key, name) && is_ttl(*lasts, ttl) && has_forms(content, forms)
        };
        let Some(at) = left.iter().position(is_it) else {
            return false;
        };
        left.swap_remove(at);
    }
    left.is_empty()
}

fn are_published(messages: &[String], rows: &str) -> bool {
    lines(rows).all(|row| messages.iter().any(|message| has_form(message, row)))
}
