//! How benches tell what they measured: in Markdown that can be pasted, and in lines for scripts.

use std::sync::{Mutex, PoisonError};

use super::table::Table;

/// All figures so far, which [`summary`] prints.
static ROWS: Mutex<Vec<[String; 7]>> = Mutex::new(Vec::new());

const COLUMNS: [&str; 7] = [
    "figure",
    "measures",
    "this crate",
    "peer",
    "of the peer",
    "ratio",
    "better",
];
/// Ratios this near to 1 are called equal: runs differ by as much.
const EQUAL: f64 = 0.03;
const NONE: &str = "–";

/// Which of two figures is the better one.
#[derive(Clone, Copy, Debug)]
pub enum Better {
    Higher,
    Lower,
}

/// A figure of this crate beside that of a peer.
#[derive(Debug)]
pub struct Versus<'a> {
    pub name: &'a str,
    /// With its unit.
    pub measures: &'a str,
    pub ours: f64,
    pub peer: &'a str,
    pub theirs: f64,
    /// Ours ÷ theirs: the median of the rounds' ratios.
    pub ratio: f64,
    pub better: Better,
}

impl Versus<'_> {
    pub fn tell(self) {
        let Self {
            name,
            measures,
            ours,
            peer,
            theirs,
            ratio,
            better,
        } = self;
        let gain = match better {
            Better::Higher => ratio,
            Better::Lower => 1.0 / ratio,
        };
        let winner = match gain {
            gain if (gain - 1.0).abs() <= EQUAL => "equal",
            gain if gain > 1.0 => "this crate",
            _ => peer,
        };
        line(name, ratio);
        row([
            name,
            measures,
            &number(ours),
            peer,
            &number(theirs),
            &number(ratio),
            winner,
        ]);
    }
}

/// A figure that has no peer. `measures`: with its unit.
pub fn figure(name: &str, measures: &str, value: f64) {
    line(name, value);
    row([name, measures, &number(value), NONE, NONE, NONE, NONE]);
}

/// A paragraph: what a figure or a table does not tell.
pub fn note(text: impl AsRef<str>) {
    println!("\n{}", text.as_ref());
}

/// The table of all figures that were told.
pub fn summary() {
    let rows = std::mem::take(&mut *ROWS.lock().unwrap_or_else(PoisonError::into_inner));
    if rows.is_empty() {
        return;
    }
    let mut table = Table::new("Figures", COLUMNS);
    rows.into_iter().for_each(|row| table.row(row));
    table.print();
}

/// Three digits, or all of those before the point in groups of three.
pub fn number(value: f64) -> String {
    if value.fract() != 0.0 && value.abs() < 1000.0 {
        return format!("{value:.*}", decimals(value));
    }
    let (sign, digits) = (
        if value < 0.0 { "-" } else { "" },
        format!("{:.0}", value.abs()),
    );
    let mut groups: Vec<_> = digits
        .as_bytes()
        .rchunks(3)
        .map(String::from_utf8_lossy)
        .collect();
    groups.reverse();
    format!("{sign}{}", groups.join(" "))
}

/// The line that scripts read.
fn line(name: &str, value: f64) {
    println!("figure {name} {value:.*}", decimals(value));
}

/// So many digits after the point that there are three, or as many as there are zeros and three; none for nothing at all.
fn decimals(value: f64) -> usize {
    if value == 0.0 {
        0
    } else {
        (2.0 - value.abs().log10().floor()).clamp(0.0, 12.0) as usize
    }
}

fn row(row: [&str; 7]) {
    ROWS.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(row.map(str::to_owned));
}
