//! The calls of functions and scripts that this crate sends, recorded by MONITOR, to be sent again with other tokens and keys.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use deadpool_redis::redis::{self, Cmd};

/// One EVALSHA or FCALL.
#[derive(Clone, Debug)]
pub struct Recorded(Vec<Vec<u8>>);

/// What the server was sent last, so that the record ends there.
const END: &str = "the end of the record";

/// Records the calls of functions and scripts that a server gets.
pub struct Recorder {
    url: String,
    lines: BufReader<TcpStream>,
}

/// Returns the calls of functions and scripts that the server gets while `send` runs.
pub fn record(url: &str, send: impl FnOnce()) -> Vec<Recorded> {
    let recorder = Recorder::start(url);
    send();
    recorder.finish()
}

impl Recorder {
    /// Records from now on.
    pub fn start(url: &str) -> Self {
        let mut monitor = TcpStream::connect(url.trim_start_matches("redis://")).unwrap();
        monitor.write_all(b"MONITOR\r\n").unwrap();
        let (mut lines, mut first) = (BufReader::new(monitor), Vec::new());
        lines.read_until(b'\n', &mut first).unwrap();
        assert_eq!(first, b"+OK\r\n");
        Self {
            url: url.to_owned(),
            lines,
        }
    }

    /// Returns the calls up to now.
    pub fn finish(self) -> Vec<Recorded> {
        let mut connection = redis::Client::open(&*self.url)
            .unwrap()
            .get_connection()
            .unwrap();
        redis::cmd("PING").arg(END).exec(&mut connection).unwrap();
        let commands = self
            .lines
            .split(b'\n')
            .map(|line| arguments(&line.unwrap()));
        let commands =
            commands.take_while(|command| command.get(1).is_none_or(|arg| arg != END.as_bytes()));
        commands
            .filter(|command| is_call(command))
            .map(Recorded)
            .collect()
    }
}

/// A new connection asks for functions by a call without keys.
fn is_call(command: &[Vec<u8>]) -> bool {
    let is_one = [&b"EVALSHA"[..], b"FCALL"]
        .iter()
        .any(|name| command[0].eq_ignore_ascii_case(name));
    is_one && command[2] != b"0"
}

/// Reads `+time [db address] "name" "argument"`; a command of a script has no name here.
fn arguments(line: &[u8]) -> Vec<Vec<u8>> {
    let end = line.iter().position(|&byte| byte == b']').unwrap();
    if line[..end].ends_with(b"lua") {
        return vec![Vec::new()];
    }
    let (mut all, mut rest) = (Vec::new(), line[end..].iter().copied());
    while rest.by_ref().any(|byte| byte == b'"') {
        let mut argument = Vec::new();
        while let Some(byte) = rest.next().filter(|&byte| byte != b'"') {
            argument.push(if byte == b'\\' {
                escaped(&mut rest)
            } else {
                byte
            });
        }
        all.push(argument);
    }
    all
}

fn escaped(rest: &mut impl Iterator<Item = u8>) -> u8 {
    match rest.next().unwrap() {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'a' => 7,
        b'b' => 8,
        b'x' => {
            let digits = [rest.next().unwrap(), rest.next().unwrap()];
            u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
        }
        byte => byte,
    }
}

impl Recorded {
    /// The same call on another key. It has one.
    pub fn on(&self, key: &str) -> Cmd {
        assert_eq!(self.0[2], b"1", "it has one key");
        let mut call = self.command();
        call.arg(&self.0[1..3]).arg(key).arg(&self.0[4..]);
        call
    }

    fn command(&self) -> Cmd {
        redis::cmd(str::from_utf8(&self.0[0]).unwrap())
    }

    /// The keys and arguments.
    fn texts(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().skip(1).map(Vec::as_slice)
    }

    /// The id in the token, `process-id.ttl…`, if the call has one.
    pub fn id(&self) -> Option<Vec<u8>> {
        let is_token = |text: &&[u8]| {
            text.len() > 18 && text[16] == b'-' && text[..16].iter().all(u8::is_ascii_hexdigit)
        };
        let token = self.texts().find(is_token)?;
        Some(
            token[16..]
                .iter()
                .copied()
                .take_while(|&byte| byte != b'.')
                .collect(),
        )
    }

    /// The bucket and the digest of the item, both as in the keys: `{name:bucket}:digest:exact:claim`.
    pub fn item(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let key = self.texts().find(|text| text.ends_with(b":exact:claim"))?;
        let mut parts = key.split(|&byte| byte == b':').skip(2);
        Some((parts.next()?.to_vec(), parts.next()?.to_vec()))
    }

    /// The same call with other texts in place of some: once in each argument, in this order.
    pub fn replacing(&self, texts: &[(Vec<u8>, Vec<u8>)]) -> Cmd {
        let mut call = self.command();
        for argument in &self.0[1..] {
            let mut argument = argument.clone();
            for (from, to) in texts {
                if let Some(at) = argument.windows(from.len()).position(|part| part == from) {
                    argument.splice(at..at + from.len(), to.iter().copied());
                }
            }
            call.arg(argument);
        }
        call
    }
}
