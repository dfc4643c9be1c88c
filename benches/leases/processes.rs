//! Copies of this process, which lock at the same time.

use std::process::ExitCode;
use std::time::Duration;

use crate::child::{self, Child, Role, tell};
use crate::common;
use crate::common::settings::Settings;
use crate::figures::{CELLS, Cell};
use crate::pairs::Tally;

/// Lets the processes of a cell work. Their role is its place in [`CELLS`].
pub fn run(cell: Cell, url: &str) -> Vec<Tally> {
    let role = CELLS.iter().position(|other| *other == cell).unwrap();
    let mut children = child::start(cell.load.processes(), &role.to_string(), url);
    let tally = |child: &mut Child| Tally {
        pairs: child.numbers(),
        waits: child.numbers(),
        took: Duration::from_nanos(child.numbers()[0]),
    };
    children.iter_mut().map(tally).collect()
}

/// Does the part of a copy, and tells its tally line by line.
pub fn play(role: &Role) -> ExitCode {
    let Cell { kind, load } = CELLS[role.name.parse::<usize>().unwrap()];
    let length = Settings::read().unwrap().length;
    let runtime = common::runtime().unwrap();
    let tally = kind.run(
        &runtime,
        &role.url,
        load,
        length,
        child::wait_for_the_others,
    );
    tell(&tally.pairs);
    tell(&tally.waits);
    tell(&[tally.took.as_nanos()]);
    ExitCode::SUCCESS
}
