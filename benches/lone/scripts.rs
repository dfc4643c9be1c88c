//! The server's time of a pair of scripts.

use std::time::Duration;

use deadpool_redis::redis::{self, Cmd, Connection, Value};
use support::recorded::{Recorded, record};
use tower_distributed::dedupe::Claimed;
use tower_distributed::{Dedupe, Mutex, Quota, SingleFlight, Store, TokenBucket, WaitGroup};

use crate::by_hand::{self, Loaded};
use crate::common::Bench;
use crate::common::report::{Better, Versus, note};
use crate::common::server::spent;

const ROUNDS: usize = 30;
/// How many pairs a pipeline has.
const PAIRS: u64 = 1_000;
/// In each of them, the first item takes the general path.
const BUCKETS: u64 = PAIRS / 125;
const KEY: &str = "key-0000000000";
const OTHERS: u32 = 8;
const LIMIT: u32 = 16;

/// Returns the calls of one pair; pairs have numbers.
type Calls<'a> = Box<dyn Fn(u64) -> Vec<Cmd> + 'a>;
/// Sends the calls of one pair on a key.
type Send<'a> = Box<dyn Fn(&str) + 'a>;

pub fn run<'a>(bench: &'a Bench) {
    let on = &bench.runtime;
    let mut wanted = false;
    let mut compare = |name: &str, on_store: &dyn Fn(Store) -> Send<'a>, hand: &[(&str, Uses)]| {
        if bench.settings.wants(&format!("lone-script-vs-hand-{name}")) {
            wanted = true;
            let recorded = [true, false].map(|functions| {
                bench.server.empty();
                let store = Store::builder()
                    .functions(functions)
                    .redis(&bench.server.url)
                    .unwrap();
                let send = on_store(store);
                // The first calls load the library or the scripts.
                send("another key");
                record(&bench.server.url, || send(KEY))
            });
            measure(bench, name, &recorded, hand);
        }
    };
    let lock = |store| -> Send<'a> {
        let mutex = Mutex::new(&store, "lone").unwrap();
        Box::new(move |key| {
            assert!(
                on.block_on(async { mutex.try_lock(key).await.unwrap().unlock().await.unwrap() })
            )
        })
    };
    compare(
        "mutex",
        &lock,
        &[(by_hand::LOCK, Uses::Token), (by_hand::UNLOCK, Uses::Token)],
    );

    let enter = |store| -> Send<'a> {
        let group = WaitGroup::new(&store, "lone", LIMIT).unwrap();
        Box::new(move |key| {
            assert!(on.block_on(async { group.try_add(key).await.unwrap().done().await.unwrap() }))
        })
    };
    compare(
        "permit",
        &enter,
        &[(by_hand::ENTER, Uses::Token), (by_hand::LEAVE, Uses::Token)],
    );

    let handle = |store| -> Send<'a> {
        let day = Duration::from_secs(86_400);
        let dedupe = Dedupe::exact(&store, "lone")
            .capacity(1_000_000)
            .remember_for(day)
            .build()
            .unwrap();
        Box::new(move |item| {
            let claimed = on.block_on(async { dedupe.try_claim(item).await.unwrap() });
            let Claimed::New(claim) = claimed else {
                panic!("the item is new")
            };
            assert!(on.block_on(claim.confirm()).unwrap());
        })
    };
    compare(
        "dedupe",
        &handle,
        &[
            (by_hand::CLAIM, Uses::Token),
            (by_hand::CONFIRM, Uses::Token),
        ],
    );

    let fly = |store| -> Send<'a> {
        let flights = SingleFlight::<String>::new(&store, "lone").unwrap();
        Box::new(move |key| {
            on.block_on(flights.run(key, async || "x".repeat(100)))
                .unwrap();
            // The answer is published in the background.
            while !bench
                .server
                .query::<Vec<String>>(&["KEYS", "*flight:lock*"])
                .is_empty()
            {}
        })
    };
    compare(
        "flight",
        &fly,
        &[
            (by_hand::LEAD, Uses::Token),
            (by_hand::PUBLISH, Uses::Answer),
        ],
    );

    let take = |store| -> Send<'a> {
        let quota = Quota::per_second(1_000_000).burst(1_000_000);
        let bucket = TokenBucket::new(&store, "lone", quota).unwrap();
        Box::new(move |key| assert!(on.block_on(bucket.allow(key)).unwrap().is_admitted()))
    };
    compare("bucket", &take, &[(by_hand::TAKE, Uses::Price)]);
    if wanted {
        note(
            "Server's time of one pair of calls, or of one decision, each a call of its own: this crate by functions beside \
             scripts by hand, without functions beside the same, and by functions beside functions by hand.",
        );
    }
}

