//! A redis-server for one test.

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool_redis::redis::{self, FromRedisValue, RedisResult, Value};

use crate::client::Client;
use crate::eventually;
use crate::ports::free_port;
use crate::program::{has_functions, program};
use crate::scratch_dir::ScratchDir;
use crate::supervised::Supervised;

const CONFIG_FILE: &str = "redis.conf";
const LOG_FILE: &str = "redis.log";
const PORTS_TO_TRY: usize = 20;
const START_DEADLINE: Duration = Duration::from_secs(20);

/// A server (see [`program`]) on a free port of 127.0.0.1, without persistence, in its own directory.
///
/// All methods take `&self`, so that a server can be shared, even in a `static`. Dropping it kills the server.
pub struct RedisServer {
    // First, so that the process is dropped before its directory.
    process: Mutex<Option<Supervised>>,
    dir: ScratchDir,
    port: u16,
    arguments: Vec<String>,
    env: Vec<(&'static str, PathBuf)>,
}

impl RedisServer {
    /// Starts a server and waits until it answers.
    pub async fn start() -> Self {
        Self::with_args(&[]).await
    }

    /// Like [`start`](Self::start), with further arguments, as in `&["--enable-debug-command", "yes"]`.
    pub async fn with_args(arguments: &[&str]) -> Self {
        Self::launch(String::new, arguments).await
    }

