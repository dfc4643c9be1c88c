//! The Lua scripts and the Rust code must give the same answers to every sequence of operations.
//!
//! [`Both`] sends runs of operations to a Redis server in one call of their script, and applies them one by one in
//! Rust. The scripts use a clock that the test sets, and sets back at times. Keys expire by that clock, and each expiry
//! is checked when it is written. Runs that share one call must answer as if each had been called alone, in the order of
//! the runs. Every call has runs of several keys, several runs of one key, and a key that does not hold a bucket.

mod calendar;
mod exact;
mod forged;
mod hold_all;
mod holds;
mod learned;
mod rational;
mod runs;
mod set_back;
mod several;
mod virtual_time;
mod windows;

use std::collections::HashMap;
use std::time::Duration;

use redis::Value;

use crate::bucket::Bucket;
use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;
use crate::bucket::tests::agreement::virtual_time::{CLOCK, VirtualTime};
use crate::bucket::tests::fixtures::START;
use crate::store::operation::{Arguments, Cell, Fields, Operation};
use support::redis_server::RedisServer;

const SEQUENCES: usize = 200;

const STEPS: usize = 40;

/// The key that holds a list.
const FOREIGN: usize = 2;

/// Operations that are one run: equal operations, unless `nth` distinguishes them.
#[derive(Debug)]
struct Run<O> {
    /// The key of the bucket, or one of each limit.
    keys: Vec<usize>,
    operation: O,
    count: usize,
    /// The operation at a position from 0.
    nth: fn(&O, usize) -> O,
    /// The operation for the other buckets if one of the keys is foreign.
    elsewhere: Option<O>,
}

impl<O: Clone> Run<O> {
    fn new(keys: impl Into<Vec<usize>>, operation: O) -> Self {
        let nth = |operation: &O, _: usize| operation.clone();
        Self {
            keys: keys.into(),
            operation,
            count: 1,
            nth,
            elsewhere: None,
        }
    }

    fn all(&self) -> Vec<O> {
        (0..self.count)
            .map(|at| (self.nth)(&self.operation, at))
            .collect()
    }
}

/// The buckets of a server, and the same in Rust.
struct Both {
    time: VirtualTime,
    now: i64,
    sequence: usize,
    buckets: HashMap<usize, Bucket>,
}

impl Both {
    fn new(server: &RedisServer) -> Self {
        server.cli(&["RPUSH", "list", "a"]);
        let mut time = VirtualTime::new(server);
        time.set(START);
        Self {
            time,
            now: START,
            sequence: 0,
            buckets: HashMap::new(),
        }
    }

    /// Begins a sequence on keys of its own.
    fn begin(&mut self) {
        self.sequence += 1;
        self.buckets.clear();
    }

    fn pass(&mut self, by: i64) {
        self.buckets.retain(|_, bucket| !bucket.is_idle(self.now));
        self.now += by;
        self.time.set(self.now);
    }

    fn name(&self, key: usize) -> String {
        if key == FOREIGN {
            "list".to_owned()
        } else {
            format!("{}:{key}", self.sequence)
        }
    }

    fn bucket(&mut self, key: usize) -> &mut Bucket {
        let bucket = self.buckets.entry(key).or_default();
        if bucket.is_idle(self.now) {
            *bucket = Bucket::default();
        }
        bucket
    }

    /// Applies an operation in Rust.
    fn apply<O: Operation<Cell = Bucket>>(&mut self, keys: &[usize], operation: O) -> O::Reply {
        let mut buckets: Vec<_> = keys.iter().map(|key| self.bucket(*key).clone()).collect();
        let reply = operation.apply_to_each(&mut buckets, self.now);
        self.buckets.extend(keys.iter().copied().zip(buckets));
        reply
    }

