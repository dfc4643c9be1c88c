//! Many waiters for one lock, each with a place of its own in the queue: what they take while they wait, and how fast
//! they are served.

use std::thread;
use std::time::{Duration, Instant};

use futures::future::join_all;
use tower_distributed::Mutex;

use crate::common::Bench;
use crate::common::report::number;
use crate::common::settings::seconds;
use crate::common::table::Table;
use crate::meter::Meter;
use crate::operations::patient;

const WAITERS: [u64; 3] = [1000, 3000, 10_000];
const KEY: &str = "key-0000000000000001";
const SOON: Duration = Duration::from_secs(60);

pub fn run(bench: &Bench) {
    let idle = seconds("IDLE", 20.0).unwrap();
    let columns = [
        "waiters",
        "bytes each",
        "ms to wait",
        "calls/s waiting",
        "ms of CPU per s",
        "served/s",
    ];
    let mut table = Table::new("Waiters for one lock, of two processes", columns);
    for waiters in WAITERS {
        bench.server.empty();
        table.row(measure(bench, waiters, idle));
    }
    table.print();
}

fn measure(bench: &Bench, waiters: u64, idle: Duration) -> [String; 6] {
    let url = &bench.server.url;
    let stores = [(); 2].map(|()| patient().redis(url).unwrap());
    let mutexes = stores.each_ref().map(|store| {
        Mutex::builder()
            .strict_fifo()
            .build(store, "bench")
            .unwrap()
    });
    let mut meter = Meter::new(&[url]);
    let guard = bench.runtime.block_on(mutexes[0].lock(KEY)).unwrap();
    let memory = meter.used_memory();
    let began = Instant::now();
    let tasks: Vec<_> = (0..waiters)
        .map(|waiter| {
            let mutex = mutexes[(waiter % 2) as usize].clone();
            bench.runtime.spawn(async move {
                assert!(mutex.lock(KEY).await.unwrap().unlock().await.unwrap());
            })
        })
        .collect();
    let queues: Vec<String> = loop {
        let queues: Vec<String> = bench.server.query(&["KEYS", "*:waiters"]);
        if queues.len() == 1 && bench.server.query::<u64>(&["ZCARD", &queues[0]]) == waiters {
            break queues;
        }
        assert!(began.elapsed() < SOON, "all {waiters} wait: {queues:?}");
        thread::sleep(Duration::from_millis(1));
    };
    let until_all_wait = began.elapsed();
    let bytes = (meter.used_memory() - memory) / waiters as f64;
    let (before, began) = (meter.read(), Instant::now());
    thread::sleep(idle);
    let (used, watched) = (meter.read() - before, began.elapsed().as_secs_f64());
    assert_eq!(bench.server.query::<u64>(&["ZCARD", &queues[0]]), waiters);

    let began = Instant::now();
    bench.runtime.block_on(async {
        assert!(guard.unlock().await.unwrap());
        join_all(tasks).await.into_iter().for_each(Result::unwrap);
    });
    [
        waiters as f64,
        bytes.round(),
        (until_all_wait.as_secs_f64() * 1000.0).round(),
        used.scripts / watched,
        used.cpu / 1000.0 / watched,
        (waiters as f64 / began.elapsed().as_secs_f64()).round(),
    ]
    .map(number)
}
