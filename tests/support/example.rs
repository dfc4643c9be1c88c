//! Examples as processes, which `cargo test` has built beside the tests.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{ChildStdout, Stdio};

use crate::supervised::Supervised;

/// Returns the program of an example.
pub fn program_of(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let program = tests
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("examples")
        .join(name);
    assert!(
        program.exists(),
        "{program:?} is missing: run cargo test without --test, or cargo build --examples"
    );
    program
}

/// A running example that serves HTTP. It dies with this value.
pub struct ServingExample {
    _process: Supervised,
    /// Kept open: it goes on printing.
    _stdout: BufReader<ChildStdout>,
    /// Its URL.
    pub base: String,
}

impl ServingExample {
    /// Starts an example that listens on PORT, and prints its URL in its first line. Without a URL of Redis its state is
    /// in its process.
    pub fn start(name: &str, redis_url: Option<&str>) -> Self {
        let mut command = Supervised::command(program_of(name), None);
        command
            .env("PORT", "0")
            .env_remove("REDIS_URL")
            .stdout(Stdio::piped());
        if let Some(url) = redis_url {
            command.env("REDIS_URL", url);
        }
        let mut process = Supervised::spawn(command);
        let mut line = String::new();
        let mut stdout = BufReader::new(process.take_stdout().unwrap());
        stdout.read_line(&mut line).unwrap();
        let base = line
            .split([' ', ','])
            .find(|word| word.starts_with("http://"))
            .unwrap()
            .trim()
            .to_owned();
        Self {
            _process: process,
            _stdout: stdout,
            base,
        }
    }
}