    /// Sends runs in one call of the script. Returns its answer to each run.
    fn send<'a, O: Operation>(
        &mut self,
        keys: impl IntoIterator<Item = &'a usize>,
        runs: &[Vec<&O>],
    ) -> Vec<Vec<Value>> {
        let keys: Vec<_> = keys.into_iter().map(|key| self.name(*key)).collect();
        let mut command = redis::cmd("EVAL");
        command
            .arg(O::SCRIPT.text(Some(CLOCK)))
            .arg(keys.len())
            .arg(keys);
        O::SCRIPT.words.iter().for_each(|word| {
            command.arg(word);
        });
        let (mut shared, mut own) = (Vec::new(), Vec::new());
        runs[0][0].shared(&mut Arguments::new(&mut shared));
        for run in runs {
            run[0].own_run(run[1..].iter().copied(), &mut Arguments::new(&mut own));
        }
        let each = own.len() / runs.len();
        if O::SAME_ONCE && each > 0 && own.chunks_exact(each).all(|chunk| chunk == &own[..each]) {
            own.truncate(each);
        }
        shared
            .iter()
            .chain(&own)
            .for_each(|argument| argument.add_to(&mut command, None));
        let reply: Vec<Value> = match self.time.client.query(&command).unwrap() {
            Value::Array(values) => values,
            now @ Value::Int(_) => vec![now],
            // A text of numbers.
            text => {
                let text: String = redis::from_redis_value(text).unwrap();
                text.split(' ')
                    .map(|word| Value::Int(word.parse().unwrap()))
                    .collect()
            }
        };
        self.time.check_expiries();
        assert_eq!(reply[0], Value::Int(self.now));
        let fields = &reply[1..];
        assert_eq!(fields.len() % runs.len(), 0, "{fields:?}");
        let width = fields.len() / runs.len();
        (0..runs.len())
            .map(|run| fields[run * width..(run + 1) * width].to_vec())
            .collect()
    }

    /// Sends the runs in one call of the script, and applies them one by one in Rust. Returns the replies of each run,
    /// in order. A run with the foreign key has none.
    fn call<O: Operation<Cell = Bucket> + Clone>(&mut self, runs: &[Run<O>]) -> Vec<Vec<O::Reply>> {
        self.call_and_compare(runs, |reply, _| format!("{reply:?}"))
    }

    /// Like `call`, but compares the results of `told` for the replies. It is called with the last reply of each run.
    fn call_and_compare<O: Operation<Cell = Bucket> + Clone>(
        &mut self,
        runs: &[Run<O>],
        told: impl Fn(&O::Reply, bool) -> String,
    ) -> Vec<Vec<O::Reply>> {
        if runs.is_empty() {
            return Vec::new();
        }
        let operations: Vec<_> = runs.iter().map(Run::all).collect();
        let sent: Vec<Vec<_>> = operations.iter().map(|run| run.iter().collect()).collect();
        let fields = self.send(runs.iter().flat_map(|run| &run.keys), &sent);
        let mut replies = Vec::new();
        for ((run, operations), fields) in runs.iter().zip(operations).zip(&fields) {
            let mut of_run = Vec::new();
            for (nth, operation) in operations.into_iter().enumerate() {
                let is_last = nth + 1 == run.count;
                let lua = operation
                    .clone()
                    .decode(nth, self.now, Fields::new(fields, false));
                if run.keys.contains(&FOREIGN) {
                    assert!(
                        lua.is_err_and(|error| error.0.starts_with("WRONGTYPE")),
                        "{runs:?}"
                    );
                    if let Some(elsewhere) = &run.elsewhere {
                        self.apply(&run.keys, elsewhere.clone());
                    }
                    continue;
                }
                let rust = self.apply(&run.keys, operation);
                let lua = lua.unwrap_or_else(|error| panic!("{error:?}: {run:?}"));
                let (of_lua, of_rust) = (told(&lua, is_last), told(&rust, is_last));
                assert_eq!(of_lua, of_rust, "{run:?} of {runs:?} at {}", self.now);
                of_run.push(lua);
            }
            replies.push(of_run);
        }
        replies
    }

    /// Checks that the foreign key was left as it is.
    fn ends(self, server: &RedisServer) {
        assert_eq!(server.cli(&["LRANGE", "list", "0", "-1"]).trim(), "a");
    }
}

fn quota_sets() -> Vec<Quotas> {
    // Midnight at this offset from UTC comes 40 s after the time at which the sequences begin, a Thursday.
    const OFFSET: i16 = -(8 * 60 + 54);
    let sets: [&[Quota]; 14] = [
        &[Quota::per_second(10).burst(5)],
        &[Quota::per_second(7).burst(3)],
        &[
            Quota::per_second(7).burst(9).named("a"),
            Quota::per_second(7).burst(3).named("b"),
        ],
        &[Quota::per_second(3_000_000).burst(4_000_000)],
        &[
            Quota::per_second(10).burst(10),
            Quota::per_minute(31).burst(7),
        ],
        &[Quota::non_refilling(12)],
        &[
            Quota::per_hour(1000).burst(4),
            Quota::non_refilling(40),
            Quota::per_second(999_983).burst(100),
        ],
        &[Quota::new(1, Duration::from_secs(86_400 * 365))],
        &[Quota::new(u32::MAX, Duration::from_secs(7))],
        // The time of the burst is more than 2^53 parts of a µs.
        &[Quota::new(999_983, Duration::from_secs(3600)).burst(4_000_000)],
        &[Quota::per_calendar_day(9).at_offset(OFFSET)],
        &[Quota::per_calendar_day(7)
            .at_offset(OFFSET)
            .reserve_ahead(true)],
        &[
            Quota::per_second(10).burst(4),
            Quota::per_calendar_week(20).starting(4).at_offset(OFFSET),
        ],
        &[
            Quota::per_calendar_month(30)
                .starting(9)
                .at_offset(OFFSET)
                .named("m"),
            Quota::per_calendar_year(90),
        ],
    ];
    sets.iter()
        .map(|set| Quotas::new(set.iter().cloned()).unwrap())
        .collect()
}
