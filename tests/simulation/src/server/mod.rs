//! A simulated server: it runs the text of the library's scripts over the commands that these and the client use, at a time
//! that its owner sets. One thread has many; nothing in it waits.

pub mod cluster;
pub mod commands;
pub mod coverage;
pub mod database;
pub mod faults;
pub mod functions;
pub mod library;
pub mod lua;
pub mod replication;
pub mod reply;
pub mod sentinel;
pub mod sorted_set;
mod structs;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::commands::option;
use self::database::{Database, Entry, command, fits, wrong_count};
use self::functions::Libraries;
use self::lua::{Limits, Node, Scripts};
use self::replication::Log;
use self::reply::{Bytes, Reply};

/// Locks, also after a panic of another holder, which the judges tell.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const UNKNOWN: &str = "ERR unknown command";
const READ_ONLY: &str = "READONLY You can't write against a read only replica.";
const LOADING: &str = "LOADING Redis is loading the dataset in memory";
const FULL: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// What is wrong with a server.
#[derive(Clone, Debug, Default)]
pub struct Condition {
    /// It reads its state after a start.
    pub is_loading: bool,
    /// It is above `maxmemory`, and may not evict.
    pub is_full: bool,
    /// Commands that the user may not run, in capitals.
    pub denied: BTreeSet<String>,
    /// What its clock is ahead, in µs.
    pub clock: i64,
}

pub struct Server {
    pub condition: Condition,
    pub database: Arc<Mutex<Database>>,
    scripts: Scripts,
    libraries: Libraries,
    /// What its replicas have to take over.
    pub log: Log,
    /// The master, if this is a replica.
    pub master: Option<String>,
    /// Which node of a Cluster this is.
    pub cluster: Option<Node>,
    /// What it had at some time: its keys and its libraries.
    saved: (BTreeMap<Bytes, Entry>, Libraries),
}

/// What a server has after a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    All,
    /// What it had saved before.
    Saved,
    Nothing,
}

/// What a connection has set at its server.
#[derive(Debug, Default)]
pub struct Session {
    /// The version of the protocol: the second one, if it is less than 3.
    pub protocol: u8,
    pub channels: BTreeSet<Channel>,
    /// Whether the next command follows an `ASK`.
    asking: bool,
    /// How much of the log holds what this connection has written.
    pub written: u64,
}

/// Whether a channel is one for the nodes of a slot, and its name.
pub type Channel = (bool, Bytes);

/// The keys and the other arguments of a call of a script or a function.
pub type Parts<'a> = (&'a [Bytes], &'a [Bytes]);

/// The parts of a call, if it has as many keys as it says.
pub fn keys_of_call(arguments: &[Bytes]) -> Option<Parts<'_>> {
    let count: usize = std::str::from_utf8(arguments.get(2)?).ok()?.parse().ok()?;
    arguments[3..].split_at_checked(count)
}

/// The name of a command in capitals, with that of its part, as `FUNCTION|LOAD`.
fn full_name(arguments: &[Bytes]) -> String {
    let name = String::from_utf8_lossy(&arguments[0]).to_ascii_uppercase();
    match (name.as_str(), arguments.get(1)) {
        ("FUNCTION", Some(part)) => format!("{name}|{}", option(part)),
        _ => name,
    }
}

/// The keys that a command names.
fn keys<'a>(name: &str, arguments: &'a [Bytes]) -> &'a [Bytes] {
    match name {
        "EVAL" | "EVALSHA" | "FCALL" | "FCALL_RO" => {
            keys_of_call(arguments).map_or(&[], |(keys, _)| keys)
        }
        "DEL" | "UNLINK" | "EXISTS" | "MGET" => &arguments[1..],
        "SPUBLISH" | "SSUBSCRIBE" => arguments.get(1..2).unwrap_or(&[]),
        "PUBLISH" | "SCAN" | "TIME" => &[],
        _ if command(name).is_some() => arguments.get(1..2).unwrap_or(&[]),
        _ => &[],
    }
}

impl Server {
    pub fn new() -> mlua::Result<Self> {
        let scripts = Scripts::new()?;
        Ok(Self {
            condition: Condition::default(),
            database: scripts.database(),
            scripts,
            libraries: Libraries::default(),
            log: Log::default(),
            master: None,
            cluster: None,
            saved: Default::default(),
        })
    }

