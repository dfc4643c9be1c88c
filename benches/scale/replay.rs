//! Script calls are recorded with `MONITOR`, and sent again on one connection as fast as the server takes them. So the
//! server has all of its core to do, and its callers do not share the machine with it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use deadpool_redis::redis::{self, cmd};

const END: &[u8] = b"end of the calls";

/// Script calls, as they are sent.
pub struct Calls {
    bytes: Vec<u8>,
    pub count: u64,
}

pub struct Recorder {
    url: String,
    thread: JoinHandle<Calls>,
}

impl Recorder {
    /// Records all calls of functions and scripts until it is finished.
    pub fn start(url: &str) -> Self {
        let mut stream = connect(url);
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut lines = BufReader::with_capacity(1 << 20, stream);
        let mut line = Vec::new();
        lines.read_until(b'\n', &mut line).unwrap();
        assert_eq!(line, b"+OK\r\n");
        let thread = thread::spawn(move || {
            let mut calls = Calls {
                bytes: Vec::new(),
                count: 0,
            };
            loop {
                line.clear();
                assert!(
                    lines.read_until(b'\n', &mut line).unwrap() > 0,
                    "the server goes on"
                );
                // +1700000000.123456 [0 127.0.0.1:40000] "EVALSHA" "…"
                let Some(at) = line.windows(2).position(|pair| pair == b"] ") else {
                    continue;
                };
                let words = &line[at + 2..];
                if words.starts_with(b"\"EVALSHA\" ") || words.starts_with(b"\"FCALL\" ") {
                    calls.add(&arguments(words));
                } else if arguments(words).last().is_some_and(|last| last == END) {
                    return calls;
                }
            }
        });
        Self {
            url: url.to_owned(),
            thread,
        }
    }

    pub fn finish(self) -> Calls {
        let mut connection = redis::Client::open(&*self.url)
            .unwrap()
            .get_connection()
            .unwrap();
        cmd("ECHO").arg(END).exec(&mut connection).unwrap();
        self.thread.join().unwrap()
    }
}

impl Calls {
    fn add(&mut self, arguments: &[Vec<u8>]) {
        self.bytes
            .extend(format!("*{}\r\n", arguments.len()).into_bytes());
        for argument in arguments {
            self.bytes
                .extend(format!("${}\r\n", argument.len()).into_bytes());
            self.bytes.extend(argument);
            self.bytes.extend(b"\r\n");
        }
        self.count += 1;
    }

    /// Sends the calls again. Returns how long the server took.
    pub fn replay(&self, url: &str) -> Duration {
        let mut stream = connect(url);
        let mut reader = stream.try_clone().unwrap();
        let replies = thread::spawn(move || {
            let (mut chunk, mut tail) = (vec![0; 1 << 20], Vec::new());
            while !tail.windows(END.len()).any(|window| window == END) {
                let read = reader.read(&mut chunk).unwrap();
                assert!(read > 0, "the server goes on");
                // The end may be in two chunks.
                let kept = tail.split_off(tail.len().saturating_sub(END.len()));
                tail = [&kept, &chunk[..read]].concat();
                assert!(
                    !tail.windows(9).any(|window| window == b"-NOSCRIPT"),
                    "the scripts are loaded"
                );
            }
        });
        let began = Instant::now();
        stream.write_all(&self.bytes).unwrap();
        stream
            .write_all(&cmd("ECHO").arg(END).get_packed_command())
            .unwrap();
        replies.join().unwrap();
        began.elapsed()
    }
}

/// Subscribes to channels, and reads what comes until it is dropped.
pub fn listen(url: &str, channels: &[String]) -> Listener {
    let stream = connect(url);
    let mut reader = stream.try_clone().unwrap();
    if !channels.is_empty() {
        (&stream)
            .write_all(&cmd("SUBSCRIBE").arg(channels).get_packed_command())
            .unwrap();
    }
    thread::spawn(move || while reader.read(&mut [0; 1 << 16]).is_ok_and(|read| read > 0) {});
    Listener(stream)
}

pub struct Listener(TcpStream);

impl Drop for Listener {
    fn drop(&mut self) {
        // The thread ends with the connection.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

fn connect(url: &str) -> TcpStream {
    let stream = TcpStream::connect(url.trim_start_matches("redis://")).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// The quoted words of a line of `MONITOR`.
fn arguments(line: &[u8]) -> Vec<Vec<u8>> {
    let (mut words, mut bytes) = (Vec::new(), line.iter().copied());
    while bytes.any(|byte| byte == b'"') {
        let mut word = Vec::new();
        while let Some(byte) = bytes.next() {
            match byte {
                b'"' => break,
                b'\\' => match bytes.next().unwrap() {
                    b'n' => word.push(b'\n'),
                    b'r' => word.push(b'\r'),
                    b't' => word.push(b'\t'),
                    b'a' => word.push(7),
                    b'b' => word.push(8),
                    b'x' => {
                        let mut digit =
                            || char::from(bytes.next().unwrap()).to_digit(16).unwrap() as u8;
                        word.push(digit() * 16 + digit());
                    }
                    other => word.push(other),
                },
                other => word.push(other),
            }
        }
        words.push(word);
    }
    words
}
