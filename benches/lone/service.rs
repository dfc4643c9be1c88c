//! The client's CPU of a call of a primitive.

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{Cmd, Value};
use support::recorded::record;
use tokio::runtime::{Builder, Runtime};
use tower_distributed::{Mutex, Quota, Store, TokenBucket};

use crate::by_hand;
use crate::common::Bench;
use crate::common::report::{Better, Versus, note};
use crate::common::stats::median;
use crate::cpu;

const ROUNDS: usize = 15;
/// The calls of a round, one after the other.
const CALLS: u32 = 3_000;
const KEY: &str = "key-0000000000";

pub fn run(bench: &Bench) {
    // One thread for the calls and the tasks of both connections.
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let mut wanted = false;
    let mut compare = |name: &str, call: &dyn Fn(&Store, &Runtime, u32)| {
        let name = format!("lone-service-us-vs-hand-{name}");
        if bench.settings.wants(&name) {
            wanted = true;
            measure(bench, &runtime, &name, call);
        }
    };
    compare("mutex", &|store, runtime, calls| {
        let mutex = Mutex::new(store, "lone").unwrap();
        runtime.block_on(async {
            for _ in 0..calls {
                assert!(mutex.try_lock(KEY).await.unwrap().unlock().await.unwrap());
            }
        });
    });
    compare("allow", &|store, runtime, calls| {
        let quota = Quota::per_second(1_000_000).burst(1_000_000);
        let bucket = TokenBucket::new(store, "lone", quota).unwrap();
        runtime.block_on(async {
            for _ in 0..calls {
                assert!(bucket.allow(KEY).await.unwrap().is_admitted());
            }
        });
    });
    if wanted {
        note(
            "The client's CPU of a pair of calls, or of one decision, one after the other, beside an EVALSHA of the same \
             scripts with the same arguments on a connection of redis-rs with TCP_NODELAY.",
        );
    }
}

fn measure(bench: &Bench, runtime: &Runtime, name: &str, call: &dyn Fn(&Store, &Runtime, u32)) {
    let store = Store::builder().redis(&bench.server.url).unwrap();
    call(&store, runtime, 10);
    let recorded = record(&bench.server.url, || call(&store, runtime, 1));
    let commands: Vec<Cmd> = recorded.iter().map(|call| call.replacing(&[])).collect();
    let mut connection = runtime.block_on(by_hand::connect(&bench.server.url));
    let mut rounds = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        rounds[0].push(spent(|| call(&store, runtime, CALLS)));
        rounds[1].push(spent(|| runtime.block_on(bare(&mut connection, &commands))));
    }
    let ratios: Vec<_> = rounds[0]
        .iter()
        .zip(&rounds[1])
        .map(|(ours, theirs)| ours / theirs)
        .collect();
    let [ours, theirs] = rounds.map(median);
    let (peer, measures) = ("EVALSHA", "client's µs of CPU of a call");
    Versus {
        name,
        measures,
        ours,
        peer,
        theirs,
        ratio: median(ratios),
        better: Better::Lower,
    }
    .tell();
}

async fn bare(connection: &mut MultiplexedConnection, commands: &[Cmd]) {
    for _ in 0..CALLS {
        for command in commands {
            let reply: Value = command.query_async::<Value>(connection).await.unwrap();
            assert!(
                matches!(
                    reply,
                    Value::Array(_) | Value::BulkString(_) | Value::Int(_)
                ),
                "{reply:?}"
            );
        }
    }
}

/// Returns the CPU of a call, µs, of all threads of this process.
fn spent(calls: impl FnOnce()) -> f64 {
    let before: u64 = cpu::nanos_by_thread("self").values().sum();
    calls();
    let after: u64 = cpu::nanos_by_thread("self").values().sum();
    (after - before) as f64 / f64::from(CALLS) / 1e3
}
