//! Permits that are always out, for three days of the server's clock, which is set forward step by step. No hold lasts
//! until a renewal.

use std::collections::VecDeque;
use std::time::Duration;

use tower_distributed::{Store, WaitGroup};

use crate::common::Bench;
use crate::common::report::{figure, note};
use support::clock_shim::ServerClock;

const LIMIT: u32 = 16;
const TTL: Duration = Duration::from_secs(3600);
const STEP: i64 = 300;
const DAYS: i64 = 3;

pub fn run(bench: &Bench) {
    bench.runtime.block_on(async {
        let Some((clock, server)) = ServerClock::start(&[]).await else {
            return note(
                "no long-permits-most: it needs a C compiler (cc) to set the clock of the server",
            );
        };
        let store = Store::builder().redis(&server.url()).unwrap();
        let group = WaitGroup::builder(LIMIT)
            .ttl(TTL)
            .watchdog(false)
            .build(&store, "trust")
            .unwrap();
        let (mut out, mut most, mut over) = (VecDeque::new(), 0, None);
        for passed in (0..DAYS * 86_400).step_by(STEP as usize) {
            clock.set(passed);
            // Each is out for eight steps, which is less than its ttl.
            for _ in 0..out.len().min(LIMIT as usize / 8) {
                let permit: tower_distributed::Permit = out.pop_front().unwrap();
                let _ = permit.done().await;
            }
            while let Ok(permit) = group.try_add("k").await {
                out.push_back(permit);
            }
            most = most.max(out.len());
            if out.len() > LIMIT as usize && over.is_none() {
                over = Some(Duration::from_secs(passed as u64));
            }
        }
        figure(
            "long-permits-most",
            "permits out at once in 3 days",
            most as f64,
        );
        figure("long-permits-limit", "the limit of the same", LIMIT.into());
        note(format!(
            "The first permit over the limit came after: {over:?}"
        ));
    });
}
