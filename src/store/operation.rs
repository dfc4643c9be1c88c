//! The seam between primitives and stores: an [`Operation`] is one step on the state of one key, as a Lua
//! script and as the same step in Rust.
//!
//! The Redis store runs the script, the in-memory store calls [`Operation::apply`]. The two must agree on
//! every sequence of operations, which the agreement tests check.

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::notifier::Push;
use super::redis::Value;

/// One step on the state of one key.
///
/// Calls made while others are in flight may leave as one script call, in *runs*: equal operations on one
/// key, with a count. A script with [`MOST_RUNS`](Self::MOST_RUNS) above 1 takes the keys and the
/// [`own`](Self::own) arguments of several runs, one after the other; the arguments once where they are the
/// same for all and it [takes them so](Self::SAME_ONCE). It answers `now` and then as many fields for each run.
pub(crate) trait Operation: fmt::Debug + Send + Sync + Sized + 'static {
    /// The state of a key in process.
    type Cell: Cell;
    /// The answer.
    type Reply: fmt::Debug + Send + 'static;
    /// What takes back a reply that nobody is left to receive.
    type Undo: Operation<Cell = Self::Cell>;

    /// The script.
    const SCRIPT: Script;
    /// The last parts of the names of the keys it works on, in the order of KEYS.
    const PARTS: &'static [&'static str];
    /// How many runs one call of the script takes at most.
    const MOST_RUNS: usize = 1;
    /// How many equal operations a run counts at most.
    const MOST_REPEATS: usize = 1;
    /// Whether the script takes [`own`](Self::own) arguments that are the same for all runs once.
    const SAME_ONCE: bool = true;
    /// Whether all runs of a call are of one key, whose names the script takes once.
    const ONE_KEY: bool = false;

    /// How many batches are in flight beside each other at most: while the replies of one are handed out, the server
    /// works on another.
    const FLUSHERS: usize = 3;
    /// Whether it must not be sent again where it may have run: what gives back.
    const AT_MOST_ONCE: bool = false;
    /// Whether operations must run in the order in which they were submitted: then one call is in flight at a time.
    const IN_ORDER: bool = false;
    /// Whether replies bring news for other waiters of this process: they are decoded as soon as they land, whether or
    /// not their callers are polled.
    const NOTIFIES: bool = false;
    /// Whether it carries answers of any size: these have a connection and a breaker of their own.
    const BULK: bool = false;

    /// Whether it goes first and is never refused for overload: what renews, confirms, releases or takes back.
    fn is_reserved(&self) -> bool {
        false
    }

    /// The bytes it carries besides its key.
    fn payload(&self) -> usize {
        0
    }

    /// Operations of one group have the same [`shared`](Self::shared) arguments and may leave in one call.
    fn group(&self) -> usize {
        0
    }

    /// How many runs this one is as good as: it takes as many places in a call, and as many fields of the answer.
    fn size(&self) -> usize {
        1
    }

    /// How many runs one call takes at most where this leaves.
    fn most_runs(&self) -> usize {
        Self::MOST_RUNS
    }

    /// Whether another of the same group and key asks the very same, so that a count will do for both.
    fn repeats(&self, _other: &Self) -> bool {
        false
    }

    /// Writes the arguments that all of a group share.
    fn shared(&self, _call: &mut Arguments<'_>) {}

    /// Writes the arguments of a run of `count` equal operations.
    fn own(&self, _count: usize, _call: &mut Arguments<'_>) {}

    /// Reads the answer to the `nth` (from 0) of a run.
    fn decode(self, nth: usize, now: i64, fields: Fields<'_>) -> Result<Self::Reply, Garbled>;

    /// The same step in Rust. `now` is in µs, as in the script.
    fn apply(self, cell: &mut Self::Cell, now: i64) -> Self::Reply;

    /// What an answer brings for others who wait in this process.
    fn pushes(_reply: &mut Self::Reply) -> Vec<Push> {
        Vec::new()
    }

    /// How to take back answers whose callers are gone: the last ones of a run, in their order.
    fn undo(_replies: &[Self::Reply]) -> Option<Self::Undo> {
        None
    }
}

/// The state of one key in process. The default is the state of a key that does not exist.
pub(crate) trait Cell: Clone + Default + Send + 'static {
    /// Whether forgetting the state changes nothing.
    fn is_idle(&self, now: i64) -> bool;

    /// What the last step has to tell those who wait: what a script publishes.
    fn pushes(&mut self) -> Vec<Push> {
        Vec::new()
    }
}

/// The text of a script, without the clock that the store puts before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script {
    pub(crate) name: &'static str,
    pub(crate) body: &'static str,
}

