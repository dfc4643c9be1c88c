//! Copies of the test process.
//!
//! A role is a test of the same binary that is ignored unless asked for by name:
//!
//! ```ignore
//! #[test]
//! #[ignore = "a role, started by other tests"]
//! fn role_holder() {
//!     if !is_child() {
//!         return;
//!     }
//!     let url = setting("URL");
//!     tell("ready");
//! }
//! ```

use std::io::{BufRead as _, BufReader};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use tokio::sync::mpsc;

use super::eventually;
use super::supervised::Supervised;

const ROLE: &str = "TOWER_DISTRIBUTED_ROLE";
/// Tells the lines of a role from what the test runner prints around them.
const MARK: &str = "@@ ";
const DEADLINE: Duration = Duration::from_secs(120);

/// Whether this process was started by [`Child::spawn`]. A role returns at once if not.
pub fn is_child() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// In a role: one of the variables given to [`Child::spawn`].
pub fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("this role wants {name} to be set"))
}

/// In a role: sends a line to the parent.
pub fn tell(line: &str) {
    println!("\n{MARK}{line}");
}

/// A copy of this process that plays a role; dropping it kills it.
pub struct Child {
    role: String,
    process: Supervised,
    lines: mpsc::UnboundedReceiver<String>,
}

impl Child {
    /// Runs the test called `role` in a new process, with the given environment on top of ours.
    pub fn spawn(role: &str, env: &[(&str, &str)]) -> Self {
        assert!(is_role(role), "no ignored test is called {role}");
        let mut command = Supervised::command(std::env::current_exe().unwrap(), None);
        command
            .args([role, "--exact", "--ignored", "--nocapture"])
            .env(ROLE, role)
            .envs(env.iter().copied())
            .stdout(Stdio::piped());
        let mut process = Supervised::spawn(command);
        let lines = told_lines(process.take_stdout().unwrap());
        Self { role: role.to_owned(), process, lines }
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The next line that the child has told; panics if none comes.
    pub async fn next_line(&mut self) -> String {
        let line = self.try_next_line().await;
        line.unwrap_or_else(|| panic!("{} ended without a further line", self.role))
    }

    /// The next line, or `None` when the child has ended without one. Panics if neither happens in time.
    pub async fn try_next_line(&mut self) -> Option<String> {
        let next = tokio::time::timeout(DEADLINE, self.lines.recv()).await;
        next.unwrap_or_else(|_| panic!("waited {DEADLINE:?} in vain for a line of {}", self.role))
    }

    /// SIGKILL; returns when the process is gone.
    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// SIGSTOP.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// SIGCONT after [`Child::pause`].
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Waits until the child ends by itself. A role that panicked is no success.
    pub async fn wait(&mut self) -> ExitStatus {
        let what = format!("{} to end", self.role);
        eventually(&what, DEADLINE, async || self.process.exit_status().is_some()).await;
        self.process.exit_status().unwrap()
    }
}

/// Asks the test runner once: it would find a misspelt role a great success.
fn is_role(name: &str) -> bool {
    static IGNORED_TESTS: LazyLock<String> = LazyLock::new(|| {
        let mut list = Command::new(std::env::current_exe().unwrap());
        let output = list.args(["--list", "--ignored", "--format", "terse"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    });
    IGNORED_TESTS.lines().any(|line| line.strip_suffix(": test") == Some(name))
}

/// Reads on a thread of its own, so that a child never blocks on a full pipe.
fn told_lines(stdout: ChildStdout) -> mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Some(told) = line.strip_prefix(MARK) {
                // Nobody may be listening any more.
                let _ = sender.send(told.to_owned());
            }
        }
    });
    receiver
}
