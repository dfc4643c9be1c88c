//! The tables of decisions per second, and the figures that come from them.

use std::collections::HashMap;

use crate::cell::Sample;
use crate::common::Bench;
use crate::common::report::{Better, Versus, note, number};
use crate::common::stats::median;
use crate::common::table::Table;
use crate::contestants::{Contestants, Kind};
use crate::workload::Workload;

const CALLERS: [usize; 4] = [1, 64, 256, 1024];

/// How often ours decides where a peer decides once, with 256 callers. Where there are several workloads, the
/// one that is worst for ours is the figure.
struct Ratio {
    name: &'static str,
    peer: Kind,
    /// What of ours does all that the peer does, where that is more than to decide; told beside the figure.
    alike: Option<Kind>,
    workloads: &'static [Workload],
}

const RATIOS: [Ratio; 5] = [
    Ratio {
        name: "hot-key-vs-tower-rate-limit-redis",
        peer: Kind::TowerRateLimitRedis,
        alike: Some(Kind::OursLayer),
        workloads: &[Workload::HotRefused, Workload::HotAdmitted],
    },
    Ratio {
        name: "hot-key-vs-pool-get",
        peer: Kind::PoolGet,
        alike: None,
        workloads: &[Workload::HotRefused, Workload::HotAdmitted],
    },
    Ratio {
        name: "hot-key-vs-governor",
        peer: Kind::Governor,
        alike: None,
        workloads: &[Workload::HotRefused, Workload::HotAdmitted],
    },
    Ratio {
        name: "hot-key-vs-governor-in-loops",
        peer: Kind::GovernorInLoops,
        alike: None,
        workloads: &[Workload::HotRefused, Workload::HotAdmitted],
    },
    Ratio {
        name: "many-keys-vs-tower-rate-limit-redis",
        peer: Kind::TowerRateLimitRedis,
        alike: Some(Kind::OursLayer),
        workloads: &[Workload::Many],
    },
];

const RATIO_CALLERS: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Cell {
    workload: Workload,
    callers: usize,
    kind: Kind,
}

type Samples = HashMap<Cell, Vec<Sample>>;

pub fn run(bench: &Bench) {
    let cells = wanted(bench);
    if cells.is_empty() {
        return;
    }
    let samples = measure(bench, &cells);
    for workload in Workload::ALL {
        print_table(&cells, &samples, workload);
    }
    if bench.settings.only().is_some() {
        return;
    }
    for ratio in RATIOS
        .iter()
        .filter(|ratio| bench.settings.wants(ratio.name))
    {
        print_ratio(&samples, ratio);
    }
}

/// All cells for the tables, or those that the figures asked for need.
fn wanted(bench: &Bench) -> Vec<Cell> {
    let tables = bench.settings.wants("table");
    let needed = |cell: &Cell| {
        RATIOS.iter().any(|ratio| {
            bench.settings.wants(ratio.name)
                && cell.callers == RATIO_CALLERS
                && ratio.workloads.contains(&cell.workload)
                && (cell.kind == Kind::Ours
                    || cell.kind == ratio.peer
                    || Some(cell.kind) == ratio.alike)
        })
    };
    let all = Workload::ALL.into_iter().flat_map(|workload| {
        CALLERS.into_iter().flat_map(move |callers| {
            Kind::ALL.map(|kind| Cell {
                workload,
                callers,
                kind,
            })
        })
    });
    let among = |cell: &Cell| {
        bench
            .settings
            .only()
            .is_none_or(|part| cell.kind.title().contains(part))
    };
    all.filter(|cell| (tables || needed(cell)) && among(cell))
        .collect()
}

/// Round by round; who begins changes, so that nobody always follows the same neighbour.
fn measure(bench: &Bench, cells: &[Cell]) -> Samples {
    let contestants = Contestants::connect(bench);
    let mut samples = Samples::new();
    for round in 0..bench.settings.rounds {
        for group in cells.chunk_by(|a, b| (a.workload, a.callers) == (b.workload, b.callers)) {
            for turn in 0..group.len() {
                let cell = group[(turn + round) % group.len()];
                let length = bench.settings.length;
                let sample = contestants.run(bench, cell.kind, cell.workload, cell.callers, length);
                samples.entry(cell).or_default().push(sample);
            }
        }
        eprintln!("round {} of {} done", round + 1, bench.settings.rounds);
    }
    samples
}

fn print_table(cells: &[Cell], samples: &Samples, workload: Workload) {
    let cells: Vec<_> = cells
        .iter()
        .filter(|cell| cell.workload == workload)
        .collect();
    if cells.is_empty() {
        return;
    }
    let columns = [
        "callers",
        "contestant",
        "decisions/s",
        "p50 µs",
        "p99 µs",
        "admitted",
    ];
    let mut table = Table::new(workload.title(), columns);
    for cell in cells {
        let of = |read: fn(&Sample) -> f64| median(samples[cell].iter().map(read));
        table.row([
            cell.callers.to_string(),
            cell.kind.title().to_owned(),
            number(of(|sample| sample.per_second).round()),
            number(of(|sample| sample.p50) / 1000.0),
            number(of(|sample| sample.p99) / 1000.0),
            format!("{:.2} %", of(|sample| sample.admitted) * 100.0),
        ]);
    }
    table.print();
}

fn print_ratio(samples: &Samples, ratio: &Ratio) {
    let versus = |&workload: &Workload| {
        let of = |kind| {
            &samples[&Cell {
                workload,
                callers: RATIO_CALLERS,
                kind,
            }]
        };
        let against_the_peer = |kind| {
            let rounds = of(kind).iter().zip(of(ratio.peer));
            median(rounds.map(|(ours, theirs)| ours.per_second / theirs.per_second))
        };
        if let Some(alike) = ratio.alike {
            let (alike, value) = (alike.title(), number(against_the_peer(alike)));
            note(format!(
                "{}: {alike} ÷ {}: {value}.",
                workload.title(),
                ratio.peer.title()
            ));
        }
        let per_second = |kind| median(of(kind).iter().map(|sample| sample.per_second));
        (
            workload,
            per_second(Kind::Ours),
            per_second(ratio.peer),
            against_the_peer(Kind::Ours),
        )
    };
    let all = ratio.workloads.iter().map(versus);
    let Some((workload, ours, theirs, by)) = all.min_by(|one, other| one.3.total_cmp(&other.3))
    else {
        return;
    };
    Versus {
        name: ratio.name,
        measures: &format!("decisions/s, {}, {RATIO_CALLERS} callers", workload.short()),
        ours,
        peer: ratio.peer.title(),
        theirs,
        ratio: by,
        better: Better::Higher,
    }
    .tell();
}
