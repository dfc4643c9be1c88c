//! Keys of any kind, the time, and messages.

use super::super::database::{Database, Item, Outcome, SYNTAX};
use super::super::reply::{Bytes, Reply};
use super::{integer, option, readable};

pub fn del(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let mut removes =
        |key: &&Bytes| database.get(key).is_some() && database.entries.remove(*key).is_some();
    let removed = arguments[1..].iter().filter(|key| removes(key));
    Ok(Reply::count(removed.count()))
}

pub fn exists(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let keys = arguments[1..].iter();
    let found = keys.filter(|key| database.get(key).is_some());
    Ok(Reply::count(found.count()))
}

pub fn kind(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let name = match database.get(&arguments[1]) {
        None => "none",
        Some(Item::Text(_)) => "string",
        Some(Item::SortedSet(_)) => "zset",
        Some(Item::Hash(_)) => "hash",
        Some(Item::List(_)) => "list",
    };
    Ok(Reply::Status(name.into()))
}

pub fn expire(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let (key, span, now) = (&arguments[1], integer(&arguments[2])?, database.millis());
    if let Some(option) = arguments.get(3) {
        return Err(format!("ERR Unsupported option {}", readable(option)));
    }
    let until = now.checked_add(span);
    let until = until.ok_or("ERR invalid expire time in 'pexpire' command")?;
    let Some(entry) = database.entry(key) else {
        return Ok(Reply::Int(0));
    };
    entry.until = Some(until);
    if until <= now {
        database.entries.remove(key);
    }
    Ok(Reply::Int(1))
}

pub fn ttl(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let now = database.millis();
    Ok(Reply::Int(match database.entry(&arguments[1]) {
        None => -2,
        Some(entry) => entry.until.map_or(-1, |until| until - now),
    }))
}

pub fn time(database: &mut Database, _: &[Bytes]) -> Outcome {
    let (micros, second) = (database.micros, 1_000_000);
    let parts = [micros.div_euclid(second), micros.rem_euclid(second)];
    let parts = parts.map(|part| Reply::bulk(part.to_string()));
    Ok(Reply::Array(parts.into()))
}

/// `PUBLISH` and `SPUBLISH`. The reply is the number of those who get it here.
pub fn publish(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let is_shard = option(&arguments[0]) == "SPUBLISH";
    let channel = (is_shard, arguments[1].clone());
    let subscribers = database.subscribers.get(&channel).copied().unwrap_or(0);
    database.published.push((channel, arguments[2].clone()));
    Ok(Reply::Int(subscribers))
}

/// A cursor is the position in the order of the keys, so keys that come and go meanwhile may be left out, which a server never
/// does with keys that stay.
pub fn scan(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let from = integer(&arguments[1]).map_err(|_| "ERR invalid cursor")?;
    let (mut pattern, mut count) = (None, 10);
    for pair in arguments[2..].chunks(2) {
        match (option(&pair[0]).as_str(), pair.get(1)) {
            ("MATCH", Some(text)) => pattern = Some(text),
            ("COUNT", Some(text)) => count = integer(text)?,
            _ => return Err(SYNTAX.into()),
        }
    }
    database.sweep();
    let from = usize::try_from(from).unwrap_or(0);
    let count = usize::try_from(count).unwrap_or(1).max(1);
    let has_more = database.entries.len().saturating_sub(from) > count;
    let next = if has_more { from + count } else { 0 };
    let looked = database.entries.keys().skip(from).take(count);
    let found = looked.filter(|key| pattern.is_none_or(|pattern| matches(pattern, key)));
    let found = found.cloned().map(Reply::Bulk).collect();
    let next = Reply::bulk(next.to_string());
    Ok(Reply::Array(vec![next, Reply::Array(found)]))
}

/// Whether a key matches a pattern of `*`, `?`, classes and escapes.
pub fn matches(pattern: &[u8], key: &[u8]) -> bool {
    match pattern {
        [] => key.is_empty(),
        [b'*', rest @ ..] => (0..=key.len()).any(|at| matches(rest, &key[at..])),
        [b'?', rest @ ..] => !key.is_empty() && matches(rest, &key[1..]),
        [b'[', rest @ ..] => {
            let Some(end) = rest.iter().position(|byte| *byte == b']') else {
                return false;
            };
            let (class, rest) = (&rest[..end], &rest[end + 1..]);
            let (class, negated) = class
                .strip_prefix(b"^")
                .map_or((class, false), |class| (class, true));
            key.first()
                .is_some_and(|first| class.contains(first) != negated)
                && matches(rest, &key[1..])
        }
        [b'\\', byte, rest @ ..] | [byte, rest @ ..] => {
            key.first() == Some(byte) && matches(rest, &key[1..])
        }
    }
}
