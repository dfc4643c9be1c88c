//! Round by round, delay by delay: the tables, and the figures that come from them.

use std::collections::HashMap;
use std::time::Duration;

use crate::common::Bench;
use crate::common::report::{Better, Versus, number};
use crate::common::server::{self, Server};
use crate::common::stats::median;
use crate::common::table::Table;
use crate::contestants::{Contestants, Kind, Op};
use crate::link::Link;
use crate::load::{Load, Sample};
use crate::namespaces::tied;
use crate::ping::{Pinger, Pings};

const ROUND_TRIPS: [Duration; 3] = [
    Duration::from_micros(100),
    Duration::from_micros(500),
    Duration::from_millis(2),
];
/// That of the figures.
const OF_FIGURES: Duration = ROUND_TRIPS[1];
const P50_CALLERS: [usize; 4] = [4, 16, 64, 256];
const THROUGHPUT: [(Op, &str); 2] = [
    (Op::AllowOneKey, "link-throughput"),
    (Op::AllowKeys, "link-keys-throughput"),
];
const THROUGHPUT_CALLERS: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Cell {
    round_trip: Duration,
    op: Op,
    load: Load,
    kind: Kind,
}

impl Cell {
    /// One of those that the figures compare.
    fn of_figures(op: Op, callers: usize, kind: Kind) -> Self {
        Self {
            round_trip: OF_FIGURES,
            op,
            load: Load::full(callers),
            kind,
        }
    }
}

#[derive(Default)]
struct Samples {
    cells: HashMap<Cell, Vec<Sample>>,
    /// Over the link.
    pings: HashMap<Duration, Vec<Pings>>,
    /// How late packets left while the cells were measured, µs.
    late: HashMap<Duration, Vec<f64>>,
    loopback: Vec<Pings>,
}

pub fn run(bench: &Bench, link: &Link) -> Result<(), String> {
    let p50 = P50_CALLERS.map(|callers| (callers, format!("link-p50-vs-round-trip-{callers}")));
    let p50: Vec<_> = p50
        .into_iter()
        .filter(|(_, name)| bench.settings.wants(name))
        .collect();
    let throughput =
        THROUGHPUT.map(|(op, name)| (op, format!("{name}-vs-one-evalsha-{THROUGHPUT_CALLERS}")));
    let throughput: Vec<_> = throughput
        .into_iter()
        .filter(|(_, name)| bench.settings.wants(name))
        .collect();
    let mut needed = Vec::new();
    for (callers, _) in &p50 {
        needed.extend(
            [1, *callers].map(|callers| Cell::of_figures(Op::AllowOneKey, callers, Kind::Ours)),
        );
    }
    for (op, _) in &throughput {
        needed.extend(Kind::ALL.map(|kind| Cell::of_figures(*op, THROUGHPUT_CALLERS, kind)));
    }
    let tables = bench.settings.wants("table");
    let cells: Vec<_> = all()
        .filter(|cell| tables || needed.contains(cell))
        .collect();
    if cells.is_empty() {
        return Ok(());
    }
    let samples = measure(bench, link, &cells)?;
    print_pings(&samples);
    if tables {
        ROUND_TRIPS
            .into_iter()
            .for_each(|round_trip| print_table(&samples, round_trip));
    }
    p50.into_iter()
        .for_each(|(callers, name)| print_p50(&samples, callers, &name));
    throughput
        .into_iter()
        .for_each(|(op, name)| print_throughput(&samples, op, &name));
    Ok(())
}

/// Contestants of one load are neighbours.
fn all() -> impl Iterator<Item = Cell> {
    let by_op = ROUND_TRIPS
        .into_iter()
        .flat_map(|round_trip| Op::ALL.map(|op| (round_trip, op)));
    let by_load = by_op.flat_map(|(round_trip, op)| Load::ALL.map(|load| (round_trip, op, load)));
    by_load.flat_map(|(round_trip, op, load)| {
        Kind::ALL.map(|kind| Cell {
            round_trip,
            op,
            load,
            kind,
        })
    })
}

