//! Looks at the gateway and the servers while they are under load.

use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use deadpool_redis::redis::cmd;

use support::client::Client;
use support::redis_server::RedisServer;

/// The name of the connections that look.
const NAME: &str = "watch";

#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Since the start.
    pub at: Duration,
    /// Of the gateway's process, in bytes.
    pub rss: u64,
    /// Of all servers together, in bytes.
    pub used_memory: u64,
    /// The most connections for calls, and for subscriptions, that the gateway has to one server.
    pub calls: usize,
    pub subscriptions: usize,
}

pub struct Watch {
    stop: Sender<()>,
    samples: JoinHandle<Vec<Sample>>,
}

impl Watch {
    /// Takes about 120 samples in this time.
    pub fn start(process: u32, servers: &[&RedisServer], length: Duration) -> Self {
        let mut connections: Vec<_> = servers.iter().map(|server| connect(server)).collect();
        let every = (length / 120).max(Duration::from_millis(50));
        let (stop, stopped) = mpsc::channel();
        let samples = thread::spawn(move || {
            let (mut samples, began) = (Vec::new(), Instant::now());
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(every) {
                samples.push(sample(began, process, &mut connections));
            }
            samples
        });
        Self { stop, samples }
    }

    pub fn stop(self) -> Vec<Sample> {
        drop(self.stop);
        self.samples.join().unwrap()
    }
}

pub fn connect(server: &RedisServer) -> Client {
    let mut client = server.client().unwrap();
    client
        .query::<()>(cmd("CLIENT").arg("SETNAME").arg(NAME))
        .unwrap();
    client
}

fn sample(began: Instant, process: u32, servers: &mut [Client]) -> Sample {
    let mut sample = Sample {
        at: began.elapsed(),
        rss: rss(process),
        used_memory: 0,
        calls: 0,
        subscriptions: 0,
    };
    for server in servers {
        let info: String = server.query(cmd("INFO").arg("memory")).unwrap();
        let used = info
            .lines()
            .find_map(|line| line.strip_prefix("used_memory:"))
            .unwrap();
        sample.used_memory += used.trim().parse::<u64>().unwrap();
        let (calls, subscriptions) = connections(server);
        sample.calls = sample.calls.max(calls);
        sample.subscriptions = sample.subscriptions.max(subscriptions);
    }
    sample
}

/// How many connections for calls and for subscriptions a server has, without those that look.
pub fn connections(server: &mut Client) -> (usize, usize) {
    let mut of_type = |name| {
        let list: String = server
            .query(cmd("CLIENT").arg("LIST").arg("TYPE").arg(name))
            .unwrap();
        list.lines()
            .filter(|line| !line.contains(&format!(" name={NAME} ")))
            .count()
    };
    (of_type("normal"), of_type("pubsub"))
}

/// The memory of a process that is in RAM, in bytes.
pub fn rss(process: u32) -> u64 {
    status(process, "VmRSS")
        .trim_end_matches(" kB")
        .parse::<u64>()
        .unwrap()
        * 1024
}

/// A line of what the kernel says of a process.
pub fn status(process: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .unwrap();
    line.trim().to_owned()
}