    /// Becomes a node of a Cluster.
    pub fn join(&mut self, node: Node) {
        self.scripts.join(node.clone());
        self.cluster = Some(node);
    }

    /// Sets the time, in µs since the epoch.
    pub fn set_time(&mut self, micros: i64) {
        lock(&self.database).micros = micros + self.condition.clock;
    }

    /// Forgets the scripts.
    pub fn flush_scripts(&mut self) {
        self.scripts.flush();
    }

    /// Starts anew, with some of its keys and libraries.
    pub fn restart(&mut self, keeps: Keeps) {
        self.scripts.flush();
        self.condition.is_loading = false;
        let mut database = lock(&self.database);
        database.published.clear();
        if keeps != Keeps::All {
            let mut changed: BTreeSet<_> = database.entries.keys().cloned().collect();
            (database.entries, self.libraries) = match keeps {
                Keeps::Saved => self.saved.clone(),
                _ => Default::default(),
            };
            changed.extend(database.entries.keys().cloned());
            self.log.note(&database, changed);
            self.log.note_libraries(self.libraries.texts());
        }
    }

    /// Saves the keys and the libraries as they are now.
    pub fn save(&mut self) {
        self.saved = (lock(&self.database).entries.clone(), self.libraries.clone());
    }

    /// Drops a key.
    pub fn evict(&mut self, key: &Bytes) {
        let mut database = lock(&self.database);
        database.entries.remove(key);
        self.log.note(&database, BTreeSet::from([key.clone()]));
    }

    /// A connection is not subscribed to these channels any more.
    pub fn has_left<'a>(&self, channels: impl IntoIterator<Item = &'a Channel>) {
        let mut database = lock(&self.database);
        for channel in channels {
            if let Some(count) = database.subscribers.get_mut(channel) {
                *count -= 1;
            }
        }
    }

    /// Runs a command of a connection. Some have several replies.
    pub fn run(&mut self, session: &mut Session, arguments: &[Bytes]) -> Vec<Reply> {
        let name = full_name(arguments);
        let (asking, before) = (std::mem::take(&mut session.asking), self.log.end());
        if let Some(refusal) = self.refusal(&name, arguments, asking) {
            return vec![refusal];
        }
        match name.as_str() {
            "SUBSCRIBE" | "SSUBSCRIBE" => {
                let mut database = lock(&self.database);
                for channel in &arguments[1..] {
                    let channel = (name == "SSUBSCRIBE", channel.clone());
                    if !session.channels.contains(&channel) {
                        *database.subscribers.entry(channel).or_default() += 1;
                    }
                }
                drop(database);
                return subscribe(session, &name, &arguments[1..]);
            }
            "ASKING" => session.asking = true,
            _ => {}
        }
        let reply = self.answer(&name, session, arguments);
        let changed = std::mem::take(&mut lock(&self.database).changed);
        if !changed.is_empty() {
            self.log.note(&lock(&self.database), changed);
        }
        if self.log.end() > before {
            session.written = self.log.end();
        }
        vec![reply]
    }

    /// Why a command does not run, if so.
    fn refusal(&self, name: &str, arguments: &[Bytes], asking: bool) -> Option<Reply> {
        let (condition, denied) = (&self.condition, &self.condition.denied);
        if functions::arity(name).is_some_and(|arity| !fits(arity, arguments)) {
            return Some(wrong_count(name));
        }
        let all = name.split_once('|').map_or(name, |(all, _)| all);
        if denied.contains(name) || denied.contains(all) {
            let name = name.to_ascii_lowercase();
            let why = format!("NOPERM this user has no permissions to run the '{name}' command");
            return Some(Reply::Error(why));
        }
        let always = matches!(
            name,
            "HELLO" | "CLIENT" | "AUTH" | "SELECT" | "INFO" | "SUBSCRIBE" | "ASKING"
        );
        if condition.is_loading && !always {
            return Some(Reply::error(LOADING));
        }
        if let Some((topology, own)) = &self.cluster {
            // The channels of a slot are where the slot is.
            let is_channel = matches!(name, "SPUBLISH" | "SSUBSCRIBE");
            let exists = |key: &Bytes| is_channel || lock(&self.database).get(key).is_some();
            let redirect = lock(topology).redirect(*own, keys(name, arguments), asking, exists);
            if redirect.is_some() {
                return redirect.map(Reply::Error);
            }
        }
        let (writes, grows) = self.effects(name, arguments)?;
        if writes && self.master.is_some() {
            return Some(Reply::error(READ_ONLY));
        }
        (grows && condition.is_full).then(|| Reply::error(FULL))
    }

    /// Whether a command writes, and whether it is refused when the memory is full.
    fn effects(&self, name: &str, arguments: &[Bytes]) -> Option<(bool, bool)> {
        let command = command(name).map(|command| (command.writes, command.grows));
        command.or_else(|| self.libraries.effects(name, arguments))
    }

    fn answer(&mut self, name: &str, session: &mut Session, arguments: &[Bytes]) -> Reply {
        let limits = Limits {
            is_full: self.condition.is_full,
            is_read_only: self.master.is_some(),
            is_reader: false,
        };
        match name {
            "EVAL" => self.scripts.eval(arguments, limits),
            "EVALSHA" => self.scripts.eval_by_digest(arguments, limits),
            "FCALL" | "FCALL_RO" => self.call(name, arguments),
            _ if name.starts_with("FUNCTION") => self.function(name, arguments),
            "HELLO" => {
                let version = arguments.get(1).and_then(|version| version.first());
                session.protocol = if version == Some(&b'3') { 3 } else { 2 };
                let pairs = [
                    ("server", "redis"),
                    ("version", "7.0.15"),
                    ("mode", "standalone"),
                ];
                Reply::map(pairs.map(|(key, value)| (key, Reply::bulk(value))))
            }
            "ASKING" => Reply::ok(),
            "ROLE" => self.role(),
            "CLUSTER" => match &self.cluster {
                Some((topology, _)) => lock(topology).told(),
                None => Reply::error("ERR This instance has cluster support disabled"),
            },
            _ => match command(name) {
                Some(command) => command.run(&mut lock(&self.database), arguments),
                None => usual(name, session),
            },
        }
    }

    fn role(&self) -> Reply {
        match &self.master {
            None => {
                let (kind, replicas) = (Reply::bulk("master"), Reply::Array(vec![]));
                Reply::Array(vec![kind, Reply::Int(0), replicas])
            }
            Some(master) => {
                let [host, port] = host_and_port(master);
                let mut told = ["slave", host, port, "connected", ""].map(Reply::bulk);
                (told[2], told[4]) = (Reply::Int(port.parse().unwrap_or(0)), Reply::Int(0));
                Reply::Array(told.into())
            }
        }
    }
}

