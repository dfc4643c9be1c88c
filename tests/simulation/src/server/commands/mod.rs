//! The commands that the library and its scripts use.

pub mod bits;
pub mod hashes;
pub mod keys;
pub mod lists;
pub mod sorted_sets;
pub mod strings;

use std::borrow::Cow;

use super::database::{NOT_FLOAT, NOT_INTEGER};

/// Reads an integer as a server does: no sign `+`, no leading zeros.
pub fn integer(text: &[u8]) -> Result<i64, String> {
    let text = std::str::from_utf8(text).map_err(|_| NOT_INTEGER)?;
    let number: Option<i64> = text.parse().ok();
    let number = number.filter(|number| number.to_string() == text);
    number.ok_or_else(|| NOT_INTEGER.into())
}

fn float(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let digits = text.trim_start_matches(['+', '-']);
    let number: f64 = match digits.to_ascii_lowercase().as_str() {
        "inf" | "infinity" if text.starts_with('-') => f64::NEG_INFINITY,
        "inf" | "infinity" => f64::INFINITY,
        _ => text.parse().ok()?,
    };
    (!number.is_nan()).then_some(number)
}

fn score(text: &[u8]) -> Result<f64, String> {
    float(text).ok_or_else(|| NOT_FLOAT.into())
}

/// The part of `count` elements that a command names by two positions, which may count from the end.
fn part(count: usize, from: i64, to: i64) -> std::ops::Range<usize> {
    let count = count as i64;
    let known = |at: i64| if at < 0 { count + at } else { at };
    let (from, to) = (known(from).max(0), known(to).min(count - 1));
    match from > to {
        true => 0..0,
        false => from as usize..to as usize + 1,
    }
}

/// The same of a string, where a position before the beginning is the first one.
fn part_of_text(count: usize, from: i64, to: i64) -> std::ops::Range<usize> {
    let first = -(count as i64);
    match from < 0 && to < 0 && from > to {
        true => 0..0,
        false => part(count, from.max(first), to.max(first)),
    }
}

/// An option of a command, in capitals.
pub fn option(text: &[u8]) -> String {
    readable(text).to_ascii_uppercase()
}

pub fn readable(text: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(text)
}
