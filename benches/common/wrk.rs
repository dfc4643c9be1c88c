//! wrk, which makes the requests.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

pub const CONNECTIONS: u64 = 64;
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/common/requests.lua");

/// What wrk says of one run.
pub struct Report {
    pub requests: u64,
    pub per_second: f64,
    /// Milliseconds.
    pub p50: f64,
    pub p99: f64,
}

/// Whether wrk can be started.
pub fn is_there() -> Result<bool, String> {
    match Command::new("wrk")
        .arg("-v")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
    {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(format!("cannot start wrk: {error}")),
    }
}

/// As many requests as fit into this time, which wrk takes in whole seconds. `ids`: what their ids begin with.
pub fn run(port: u16, length: Duration, ids: &str) -> Result<Report, String> {
    let seconds = length.as_secs_f64().ceil() as u64;
    let output = Command::new("wrk")
        .args([
            "--threads",
            "1",
            "--connections",
            &CONNECTIONS.to_string(),
            "--latency",
        ])
        .args(["--duration", &format!("{seconds}s"), "--script", SCRIPT])
        .args([&*format!("http://127.0.0.1:{port}"), "--", ids])
        .output()
        .map_err(|error| format!("cannot start wrk: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!(
            "wrk failed: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    parse(&text)
}

/// How many requests a handler has had so far, as it tells at `path`.
pub fn handled(port: u16, path: &str) -> Result<u64, String> {
    let ask = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = ask().map_err(|error| format!("no answer to {path}: {error}"))?;
    let number = answer
        .rsplit("\r\n")
        .next()
        .and_then(|number| number.parse().ok());
    number.ok_or_else(|| format!("no number at {path}: {answer}"))
}

fn parse(text: &str) -> Result<Report, String> {
    let after = |start: &str| {
        text.lines()
            .find_map(|line| line.trim().strip_prefix(start))
            .map(str::trim)
    };
    if let Some(problem) = after("Non-2xx or 3xx responses:") {
        return Err(format!("{problem} responses were not 200"));
    }
    if let Some(problem) = after("Socket errors:") {
        return Err(format!("connections failed: {problem}"));
    }
    let report = || {
        let (requests, _) = text
            .lines()
            .find_map(|line| line.trim().split_once(" requests in "))?;
        Some(Report {
            requests: requests.parse().ok()?,
            per_second: after("Requests/sec:")?.parse().ok()?,
            p50: millis(after("50%")?)?,
            p99: millis(after("99%")?)?,
        })
    };
    report().ok_or_else(|| format!("wrk says what is not understood: {text}"))
}

/// Of a length of time such as `1.25ms`.
fn millis(text: &str) -> Option<f64> {
    let unit = text.find(|letter: char| letter.is_alphabetic())?;
    let factor = match &text[unit..] {
        "us" => 1e-3,
        "ms" => 1.0,
        "s" => 1e3,
        _ => return None,
    };
    Some(text[..unit].parse::<f64>().ok()? * factor)
}
