//! A real server whose clock stands still until it is set.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::server::reply::{Bytes, Reply};

const SHIM: &str = include_str!("../../../support/clock_shim.c");

pub struct Real {
    process: Child,
    stream: UnixStream,
    arrived: Bytes,
    dir: PathBuf,
    clock: File,
    /// Whether it is the version that is simulated.
    pub is_simulated: bool,
}

/// The version that is simulated. Others have other texts of errors, and write fractions in other ways.
const SIMULATED: &str = "redis_version:7.0.";
/// What an error has in any version.
const KINDS: [&str; 4] = ["OOM", "READONLY", "NOSCRIPT", "LOADING"];
/// How versions say that they do not have a command or an option.
const UNKNOWN: [&str; 3] = ["unknown command", "Unknown Redis command", "syntax error"];

impl Drop for Real {
    fn drop(&mut self) {
        // What has ended needs no end.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Real {
    /// Starts a server program.
    pub fn start(program: &str) -> Result<Self, String> {
        let name = format!("tower-distributed-truth-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let told = |what: &str| {
            let what = what.to_owned();
            move |error: std::io::Error| format!("{what}: {error}")
        };
        std::fs::create_dir_all(&dir).map_err(told("a directory for the server"))?;
        let (source, shim) = (dir.join("clock_shim.c"), dir.join("clock_shim.so"));
        std::fs::write(&source, SHIM).map_err(told("the clock of the server"))?;
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O2", "-o"]);
        let compiled = compiler.arg(&shim).arg(&source).arg("-ldl").status();
        let compiled = compiled.map_err(told("cc, the C compiler"))?;
        if !compiled.success() {
            return Err("cc, the C compiler, fails".into());
        }
        let clock = File::create(dir.join("clock")).map_err(told("the clock of the server"))?;
        let is_set = clock.write_all_at(&[0; 16], 0);
        is_set.map_err(told("the clock of the server"))?;
        let socket = dir.join("socket");
        let mut command = Command::new(program);
        command.args(["--port", "0", "--appendonly", "no", "--save", ""]);
        command.arg("--unixsocket").arg(&socket).current_dir(&dir);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.env("LD_PRELOAD", shim);
        command.env("CLOCK_OFFSET_FILE", dir.join("clock"));
        let process = command.spawn().map_err(told(program))?;
        let began = Instant::now();
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(_) if began.elapsed() < Duration::from_secs(10) => {
                    std::thread::sleep(Duration::from_millis(5))
                }
                Err(error) => return Err(told(program)(error)),
            }
        };
        let mut real = Self {
            process,
            stream,
            arrived: Bytes::new(),
            dir,
            clock,
            is_simulated: false,
        };
        let told = real.ask(&[b"INFO".to_vec(), b"server".to_vec()])?;
        real.is_simulated =
            matches!(told, Reply::Bulk(text) if String::from_utf8_lossy(&text).contains(SIMULATED));
        Ok(real)
    }

    /// Whether the clock is the one that [`set_time`](Self::set_time) sets.
    pub fn follows_its_clock(&mut self) -> Result<bool, String> {
        for seconds in [2_000_000_000, 1_900_000_000] {
            self.set_time(seconds * 1_000_000 + 7)?;
            self.ask(&[b"PING".to_vec()])?;
            let time = [seconds.to_string(), "7".into()].map(Reply::bulk);
            if self.ask(&[b"TIME".to_vec()])? != Reply::Array(time.into()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether this is another version, which says that it does not have what was asked for.
    pub fn has_no(&self, theirs: &Reply) -> bool {
        let says_so = |text: &String| UNKNOWN.iter().any(|unknown| text.contains(unknown));
        !self.is_simulated && matches!(theirs, Reply::Error(text) if says_so(text))
    }

    /// Whether a reply is what this server may say where the simulated one says `ours`.
    pub fn says(&self, ours: &Reply, theirs: &Reply) -> bool {
        if self.is_simulated || ours == theirs {
            return ours == theirs;
        }
        match (ours, theirs) {
            (Reply::Error(ours), Reply::Error(theirs)) => KINDS
                .iter()
                .all(|kind| ours.contains(kind) == theirs.contains(kind)),
            (Reply::Bulk(ours), Reply::Bulk(theirs)) => {
                fraction(ours).is_some_and(|ours| fraction(theirs) == Some(ours))
            }
            (Reply::Array(ours), Reply::Array(theirs)) => {
                let mut pairs = ours.iter().zip(theirs);
                ours.len() == theirs.len() && pairs.all(|(ours, theirs)| self.says(ours, theirs))
            }
            _ => false,
        }
    }

    /// Sets the clock, in µs since the Unix epoch.
    pub fn set_time(&self, micros: i64) -> Result<(), String> {
        // In place: the server maps this file.
        let numbers = [0_i64.to_ne_bytes(), micros.to_ne_bytes()].concat();
        let is_set = self.clock.write_all_at(&numbers, 0);
        is_set.map_err(|error| format!("the clock: {error}"))
    }

    pub fn ask(&mut self, arguments: &[Bytes]) -> Result<Reply, String> {
        let mut request = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            request.extend(format!("${}\r\n", argument.len()).bytes());
            request.extend_from_slice(argument);
            request.extend(b"\r\n");
        }
        let sent = self.stream.write_all(&request);
        sent.map_err(|error| format!("the server: {error}"))?;
        let mut chunk = vec![0; 1 << 16];
        loop {
            if let Some((reply, length)) = reply(&self.arrived) {
                self.arrived.drain(..length);
                return Ok(reply);
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err("the server has closed the connection".into()),
                Ok(count) => self.arrived.extend_from_slice(&chunk[..count]),
                Err(error) => return Err(format!("the server: {error}")),
            }
        }
    }
}

fn fraction(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Reads a reply of version 2 of the protocol, if it is complete.
fn reply(arrived: &[u8]) -> Option<(Reply, usize)> {
    let end = arrived.windows(2).position(|two| two == b"\r\n")?;
    let line = std::str::from_utf8(&arrived[1..end]).unwrap_or_default();
    let (number, rest) = (line.parse::<i64>().unwrap_or_default(), end + 2);
    let whole = |reply| Some((reply, rest));
    match arrived.first()? {
        b'+' => whole(Reply::Status(line.into())),
        b'-' => whole(Reply::Error(line.into())),
        b':' => whole(Reply::Int(number)),
        b'$' | b'*' if number < 0 => whole(Reply::Nil),
        b'$' => {
            let after = rest + number as usize;
            let all = arrived.get(..after + 2)?;
            Some((Reply::bulk(&all[rest..after]), after + 2))
        }
        _ => {
            let (mut all, mut at) = (Vec::new(), rest);
            for _ in 0..number {
                let (one, length) = reply(&arrived[at..])?;
                all.push(one);
                at += length;
            }
            Some((Reply::Array(all), at))
        }
    }
}