/// What a script by hand takes as arguments.
#[derive(Clone, Copy)]
enum Uses {
    Token,
    Answer,
    Price,
}

/// `recorded`: our calls by functions, and by scripts.
fn measure(bench: &Bench, name: &str, recorded: &[Vec<Recorded>; 2], hand: &[(&str, Uses)]) {
    let mut connection = bench.server.connection();
    let by_hand = [Loaded::script, Loaded::function].map(|load| {
        hand.iter()
            .map(|(text, uses)| (load(&mut connection, text), *uses))
            .collect::<Vec<_>>()
    });
    let texts = recorded.each_ref().map(|ours| {
        assert_eq!(ours.len(), hand.len(), "{name}: {ours:?}");
        Texts::new(name, ours)
    });
    let of_ours = [0, 1].map(|way: usize| -> Calls<'_> {
        let texts = &texts[way];
        Box::new(move |pair| {
            recorded[way]
                .iter()
                .map(|call| call.replacing(&texts.of(pair)))
                .collect()
        })
    });
    let of_hand = by_hand.each_ref().map(|calls| -> Calls<'_> {
        let texts = &texts[0];
        Box::new(move |pair| texts.by_hand(pair, calls))
    });

    let (mut shortest, mut number) = ([f64::INFINITY; 4], 0);
    for _ in 0..ROUNDS {
        for (at, calls) in of_ours.iter().chain(&of_hand).enumerate() {
            prepare(name, &recorded[0], &mut connection, &texts[0]);
            shortest[at] = shortest[at].min(round(calls, at > 1, &mut number, &mut connection));
        }
    }
    let [function, script, by_evalsha, by_fcall] = shortest;
    let measures = "server's µs of a pair of calls";
    for (way, measures, ours, peer, theirs) in [
        ("script", measures, function, "by hand", by_evalsha),
        (
            "evalsha",
            "the same, without functions",
            script,
            "by hand",
            by_evalsha,
        ),
        ("fcall", measures, function, "by hand, by FCALL", by_fcall),
    ] {
        let (name, ratio) = (&*format!("lone-{way}-vs-hand-{name}"), ours / theirs);
        Versus {
            name,
            measures,
            ours,
            peer,
            theirs,
            ratio,
            better: Better::Lower,
        }
        .tell();
    }
}

/// The texts of a recorded pair that each pair has its own of: a token, an item and, for flights, a key. Locks take 16 keys in
/// turn: a fence is at least the time, and 32 above the one before, so locks of one key that come sooner than 32 µs take more
/// work.
struct Texts {
    keys: u64,
    id: Option<Vec<u8>>,
    item: Option<(Vec<u8>, Vec<u8>)>,
}

impl Texts {
    fn new(name: &str, recorded: &[Recorded]) -> Self {
        let keys = match name {
            "flight" => u64::MAX,
            "mutex" => 16,
            _ => 1,
        };
        Self {
            keys,
            id: recorded.iter().find_map(Recorded::id),
            item: recorded[0].item(),
        }
    }

