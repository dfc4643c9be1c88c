//! The script and the step in Rust agree on random sequences of reports, also on forged state.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::time::Duration;

use futures::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::adaptive::look::{AdaptiveState, LookAtLimit};
use crate::adaptive::step::{Adapt, Adapted, Rules, Seen};
use crate::adaptive::tests::rules;
use crate::key::Key;
use crate::store::Store;
use crate::store::builder::StoreBuilder;
use crate::store::client::Namespace;
use crate::store::operation::{Cell as _, Operation as _};
use support::patient;
use support::redis_server::RedisServer;

const START: i64 = 1_760_000_000_000_000;
const STEPS: usize = 3000;

/// Replaces `lua/clock.lua`. Keys expire by the time that the test sets.
const CLOCK: &str = "
local server = redis
local now = tonumber(server.call('GET', 'clock'))
local function run(name, key, value, option, at)
  if name == 'GET' then
    local ends = server.call('HGET', 'ends', key)
    if ends and ends * 1000 <= now then server.call('DEL', key) end
    return server.pcall('GET', key)
  end
  assert(name == 'SET' and option == 'PXAT')
  server.call('HSET', 'ends', key, at)
  return server.call('SET', key, value)
end
local redis = {call = run, pcall = run}
";

/// State that another program, or another version, could have written.
const FORGED: [&str; 16] = [
    "",
    " ",
    "20000",
    "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15",
    "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17",
    "-1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16",
    "1e3 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16",
    "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0",
    "20000  0 0 0 0 0 0 0 0 0 0 0 0 0 0 0",
    "5000 1000000 7 1 1760000000000000 1 2 3 4 5 6 200000 300000 0 0 1760000000000000",
    "5000 1000000 7 2 1760000000000000 1 2 3 4 5 6 200000 300000 100 13 1760000000000000",
    "5000 1000000 7 3 1760000000000000 1 2 3 4 5 6 999999 1000001 100 99 1760000000000000",
    "5000 1000000 7 7 1760000000000000 1 2 3 4 5 6 7 8 9 10 11",
    "9007199254740993 9007199254740993 9007199254740993 9007199254740993 9007199254740993 9007199254740993 \
     9007199254740993 9007199254740993 9007199254740993 9007199254740993 9007199254740993 9007199254740993 \
     9007199254740993 9007199254740993 9007199254740993 9007199254740993",
    "99999999999999999999999999 99999999999999999999999999 9 9 9 9 9 99999999999999999999999999 9 9 9 9 9 9 9 9",
    "\u{0}1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16",
];

fn report(rng: &mut StdRng) -> Adapt {
    let (min, max) = [(1, 1000), (1, 1), (5, 20), (3, 1_000_000)][rng.random_range(0..4)];
    let window = [10_000, 100_000, 1_000_000][rng.random_range(0..3)];
    let [known, start] = [(); 2].map(|()| rng.random_range(min..=max));
    let rules = Rules {
        follows: rng.random_bool(0.7),
        min,
        max,
        start,
        window,
    };
    if rng.random_bool(0.1) {
        return Adapt {
            rules,
            known,
            seen: Seen::default(),
        };
    }
    let mut number = |usual: i64, most: i64| match rng.random_range(0..20) {
        0 => 0,
        1 => most,
        2 => rng.random_range(0..=most),
        _ => rng.random_range(0..=usual),
    };
    let (ok, peak, span) = (
        number(100, 1 << 32),
        number(40, 1_000_000),
        number(200_000, 3_600_000_000),
    );
    let overloads = if number(10, 10) > 8 {
        number(20, 1 << 32)
    } else {
        0
    };
    let latency = ok * number(30_000, 200_000);
    Adapt {
        rules,
        known,
        seen: Seen {
            ok,
            overloads,
            latency,
            peak,
            span,
        },
    }
}

#[tokio::test]
async fn lua_and_rust_agree_on_every_sequence() {
    let server = RedisServer::start().await;
    let mut client = server.client().unwrap();
    let builder = StoreBuilder::default().timeout(Duration::from_secs(30));
    let store = builder.with_clock(&server.url(), CLOCK).unwrap();
    let namespace: Namespace<Adapted> = Namespace::new(&store, "agreement").unwrap();
    let seed = support::seed();
    let mut rng = StdRng::seed_from_u64(seed);
    // Not in a store, whose clock cannot be set back.
    let mut cells: HashMap<Key, Adapted> = HashMap::new();
    let mut now = START;
    for step in 0..STEPS {
        now += match rng.random_range(0..100) {
            0 => [3_600_000_000, 3_599_999_000, -3_600_000_000, -1][rng.random_range(0..4)],
            _ => rng.random_range(0..120_000),
        };
        client
            .query::<()>(redis::cmd("SET").arg("clock").arg(now))
            .unwrap();
        let first = rng.random_range(0..6);
        let key = |nth: usize| Key::from(format!("k{}", (first + nth) % 6));
        if rng.random_bool(0.02) {
            let forged = FORGED[rng.random_range(0..FORGED.len())];
            let name = format!("td:{{agreement:k{first}}}:permits:limit");
            client
                .query::<()>(redis::cmd("SET").arg(&name).arg(forged))
                .unwrap();
            client
                .query::<()>(redis::cmd("HDEL").arg("ends").arg(&name))
                .unwrap();
            cells.insert(key(0), Adapted::parse(forged).unwrap_or_default());
        }
        // Several keys may be in one call.
        let reports: Vec<_> = (0..rng.random_range(1..5))
            .map(|nth| (key(nth), report(&mut rng)))
            .collect();
        let sent = reports
            .iter()
            .map(|(key, report)| namespace.client().run(key.clone(), report.clone()));
        let lua = join_all(sent).await;
        for ((key, report), lua) in reports.into_iter().zip(lua) {
            let cell = cells.entry(key.clone()).or_default();
            // Like the store: expired state does not come back when the clock is set back.
            if cell.is_idle(now) {
                cell.clear();
            }
            let rust = report.clone().apply(cell, now);
            assert_eq!(
                lua.unwrap(),
                rust,
                "SEED={seed}, step {step} at {now}: {report:?}, {cell:?}"
            );
            let looked: Option<AdaptiveState> =
                namespace.client().run(key, LookAtLimit).await.unwrap();
            assert_eq!(
                looked,
                LookAtLimit.apply(cell, now),
                "SEED={seed}, step {step}"
            );
        }
    }
}

#[tokio::test]
async fn a_key_of_another_type_is_replaced() {
    let server = RedisServer::start().await;
    let store = patient!(server.url());
    let client = Namespace::new(&store, "api").unwrap().client();
    let name = "td:{api:k}:permits:limit";
    server.cli(&["SADD", name, "a"]);
    let adapt = |ok| Adapt {
        rules: rules(true, 1, 100),
        known: 20,
        seen: Seen {
            ok,
            ..Seen::default()
        },
    };
    assert_eq!(client.run("k".into(), adapt(0)).await.unwrap().limit, 20);
    assert_eq!(
        server.cli(&["TYPE", name]).trim(),
        "set",
        "a look changes nothing"
    );
    assert_eq!(client.run("k".into(), adapt(1)).await.unwrap().limit, 20);
    assert_eq!(server.cli(&["TYPE", name]).trim(), "string");
    let ttl: i64 = server.cli(&["PTTL", name]).trim().parse().unwrap();
    assert!((3_500_000..=3_600_000).contains(&ttl), "{ttl}");
}
