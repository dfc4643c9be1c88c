//! The interface between primitives and stores. An [`Operation`] is one step on the state of one key: as a Lua
//! script, and as the same step in Rust.
//!
//! The Redis store runs the script, the in-memory store calls [`Operation::apply`]. The two must agree on every
//! sequence of operations. The agreement tests check this.

use std::fmt;
use std::sync::Arc;

use redis::Value;
use smallvec::SmallVec;

use crate::store::notifier::Push;

/// One step on the state of one key.
///
/// Operations that are submitted while others are in flight may be sent in one script call. A call consists of *runs*:
/// equal operations on one key, with a count. A script with [`MOST_RUNS`](Self::MOST_RUNS) above 1 takes the keys and
/// the [`own`](Self::own) arguments of several runs, one after the other. It takes the arguments once if they are equal
/// for all runs and [`SAME_ONCE`](Self::SAME_ONCE) is set. It returns `now`, then the same number of fields for each
/// run.
///
/// # What happens if an operation runs twice
///
/// Each operation states in [`REPEAT`](Self::REPEAT) whether its call may be sent again when it is not known whether
/// the first copy has run. `redis/retry.rs` uses only this constant. A first copy that was not lost may run after the
/// second.
///
/// | operation | its second run | sent again |
/// |---|---|---|
/// | `AcquireRelease`: acquire | finds its token: the same reply | yes; its release then withdraws the token |
/// | `AcquireRelease`: release | finds no token: "not held" | yes; the caller checks [`Fields::sent_twice`] |
/// | `AcquireRelease`: complete | finds no lease: "not held" | yes; then it was held, unless another token holds |
/// | `Renew`, `Heartbeat` | the same: no lease is shortened or revived | yes |
/// | `Peek`, `Contains`, `Count`, each `Look` | the same: they write nothing | yes |
/// | `Read` of a setting, `LookAtLimit` | the same | yes |
/// | `Set` of a setting | finds the version that it has added: the same reply | yes |
/// | `Open` of a filter, of a layout | the same: its data is already stored | yes |
/// | `Forget` of an answer | the same; at worst it removes a newer answer | yes |
/// | `Charge`, `Adjust`, `Prefetch` | charges again, and may refuse | no |
/// | `HoldSteps` | holds what was captured before, or charges a hold that is gone again | no |
/// | `Adapt` | counts its samples again | no |
/// | `GiveBack` | refunds too much | no |
/// | `CheckAndInsert` | finds its own items: reported as already handled | no |
/// | `Forget` of a handled item, `Revoke` | finds nothing: "not stored", "not held" | no |
/// | `Reset`, `Clear` | the same; a late copy undoes later operations | no |
///
/// If a call that is not sent again may have run, its error [is unavailable](crate::Error::is_unavailable).
pub(crate) trait Operation: fmt::Debug + Send + Sync + Sized + 'static {
    /// The state of a key in memory.
    type Cell: Cell;
    /// The reply.
    type Reply: fmt::Debug + Send + 'static;
    /// The operation that undoes a reply whose caller is gone; `Self` if nothing is ever undone.
    type Undo: Operation<Cell = Self::Cell>;

    /// The script.
    const SCRIPT: Script;
    /// The last parts of the names of the operation's keys, in the order of KEYS.
    const PARTS: &'static [&'static str];
    /// Whether a call may be sent again if its first copy may have run.
    const REPEAT: Repeat;
    /// The maximum number of runs in one call of the script. A call of several runs has at most 64 KiB of
    /// [payload](Self::payload).
    const MOST_RUNS: usize = 1;
    /// The maximum number of equal operations in a run.
    const MOST_REPEATS: usize = 1;
    /// Whether the script takes [`own`](Self::own) arguments once if they are equal for all runs.
    const SAME_ONCE: bool = true;
    /// Whether all runs of a call are on one key. The script then takes the names of its keys once.
    const ONE_KEY: bool = false;

    /// The maximum number of batches in flight at a time. While the replies of one batch are distributed, the
    /// server works on another.
    const FLUSHERS: usize = 3;
    /// Whether operations must run in the order in which they were submitted. Then only one call is in flight at a
    /// time.
    const IN_ORDER: bool = false;
    /// Whether replies contain pushes for other waiters of this process. Such replies are decoded when they arrive,
    /// even if their callers are not polled.
    const NOTIFIES: bool = false;
    /// Whether replies can be of any size. Such operations have their own connection and breaker.
    const BULK: bool = false;
    /// Whether each reply is undone by an [undo](Self::undo) of its own.
    const UNDONE_ALONE: bool = false;
    /// Whether all operations of this type [are reserved](Self::is_reserved).
    const RESERVED: bool = false;

    /// Whether the operation is sent first, and never refused as overloaded unless it has a [payload](Self::payload).
    /// This holds for operations that renew, confirm, release or undo.
    fn is_reserved(&self) -> bool {
        Self::RESERVED
    }

    /// The bytes that the operation carries besides its key.
    fn payload(&self) -> usize {
        0
    }

    /// Operations of one group have the same [`shared`](Self::shared) arguments and may be sent in one call. An
    /// operation without a group accepts the shared arguments of any group.
    fn group(&self) -> Option<u128> {
        Some(0)
    }

    /// The number of runs that this operation counts as, both in the bound of a call and in the fields of the reply.
    fn size(&self) -> usize {
        1
    }

    /// The maximum number of runs in a call that contains this operation.
    fn most_runs(&self) -> usize {
        Self::MOST_RUNS
    }

    /// The order of operations of the same group and key in a call. Operations of the same rank keep their order.
    fn rank(&self) -> (u8, u128) {
        (0, 0)
    }

    /// Whether `_next`, of the same group and key, is equal or continues a run, so that both can be one run.
    fn repeats(&self, _next: &Self) -> bool {
        false
    }

    /// Writes the arguments that all operations of a group share.
    fn shared(&self, _call: &mut Arguments<'_>) {}

    /// Writes the arguments of a run of `count` equal operations.
    fn own(&self, _count: usize, _call: &mut Arguments<'_>) {}

    /// Writes the arguments of a run of this operation and `others`, which may differ from it.
    fn own_run<'a>(
        &'a self,
        others: impl ExactSizeIterator<Item = &'a Self> + Clone,
        call: &mut Arguments<'_>,
    ) {
        self.own(1 + others.len(), call);
    }

    /// Decodes the reply to the `nth` operation (from 0) of a run.
    fn decode(self, nth: usize, now: i64, fields: Fields<'_>) -> Result<Self::Reply, Garbled>;

    /// Applies the same step in Rust. `now` is in µs, as in the script.
    fn apply(self, cell: &mut Self::Cell, now: i64) -> Self::Reply;

    /// Like [`apply`](Self::apply), for an operation on the states of several keys, which are not empty.
    fn apply_to_each(self, cells: &mut [Self::Cell], now: i64) -> Self::Reply {
        self.apply(&mut cells[0], now)
    }

    /// Returns the pushes in a reply for other waiters of this process.
    fn pushes(_reply: &mut Self::Reply) -> Vec<Push> {
        Vec::new()
    }

    /// Returns the operation that undoes replies whose callers are gone: the last replies of a run, in their order.
    fn undo(_replies: &[Self::Reply]) -> Option<Self::Undo> {
        None
    }
}

/// Whether a call may be sent again if its first copy may have run. See [`Operation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It may run twice: the effect and the reply are the same, or it checks [`Fields::sent_twice`].
    Safe,
    /// It is sent at most once.
    Never,
}

