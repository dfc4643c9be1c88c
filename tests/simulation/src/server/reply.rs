//! What a server answers, as it is written to a connection, and the requests that are read from one.

use std::fmt::Write as _;

pub type Bytes = Vec<u8>;

#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Status(String),
    Error(String),
    Int(i64),
    Bulk(Bytes),
    Nil,
    Array(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
    /// A message that nobody has asked for.
    Push(Vec<Reply>),
}

impl Reply {
    pub fn ok() -> Self {
        Self::Status("OK".into())
    }

    pub fn error(text: impl Into<String>) -> Self {
        Self::Error(text.into())
    }

    pub fn bulk(bytes: impl Into<Bytes>) -> Self {
        Self::Bulk(bytes.into())
    }

    pub fn map<'a>(pairs: impl IntoIterator<Item = (&'a str, Reply)>) -> Self {
        let pairs = pairs.into_iter();
        Self::Map(pairs.map(|(key, value)| (Self::bulk(key), value)).collect())
    }

    pub fn count(count: usize) -> Self {
        Self::Int(count as i64)
    }

    pub fn of(bytes: Option<&Bytes>) -> Self {
        bytes.map_or(Self::Nil, |bytes| Self::Bulk(bytes.clone()))
    }

    /// Appends the reply in version 2 or 3 of the protocol.
    pub fn encode(&self, protocol: u8, to: &mut Bytes) {
        match self {
            Self::Status(text) => line(to, '+', text),
            Self::Error(text) => line(to, '-', text.replace(['\r', '\n'], " ")),
            Self::Int(number) => line(to, ':', number),
            Self::Nil if protocol >= 3 => to.extend(b"_\r\n"),
            Self::Nil => to.extend(b"$-1\r\n"),
            Self::Bulk(bytes) => {
                line(to, '$', bytes.len());
                to.extend_from_slice(bytes);
                to.extend(b"\r\n");
            }
            Self::Array(all) => {
                line(to, '*', all.len());
                all.iter().for_each(|one| one.encode(protocol, to));
            }
            Self::Map(pairs) => {
                match protocol {
                    3.. => line(to, '%', pairs.len()),
                    _ => line(to, '*', 2 * pairs.len()),
                }
                for (key, value) in pairs {
                    key.encode(protocol, to);
                    value.encode(protocol, to);
                }
            }
            Self::Push(all) => {
                line(to, if protocol >= 3 { '>' } else { '*' }, all.len());
                all.iter().for_each(|one| one.encode(protocol, to));
            }
        }
    }
}

fn line(to: &mut Bytes, kind: char, rest: impl std::fmt::Display) {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write!(text, "{kind}{rest}\r\n");
    to.extend_from_slice(text.as_bytes());
}

/// Takes the first request from what has arrived, if it is complete: its arguments and its length.
pub fn request(arrived: &[u8]) -> Option<(Vec<Bytes>, usize)> {
    let number = |from: usize| {
        let mut rest = arrived.get(from..)?.iter();
        let end = rest.position(|byte| *byte == b'\n')? + from;
        let digits = std::str::from_utf8(&arrived[from + 1..end - 1]).ok()?;
        Some((digits.parse::<usize>().ok()?, end + 1))
    };
    let (count, mut at) = number(0)?;
    let mut arguments = Vec::with_capacity(count);
    for _ in 0..count {
        let (length, from) = number(at)?;
        arguments.push(arrived.get(from..from + length)?.to_vec());
        at = from + length + 2;
    }
    (at <= arrived.len()).then_some((arguments, at))
}

/// A number as `printf` writes it by `%.17g`.
pub fn number(number: f64) -> String {
    let sign = if number.is_sign_negative() { "-" } else { "" };
    if number.is_nan() {
        return format!("{sign}nan");
    }
    if number.is_infinite() {
        return format!("{sign}inf");
    }
    if number == number.trunc() && number.abs() < 1e16 {
        return format!("{sign}{}", number.abs() as i64);
    }
    let text = format!("{number:.16e}");
    let Some((digits, exponent)) = text.split_once('e') else {
        return text;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..17).contains(&exponent) {
        let places = usize::try_from(16 - exponent).unwrap_or(0);
        return trimmed(&format!("{number:.places$}")).to_owned();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(digits), exponent.abs())
}

fn trimmed(text: &str) -> &str {
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => text,
    }
}
