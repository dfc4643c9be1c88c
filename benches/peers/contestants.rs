//! Who is compared, and what starts them.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use crate::child::{self, Role};
use crate::common::settings::Settings;
use crate::tasks::Task;
use crate::{decisions, locks};

#[derive(Clone, Copy, Debug)]
pub enum Contestant {
    Ours,
    Theirs(Peer),
}

/// A library of another language, in one of its settings.
#[derive(Clone, Copy, Debug)]
pub enum Peer {
    RateLimiterFlexible,
    RateLimiterFlexiblePipelined,
    RedisPy,
    RedisPyEager,
}

impl From<Peer> for Contestant {
    fn from(peer: Peer) -> Self {
        Self::Theirs(peer)
    }
}

impl Contestant {
    pub fn title(self) -> &'static str {
        match self {
            Self::Ours => "this crate, one thread per process",
            Self::Theirs(Peer::RateLimiterFlexible) => "rate-limiter-flexible, ioredis",
            Self::Theirs(Peer::RateLimiterFlexiblePipelined) => {
                "rate-limiter-flexible, ioredis, auto-pipelining"
            }
            Self::Theirs(Peer::RedisPy) => "redis-py Lock",
            Self::Theirs(Peer::RedisPyEager) => "redis-py Lock, sleep 5 ms",
        }
    }

    pub fn command(self, task: Task, url: &str, length: Duration) -> Command {
        match self {
            Self::Ours => child::copy(task.name(), url),
            Self::Theirs(peer) => {
                let mut command = peer.program();
                command.args([
                    task.name(),
                    url,
                    &task.callers().to_string(),
                    &length.as_secs_f64().to_string(),
                ]);
                command.arg(peer.setting());
                command
            }
        }
    }
}

impl Peer {
    fn is_node(self) -> bool {
        matches!(
            self,
            Self::RateLimiterFlexible | Self::RateLimiterFlexiblePipelined
        )
    }

    fn program(self) -> Command {
        let here = |script: &str| {
            PathBuf::from(env!("CARGO_MANIFEST_DIR"))
                .join("peers")
                .join(script)
        };
        let installed = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/peers");
        if self.is_node() {
            let mut node = Command::new("node");
            node.env("NODE_PATH", installed.join("node_modules"))
                .arg(here("decisions.js"));
            node
        } else {
            let mut python = Command::new("python3");
            python
                .env("PYTHONPATH", installed.join("python"))
                .arg(here("locks.py"));
            python
        }
    }

    fn setting(self) -> &'static str {
        match self {
            Self::RateLimiterFlexible => "plain",
            Self::RateLimiterFlexiblePipelined => "auto-pipelining",
            Self::RedisPy => "0.1",
            Self::RedisPyEager => "0.005",
        }
    }

    /// Whether its program and its packages can be loaded.
    pub fn is_there(self) -> bool {
        let mut check = self.program();
        check
            .arg("check")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        check.status().is_ok_and(|status| status.success())
    }

    pub fn missing(self) -> &'static str {
        if self.is_node() {
            "it needs node, rate-limiter-flexible and ioredis: benches/peers/run.sh installs the packages"
        } else {
            "it needs python3 and redis-py: benches/peers/run.sh installs the package"
        }
    }
}

/// Does the part of a copy, on one thread: as many as Node.js and Python use at a time.
pub fn play(role: &Role) -> ExitCode {
    let task = Task::named(&role.name).unwrap();
    let length = Settings::read().unwrap().length;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    if task.is_lock() {
        runtime.block_on(locks::play(task, &role.url, length));
    } else {
        runtime.block_on(decisions::play(task, &role.url, length));
    }
    ExitCode::SUCCESS
}
