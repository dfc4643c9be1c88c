//! The `gateway` example as a process.

use std::io::{BufRead as _, BufReader};
use std::process::{ChildStdout, Stdio};

use super::support::supervised::Supervised;

/// A running gateway, which dies with this value.
pub(crate) struct Gateway {
    _process: Supervised,
    /// Kept open: it goes on printing.
    _stdout: BufReader<ChildStdout>,
    pub(crate) base: String,
}

impl Gateway {
    /// Starts the example, which `cargo test` has built beside the tests.
    pub(crate) fn start(redis_url: Option<&str>) -> Self {
        let tests = std::env::current_exe().unwrap();
        let gateway = tests.parent().unwrap().parent().unwrap().join("examples/gateway");
        assert!(
            gateway.exists(),
            "{gateway:?} is missing: run cargo test without --test, or cargo build --examples"
        );
        let mut command = Supervised::command(gateway, None);
        command.env("PORT", "0").env_remove("REDIS_URL").stdout(Stdio::piped());
        if let Some(url) = redis_url {
            command.env("REDIS_URL", url);
        }
        let mut process = Supervised::spawn(command);
        let mut line = String::new();
        let mut stdout = BufReader::new(process.take_stdout().unwrap());
        stdout.read_line(&mut line).unwrap();
        let base = line.split([' ', ',']).find(|word| word.starts_with("http://")).unwrap().to_owned();
        Self { _process: process, _stdout: stdout, base }
    }
}