/// The state of one key in memory. The default is the state of a key that does not exist.
pub(crate) trait Cell: Clone + Default + Send + 'static {
    /// Whether the state can be dropped without a change of behaviour.
    fn is_idle(&self, now: i64) -> bool;

    /// Makes it the state of a key that does not exist. It may keep memory for the next step.
    fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns approximately the bytes that the state has allocated or may allocate. Must be cheap, and constant until
    /// the next step.
    fn heap_bytes(&self) -> usize {
        0
    }

    /// Returns the pushes of the last step to waiters: the messages that the script would publish.
    fn pushes(&mut self) -> Vec<Push> {
        Vec::new()
    }
}

/// The code that a server runs for an operation: a function of the library. See `store/redis/library.rs`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script {
    /// Its first arguments: its name and, for some functions, the kind of leases.
    pub(crate) words: &'static [&'static str],
    /// The pieces of the library that it needs, for servers without functions.
    pub(crate) pieces: &'static [&'static [&'static str]],
    pub(crate) rights: Rights,
}

/// The permissions of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rights {
    /// It writes nothing.
    Reads,
    /// It writes. A server that refuses writes, because it is out of memory or has too few replicas, refuses the
    /// function as a whole. The call is then sent as a script.
    Writes,
}

/// The text of a Lua file.
macro_rules! lua {
    ($name:expr) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/", $name, ".lua"))
    };
}
pub(crate) use lua;

