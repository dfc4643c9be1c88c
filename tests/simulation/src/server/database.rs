//! The keys of a server, and the commands on them as a table.

use std::collections::{BTreeMap, BTreeSet};

use super::Channel;
use super::commands::{bits, hashes, keys, lists, sorted_sets, strings};
use super::reply::{Bytes, Reply};
use super::sorted_set::SortedSet;

#[derive(Clone)]
pub enum Item {
    Text(Bytes),
    SortedSet(SortedSet),
    Hash(BTreeMap<Bytes, Bytes>),
    List(Vec<Bytes>),
}

#[derive(Clone)]
pub struct Entry {
    pub item: Item,
    /// When it expires, in ms.
    pub until: Option<i64>,
}

#[derive(Default)]
pub struct Database {
    pub entries: BTreeMap<Bytes, Entry>,
    /// The time, in µs since the epoch.
    pub micros: i64,
    /// Messages that are on their way.
    pub published: Vec<(Channel, Bytes)>,
    /// Keys that a command may have changed since they were taken.
    pub changed: BTreeSet<Bytes>,
    /// How many connections are subscribed to a channel.
    pub subscribers: BTreeMap<Channel, i64>,
    /// How often each command has run.
    pub calls: BTreeMap<&'static str, u64>,
}

/// What a command answers, or why it is refused.
pub type Outcome = Result<Reply, String>;

type Run = fn(&mut Database, &[Bytes]) -> Outcome;

pub struct Command {
    pub name: &'static str,
    /// The number of arguments with the name; negative: at least so many.
    arity: i32,
    pub writes: bool,
    /// Whether it is refused when the memory is full.
    pub grows: bool,
    run: Run,
}

pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
pub const NOT_INTEGER: &str = "ERR value is not an integer or out of range";
pub const NOT_FLOAT: &str = "ERR value is not a valid float";
pub const SYNTAX: &str = "ERR syntax error";

const fn reads(name: &'static str, arity: i32, run: Run) -> Command {
    Command {
        name,
        arity,
        writes: false,
        grows: false,
        run,
    }
}

const fn shrinks(name: &'static str, arity: i32, run: Run) -> Command {
    Command {
        writes: true,
        ..reads(name, arity, run)
    }
}

const fn grows(name: &'static str, arity: i32, run: Run) -> Command {
    Command {
        grows: true,
        ..shrinks(name, arity, run)
    }
}

/// All commands on keys, by name.
pub const COMMANDS: &[Command] = &[
    reads("BITCOUNT", -2, bits::count),
    grows("BITFIELD", -2, bits::field),
    reads("BITFIELD_RO", -2, bits::field),
    shrinks("DEL", -2, keys::del),
    reads("EXISTS", -2, keys::exists),
    reads("GET", 2, strings::get),
    reads("GETRANGE", 4, strings::get_range),
    shrinks("HDEL", -3, hashes::del),
    reads("HEXISTS", 3, hashes::exists),
    reads("HGET", 3, hashes::get),
    reads("HGETALL", 2, hashes::get_all),
    grows("HSET", -4, hashes::set),
    reads("LRANGE", 4, lists::range),
    shrinks("LTRIM", 4, lists::trim),
    reads("MGET", -2, strings::get_all),
    shrinks("PEXPIRE", -3, keys::expire),
    reads("PTTL", 2, keys::ttl),
    reads("PUBLISH", 3, keys::publish),
    grows("RPUSH", -3, lists::push),
    reads("SCAN", -2, keys::scan),
    grows("SET", -3, strings::set),
    grows("SETRANGE", 4, strings::set_range),
    reads("SPUBLISH", 3, keys::publish),
    reads("STRLEN", 2, strings::len),
    reads("TIME", 1, keys::time),
    reads("TYPE", 2, keys::kind),
    shrinks("UNLINK", -2, keys::del),
    grows("ZADD", -4, sorted_sets::add),
    reads("ZCARD", 2, sorted_sets::card),
    reads("ZCOUNT", 4, sorted_sets::count),
    grows("ZINCRBY", 4, sorted_sets::increase),
    reads("ZMSCORE", -3, sorted_sets::scores),
    reads("ZRANGE", -4, sorted_sets::range),
    reads("ZRANGEBYSCORE", -4, sorted_sets::range),
    reads("ZRANK", 3, sorted_sets::rank),
    shrinks("ZREM", -3, sorted_sets::remove),
    shrinks("ZREMRANGEBYSCORE", 4, sorted_sets::remove_by_score),
    reads("ZSCORE", 3, sorted_sets::score),
];

