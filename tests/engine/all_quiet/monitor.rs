//! Counts what a server is asked by its clients.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::{Arc, Mutex};

use support::redis_server::RedisServer;

/// How the number of new connections is called among the commands.
pub(super) const CONNECTIONS: &str = "(connections)";

/// Calls by command.
pub(super) type Calls = BTreeMap<String, u64>;

/// Counts the commands that clients send to a server. Those inside of scripts do not count, and neither does `INFO`, with
/// which the tests ask.
pub(super) struct Monitor {
    seen: Arc<Mutex<Calls>>,
    before: Stats,
    /// A Sentinel cannot be monitored, and runs no scripts.
    is_sentinel: bool,
}

/// What a server has counted.
struct Stats {
    connections: u64,
    commands: u64,
}

impl Monitor {
    pub(super) fn start(server: &RedisServer) -> Self {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let (mut lines, mut line) = (BufReader::new(stream), Vec::new());
        lines.read_until(b'\n', &mut line).unwrap();
        let seen = Arc::<Mutex<Calls>>::default();
        let is_sentinel = line != b"+OK\r\n";
        if !is_sentinel {
            let counts = Arc::clone(&seen);
            // Ends with the server.
            std::thread::spawn(move || count(lines, &counts));
        }
        Self { seen, before: Stats::of(server), is_sentinel }
    }

    /// The calls since the start, to the same server.
    pub(super) fn calls(&self, server: &RedisServer) -> Calls {
        let mut calls = self.seen.lock().unwrap().clone();
        // A question is a connection and a command.
        let now = Stats::of(server);
        calls.insert(CONNECTIONS.to_owned(), now.connections - self.before.connections - 1);
        if self.is_sentinel {
            calls.insert("(commands)".to_owned(), now.commands - self.before.commands - 1);
        }
        calls.retain(|_, count| *count > 0);
        calls
    }
}

impl Stats {
    fn of(server: &RedisServer) -> Self {
        let stats = server.cli(&["INFO", "stats"]);
        let number = |name: &str| {
            let line = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap().trim().parse().unwrap()
        };
        Self {
            connections: number("total_connections_received"),
            commands: number("total_commands_processed"),
        }
    }
}

fn count(mut lines: BufReader<TcpStream>, counts: &Mutex<Calls>) {
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        if let Some(command) = command(&String::from_utf8_lossy(&line)) {
            *counts.lock().unwrap().entry(command).or_default() += 1;
        }
        line.clear();
    }
}

/// The name of the command in a line such as `+1339518083.107412 [0 127.0.0.1:60866] "keys" "*"`.
fn command(line: &str) -> Option<String> {
    let (client, command) = line.split_once("] \"")?;
    let name = command.split('"').next()?.to_ascii_uppercase();
    (!client.ends_with(" lua") && name != "INFO").then_some(name)
}
