//! A Cluster of three masters: what an operation costs each of them.

use crate::common::Bench;
use crate::common::report::number;
use crate::common::stats::median;
use crate::common::table::Table;
use crate::cpu::CALLERS;
use crate::drive::{Operation, drive};
use crate::meter::{Meter, Reading};
use crate::operations;
use crate::replay::Recorder;
use support::cluster::RedisCluster;

const DECISIONS: u64 = 200_000;
const HANDOVERS: u64 = 20_000;
const WARM_UP: u64 = 2000;

pub fn run(bench: &Bench) {
    let cluster = bench.runtime.block_on(RedisCluster::start());
    let urls = cluster.urls();
    let store = || operations::patient().cluster(urls.clone()).unwrap();
    let rounds = bench.settings.rounds;
    let stores = [store(), store()];
    let operation = operations::many(&stores);
    drive(&bench.runtime, &operation, CALLERS, 0..WARM_UP);
    let spread: Vec<_> = (0..rounds)
        .map(|_| spread(bench, &urls, &operation))
        .collect();
    let of = |read: fn(&Spread) -> f64| median(spread.iter().map(read));
    let columns = [
        "µs of all masters",
        "calls per decision",
        "computed/s",
        "measured/s",
    ];
    let mut table = Table::new(
        "Decisions on 100 000 keys, on a Cluster of 3 masters, 256 callers",
        columns,
    );
    let row = [
        of(|spread| spread.cpu),
        of(|spread| spread.calls),
        (3e6 / of(|spread| spread.cpu)).round(),
        of(|spread| spread.replayed).round(),
    ];
    table.row(row.map(number));
    table.print();

    let operation = operations::handover(&stores);
    drive(&bench.runtime, &operation, 32, 0..WARM_UP);
    let handovers: Vec<_> = (0..rounds)
        .map(|_| handover(bench, &urls, &operation))
        .collect();
    let of = |read: fn(&[f64; 4]) -> f64| median(handovers.iter().map(read));
    let columns = [
        "µs of the key's master",
        "µs of each other master",
        "messages",
        "hand-overs/s",
    ];
    let mut table = Table::new(
        "Hand-overs of one mutex on the Cluster, 2 processes of 16 callers",
        columns,
    );
    let row = [
        of(|round| round[0]),
        of(|round| round[1]),
        of(|round| round[2]),
        of(|round| round[3]).round(),
    ];
    table.row(row.map(number));
    table.print();
}

struct Spread {
    /// µs of all masters together per decision.
    cpu: f64,
    calls: f64,
    /// Decisions per second of three masters, if each has a core.
    replayed: f64,
}

fn spread(bench: &Bench, urls: &[String], operation: &Operation) -> Spread {
    let mut meter = Meter::new(urls);
    let before = meter.read();
    drive(&bench.runtime, operation, CALLERS, 0..DECISIONS);
    let used = meter.read() - before;
    let recorders: Vec<_> = urls.iter().map(|url| Recorder::start(url)).collect();
    drive(&bench.runtime, operation, CALLERS, 0..DECISIONS);
    // The machine has not enough cores for all at once: one after the other, by CPU time. All keys together take as
    // long as the master that takes longest.
    let replay = |(recorder, url): (Recorder, &String)| {
        let (calls, mut meter) = (recorder.finish(), Meter::new(&[url]));
        let before = meter.read();
        calls.replay(url);
        (meter.read() - before).cpu / 1e6
    };
    let longest = recorders
        .into_iter()
        .zip(urls)
        .map(replay)
        .fold(0.0, f64::max);
    Spread {
        cpu: used.cpu / DECISIONS as f64,
        calls: used.scripts / DECISIONS as f64,
        replayed: DECISIONS as f64 / longest,
    }
}

fn handover(bench: &Bench, urls: &[String], operation: &Operation) -> [f64; 4] {
    let mut meters: Vec<_> = urls.iter().map(|url| Meter::new(&[url])).collect();
    let before: Vec<Reading> = meters.iter_mut().map(Meter::read).collect();
    let took = drive(&bench.runtime, operation, 32, 0..HANDOVERS);
    let mut used: Vec<_> = meters
        .iter_mut()
        .zip(before)
        .map(|(meter, before)| meter.read() - before)
        .collect();
    used.sort_by(|a, b| a.scripts.total_cmp(&b.scripts));
    let count = HANDOVERS as f64;
    let others = (used[0].cpu + used[1].cpu) / 2.0;
    let publishes: f64 = used.iter().map(|used| used.publishes).sum();
    [
        used[2].cpu / count,
        others / count,
        publishes / count,
        count / took.as_secs_f64(),
    ]
}
