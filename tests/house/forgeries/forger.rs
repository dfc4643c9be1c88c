//! Bytes that no process of ours wrote.

use std::ops::Range;

use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use support::resp;

const NUMBERS: [&str; 20] = [
    "",
    "0",
    "1",
    "-1",
    "1.5",
    "nan",
    "inf",
    "-inf",
    "1e300",
    "0x10",
    "65536",
    "2147483648",
    "4503599627370495",
    "4503599627370497",
    "9007199254740992",
    "9007199254740993",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551616",
    "99999999999999999999999999999999",
];

pub(crate) fn number(rng: &mut StdRng) -> &'static str {
    NUMBERS.choose(rng).unwrap()
}

/// What somebody makes of a text: parts are missing, moved, repeated or replaced.
pub(crate) fn forged(rng: &mut StdRng, text: &[u8]) -> Vec<u8> {
    let mut text = text.to_vec();
    let at = rng.random_range(0..=text.len());
    match rng.random_range(0..9) {
        0 => return number(rng).into(),
        1 => text.truncate(at),
        2 => drop(text.drain(..at)),
        3 => text.extend_from_within(at..),
        4 if at < text.len() => text[at] = rng.random(),
        5 => {
            let len = rng.random_range(1..40);
            text.splice(at..at, (0..len).map(|_| rng.random::<u8>()));
        }
        6 if text.len() < 10_000 => text = text.repeat(1000),
        _ => {
            let digits = |byte: &&[u8]| byte.first().is_some_and(u8::is_ascii_digit);
            let runs: Vec<_> = text
                .chunk_by(|one, other| one.is_ascii_digit() == other.is_ascii_digit())
                .collect();
            let numbers = runs.iter().filter(|run| digits(run)).count();
            let chosen = rng.random_range(0..=numbers);
            let mut nth = 0;
            let mut replaced = Vec::new();
            for run in runs {
                nth += usize::from(digits(&run));
                let instead = digits(&run) && nth == chosen;
                replaced.extend_from_slice(if instead { number(rng).as_bytes() } else { run });
            }
            return replaced;
        }
    }
    text
}

/// The values in a request or a reply that are no arrays, with their heads.
fn leaves(frame: &[u8]) -> Vec<Range<usize>> {
    let (mut leaves, mut at) = (Vec::new(), 0);
    while at < frame.len() {
        let line = at
            + frame[at..]
                .windows(2)
                .position(|pair| pair == b"\r\n")
                .unwrap()
            + 2;
        let end = if b"*~>%".contains(&frame[at]) {
            line
        } else {
            at + resp::first_length(&frame[at..]).unwrap()
        };
        if end != line || !b"*~>%".contains(&frame[at]) {
            leaves.push(at..end);
        }
        at = end;
    }
    leaves
}

fn text_of(leaf: &[u8]) -> &[u8] {
    let from = if leaf[0] == b'$' {
        leaf.iter().position(|byte| *byte == b'\n').unwrap_or(0)
    } else {
        0
    };
    leaf.get(from + 1..leaf.len() - 2).unwrap_or_default()
}

/// What may be a count, as of quotas or of hashes.
fn count(text: &[u8]) -> Option<u16> {
    str::from_utf8(text).ok()?.parse().ok()
}

/// Replaces one of the leaves. `bulk`: by a text, as those of requests are. A count in a request becomes another one: whoever
/// can call a script for a step without an end can send a script of his own that has none.
fn with_forged_leaf(rng: &mut StdRng, frame: &[u8], leaf: Range<usize>, bulk: bool) -> Vec<u8> {
    let (is_number, original) = (frame[leaf.start] == b':', text_of(&frame[leaf.clone()]));
    let mut text = forged(rng, original);
    if bulk && count(original).is_some() && count(&text).is_none_or(|count| count == 0) {
        text = rng.random_range(1..300).to_string().into_bytes();
    }
    let integer = str::from_utf8(&text)
        .ok()
        .and_then(|text| text.parse::<i64>().ok());
    let instead = match (rng.random_range(0..6), integer) {
        (0, _) if !bulk => b"$-1\r\n".to_vec(),
        (1, _) if !bulk => b"*0\r\n".to_vec(),
        (2, _) if !bulk => b"*2\r\n:1\r\n$1\r\nx\r\n".to_vec(),
        (3, _) if !bulk => b"-ERR forged\r\n".to_vec(),
        (_, Some(integer)) if !bulk && is_number => format!(":{integer}\r\n").into_bytes(),
        _ => [format!("${}\r\n", text.len()).as_bytes(), &text, b"\r\n"].concat(),
    };
    [&frame[..leaf.start], &instead, &frame[leaf.end..]].concat()
}

/// Forges an argument of a call of a script, not a key.
pub(crate) fn forged_request(rng: &mut StdRng, frame: Vec<u8>) -> Vec<u8> {
    let leaves = leaves(&frame);
    let text = |nth: usize| {
        leaves
            .get(nth)
            .map_or(&[][..], |leaf| text_of(&frame[leaf.clone()]))
    };
    let keys = str::from_utf8(text(2))
        .ok()
        .and_then(|keys| keys.parse::<usize>().ok());
    match leaves
        .get(3 + keys.unwrap_or_default()..)
        .and_then(|arguments| arguments.choose(rng))
    {
        Some(argument) if text(0).starts_with(b"EVAL") || text(0) == b"FCALL" => {
            with_forged_leaf(rng, &frame, argument.clone(), true)
        }
        _ => frame,
    }
}

/// Forges a value of a reply, or of a message but for its channel.
pub(crate) fn forged_reply(rng: &mut StdRng, frame: Vec<u8>) -> Vec<u8> {
    let leaves = leaves(&frame);
    let from = if resp::is_reply(&frame) { 0 } else { 2 };
    match leaves.get(from..).and_then(|values| values.choose(rng)) {
        Some(value) => with_forged_leaf(rng, &frame, value.clone(), false),
        None => frame,
    }
}
