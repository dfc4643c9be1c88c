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
    process: Supervised,
    /// Kept open: it goes on printing.
    _stdout: BufReader<ChildStdout>,
    /// Its URL.
    pub base: String,
}

impl ServingExample {
    /// Starts an example that listens on PORT, and prints its URL in its first line. Without a URL of Redis its state is
    /// in its process.
    pub fn start(name: &str, redis_url: Option<&str>) -> Self {
        Self::start_on(0, name, redis_url)
    }

    /// Sends SIGSTOP: connections stay open, and nothing is answered.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Sends SIGCONT after [`Self::pause`].
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Ends the example, and starts it again on its port.
    pub fn restart(&mut self, name: &str) {
        self.process.kill9();
        let port = self.base.rsplit_once(':').unwrap().1.parse().unwrap();
        *self = Self::start_on(port, name, None);
    }

    fn start_on(port: u16, name: &str, redis_url: Option<&str>) -> Self {
        let mut command = Supervised::command(program_of(name), None);
        command
            .env("PORT", port.to_string())
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
            process,
            _stdout: stdout,
            base,
        }
    }
}
