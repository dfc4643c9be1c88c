//! The redis-server that is measured against.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use deadpool_redis::redis::{self, Connection, FromRedisValue};

/// A redis-server without persistence. Dropping it kills it.
pub struct Server {
    process: Process,
    pub url: String,
}

/// The process and its directory.
struct Process {
    child: Child,
    dir: PathBuf,
}

/// The program that benches run as redis-server.
pub fn program() -> OsString {
    env::var_os("TOWER_DISTRIBUTED_REDIS_SERVER").unwrap_or_else(|| "redis-server".into())
}

impl Server {
    /// On a free port of 127.0.0.1.
    pub fn start() -> Result<Self, String> {
        Self::start_by(Command::new(program()), "127.0.0.1")
    }

    /// By a command that runs redis-server with the arguments that follow, and on an address that it can bind.
    pub fn start_by(mut command: Command, host: &str) -> Result<Self, String> {
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .map_err(|error| format!("no free port on 127.0.0.1: {error}"))?
            .port();
        let dir = env::temp_dir().join(format!("tower-distributed-bench-{}-{port}", process::id()));
        fs::create_dir(&dir).map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
        let child = command
            .args([
                "--port",
                &port.to_string(),
                "--bind",
                host,
                "--save",
                "",
                "--appendonly",
                "no",
            ])
            .current_dir(&dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let process = match child {
            Ok(child) => Process { child, dir },
            Err(error) => {
                let _ = fs::remove_dir_all(&dir);
                return Err(match error.kind() {
                    ErrorKind::NotFound => {
                        "this bench needs redis-server on the PATH, and there is none".into()
                    }
                    _ => format!("cannot start redis-server: {error}"),
                });
            }
        };
        let mut server = Self {
            process,
            url: format!("redis://{host}:{port}"),
        };
        server.wait_until_ready()?;
        Ok(server)
    }

    fn wait_until_ready(&mut self) -> Result<(), String> {
        let patience = Instant::now() + Duration::from_secs(10);
        while Instant::now() < patience {
            if let Ok(Some(status)) = self.process.child.try_wait() {
                return Err(format!("redis-server ended at once: {status}"));
            }
            let connection =
                redis::Client::open(&*self.url).and_then(|client| client.get_connection());
            if connection
                .is_ok_and(|mut connection| redis::cmd("PING").exec(&mut connection).is_ok())
            {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err("redis-server gave no answer for 10 s".into())
    }

    /// Runs one command on a connection of its own.
    pub fn query<T: FromRedisValue>(&self, command: &[&str]) -> T {
        let mut connection = self.connection();
        redis::cmd(command[0])
            .arg(&command[1..])
            .query(&mut connection)
            .unwrap()
    }

    /// An empty server; scripts stay loaded.
    pub fn empty(&self) {
        self.query::<()>(&["FLUSHALL", "SYNC"]);
    }

    /// How many calls of functions and scripts there were so far.
    pub fn script_calls(&self) -> u64 {
        calls(&mut self.connection(), |command| {
            command.starts_with("eval") || command == "fcall"
        })
    }

    pub fn connection(&self) -> Connection {
        redis::Client::open(&*self.url)
            .and_then(|client| client.get_connection())
            .unwrap()
    }
}

/// How many calls there were so far of the commands that count, those from within scripts too.
pub fn calls(connection: &mut Connection, counts: impl Fn(&str) -> bool) -> u64 {
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(connection)
        .unwrap();
    stats
        .lines()
        .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="))
        .filter(|(command, _)| counts(command))
        .filter_map(|(_, rest)| rest.split(',').next()?.parse::<u64>().ok())
        .sum()
}

/// The server's time in functions and scripts so far, µs.
#[allow(dead_code, reason = "most benches measure something else")]
pub fn spent(connection: &mut Connection) -> f64 {
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(connection)
        .unwrap();
    let lines = ["cmdstat_evalsha:", "cmdstat_fcall:"].into_iter();
    let lines = lines.filter_map(|name| stats.lines().find_map(|line| line.strip_prefix(name)));
    let times = lines.filter_map(|line| {
        line.split(',')
            .find_map(|field| field.strip_prefix("usec="))
    });
    times.map(|time| time.parse::<f64>().unwrap()).sum()
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}