/// Round by round; who begins changes, so that nobody always follows the same neighbour.
fn measure(bench: &Bench, link: &Link, cells: &[Cell]) -> Result<Samples, String> {
    let local = Server::start_by(tied(server::program()), "127.0.0.1")?;
    let (mut loopback, mut far) = (Pinger::connect(&local), Pinger::connect(&bench.server));
    let contestants = Contestants::connect(bench);
    let mut samples = Samples::default();
    for round in 0..bench.settings.rounds {
        samples.loopback.push(loopback.ping());
        for cells in cells.chunk_by(|a, b| a.round_trip == b.round_trip) {
            let round_trip = cells[0].round_trip;
            link.set_round_trip(round_trip);
            samples
                .pings
                .entry(round_trip)
                .or_default()
                .push(far.ping());
            // The mean below is of the cells alone.
            link.mean_late_micros();
            for group in cells.chunk_by(|a, b| (a.op, a.load) == (b.op, b.load)) {
                for turn in 0..group.len() {
                    let cell = group[(turn + round) % group.len()];
                    let sample = contestants.run(bench, cell.op, cell.kind, cell.load);
                    samples.cells.entry(cell).or_default().push(sample);
                }
            }
            samples
                .late
                .entry(round_trip)
                .or_default()
                .push(link.mean_late_micros());
        }
        eprintln!("round {} of {} done", round + 1, bench.settings.rounds);
    }
    Ok(samples)
}

fn millis(round_trip: Duration) -> String {
    (round_trip.as_secs_f64() * 1000.0).to_string()
}

fn print_pings(samples: &Samples) {
    let columns = [
        "ms that the link adds",
        "PING p50 ms",
        "PING p99 ms",
        "mean µs that packets left late, under load",
    ];
    let mut table = Table::new("PING, one after the other", columns);
    let mut row = |link: String, pings: &[Pings], late: String| {
        let of = |read: fn(&Pings) -> f64| number(median(pings.iter().map(read)));
        table.row([link, of(|pings| pings.p50), of(|pings| pings.p99), late]);
    };
    row("loopback, no link".into(), &samples.loopback, "–".into());
    for round_trip in ROUND_TRIPS
        .iter()
        .filter(|round_trip| samples.pings.contains_key(round_trip))
    {
        let late = median(samples.late[round_trip].iter().copied());
        row(
            millis(*round_trip),
            &samples.pings[round_trip],
            number(late),
        );
    }
    table.print();
}

fn print_table(samples: &Samples, round_trip: Duration) {
    let title = format!("The link adds {} ms to a round trip", millis(round_trip));
    let columns = [
        "operation",
        "callers",
        "this crate: p50 ms",
        "p99 ms",
        "calls/s",
        "EVALSHA each: p50 ms",
        "p99 ms",
        "calls/s",
    ];
    let mut table = Table::new(title, columns);
    for (op, load) in Op::ALL
        .into_iter()
        .flat_map(|op| Load::ALL.map(|load| (op, load)))
    {
        let of = |kind, read: fn(&Sample) -> f64| {
            let cell = Cell {
                round_trip,
                op,
                load,
                kind,
            };
            number(median(samples.cells[&cell].iter().map(read)))
        };
        let [ours, theirs] = Kind::ALL.map(|kind| {
            [
                of(kind, |sample| sample.p50),
                of(kind, |sample| sample.p99),
                of(kind, |sample| sample.per_second.round()),
            ]
        });
        let ([our_p50, our_p99, our_rate], [their_p50, their_p99, their_rate]) = (ours, theirs);
        let (op, load) = (op.title().to_owned(), load.title());
        table.row([
            op, load, our_p50, our_p99, our_rate, their_p50, their_p99, their_rate,
        ]);
    }
    table.print();
}

fn print_p50(samples: &Samples, callers: usize, name: &str) {
    let of = |callers| &samples.cells[&Cell::of_figures(Op::AllowOneKey, callers, Kind::Ours)];
    let (many, one) = (of(callers), of(1));
    Versus {
        name,
        measures: &format!(
            "p50 ms: allow, one key, {callers} callers, {} ms",
            millis(OF_FIGURES)
        ),
        ours: median(many.iter().map(|sample| sample.p50)),
        peer: "one caller",
        theirs: median(one.iter().map(|sample| sample.p50)),
        ratio: median(many.iter().zip(one).map(|(many, one)| many.p50 / one.p50)),
        better: Better::Lower,
    }
    .tell();
}

fn print_throughput(samples: &Samples, op: Op, name: &str) {
    let [ours, theirs] =
        Kind::ALL.map(|kind| &samples.cells[&Cell::of_figures(op, THROUGHPUT_CALLERS, kind)]);
    Versus {
        name,
        measures: &format!(
            "calls/s: {}, {THROUGHPUT_CALLERS} callers, {} ms",
            op.title(),
            millis(OF_FIGURES)
        ),
        ours: median(ours.iter().map(|sample| sample.per_second)),
        peer: "one EVALSHA each",
        theirs: median(theirs.iter().map(|sample| sample.per_second)),
        ratio: median(
            ours.iter()
                .zip(theirs)
                .map(|(ours, theirs)| ours.per_second / theirs.per_second),
        ),
        better: Better::Higher,
    }
    .tell();
}