/// Joins the pieces of a script at compile time: `script!(own file, shared pieces…)`, the shared ones put first.
macro_rules! script {
    ($name:literal $(, $lib:literal)* $(,)?) => {
        $crate::store::Script {
            name: $name,
            body: concat!(
                $(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/", $lib, ".lua")),)*
                include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/", $name, ".lua")),
            ),
        }
    };
}
pub(crate) use script;

/// Where the arguments of a call are written, in the order of ARGV.
pub(crate) struct Arguments<'a>(&'a mut Vec<Argument>);

/// One of ARGV.
#[derive(Debug, PartialEq)]
pub(crate) enum Argument {
    Integer(i64),
    Word(&'static str),
    Text(Arc<str>),
    Bytes(Arc<[u8]>),
}

impl<'a> Arguments<'a> {
    pub(crate) fn new(arguments: &'a mut Vec<Argument>) -> Self {
        Self(arguments)
    }

    pub(crate) fn integer(&mut self, value: i64) {
        self.0.push(Argument::Integer(value));
    }

    pub(crate) fn word(&mut self, value: &'static str) {
        self.0.push(Argument::Word(value));
    }

    pub(crate) fn text(&mut self, value: Arc<str>) {
        self.0.push(Argument::Text(value));
    }

    pub(crate) fn bytes(&mut self, value: Arc<[u8]>) {
        self.0.push(Argument::Bytes(value));
    }
}

/// What is wrong with an answer.
#[derive(Debug)]
pub(crate) struct Garbled(pub(crate) &'static str);

/// A value in a script's reply.
#[derive(Debug)]
pub(crate) enum Field<'a> {
    Integer(i64),
    Text(&'a [u8]),
    List(Fields<'a>),
}

/// What a script answered for one run, read from the front.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    values: std::slice::Iter<'a, Value>,
    twice: bool,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(values: &'a [Value], twice: bool) -> Self {
        Self { values: values.iter(), twice }
    }

    /// Whether the call was sent twice, so that the operation may run once more, and late.
    pub(crate) fn sent_twice(&self) -> bool {
        self.twice
    }

    pub(crate) fn next(&mut self) -> Result<Field<'a>, Garbled> {
        match self.values.next() {
            Some(Value::Int(integer)) => Ok(Field::Integer(*integer)),
            Some(Value::BulkString(text)) => Ok(Field::Text(text)),
            Some(Value::Array(values)) => Ok(Field::List(Self::new(values, self.twice))),
            Some(_) => Err(Garbled("a script answered a value that is no number, text or list")),
            None => Err(Garbled("a script answered too little")),
        }
    }

    pub(crate) fn integer(&mut self) -> Result<i64, Garbled> {
        match self.next()? {
            Field::Integer(integer) => Ok(integer),
            _ => Err(Garbled("a script answered something else where a number belongs")),
        }
    }

    pub(crate) fn list(&mut self) -> Result<Fields<'a>, Garbled> {
        match self.next()? {
            Field::List(list) => Ok(list),
            _ => Err(Garbled("a script answered something else where a list belongs")),
        }
    }
}

/// The operation that is never run: the [`Undo`](Operation::Undo) of what needs none.
pub(crate) struct Never<C>(Infallible, PhantomData<fn(C)>);

impl<C> fmt::Debug for Never<C> {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {}
    }
}

impl<C: Cell> Operation for Never<C> {
    type Cell = C;
    type Reply = ();
    type Undo = Self;
    const SCRIPT: Script = Script { name: "", body: "" };
    const PARTS: &'static [&'static str] = &[];

    fn decode(self, _: usize, _: i64, _: Fields<'_>) -> Result<(), Garbled> {
        match self.0 {}
    }

    fn apply(self, _: &mut C, _: i64) {
        match self.0 {}
    }
}
