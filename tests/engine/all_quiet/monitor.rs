//! Counts what a server is asked by its clients.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use support::redis_server::RedisServer;

/// How the number of new connections is called among the commands.
pub(super) const CONNECTIONS: &str = "(connections)";

/// The last command that counts comes before this text.
const END: &str = "the end of the time";

/// Calls by command.
pub(super) type Calls = BTreeMap<String, u64>;

/// Counts the commands that clients send to a server. Those inside of scripts do not count, and neither does `INFO`, with
/// which the tests ask.
pub(super) struct Monitor {
    lines: BufReader<TcpStream>,
    before: Stats,
    began: Instant,
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
        let (mut lines, mut line) = (BufReader::new(stream), String::new());
        lines.read_line(&mut line).unwrap();
        let is_sentinel = line != "+OK\r\n";
        Self {
            lines,
            before: Stats::of(server),
            began: Instant::now(),
            is_sentinel,
        }
    }

    /// The calls since the start, to the same server, and how long that was.
    pub(super) fn calls(&mut self, server: &RedisServer) -> (Calls, Duration) {
        let (mut calls, span) = (Calls::new(), self.began.elapsed());
        // A question is a connection and a command.
        let now = Stats::of(server);
        calls.insert(
            CONNECTIONS.to_owned(),
            now.connections - self.before.connections - 1,
        );
        if self.is_sentinel {
            calls.insert(
                "(commands)".to_owned(),
                now.commands - self.before.commands - 1,
            );
        } else {
            server.cli(&["ECHO", END]);
            let (mut line, mut text) = (Vec::new(), String::new());
            while !text.contains(END) {
                if let Some(command) = command(&text) {
                    *calls.entry(command).or_default() += 1;
                }
                line.clear();
                assert!(
                    self.lines.read_until(b'\n', &mut line).unwrap() > 0,
                    "the server has gone"
                );
                text = String::from_utf8_lossy(&line).into_owned();
            }
        }
        calls.retain(|_, count| *count > 0);
        (calls, span)
    }
}

impl Stats {
    fn of(server: &RedisServer) -> Self {
        let stats = server.cli(&["INFO", "stats"]);
        let number = |name: &str| {
            let line = stats
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap().trim().parse().unwrap()
        };
        Self {
            connections: number("total_connections_received"),
            commands: number("total_commands_processed"),
        }
    }
}

/// The name of the command in a line such as `+1339518083.107412 [0 127.0.0.1:60866] "keys" "*"`.
fn command(line: &str) -> Option<String> {
    let (client, command) = line.split_once("] \"")?;
    let name = command.split('"').next()?.to_ascii_uppercase();
    (!client.ends_with(" lua") && name != "INFO").then_some(name)
}
