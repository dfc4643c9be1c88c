//! Copies of this process, which lock at the same time.

use std::env;
use std::io::{BufRead as _, BufReader, Write as _, stdin};
use std::process::{self, ChildStdout, Command, ExitCode, Stdio};
use std::str::FromStr;
use std::time::Duration;

use crate::common;
use crate::common::settings::Settings;
use crate::figures::{CELLS, Cell};
use crate::pairs::Tally;

/// Which of [`CELLS`] it has a part in.
const ROLE: &str = "TOWER_DISTRIBUTED_BENCH_ROLE";
const URL: &str = "TOWER_DISTRIBUTED_BENCH_URL";

/// Starts the processes of a cell, and lets them all begin when the last of them is ready.
pub fn run(cell: Cell, url: &str) -> Vec<Tally> {
    let mut children: Vec<_> = (0..cell.load.processes()).map(|_| Child::start(cell, url)).collect();
    children.iter_mut().for_each(|child| assert_eq!(child.next_line(), "ready"));
    children.iter_mut().for_each(Child::begin);
    let tally = |child: &mut Child| Tally {
        pairs: child.numbers(),
        waits: child.numbers(),
        took: Duration::from_nanos(child.numbers()[0]),
    };
    children.iter_mut().map(tally).collect()
}

/// What this process is to do, if it is such a copy.
pub fn role() -> Option<Cell> {
    let role = env::var(ROLE).ok()?;
    Some(CELLS[role.parse::<usize>().unwrap()])
}

/// Does that, and tells its tally line by line.
pub fn play(Cell { kind, load }: Cell) -> ExitCode {
    let length = Settings::read().unwrap().length;
    let url = env::var(URL).unwrap();
    let runtime = common::runtime().unwrap();
    let tally = kind.run(&runtime, &url, load, length, || {
        println!("ready");
        stdin().read_line(&mut String::new()).unwrap();
    });
    tell(&tally.pairs);
    tell(&tally.waits);
    tell(&[tally.took.as_nanos()]);
    ExitCode::SUCCESS
}

fn tell<T: ToString>(numbers: &[T]) {
    let words: Vec<_> = numbers.iter().map(T::to_string).collect();
    println!("{}", words.join(" "));
}

/// A copy of this process. Dropping it kills it.
struct Child {
    process: process::Child,
    stdout: BufReader<ChildStdout>,
}

impl Child {
    fn start(cell: Cell, url: &str) -> Self {
        let role = CELLS.iter().position(|other| *other == cell).unwrap();
        let mut command = Command::new(env::current_exe().unwrap());
        command.env(ROLE, role.to_string()).env(URL, url).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        Self { process, stdout }
    }

    fn begin(&mut self) {
        self.process.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn numbers<T: FromStr>(&mut self) -> Vec<T> {
        let number = |word: &str| word.parse().ok().expect("a copy of this process tells its tally");
        self.next_line().split(' ').map(number).collect()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
