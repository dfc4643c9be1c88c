//! The server's time of a pair of scripts.

use std::time::Duration;

use deadpool_redis::redis::{self, Cmd, Connection, Value};
use support::recorded::{Recorded, record};
use tower_distributed::dedupe::Claimed;
use tower_distributed::{Dedupe, Mutex, Quota, SingleFlight, Store, TokenBucket, WaitGroup};

use crate::by_hand::{self, Script};
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

pub fn run(bench: &Bench) {
    let store = Store::builder().redis(&bench.server.url).unwrap();
    let mut wanted = false;
    let mut compare = |name: &str, ours: &dyn Fn() -> Vec<Recorded>, hand: &[(&str, Uses)]| {
        let name = format!("lone-script-vs-hand-{name}");
        if bench.settings.wants(&name) {
            wanted = true;
            measure(bench, &name, &ours(), hand);
        }
    };
    let once = |send: &dyn Fn(&str)| {
        // The first calls load the scripts.
        send("another key");
        record(&bench.server.url, || send(KEY))
    };
    let on = &bench.runtime;

    let mutex = Mutex::new(&store, "lone").unwrap();
    let lock = |key: &str| {
        assert!(on.block_on(async { mutex.try_lock(key).await.unwrap().unlock().await.unwrap() }))
    };
    compare("mutex", &|| once(&lock), &[(by_hand::LOCK, Uses::Token), (by_hand::UNLOCK, Uses::Token)]);

    let group = WaitGroup::new(&store, "lone", LIMIT).unwrap();
    let enter =
        |key: &str| assert!(on.block_on(async { group.try_add(key).await.unwrap().done().await.unwrap() }));
    compare("permit", &|| once(&enter), &[(by_hand::ENTER, Uses::Token), (by_hand::LEAVE, Uses::Token)]);

    let day = Duration::from_secs(86_400);
    let dedupe = Dedupe::exact(&store, "lone").capacity(1_000_000).remember_for(day).build().unwrap();
    let handle = |item: &str| {
        let claimed = on.block_on(async { dedupe.try_claim(item).await.unwrap() });
        let Claimed::New(claim) = claimed else { panic!("the item is new") };
        assert!(on.block_on(claim.confirm()).unwrap());
    };
    compare("dedupe", &|| once(&handle), &[(by_hand::CLAIM, Uses::Token), (by_hand::CONFIRM, Uses::Token)]);

    let flights = SingleFlight::<String>::new(&store, "lone").unwrap();
    let fly = |key: &str| {
        on.block_on(flights.run(key, async || "x".repeat(100))).unwrap();
        // The answer is published in the background.
        while !bench.server.query::<Vec<String>>(&["KEYS", "*flight:lock*"]).is_empty() {}
    };
    compare("flight", &|| once(&fly), &[(by_hand::LEAD, Uses::Token), (by_hand::PUBLISH, Uses::Answer)]);

    let bucket = TokenBucket::new(&store, "lone", Quota::per_second(1_000_000).burst(1_000_000)).unwrap();
    let take = |key: &str| assert!(on.block_on(bucket.allow(key)).unwrap().is_admitted());
    compare("bucket", &|| once(&take), &[(by_hand::TAKE, Uses::Price)]);
    if wanted {
        note("Server's time of one pair of calls, or of one decision, each a call of its own.");
    }
}

/// What a script by hand takes as arguments.
#[derive(Clone, Copy)]
enum Uses {
    Token,
    Answer,
    Price,
}

fn measure(bench: &Bench, name: &str, ours: &[Recorded], hand: &[(&str, Uses)]) {
    assert_eq!(ours.len(), hand.len(), "{name}: {ours:?}");
    let mut connection = bench.server.connection();
    let item = ours[0].item();
    let (id, token) = (ours.iter().find_map(Recorded::id), |pair: u64| format!("-{pair:08x}"));
    // Each pair has a token, an item and, for flights, a key of its own. Locks take 16 keys in turn: a fence is at least
    // the time, and 32 above the one before, so locks of one key that come sooner than 32 µs take more work.
    let keys = if name.ends_with("flight") {
        u64::MAX
    } else if name.ends_with("mutex") {
        16
    } else {
        1
    };
    let key = |pair| format!("key-{:010}", pair % keys);
    let replaced = |pair| {
        let mut texts = vec![(KEY.as_bytes().to_vec(), key(pair).into_bytes())];
        texts.extend(id.clone().map(|id| (id, token(pair).into_bytes())));
        if let Some((bucket, digest)) = &item {
            let (other, item) = (pair % BUCKETS, format!("{pair:032x}").into_bytes());
            texts.push((bucket.clone(), format!("{other}}}").into_bytes()));
            texts.extend([(bytes(digest), bytes(&item)), (digest.clone(), item)]);
        }
        texts
    };
    let scripts: Vec<_> =
        hand.iter().map(|(text, uses)| (Script::load(&mut connection, text), *uses)).collect();
    let by_hand = |pair: u64| {
        let key = if item.is_some() { format!("{pair:032x}") } else { key(pair) };
        let (lock, mark) = (format!("{{hand:{key}}}:lock"), format!("{{hand:{key}}}:mark"));
        let (token, answer) = (format!("0123456789abcdef{}", token(pair)), "x".repeat(100));
        let call = |(script, uses): &(Script, Uses)| match uses {
            Uses::Token => script.call(&[&lock, &mark], &[&token]),
            Uses::Answer => script.call(&[&lock, &mark], &[&token, &answer]),
            Uses::Price => script.call(&[&lock], &["1", "1000000"]),
        };
        scripts.iter().map(call).collect()
    };
    let of_ours = |pair| ours.iter().map(|call| call.replacing(&replaced(pair))).collect();
    let contestants: [Calls<'_>; 2] = [Box::new(of_ours), Box::new(by_hand)];

    let (mut shortest, mut number) = ([f64::INFINITY; 2], 0);
    for _ in 0..ROUNDS {
        prepare(name, ours, &mut connection, &replaced);
        for (by_hand, (calls, shortest)) in
            [false, true].into_iter().zip(contestants.iter().zip(&mut shortest))
        {
            *shortest = shortest.min(round(calls, by_hand, &mut number, &mut connection));
        }
    }
    let [ours, theirs] = shortest;
    let (peer, measures) = ("by hand", "server's µs of a pair of calls");
    Versus { name, measures, ours, peer, theirs, ratio: ours / theirs, better: Better::Lower }.tell();
}

/// Empties the server, and lets others hold permits: both contestants meet them.
fn prepare(
    name: &str,
    ours: &[Recorded],
    connection: &mut Connection,
    replaced: &dyn Fn(u64) -> Vec<(Vec<u8>, Vec<u8>)>,
) {
    redis::cmd("FLUSHALL").arg("SYNC").exec(connection).unwrap();
    if name.ends_with("permit") {
        for other in 0..OTHERS.into() {
            let held: Value = ours[0].replacing(&replaced(u64::MAX - other)).query(connection).unwrap();
            assert!(granted(&held, false), "{held:?}");
            let hand = format!("{{hand:{KEY}}}:lock");
            redis::cmd("ZADD").arg(hand).arg(1_u64 << 50).arg(other).exec(connection).unwrap();
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
        Value::BulkString(numbers) => numbers.split(|&byte| byte == b' ').nth(1).is_some_and(|n| n != b"0"),
        Value::Int(number) => *number >= by_hand.into(),
        _ => false,
    }
}

/// The bytes that hexadecimal digits stand for.
fn bytes(digits: &[u8]) -> Vec<u8> {
    let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}
