//! Strings.

use super::super::database::{Database, Entry, Item, Outcome, SYNTAX};
use super::super::reply::{Bytes, Reply};
use super::{integer, option, part_of_text};

const LONGEST: i64 = 512 << 20;

pub fn get(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    Ok(Reply::of(database.text(&arguments[1])?.as_deref()))
}

pub fn get_all(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let text = |key: &Bytes| match database.get(key) {
        Some(Item::Text(text)) => Reply::Bulk(text.clone()),
        _ => Reply::Nil,
    };
    Ok(Reply::Array(arguments[1..].iter().map(text).collect()))
}

pub fn len(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let text = database.text(&arguments[1])?;
    Ok(Reply::count(text.map_or(0, |text| text.len())))
}

pub fn get_range(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let (from, to) = (integer(&arguments[2])?, integer(&arguments[3])?);
    let Some(text) = database.text(&arguments[1])? else {
        return Ok(Reply::bulk(""));
    };
    Ok(Reply::bulk(&text[part_of_text(text.len(), from, to)]))
}

pub fn set_range(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let (key, piece) = (&arguments[1], &arguments[3]);
    let at = integer(&arguments[2])?;
    if at < 0 {
        return Err("ERR offset is out of range".into());
    }
    if piece.is_empty() {
        return len(database, arguments);
    }
    if at + piece.len() as i64 > LONGEST {
        return Err("ERR string exceeds maximum allowed size (proto-max-bulk-len)".into());
    }
    let (text, at) = (database.text_or_new(key)?, at as usize);
    if text.len() < at + piece.len() {
        text.resize(at + piece.len(), 0);
    }
    text[at..at + piece.len()].copy_from_slice(piece);
    Ok(Reply::count(text.len()))
}

fn until(now: i64, word: &str, span: i64) -> Result<i64, String> {
    let until = match word {
        _ if span <= 0 => None,
        "PX" => now.checked_add(span),
        "EX" => until(now, "PX", span.checked_mul(1000).unwrap_or(0)).ok(),
        _ => Some(span),
    };
    until.ok_or_else(|| "ERR invalid expire time in 'set' command".into())
}

pub fn set(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let (key, now) = (&arguments[1], database.millis());
    let (mut flags, mut given, mut rest) = (vec![], None, arguments[3..].iter());
    while let Some(word) = rest.next() {
        let word = option(word);
        match word.as_str() {
            "NX" | "XX" | "GET" | "KEEPTTL" => flags.push(word),
            "PX" | "EX" | "PXAT" if given.as_ref().is_none_or(|(other, _)| *other == word) => {
                given = Some((word, rest.next().ok_or(SYNTAX)?));
            }
            _ => return Err(SYNTAX.into()),
        }
    }
    let [only_new, only_old, gets, keeps] =
        ["NX", "XX", "GET", "KEEPTTL"].map(|word| flags.iter().any(|flag| flag == word));
    if only_new && only_old || keeps && given.is_some() {
        return Err(SYNTAX.into());
    }
    let given = given.map(|(word, span)| until(now, &word, integer(span)?));
    let given = given.transpose()?;
    let before = match gets {
        true => database.text(key)?.cloned(),
        false => None,
    };
    let old = database.entry(key).map(|entry| entry.until);
    let is_refused = only_new && old.is_some() || only_old && old.is_none();
    if !is_refused {
        let until = if keeps { old.flatten() } else { given };
        let item = Item::Text(arguments[2].clone());
        database.entries.insert(key.clone(), Entry { item, until });
    }
    Ok(match (gets, is_refused) {
        (true, _) => Reply::of(before.as_ref()),
        (false, true) => Reply::Nil,
        (false, false) => Reply::ok(),
    })
}