/// An operation of the library: `function!(rights: words; pieces)`.
macro_rules! function {
    ($rights:ident: $($word:expr),+; $($pieces:expr),*) => {
        $crate::store::operation::Script {
            words: &[$($word),+],
            pieces: &[$($pieces),*],
            rights: $crate::store::operation::Rights::$rights,
        }
    };
}
pub(crate) use function;

/// Collects the arguments of a call, in the order of ARGV.
pub(crate) struct Arguments<'a>(&'a mut Vec<Argument>);

/// One argument in ARGV.
#[derive(Debug, PartialEq)]
pub(crate) enum Argument {
    Integer(i64),
    /// See [`packed`].
    Numbers([i64; 3]),
    Word(&'static str),
    Text(Arc<str>),
    /// The prefix of channels. On a Cluster, the prefix of the channels by which one master wakes waiters.
    Channels(Arc<str>),
    Bytes(Arc<[u8]>),
}

/// Packs integers for scripts, which read them much faster than text: see `lua/level.lua`.
pub(crate) fn packed(numbers: impl IntoIterator<Item = i64>) -> SmallVec<[u8; 32]> {
    let mut bytes = SmallVec::from_slice(&[0]);
    for number in numbers {
        bytes.extend_from_slice(&(number as f64).to_be_bytes());
    }
    bytes
}

impl<'a> Arguments<'a> {
    pub(crate) fn new(arguments: &'a mut Vec<Argument>) -> Self {
        Self(arguments)
    }

    pub(crate) fn integer(&mut self, value: i64) {
        self.0.push(Argument::Integer(value));
    }

    /// One argument for three numbers. Numbers above 2^53 are rounded, which does not matter for times.
    pub(crate) fn numbers(&mut self, values: [i64; 3]) {
        self.0.push(Argument::Numbers(values));
    }

    pub(crate) fn word(&mut self, value: &'static str) {
        self.0.push(Argument::Word(value));
    }

    pub(crate) fn text(&mut self, value: Arc<str>) {
        self.0.push(Argument::Text(value));
    }

    pub(crate) fn channels(&mut self, prefix: Arc<str>) {
        self.0.push(Argument::Channels(prefix));
    }

    pub(crate) fn bytes(&mut self, value: Arc<[u8]>) {
        self.0.push(Argument::Bytes(value));
    }
}

/// The reason why a reply could not be decoded.
#[derive(Debug)]
pub(crate) struct Garbled(pub(crate) &'static str);

/// A value in a script's reply.
#[derive(Debug)]
pub(crate) enum Field<'a> {
    Integer(i64),
    Text(&'a [u8]),
    List(Fields<'a>),
}

/// The reply of a script to one run, read from the front.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    values: std::slice::Iter<'a, Value>,
    twice: bool,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(values: &'a [Value], twice: bool) -> Self {
        Self {
            values: values.iter(),
            twice,
        }
    }

    /// The number of remaining values.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether the call was sent twice. The other copy of the operation may still run later.
    pub(crate) fn sent_twice(&self) -> bool {
        self.twice
    }

    pub(crate) fn next(&mut self) -> Result<Field<'a>, Garbled> {
        match self.values.next() {
            Some(Value::Int(integer)) => Ok(Field::Integer(*integer)),
            Some(Value::BulkString(text)) => Ok(Field::Text(text)),
            Some(Value::Array(values)) => Ok(Field::List(Self::new(values, self.twice))),
            Some(_) => Err(Garbled(
                "a script returned a value that is not a number, text or list",
            )),
            None => Err(Garbled("a script returned too few values")),
        }
    }

    /// Returns the next value as fields of its own.
    pub(crate) fn one(&mut self) -> Result<Self, Garbled> {
        let value = self
            .values
            .next()
            .ok_or(Garbled("a script returned too few values"))?;
        Ok(Self::new(std::slice::from_ref(value), self.twice))
    }

    pub(crate) fn integer(&mut self) -> Result<i64, Garbled> {
        match self.next()? {
            Field::Integer(integer) => Ok(integer),
            _ => Err(Garbled(
                "a script returned another type where a number was expected",
            )),
        }
    }

    pub(crate) fn list(&mut self) -> Result<Fields<'a>, Garbled> {
        match self.next()? {
            Field::List(list) => Ok(list),
            _ => Err(Garbled(
                "a script returned another type where a list was expected",
            )),
        }
    }
}
