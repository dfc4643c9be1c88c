//! How many callers of one process join a flight, or have its fresh answer.

use std::future::ready;

use tower_distributed::single_flight::Postcard;
use tower_distributed::{SingleFlight, Store};

use crate::callers::{self, Caller, Sample};
use crate::common::Bench;
use crate::common::report::figure;
use crate::common::stats::median;

const NAME: &str = "flight-joins-per-second";
const IN_MEMORY: &str = "flight-joins-in-memory-per-second";
const LOCAL: &str = "flight-joins-local-cache-per-second";
const KEY: &str = "key-0000000000000001";
const OURS: &str = "SingleFlight on Redis";
const IN_PROCESS: &str = "SingleFlight in process";
const CACHED: &str = "SingleFlight on Redis, local cache";

pub fn run(bench: &Bench) {
    if ![NAME, IN_MEMORY, LOCAL]
        .iter()
        .any(|name| bench.settings.wants(name))
    {
        return;
    }
    let redis = Store::redis(&bench.server.url).unwrap();
    let stores = [
        (OURS, redis.clone()),
        (IN_PROCESS, Store::in_memory()),
        (CACHED, redis),
    ];
    let wanted = |title: &str| {
        bench
            .settings
            .only()
            .is_none_or(|part| title.contains(part))
    };
    let mut samples = [const { Vec::<Sample>::new() }; 3];
    for _ in 0..bench.settings.rounds {
        for ((title, store), samples) in stores.iter().zip(&mut samples) {
            if wanted(title) {
                bench.server.empty();
                let builder = SingleFlight::builder(Postcard);
                let builder = if *title == CACHED {
                    builder.local_cache(1 << 20)
                } else {
                    builder
                };
                let flights = builder.build(store, "bench").unwrap();
                let joiner = |_| Joiner(flights.clone());
                samples.push(callers::run(&bench.runtime, bench.settings.length, joiner));
            }
        }
    }
    let contestants: Vec<_> = stores
        .iter()
        .zip(&samples)
        .map(|((title, _), samples)| (*title, &**samples))
        .collect();
    let title = format!(
        "One process, one key, {} callers, no work, answers live for 1 s",
        callers::CALLERS
    );
    callers::print(&title, &contestants);
    if bench.settings.only().is_none() {
        for (name, (title, samples)) in [NAME, IN_MEMORY, LOCAL].into_iter().zip(contestants) {
            let measures = format!("callers/s that get an answer of one key, 256 callers: {title}");
            figure(
                name,
                &measures,
                median(samples.iter().map(|sample| sample.per_second)),
            );
        }
    }
}

struct Joiner(SingleFlight<u64>);

impl Caller for Joiner {
    async fn call(&mut self) {
        assert_eq!(self.0.run(KEY, || ready(7)).await.unwrap(), 7);
    }
}
