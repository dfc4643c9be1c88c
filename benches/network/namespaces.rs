//! Network namespaces without names: the kernel removes one when its last process ends, however that process ends.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

const INSIDE: &str = "TOWER_DISTRIBUTED_BENCH_NAMESPACE";

/// What a link needs, beside redis-server. Each is tried before anything is measured.
const TRIED: [&[&str]; 2] = [
    &["unshare", "--net", "ip", "link", "set", "lo", "up"],
    &[
        "nsenter",
        "--net=/proc/self/ns/net",
        "setpriv",
        "--pdeathsig",
        "KILL",
        "true",
    ],
];

/// Replaces this process by one that runs the same program in a network namespace of its own, and returns there.
/// An error says why this machine cannot do that.
pub fn enter() -> Result<(), String> {
    if env::var_os(INSIDE).is_some() {
        return run(Command::new("ip").args(["link", "set", "lo", "up"]));
    }
    let tun = "/dev/net/tun";
    File::options()
        .read(true)
        .write(true)
        .open(tun)
        .map_err(|error| format!("cannot open {tun}: {error}"))?;
    TRIED
        .iter()
        .try_for_each(|words| run(Command::new(words[0]).args(&words[1..])))?;
    let program =
        env::current_exe().map_err(|error| format!("no path of this program: {error}"))?;
    let mut command = Command::new("unshare");
    command
        .arg("--net")
        .arg("--")
        .arg(program)
        .args(env::args_os().skip(1))
        .env(INSIDE, "1");
    Err(format!("cannot run unshare: {}", command.exec()))
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Result<(), String> {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .collect();
    let words = words.join(OsStr::new(" ")).into_string().unwrap();
    match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "`{words}`: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => Err(format!("`{words}`: {error}")),
    }
}

/// A command that ends with this process, also if this process is killed.
pub fn tied(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

/// Another namespace. It is that of a process that ends with this one.
pub struct Namespace(Child);

impl Namespace {
    pub fn new() -> Result<Self, String> {
        let mut command = tied("unshare");
        command
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let child = command
            .spawn()
            .map_err(|error| format!("cannot start a process in a namespace: {error}"))?;
        let mut namespace = Self(child);
        // Once it repeats a line, `unshare` is done.
        namespace
            .0
            .stdin
            .as_mut()
            .unwrap()
            .write_all(b"\n")
            .unwrap();
        let mut answer = BufReader::new(namespace.0.stdout.take().unwrap());
        match answer.read_line(&mut String::new()) {
            Ok(1..) => Ok(namespace),
            _ => Err("the process in another namespace ended at once".into()),
        }
    }

    /// The process that is in it.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// A command in it, which ends with this process.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = tied("nsenter");
        command
            .arg(format!("--net=/proc/{}/ns/net", self.id()))
            .arg("--")
            .arg(program);
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
