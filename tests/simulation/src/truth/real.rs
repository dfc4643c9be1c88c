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
}

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
        let dir = std::env::temp_dir().join(format!("tower-distributed-truth-{}", std::process::id()));
        let told = |what: &str| {
            let what = what.to_owned();
            move |error: std::io::Error| format!("{what}: {error}")
        };
        std::fs::create_dir_all(&dir).map_err(told("a directory for the server"))?;
        let (source, shim) = (dir.join("clock_shim.c"), dir.join("clock_shim.so"));
        std::fs::write(&source, SHIM).map_err(told("the clock of the server"))?;
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O2", "-o"]).arg(&shim).arg(&source).arg("-ldl");
        let compiled = compiler.status().map_err(told("cc, the C compiler"))?;
        if !compiled.success() {
            return Err("cc, the C compiler, fails".into());
        }
        let clock = File::create(dir.join("clock")).map_err(told("the clock of the server"))?;
        clock.write_all_at(&[0; 16], 0).map_err(told("the clock of the server"))?;
        let socket = dir.join("socket");
        let mut command = Command::new(program);
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(&socket);
        command.current_dir(&dir).stdout(Stdio::null()).stderr(Stdio::null());
        command.env("LD_PRELOAD", shim).env("CLOCK_OFFSET_FILE", dir.join("clock"));
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
        Ok(Self { process, stream, arrived: Bytes::new(), dir, clock })
    }

    /// Sets the clock, in µs since the Unix epoch.
    pub fn set_time(&self, micros: i64) -> Result<(), String> {
        // In place: the server maps this file.
        let numbers = [0_i64.to_ne_bytes(), micros.to_ne_bytes()].concat();
        self.clock.write_all_at(&numbers, 0).map_err(|error| format!("the clock: {error}"))
    }

    pub fn ask(&mut self, arguments: &[Bytes]) -> Result<Reply, String> {
        let mut request = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            request.extend(format!("${}\r\n", argument.len()).bytes());
            request.extend_from_slice(argument);
            request.extend(b"\r\n");
        }
        self.stream.write_all(&request).map_err(|error| format!("the server: {error}"))?;
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

/// Reads a reply of version 2 of the protocol, if it is complete.
fn reply(arrived: &[u8]) -> Option<(Reply, usize)> {
    let end = arrived.windows(2).position(|two| two == b"\r\n")?;
    let (line, rest) = (std::str::from_utf8(&arrived[1..end]).unwrap_or_default(), end + 2);
    let number = line.parse::<i64>().unwrap_or_default();
    let whole = |reply| Some((reply, rest));
    match arrived.first()? {
        b'+' => whole(Reply::Status(line.into())),
        b'-' => whole(Reply::Error(line.into())),
        b':' => whole(Reply::Int(number)),
        b'$' | b'*' if number < 0 => whole(Reply::Nil),
        b'$' => {
            let after = rest + number as usize;
            arrived.get(..after + 2).map(|all| (Reply::bulk(&all[rest..after]), after + 2))
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
