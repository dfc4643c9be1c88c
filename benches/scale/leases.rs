//! Many leases that are held: what renewing them takes of the server. Each is renewed after a third of its ttl.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt as _};
use tower_distributed::{Mutex, MutexGuard};

use crate::common::Bench;
use crate::common::report::number;
use crate::common::settings::seconds;
use crate::common::table::Table;
use crate::meter::Meter;
use crate::operations::patient;

const LEASES: [u64; 2] = [10_000, 100_000];
const TTL: Duration = Duration::from_secs(30);

pub fn run(bench: &Bench) {
    let idle = seconds("IDLE", 20.0).unwrap();
    let columns = [
        "leases",
        "renewals/s",
        "calls/s",
        "ms of CPU per s",
        "µs per renewal",
        "lost",
    ];
    let mut table = Table::new(
        format!("Mutexes that are held, ttl {TTL:?}, in one process"),
        columns,
    );
    for leases in LEASES {
        bench.server.empty();
        let mutex = Mutex::builder()
            .ttl(TTL)
            .build(&patient().redis(&bench.server.url).unwrap(), "bench")
            .unwrap();
        let lock = async |number: u64| mutex.lock(format!("key-{number:016}")).await.unwrap();
        let guards: Vec<_> = bench.runtime.block_on(
            stream::iter(0..leases)
                .map(lock)
                .buffer_unordered(512)
                .collect(),
        );
        let lost = count_lost(bench, &guards);
        let mut meter = Meter::new(&[&bench.server.url]);
        let (before, began) = (meter.read(), Instant::now());
        thread::sleep(idle);
        let (used, watched) = (meter.read() - before, began.elapsed().as_secs_f64());
        let renewals = leases as f64 / (TTL.as_secs_f64() / 3.0);
        table.row([
            leases.to_string(),
            number(renewals.round()),
            number(used.scripts / watched),
            number(used.cpu / 1000.0 / watched),
            number(used.cpu / watched / renewals),
            lost.load(Ordering::Relaxed).to_string(),
        ]);
        let unlock =
            async |guard: MutexGuard| assert!(guard.unlock().await.unwrap(), "no lease was lost");
        bench.runtime.block_on(
            stream::iter(guards)
                .map(unlock)
                .buffer_unordered(512)
                .collect::<()>(),
        );
    }
    table.print();
}

/// How many have been told so far that their lease is lost.
fn count_lost(bench: &Bench, guards: &[MutexGuard]) -> Arc<AtomicU64> {
    let count = Arc::new(AtomicU64::new(0));
    for guard in guards {
        let (lost, count) = (guard.lost(), Arc::clone(&count));
        bench.runtime.spawn(async move {
            lost.await;
            count.fetch_add(1, Ordering::Relaxed);
        });
    }
    count
}