/// What servers and Sentinels answer alike.
pub fn usual(name: &str, session: &Session) -> Reply {
    match name {
        "PING" if session.protocol < 3 && !session.channels.is_empty() => {
            Reply::Array(vec![Reply::bulk("pong"), Reply::bulk("")])
        }
        "PING" => Reply::Status("PONG".into()),
        "CLIENT" | "SELECT" | "AUTH" => Reply::ok(),
        "INFO" => Reply::bulk("# Server\r\nredis_version:7.0.15\r\n"),
        _ => Reply::error(format!("{UNKNOWN} '{name}', with args beginning with: ")),
    }
}

/// The parts of an address.
pub fn host_and_port(address: &str) -> [&str; 2] {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "0"));
    [host, port]
}

/// Subscribes to channels: each has its own reply.
pub fn subscribe(session: &mut Session, name: &str, channels: &[Bytes]) -> Vec<Reply> {
    let kind = name.to_ascii_lowercase();
    let subscribed = channels.iter().map(|channel| {
        let own = &mut session.channels;
        own.insert((name == "SSUBSCRIBE", channel.clone()));
        let (kind, channel) = (Reply::bulk(kind.as_str()), Reply::bulk(&channel[..]));
        Reply::Push(vec![kind, channel, Reply::count(own.len())])
    });
    subscribed.collect()
}

/// A message on a channel, as its subscribers get it.
pub fn message((is_shard, channel): &Channel, text: &Bytes) -> Reply {
    let kind = if *is_shard { "smessage" } else { "message" };
    Reply::Push([kind.as_bytes(), channel, text].map(Reply::bulk).into())
}
