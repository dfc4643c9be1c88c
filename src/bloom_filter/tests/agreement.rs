//! Tests that the Lua scripts and their Rust twins give the same answers for every sequence of calls.
//!
//! Random sequences run against a real Redis and against the in-memory store. The test sets the clocks of both to
//! the same time. Some calls use a filter with another configuration.

use std::time::Duration;

use futures::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::bloom_filter::BloomFilter;
use crate::bloom_filter::builder::BloomFilterBuilder;
use crate::error::Error;
use crate::store::builder::StoreBuilder;
use crate::store::memory::manual_clock::ManualClock;
use support::redis_server::RedisServer;

/// A clock for the scripts that the test sets. Nothing expires, since Redis expires keys by its own clock.
const CLOCK: &str = "
local server = redis
local now = tonumber(server.call('GET', 'clock'))
local function pcall(name, key, value, px, ttl)
  if name == 'PEXPIRE' then ttl = value end
  if px == 'PX' or name == 'PEXPIRE' then
    assert(tonumber(ttl) > 0, 'a time to live that Redis would not take')
    if name == 'PEXPIRE' then return 1 end
    return server.pcall(name, key, value)
  end
end
local redis = {call = server.call, pcall = function(...) return pcall(...) or server.pcall(...) end}
";

/// With a slow server.
const PATIENCE: Duration = Duration::from_secs(10);
const SEQUENCES: usize = 2_500;
const IN_STEP: usize = 250;
const STEPS: usize = 16;

#[derive(Clone, Debug)]
enum Step {
    /// This many callers insert the same item at once.
    CheckAndInsert {
        item: u32,
        callers: usize,
    },
    Insert(Vec<u32>),
    Contains(Vec<u32>),
    Count,
    Clear,
}

fn configurations() -> Vec<BloomFilterBuilder> {
    let filter = |bits, hashes| BloomFilter::builder().bits(bits).hashes(hashes);
    let seconds = Duration::from_secs;
    vec![
        filter(97, 3),
        filter(1_000, 7).remember_for(seconds(1)),
        filter(256, 4).remember_for(seconds(5)),
        filter(333, 2).keys(3),
        filter(1, 1),
        filter(640, 64).keys(2).remember_for(seconds(60)),
    ]
}

fn random_step(rng: &mut StdRng) -> Step {
    let mut items = |most| {
        (0..rng.random_range(0..most))
            .map(|_| rng.random_range(0..30))
            .collect()
    };
    let items: Vec<u32> = items(12);
    match rng.random_range(0..100) {
        0..40 => Step::CheckAndInsert {
            item: rng.random_range(0..30),
            callers: rng.random_range(1..=3),
        },
        40..60 => Step::Insert(items),
        60..90 => Step::Contains(items),
        90..97 => Step::Count,
        _ => Step::Clear,
    }
}

async fn answer(filter: &BloomFilter, step: &Step) -> Result<String, Error> {
    let bytes = |items: &[u32]| {
        items
            .iter()
            .map(|item| item.to_le_bytes())
            .collect::<Vec<_>>()
    };
    Ok(match step {
        Step::CheckAndInsert { item, callers } => {
            let calls = (0..*callers).map(|_| filter.insert(item.to_le_bytes()));
            let mut answers = join_all(calls)
                .await
                .into_iter()
                .collect::<Result<Vec<_>, _>>()?;
            // At most one caller is the first, and which one is random.
            answers.sort();
            format!("{answers:?}")
        }
        Step::Insert(items) => format!("{:?}", filter.insert_all(bytes(items)).await?),
        Step::Contains(items) => format!("{:?}", filter.contains_all(bytes(items)).await?),
        Step::Count => format!("{:?}", filter.estimated_count().await?),
        Step::Clear => filter.clear().await.map(|()| String::new())?,
    })
}

/// Returns the answers of the steps of one round, as text.
async fn round(filters: &[Vec<BloomFilter>], steps: &[(usize, Step)]) -> Vec<String> {
    join_all(
        filters
            .iter()
            .zip(steps)
            .map(async |(filters, (which, step))| {
                answer(&filters[*which], step)
                    .await
                    .unwrap_or_else(|error| {
                        assert!(error.is_invalid(), "{error:?}");
                        error.to_string()
                    })
            }),
    )
    .await
}

#[tokio::test]
async fn lua_and_rust_agree_on_every_sequence() {
    let server = RedisServer::start().await;
    let mut clock = server.client().unwrap();
    let manual = ManualClock::at(0);
    let seed = support::seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let builder = StoreBuilder::default()
        .timeout(PATIENCE)
        .queue_timeout(PATIENCE);
    let on_redis = builder.with_clock(&server.url(), CLOCK).unwrap();
    let configurations = configurations();

    for batch in 0..SEQUENCES / IN_STEP {
        let in_memory = manual.store();
        let usual: Vec<_> = (0..IN_STEP)
            .map(|_| rng.random_range(0..configurations.len()))
            .collect();
        let [lua, rust] = [&on_redis, &in_memory].map(|store| -> Vec<Vec<_>> {
            let name = |sequence| format!("{batch}-{sequence}");
            let all = |sequence| {
                configurations
                    .iter()
                    .map(move |it| it.build(store, &name(sequence)).unwrap())
            };
            (0..IN_STEP)
                .map(|sequence| all(sequence).collect())
                .collect()
        });
        let mut now = 1_760_000_000_000_000_i64;
        let mut history: Vec<(i64, Vec<(usize, Step)>)> = Vec::new();
        for _ in 0..STEPS {
            let jumps = [
                0,
                1,
                400_000,
                999_999,
                1_000_000,
                2_500_000,
                60_000_000,
                150_000_000,
                -700_000,
                -9_000_000,
            ];
            now += jumps[rng.random_range(0..jumps.len())];
            manual.set(now);
            clock
                .query::<()>(redis::cmd("SET").arg("clock").arg(now))
                .unwrap();
            let mut step = |&usual: &usize| {
                let other = rng.random_bool(0.05);
                (
                    if other {
                        rng.random_range(0..configurations.len())
                    } else {
                        usual
                    },
                    random_step(&mut rng),
                )
            };
            let steps: Vec<_> = usual.iter().map(&mut step).collect();
            history.push((now, steps.clone()));
            let (lua, rust) = (round(&lua, &steps).await, round(&rust, &steps).await);
            for (at, (lua, rust)) in lua.iter().zip(&rust).enumerate() {
                let so_far = || {
                    let steps = history
                        .iter()
                        .map(|(now, steps)| format!("{now}: {:?}", steps[at]));
                    steps.collect::<Vec<_>>().join("\n")
                };
                assert_eq!(
                    lua,
                    rust,
                    "SEED={seed}, {:?}\n{}",
                    configurations[usual[at]],
                    so_far()
                );
            }
        }
    }
}
