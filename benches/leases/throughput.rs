//! The table of pairs per second, round by round.

use std::collections::HashMap;

use crate::common::Bench;
use crate::common::report::{Versus, figure, note, number};
use crate::common::stats::median;
use crate::common::table::Table;
use crate::figures::{CELLS, Cell, FIGURES, Figure};
use crate::processes;
use crate::sample::Sample;

type Samples = HashMap<Cell, Vec<Sample>>;

pub fn run(bench: &Bench) {
    let cells = wanted(bench);
    if cells.is_empty() {
        return;
    }
    let samples = measure(bench, &cells);
    print_table(&cells, &samples);
    if bench.settings.only().is_some() {
        return;
    }
    for figure in FIGURES
        .iter()
        .filter(|figure| bench.settings.wants(figure.name))
    {
        print_figure(&samples, figure);
    }
}

/// All cells for the table, or those that the figures asked for need.
fn wanted(bench: &Bench) -> Vec<Cell> {
    let table = bench.settings.wants("table");
    let needed = |cell: &Cell| {
        FIGURES
            .iter()
            .any(|figure| bench.settings.wants(figure.name) && figure.cells.contains(cell))
    };
    let among = |cell: &Cell| {
        bench
            .settings
            .only()
            .is_none_or(|part| cell.kind.title().contains(part))
    };
    CELLS
        .into_iter()
        .filter(|cell| (table || needed(cell)) && among(cell))
        .collect()
}

/// Every other round goes backwards, so that nobody always follows the same neighbour.
fn measure(bench: &Bench, cells: &[Cell]) -> Samples {
    let mut samples = Samples::new();
    let mut order = cells.to_vec();
    for round in 0..bench.settings.rounds {
        for &cell in &order {
            samples.entry(cell).or_default().push(sample(bench, cell));
        }
        order.reverse();
        eprintln!("round {} of {} done", round + 1, bench.settings.rounds);
    }
    samples
}

/// One contestant at an empty server.
fn sample(bench: &Bench, cell: Cell) -> Sample {
    bench.server.empty();
    let url = &bench.server.url;
    if cell.load.processes() > 1 {
        return Sample::new(&processes::run(cell, url));
    }
    Sample::new(&[cell
        .kind
        .run(&bench.runtime, url, cell.load, bench.settings.length, || {})])
}

fn print_table(cells: &[Cell], samples: &Samples) {
    let columns = [
        "load",
        "contestant",
        "pairs/s",
        "p50 µs",
        "p99 µs",
        "least served",
    ];
    let mut table = Table::new("Pairs of lock and unlock", columns);
    for cell in cells {
        let of = |read: fn(&Sample) -> f64| median(samples[cell].iter().map(read));
        table.row([
            cell.load.title().to_owned(),
            cell.kind.title().to_owned(),
            number(of(|sample| sample.per_second).round()),
            number(of(|sample| sample.p50) / 1000.0),
            number(of(|sample| sample.p99) / 1000.0),
            format!("{:.2}", of(|sample| sample.least_share)),
        ]);
    }
    table.print();
    note(
        "p50 and p99: waits for a lock. Least served: of the processes or callers, of its fair share.",
    );
}

fn print_figure(
    samples: &Samples,
    Figure {
        name,
        measures,
        cells,
        value,
        better,
    }: &Figure,
) {
    let of = |cell: &Cell| samples[cell].iter().map(value);
    let ours = median(of(&cells[0]));
    let Some(peer) = cells.get(1) else {
        return figure(name, measures, ours);
    };
    Versus {
        name,
        measures,
        ours,
        peer: peer.kind.title(),
        theirs: median(of(peer)),
        ratio: median(
            of(&cells[0])
                .zip(of(peer))
                .map(|(ours, theirs)| ours / theirs),
        ),
        better: *better,
    }
    .tell();
}
