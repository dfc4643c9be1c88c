//! Copies of the test process.
//!
//! A role is a test of the same binary that is ignored unless it is run by name:
//!
//! ```ignore
//! role!(role_holder, async {
//!     let url = setting("URL");
//!     tell("ready");
//! });
//! ```

use std::io::{BufRead as _, BufReader};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::eventually;
use crate::supervised::Supervised;

const ROLE: &str = "TOWER_DISTRIBUTED_ROLE";
/// Marks the lines of a role among the output of the test runner.
const MARK: &str = "@@ ";
const DEADLINE: Duration = Duration::from_secs(120);

/// Makes of an async block a role, which returns at once unless it was started by [`Child::spawn`]; with
/// `threads = 2` before the block, on so many threads.
#[macro_export]
macro_rules! role {
    ($name:ident, $block:expr) => {
        $crate::role!(@ #[tokio::test], $name, $block);
    };
    ($name:ident, threads = $threads:literal, $block:expr) => {
        $crate::role!(@ #[tokio::test(flavor = "multi_thread", worker_threads = $threads)], $name, $block);
    };
    (@ #[$test:meta], $name:ident, $block:expr) => {
        #[$test]
        #[ignore = "a role, started by the tests"]
        async fn $name() {
            if $crate::processes::is_child() {
                let () = $block.await;
            }
        }
    };
}

/// Whether this process was started by [`Child::spawn`]. If not, a role returns at once.
pub fn is_child() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// In a role: returns one of the variables given to [`Child::spawn`].
pub fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("this role needs the variable {name}"))
}

/// In a role: sends a line to the parent.
pub fn tell(line: &str) {
    println!("\n{MARK}{line}");
}

/// A copy of this process that plays a role. Dropping it kills the process.
pub struct Child {
    role: String,
    process: Supervised,
    lines: mpsc::UnboundedReceiver<String>,
}

impl Child {
    /// Runs the test called `role` in a new process, with the given variables added to this process's environment.
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
        Self {
            role: role.to_owned(),
            process,
            lines,
        }
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the next line that the child has sent. Panics if none comes.
    pub async fn next_line(&mut self) -> String {
        let line = self.try_next_line().await;
        line.unwrap_or_else(|| panic!("{} ended without another line", self.role))
    }

    /// Returns the next line, or `None` if the child has ended without one. Panics if neither happens in time.
    pub async fn try_next_line(&mut self) -> Option<String> {
        let next = tokio::time::timeout(DEADLINE, self.lines.recv()).await;
        next.unwrap_or_else(|_| panic!("waited {DEADLINE:?} for a line of {}", self.role))
    }

    /// Sends SIGKILL. Returns when the process has ended.
    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// Sends SIGKILL, and does not wait.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Sends SIGSTOP.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Sends SIGCONT after [`Child::pause`].
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Waits until the child ends by itself. Its status is a failure if the role panicked.
    pub async fn wait(&mut self) -> ExitStatus {
        let what = format!("{} to end", self.role);
        eventually(&what, DEADLINE, async || {
            self.process.exit_status().is_some()
        })
        .await;
        self.process.exit_status().unwrap()
    }
}

/// Whether an ignored test has this name. Without this check, a misspelt role would run no test and succeed.
fn is_role(name: &str) -> bool {
    static IGNORED_TESTS: LazyLock<String> = LazyLock::new(|| {
        let mut list = Command::new(std::env::current_exe().unwrap());
        let output = list
            .args(["--list", "--ignored", "--format", "terse"])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    });
    IGNORED_TESTS
        .lines()
        .any(|line| line.strip_suffix(": test") == Some(name))
}

/// Reads the lines on a separate thread, so that a child never blocks on a full pipe.
fn told_lines(stdout: ChildStdout) -> mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Some(told) = line.strip_prefix(MARK) {
                // The receiver may have been dropped.
                let _ = sender.send(told.to_owned());
            }
        }
    });
    receiver
}