    fn key(&self, pair: u64) -> String {
        format!("key-{:010}", pair % self.keys)
    }

    fn token(pair: u64) -> String {
        format!("-{pair:08x}")
    }

    /// What takes the place of what.
    fn of(&self, pair: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut texts = vec![(KEY.as_bytes().to_vec(), self.key(pair).into_bytes())];
        texts.extend(
            self.id
                .clone()
                .map(|id| (id, Self::token(pair).into_bytes())),
        );
        if let Some((bucket, digest)) = &self.item {
            let (other, item) = (pair % BUCKETS, format!("{pair:032x}").into_bytes());
            texts.push((bucket.clone(), format!("{other}}}").into_bytes()));
            texts.extend([(bytes(digest), bytes(&item)), (digest.clone(), item)]);
        }
        texts
    }

    /// The calls of a pair by hand.
    fn by_hand(&self, pair: u64, calls: &[(Loaded, Uses)]) -> Vec<Cmd> {
        let key = if self.item.is_some() {
            format!("{pair:032x}")
        } else {
            self.key(pair)
        };
        let (lock, mark) = (
            format!("{{hand:{key}}}:lock"),
            format!("{{hand:{key}}}:mark"),
        );
        let (token, answer) = (
            format!("0123456789abcdef{}", Self::token(pair)),
            "x".repeat(100),
        );
        let call = |(loaded, uses): &(Loaded, Uses)| match uses {
            Uses::Token => loaded.call(&[&lock, &mark], &[&token]),
            Uses::Answer => loaded.call(&[&lock, &mark], &[&token, &answer]),
            Uses::Price => loaded.call(&[&lock], &["1", "1000000"]),
        };
        calls.iter().map(call).collect()
    }
}

/// Empties the server, and lets others hold permits: all contestants meet them.
fn prepare(name: &str, ours: &[Recorded], connection: &mut Connection, texts: &Texts) {
    redis::cmd("FLUSHALL").arg("SYNC").exec(connection).unwrap();
    if name == "permit" {
        for other in 0..OTHERS.into() {
            let held: Value = ours[0]
                .replacing(&texts.of(u64::MAX - other))
                .query(connection)
                .unwrap();
            assert!(granted(&held, false), "{held:?}");
            let hand = format!("{{hand:{KEY}}}:lock");
            redis::cmd("ZADD")
                .arg(hand)
                .arg(1_u64 << 50)
                .arg(other)
                .exec(connection)
                .unwrap();
        }
    }
}

/// Returns the server's time of a pair, µs.
fn round(calls: &Calls<'_>, by_hand: bool, number: &mut u64, connection: &mut Connection) -> f64 {
    let mut pipeline = redis::pipe();
    for _ in 0..PAIRS {
        *number += 1;
        for call in calls(*number) {
            pipeline.add_command(call);
        }
    }
    let before = spent(connection);
    let replies: Vec<Value> = pipeline.query(connection).unwrap();
    let time = spent(connection) - before;
    let refused = replies.iter().find(|reply| !granted(reply, by_hand));
    assert!(refused.is_none(), "{refused:?}");
    time / PAIRS as f64
}

/// Our scripts return a list, a text of numbers, or the time alone; those by hand how many were granted.
fn granted(reply: &Value, by_hand: bool) -> bool {
    match reply {
        Value::Array(numbers) => matches!(numbers[1], Value::Int(1..)),
        Value::BulkString(numbers) => numbers
            .split(|&byte| byte == b' ')
            .nth(1)
            .is_some_and(|n| n != b"0"),
        Value::Int(number) => *number >= by_hand.into(),
        _ => false,
    }
}

/// The bytes that hexadecimal digits stand for.
fn bytes(digits: &[u8]) -> Vec<u8> {
    let pairs = digits
        .chunks(2)
        .map(|pair| std::str::from_utf8(pair).unwrap());
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).unwrap())
        .collect()
}
