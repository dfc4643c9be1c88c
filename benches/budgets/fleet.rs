//! How soon all processes of a fleet decide by quotas that were set.

use std::time::{Duration, Instant};

use tower_distributed::{FleetQuotas, Store};

use crate::common::Bench;
use crate::common::report::figure;

const PROCESSES: usize = 20;
const SETS: u32 = 50;

pub fn run(bench: &Bench) {
    let name = "fleet-quota-ms";
    if !bench.settings.wants(name) {
        return;
    }
    let mut waits = bench.runtime.block_on(async {
        // Each store has connections of its own, as another process has.
        let store = || Store::builder().redis(&bench.server.url).unwrap();
        let all: Vec<_> = (0..PROCESSES)
            .map(|_| FleetQuotas::new(&store(), "api", "100/s").unwrap())
            .collect();
        for quotas in &all {
            quotas.refresh().await.unwrap();
        }
        let mut waits = Vec::new();
        for nth in 0..SETS {
            let set = Instant::now();
            let version = all[0]
                .set(format!("{}/s", 200 + nth).as_str(), "bench")
                .await
                .unwrap()
                .number;
            let mut behind: Vec<_> = all.iter().collect();
            while !behind.is_empty() {
                let (before, now) = (behind.len(), set.elapsed());
                behind.retain(|quotas| quotas.version() < version);
                waits.extend(std::iter::repeat_n(now, before - behind.len()));
                assert!(
                    now < Duration::from_secs(60),
                    "{} processes do not follow",
                    behind.len()
                );
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
        }
        waits
    });
    waits.sort();
    let p99 = waits[waits.len() * 99 / 100];
    figure(
        name,
        "ms from `set` until all of 20 processes decide by it, p99",
        p99.as_secs_f64() * 1000.0,
    );
}
