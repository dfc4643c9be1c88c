//! A process that cannot outlive us, not even when we are killed with SIGKILL.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

/// The shell leaves a watcher behind and becomes the program (so the program has the process id that we
/// know).
///
/// The watcher reads from a pipe that we hold open. A line means "stand down"; end of file means that we are
/// gone: it kills the program and removes its directory ($0, if not empty). A Ctrl-C at the terminal must not
/// keep it from that.
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

/// A running program; dropping it kills it.
pub struct Supervised {
    child: Child,
    watcher: ChildStdin,
    status: Option<ExitStatus>,
}

impl Supervised {
    /// A command that runs `program`, to be completed with arguments and the like. Its standard input stays
    /// empty.
    ///
    /// If we are killed, `scratch` is removed together with the process.
    pub fn command(program: impl AsRef<OsStr>, scratch: Option<&Path>) -> Command {
        let scratch = scratch.unwrap_or(Path::new(""));
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT]).arg(scratch).arg(program);
        command
    }

    /// Starts what [`Supervised::command`] has begun.
    pub fn spawn(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).spawn().expect("sh is on the path");
        let watcher = child.stdin.take().unwrap();
        Self { child, watcher, status: None }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The program's output, if the command asked for a pipe.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// How the program ended, if it has.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().unwrap();
            if self.status.is_some() {
                self.dismiss_watcher();
            }
        }
        self.status
    }

    /// SIGKILL; returns when the process is gone.
    pub fn kill9(&mut self) {
        if self.exit_status().is_some() {
            return;
        }
        let _ = self.child.kill();
        // Before the process id can be given to somebody else.
        self.dismiss_watcher();
        self.status = self.child.wait().ok();
    }

    /// SIGSTOP; returns when the process has stopped.
    pub fn pause(&self) {
        self.signal("STOP");
        while self.is_running() {
            std::thread::yield_now();
        }
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        assert!(self.status.is_none(), "the process has ended");
        let kill = format!("kill -{name} {}", self.id());
        let status = Command::new("sh").args(["-c", &kill]).status().unwrap();
        assert!(status.success(), "{kill}: {status}");
    }

    /// Neither stopped nor dead, going by the state after the name's closing parenthesis in /proc/…/stat.
    fn is_running(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
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
