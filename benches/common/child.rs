//! Copies of a bench's process, which do their part at the same time.

use std::env;
use std::io::{BufRead as _, BufReader, Write as _, stdin};
use std::process::{self, ChildStdout, Command, ExitStatus, Stdio};
use std::str::FromStr;

const ROLE: &str = "TOWER_DISTRIBUTED_BENCH_ROLE";
const URL: &str = "TOWER_DISTRIBUTED_BENCH_URL";

/// What a copy is to do, and at which server.
pub struct Role {
    pub name: String,
    pub url: String,
}

impl Role {
    /// That of this process, if it is a copy.
    pub fn of_this_process() -> Option<Self> {
        Some(Self {
            name: env::var(ROLE).ok()?,
            url: env::var(URL).unwrap(),
        })
    }
}

/// Says that this process is ready, and waits until all are to begin.
pub fn wait_for_the_others() {
    println!("ready");
    stdin().read_line(&mut String::new()).unwrap();
}

/// A line of numbers for the process that started this one.
pub fn tell<T: ToString>(numbers: &[T]) {
    let words: Vec<_> = numbers.iter().map(T::to_string).collect();
    println!("{}", words.join(" "));
}

/// Starts so many copies, and lets them all begin when the last of them is ready.
pub fn start(count: usize, role: &str, url: &str) -> Vec<Child> {
    start_all((0..count).map(|_| copy(role, url)))
}

/// What starts a copy of this process.
pub fn copy(role: &str, url: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.env(ROLE, role).env(URL, url);
    command
}

/// Starts programs that speak as copies do, and lets them all begin when the last of them is ready.
pub fn start_all(commands: impl IntoIterator<Item = Command>) -> Vec<Child> {
    let mut children: Vec<_> = commands.into_iter().map(Child::start).collect();
    children
        .iter_mut()
        .for_each(|child| assert_eq!(child.next_line(), "ready"));
    children.iter_mut().for_each(Child::begin);
    children
}

/// A copy of this process, or another program that speaks as it does. Dropping it kills it.
pub struct Child {
    process: process::Child,
    stdout: BufReader<ChildStdout>,
}

impl Child {
    fn start(mut command: Command) -> Self {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        Self { process, stdout }
    }

    fn begin(&mut self) {
        self.process
            .stdin
            .as_mut()
            .unwrap()
            .write_all(b"\n")
            .unwrap();
    }

    fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Closes its standard input, for a copy that ends after that. Returns when it has ended.
    #[allow(dead_code, reason = "most are killed")]
    pub fn end(&mut self) -> ExitStatus {
        drop(self.process.stdin.take());
        self.process.wait().unwrap()
    }

    /// The next line that it [tells](tell).
    pub fn numbers<T: FromStr>(&mut self) -> Vec<T> {
        let number = |word: &str| {
            word.parse()
                .ok()
                .expect("a copy of this process tells numbers")
        };
        self.next_line().split_whitespace().map(number).collect()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
