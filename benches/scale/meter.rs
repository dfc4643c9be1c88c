//! What servers tell of themselves.

use std::ops::Sub;
use std::thread;
use std::time::Duration;

use deadpool_redis::redis::{self, Connection, cmd};

/// The memory of a server that falls by less than this, in bytes, has settled.
const SETTLED: f64 = 4096.0;

/// Connections to the servers that are measured.
pub struct Meter(Vec<Connection>);

/// Sums over the servers, since their start.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// CPU time of the main thread, in µs.
    pub cpu: f64,
    /// Calls of scripts.
    pub scripts: f64,
    /// Messages, from scripts as well.
    pub publishes: f64,
}

impl Sub for Reading {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            cpu: self.cpu - before.cpu,
            scripts: self.scripts - before.scripts,
            publishes: self.publishes - before.publishes,
        }
    }
}

impl Meter {
    pub fn new<S: AsRef<str>>(urls: &[S]) -> Self {
        let connect = |url: &S| {
            redis::Client::open(url.as_ref())
                .unwrap()
                .get_connection()
                .unwrap()
        };
        Self(urls.iter().map(connect).collect())
    }

    pub fn read(&mut self) -> Reading {
        let mut reading = Reading {
            cpu: 0.0,
            scripts: 0.0,
            publishes: 0.0,
        };
        for server in &mut self.0 {
            let info: String = cmd("INFO").arg("everything").query(server).unwrap();
            let seconds = |name: &str| field(&info, name).parse::<f64>().unwrap();
            let cpu = seconds("used_cpu_user_main_thread") + seconds("used_cpu_sys_main_thread");
            reading.cpu += cpu * 1e6;
            reading.scripts +=
                calls(&info, "evalsha") + calls(&info, "eval") + calls(&info, "fcall");
            reading.publishes += calls(&info, "publish");
        }
        reading
    }

    /// The memory of the servers, without that of their connections, in bytes.
    ///
    /// Servers count the memory of a connection anew every second, and take its buffers back when it has been idle for 2 s.
    /// So this waits until the memory no longer falls.
    pub fn used_memory(&mut self) -> f64 {
        let mut last = self.used_memory_now();
        loop {
            thread::sleep(Duration::from_millis(2500));
            let now = self.used_memory_now();
            if now > last - SETTLED {
                return now;
            }
            last = now;
        }
    }

    fn used_memory_now(&mut self) -> f64 {
        let of = |server: &mut Connection| {
            let info: String = cmd("INFO").arg("memory").query(server).unwrap();
            let bytes = |name: &str| field(&info, name).parse::<f64>().unwrap();
            bytes("used_memory") - bytes("mem_clients_normal")
        };
        self.0.iter_mut().map(of).sum()
    }
}

fn field<'a>(info: &'a str, name: &str) -> &'a str {
    let value = |line: &'a str| line.strip_prefix(name)?.strip_prefix(':');
    info.lines()
        .find_map(value)
        .unwrap_or_else(|| panic!("INFO tells no {name}"))
        .trim()
}

fn calls(info: &str, command: &str) -> f64 {
    let stats = format!("cmdstat_{command}:calls=");
    let count = |line: &str| line.strip_prefix(&stats)?.split(',').next()?.parse().ok();
    info.lines().find_map(count).unwrap_or(0.0)
}