/// The command of this name in capitals.
pub fn command(name: &str) -> Option<&'static Command> {
    let found = COMMANDS.binary_search_by(|command| command.name.cmp(name));
    found.ok().map(|at| &COMMANDS[at])
}

/// Whether the number of arguments fits that of a command.
pub fn fits(arity: i32, arguments: &[Bytes]) -> bool {
    let count = arguments.len() as i32;
    count == arity.abs() || arity < 0 && count > -arity
}

/// The error of a command whose arguments do not fit.
pub fn wrong_count(name: &str) -> Reply {
    let what = "ERR wrong number of arguments for";
    Reply::Error(format!("{what} '{}' command", name.to_ascii_lowercase()))
}

impl Command {
    /// Whether the number of arguments fits.
    pub fn fits(&self, arguments: &[Bytes]) -> bool {
        fits(self.arity, arguments)
    }

    /// Runs the command. `arguments` begin with its name.
    pub fn run(&self, database: &mut Database, arguments: &[Bytes]) -> Reply {
        if !self.fits(arguments) {
            return wrong_count(self.name);
        }
        *database.calls.entry(self.name).or_default() += 1;
        if self.writes {
            let keys = super::keys(self.name, arguments);
            database.changed.extend(keys.iter().cloned());
        }
        (self.run)(database, arguments).unwrap_or_else(Reply::Error)
    }
}

/// What a key of one kind has: `None` if it is missing, and made if it is to be changed.
macro_rules! items {
    ($($get:ident $get_or_new:ident $kind:ident $content:ty,)*) => {
        impl Database {$(
            pub fn $get(&mut self, key: &[u8]) -> Result<Option<&mut $content>, String> {
                match self.get(key) {
                    None => Ok(None),
                    Some(Item::$kind(content)) => Ok(Some(content)),
                    Some(_) => Err(WRONG_TYPE.into()),
                }
            }

            pub fn $get_or_new(&mut self, key: &[u8]) -> Result<&mut $content, String> {
                match self.item(key, Item::$kind(Default::default())) {
                    Item::$kind(content) => Ok(content),
                    _ => Err(WRONG_TYPE.into()),
                }
            }
        )*}
    };
}

items! {
    text text_or_new Text Bytes,
    sorted_set sorted_set_or_new SortedSet SortedSet,
    hash hash_or_new Hash BTreeMap<Bytes, Bytes>,
    list list_or_new List Vec<Bytes>,
}

impl Database {
    pub fn millis(&self) -> i64 {
        self.micros.div_euclid(1000)
    }

    /// The item of a key, unless it has expired: after the ms of its end, as a server does it.
    pub fn get(&mut self, key: &[u8]) -> Option<&mut Item> {
        self.entry(key).map(|entry| &mut entry.item)
    }

    pub fn entry(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let now = self.millis();
        let ended = |entry: &Entry| entry.until.is_some_and(|until| until < now);
        if self.entries.get(key).is_some_and(ended) {
            self.entries.remove(key);
        }
        self.entries.get_mut(key)
    }

    /// Drops all that has expired.
    pub fn sweep(&mut self) {
        let now = self.millis();
        self.entries
            .retain(|_, entry| entry.until.is_none_or(|until| until >= now));
    }

    /// The item of a key, which is made if it is missing.
    fn item(&mut self, key: &[u8], empty: Item) -> &mut Item {
        self.get(key);
        let fresh = Entry {
            item: empty,
            until: None,
        };
        &mut self.entries.entry(key.to_vec()).or_insert(fresh).item
    }

    /// Drops a key whose last element was removed.
    pub fn drop_empty(&mut self, key: &[u8]) {
        let is_empty = match self.entries.get(key).map(|entry| &entry.item) {
            Some(Item::SortedSet(set)) => set.is_empty(),
            Some(Item::Hash(hash)) => hash.is_empty(),
            Some(Item::List(list)) => list.is_empty(),
            Some(Item::Text(_)) | None => false,
        };
        if is_empty {
            self.entries.remove(key);
        }
    }
}