    /// Like [`with_args`](Self::with_args), with variables of the environment.
    pub async fn with_env(arguments: &[&str], env: &[(&'static str, PathBuf)]) -> Self {
        Self::launch_with(String::new, arguments, env).await
    }

    /// Like [`with_args`](Self::with_args), with further lines of configuration. `config` is called once for each
    /// port tried.
    pub async fn launch(config: impl Fn() -> String, arguments: &[&str]) -> Self {
        Self::launch_with(config, arguments, &[]).await
    }

    async fn launch_with(
        config: impl Fn() -> String,
        arguments: &[&str],
        env: &[(&'static str, PathBuf)],
    ) -> Self {
        for _ in 0..PORTS_TO_TRY {
            let mut server = Self::prepare(free_port(), &config(), arguments);
            server.env = env.to_vec();
            if server.boot().await {
                return server;
            }
        }
        panic!("tried {PORTS_TO_TRY} ports, all of them in use");
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the process id. Panics while the server is down.
    pub fn id(&self) -> u32 {
        self.with_process(|process| process.id())
    }

    /// Returns a new blocking connection, for more than a few commands.
    pub fn client(&self) -> RedisResult<Client> {
        Client::connect(self.port)
    }

    /// Runs one command on a new connection: `server.query::<u64>(&["INCR", "runs"])`.
    pub fn query<T: FromRedisValue>(&self, command: &[&str]) -> RedisResult<T> {
        let (name, arguments) = command.split_first().expect("a command has a name");
        self.client()?.query(redis::cmd(name).arg(arguments))
    }

    /// Runs one command and returns the output of redis-cli to a pipe. Panics on an error reply.
    pub fn cli(&self, command: &[&str]) -> String {
        match self.query::<Value>(command) {
            Ok(reply) => raw(&reply),
            Err(error) => panic!("{command:?} on port {}: {error}", self.port),
        }
    }

    /// Runs an ACL rule, with more words. A server without functions knows no commands for them.
    pub fn set_user(&self, rule: &str, more: &[&str]) {
        let is_known = |word: &&str| {
            has_functions() || !word[1..].starts_with("fcall") && !word[1..].starts_with("function")
        };
        let words: Vec<_> = rule
            .split(' ')
            .chain(more.iter().copied())
            .filter(is_known)
            .collect();
        assert_eq!(self.cli(&words).trim(), "OK", "{words:?}");
    }

    /// The number of calls of a command that the server has run, those of scripts too, since it started or
    /// `CONFIG RESETSTAT`.
    pub fn calls_of(&self, command: &str) -> u64 {
        self.all_calls()
            .into_iter()
            .find(|(name, _)| name == command)
            .map_or(0, |(_, calls)| calls)
    }

    /// The same of all commands.
    pub fn all_calls(&self) -> Vec<(String, u64)> {
        let stats = self.cli(&["INFO", "commandstats"]);
        let lines = stats
            .lines()
            .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
        let number = |rest: &str| rest.split(',').next().unwrap().parse().unwrap();
        lines
            .map(|(name, rest)| (name.to_owned(), number(rest)))
            .collect()
    }

    /// Checks that many calls were ones of functions, where the server has them, and many of scripts.
    pub fn assert_both_ways_to_call(&self) {
        let [functions, scripts] = ["fcall", "evalsha"].map(|name| self.calls_of(name));
        let is_called = functions > 100 || !has_functions();
        assert!(
            is_called && scripts > 100,
            "{functions} calls of functions, {scripts} of scripts"
        );
    }

    /// Whether no connection that calls functions or scripts was used for 2 s.
    pub fn has_idle_callers(&self) -> bool {
        let clients = self.cli(&["CLIENT", "LIST"]);
        let calls = |client: &&str| client.contains(" cmd=eval") || client.contains(" cmd=fcall");
        let mut callers = clients.lines().filter(calls);
        callers.all(|client| !client.contains(" idle=0 ") && !client.contains(" idle=1 "))
    }

    /// Sends SIGKILL. Returns when the server has ended. Its port stays reserved for [`RedisServer::restart`].
    pub fn kill9(&self) {
        *self.process() = None;
    }

    /// Starts the server again, empty, on the same port. A running server is killed first.
    pub async fn restart(&self) {
        self.kill9();
        assert!(self.boot().await, "another process took port {}", self.port);
    }

    /// Sends SIGSTOP: connections stay open, and nothing is answered.
    pub fn pause(&self) {
        self.with_process(|process| process.pause());
    }

    /// Sends SIGCONT after [`RedisServer::pause`].
    pub fn resume(&self) {
        self.with_process(|process| process.resume());
    }

    /// Returns the log of the server since its last start.
    pub fn log(&self) -> String {
        let bytes = std::fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the working directory of the server.
    pub fn dir(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    fn prepare(port: u16, config: &str, arguments: &[&str]) -> Self {
        let dir = ScratchDir::new();
        let lines = format!(
            "bind 127.0.0.1\n\
             port {port}\n\
             save \"\"\n\
             appendonly no\n\
             repl-diskless-sync-delay 0\n\
             {config}\n"
        );
        std::fs::write(dir.path().join(CONFIG_FILE), lines).unwrap();
        let arguments = arguments.iter().map(ToString::to_string).collect();
        Self {
            process: Mutex::new(None),
            dir,
            port,
            arguments,
            env: Vec::new(),
        }
    }

    /// Starts the process and waits until it is ready. `false` if a port was in use.
    async fn boot(&self) -> bool {
        let log = File::create(self.log_path()).unwrap();
        let mut command = Supervised::command(program(), Some(self.dir.path()));
        command
            .arg(CONFIG_FILE)
            .args(&self.arguments)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(self.dir.path())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        *self.process() = Some(Supervised::spawn(command));

        let what = format!("the server on port {}", self.port);
        eventually(&what, START_DEADLINE, async || {
            self.has_exited() || self.is_ready()
        })
        .await;
        if !self.has_exited() {
            return true;
        }
        *self.process() = None;
        let log = self.log();
        assert!(
            log.contains("Address already in use"),
            "the server does not start:\n{log}"
        );
        false
    }

    /// Whether the server answers PING, and is the process started here and not another one that took the port
    /// first.
    fn is_ready(&self) -> bool {
        let ours = format!("process_id:{}\r\n", self.id());
        let pong = self
            .query::<String>(&["PING"])
            .is_ok_and(|reply| reply == "PONG");
        pong && self
            .query::<String>(&["INFO", "server"])
            .is_ok_and(|info| info.contains(&ours))
    }

    fn has_exited(&self) -> bool {
        self.process()
            .as_mut()
            .is_none_or(|process| process.exit_status().is_some())
    }

    fn with_process<T>(&self, act: impl FnOnce(&Supervised) -> T) -> T {
        act(self.process().as_ref().expect("the server is down"))
    }

    fn process(&self) -> MutexGuard<'_, Option<Supervised>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join(LOG_FILE)
    }
}

/// A test that fails shows what its servers have logged last.
impl Drop for RedisServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            println!(
                "The log of the server on port {}:\n{}",
                self.port,
                lines[lines.len().saturating_sub(30)..].join("\n")
            );
        }
    }
}

/// Formats a reply like redis-cli when its output is not a terminal.
fn raw(reply: &Value) -> String {
    match reply {
        Value::Nil => String::new(),
        Value::Int(number) => number.to_string(),
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Okay => "OK".to_owned(),
        Value::Array(items) => items.iter().map(raw).collect::<Vec<_>>().join("\n"),
        other => format!("{other:?}"),
    }
}
