//! A process that ends with the test process, even if that is killed with SIGKILL.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

/// The shell starts a watcher and then becomes the program. So the program has the known process id.
///
/// The watcher reads from a pipe that the test process holds open. A line ends the watcher. End of file means that
/// the test process has ended: the watcher then kills the program and removes its directory ($0, if not empty). It
/// ignores signals such as Ctrl-C at the terminal.
const SCRIPT: &str = r#"
exec 3<&0
{
    trap '' HUP INT TERM
    read -r line <&3 || {
        kill -9 $$
        [ -z "$0" ] || rm -rf -- "$0"
    }
} >/dev/null 2>&1 &
exec "$@" 3<&- </dev/null
"#;

/// A running program. Dropping it kills the program.
pub struct Supervised {
    child: Child,
    watcher: ChildStdin,
    status: Option<ExitStatus>,
}

impl Supervised {
    /// Returns a command that runs `program`. The caller adds arguments and other settings. Its standard input
    /// stays empty.
    ///
    /// If the test process is killed, `scratch` is removed when the program is killed.
    pub fn command(program: impl AsRef<OsStr>, scratch: Option<&Path>) -> Command {
        let scratch = scratch.unwrap_or(Path::new(""));
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT]).arg(scratch).arg(program);
        command
    }

    /// Starts a command from [`Supervised::command`].
    pub fn spawn(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .spawn()
            .expect("sh is on the path");
        let watcher = child.stdin.take().unwrap();
        Self {
            child,
            watcher,
            status: None,
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the program's output, if the command asked for a pipe.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Returns how the program ended, if it has.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().unwrap();
            if self.status.is_some() {
                self.dismiss_watcher();
            }
        }
        self.status
    }

    /// Sends SIGKILL. Returns when the process has ended.
    pub fn kill9(&mut self) {
        if self.exit_status().is_some() {
            return;
        }
        let _ = self.child.kill();
        // Before another process can get the process id.
        self.dismiss_watcher();
        self.status = self.child.wait().ok();
    }

    /// Sends SIGKILL, and does not wait.
    pub fn kill(&self) {
        self.signal("KILL");
    }

    /// Sends SIGSTOP. Returns when the process has stopped.
    pub fn pause(&self) {
        self.signal("STOP");
        while self.is_running() {
            std::thread::yield_now();
        }
    }

    /// Sends SIGCONT.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    /// Sends SIGTERM, and does not wait.
    pub fn terminate(&self) {
        self.signal("TERM");
    }

    fn signal(&self, name: &str) {
        assert!(self.status.is_none(), "the process has ended");
        let kill = format!("kill -{name} {}", self.id());
        let status = Command::new("sh").args(["-c", &kill]).status().unwrap();
        assert!(status.success(), "{kill}: {status}");
    }

    /// Whether the process is neither stopped nor dead, by the state after the name's closing parenthesis in
    /// /proc/…/stat.
    fn is_running(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap_or_default();
        let state = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next());
        matches!(state, Some('R' | 'S' | 'D'))
    }

    fn dismiss_watcher(&mut self) {
        let _ = self.watcher.write_all(b"\n");
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.kill9();
    }
}
