//! The part of the Redis protocol that the proxies must understand: where a request or reply ends, and which values
//! answer requests.

use tokio::io::AsyncReadExt as _;
use tokio::net::tcp::OwnedReadHalf;

/// The kinds of arrays that RESP2 pushes without a request. RESP3 has a separate type for pushes.
const PUSHED: [&str; 9] = [
    "message",
    "pmessage",
    "smessage",
    "subscribe",
    "unsubscribe",
    "psubscribe",
    "punsubscribe",
    "ssubscribe",
    "sunsubscribe",
];

/// Returns the length of the first complete value (or inline command) in `bytes`. `None` while it is incomplete.
pub fn first_length(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
    let announced = std::str::from_utf8(&bytes[1..head - 2])
        .ok()
        .and_then(|text| text.parse::<usize>().ok());
    // Without a number, the value is this line. A negative number is a RESP2 nil, which is also one line.
    let Some(count) = announced else {
        return Some(head);
    };
    match bytes[0] {
        b'$' | b'!' | b'=' => Some(head + count + 2).filter(|&end| end <= bytes.len()),
        b'*' | b'~' | b'>' => after_values(bytes, head, count),
        b'%' => after_values(bytes, head, 2 * count),
        b'|' => after_values(bytes, head, 2 * count + 1),
        _ => Some(head),
    }
}

/// Whether `request` is answered by exactly one value. Subscriptions are answered by pushes.
pub fn expects_reply(request: &[u8]) -> bool {
    !first_word(request)
        .to_ascii_lowercase()
        .ends_with("subscribe")
}

/// Whether a value from a server answers a request. Every value does, except pushes.
pub fn is_reply(value: &[u8]) -> bool {
    !(value.starts_with(b">")
        || value.starts_with(b"*") && PUSHED.contains(&first_word(value).as_str()))
}

pub fn contains(bytes: &[u8], pattern: &[u8]) -> bool {
    assert!(!pattern.is_empty(), "an empty pattern is in everything");
    bytes.windows(pattern.len()).any(|window| window == pattern)
}

fn after_values(bytes: &[u8], start: usize, count: usize) -> Option<usize> {
    (0..count).try_fold(start, |end, _| Some(end + first_length(&bytes[end..])?))
}

/// Returns the first element of an array of strings, or the first word of a line.
pub fn first_word(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(&value[..value.len().min(64)]).into_owned();
    let line = if text.starts_with('*') {
        text.split("\r\n").nth(2)
    } else {
        text.split_whitespace().next()
    };
    line.unwrap_or_default().to_owned()
}

/// Splits a stream of bytes into requests or replies.
pub(crate) struct Frames {
    source: OwnedReadHalf,
    buffer: Vec<u8>,
}

impl Frames {
    pub(crate) fn new(source: OwnedReadHalf) -> Self {
        Self {
            source,
            buffer: Vec::new(),
        }
    }

    /// Returns the next complete request or reply. `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        let mut chunk = [0; 16 * 1024];
        loop {
            if let Some(length) = first_length(&self.buffer) {
                return Ok(Some(self.buffer.drain(..length).collect()));
            }
            let read = self.source.read(&mut chunk).await?;
            if read == 0 {
                return Ok(None);
            }
            self.buffer.extend_from_slice(&chunk[..read]);
        }
    }
}
