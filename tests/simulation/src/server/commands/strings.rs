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
    Ok(Reply::count(database.text(&arguments[1])?.map_or(0, |text| text.len())))
}

pub fn get_range(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let (from, to) = (integer(&arguments[2])?, integer(&arguments[3])?);
    let Some(text) = database.text(&arguments[1])? else { return Ok(Reply::bulk("")) };
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

/// What `SET` is to do besides.
#[derive(Default)]
struct Options {
    until: Option<i64>,
    only_new: bool,
    only_old: bool,
    gets: bool,
    keeps: bool,
}

fn options(now: i64, arguments: &[Bytes]) -> Result<Options, String> {
    let (mut options, mut given) = (Options::default(), None);
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        match option(word).as_str() {
            "NX" => options.only_new = true,
            "XX" => options.only_old = true,
            "GET" => options.gets = true,
            "KEEPTTL" => options.keeps = true,
            "PX" | "EX" | "PXAT" if given.as_ref().is_some_and(|(other, _)| *other != option(word)) => {
                return Err(SYNTAX.into());
            }
            word @ ("PX" | "EX" | "PXAT") => {
                given = Some((word.to_owned(), rest.next().ok_or(SYNTAX)?));
            }
            _ => return Err(SYNTAX.into()),
        }
    }
    if options.only_new && options.only_old || options.keeps && given.is_some() {
        return Err(SYNTAX.into());
    }
    if let Some((word, span)) = given {
        options.until = Some(until(now, &word, integer(span)?)?);
    }
    Ok(options)
}

fn until(now: i64, word: &str, span: i64) -> Result<i64, String> {
    let until = match word {
        _ if span <= 0 => None,
        "PX" => now.checked_add(span),
        "EX" => span.checked_mul(1000).and_then(|span| now.checked_add(span)),
        _ => Some(span),
    };
    until.ok_or_else(|| "ERR invalid expire time in 'set' command".into())
}

pub fn set(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let key = &arguments[1];
    let options = options(database.millis(), &arguments[3..])?;
    let before = if options.gets { database.text(key)?.cloned() } else { None };
    let old = database.entry(key).map(|entry| entry.until);
    let is_refused = options.only_new && old.is_some() || options.only_old && old.is_none();
    if !is_refused {
        let until = if options.keeps { old.flatten() } else { options.until };
        database.entries.insert(key.clone(), Entry { item: Item::Text(arguments[2].clone()), until });
    }
    Ok(match (options.gets, is_refused) {
        (true, _) => Reply::of(before.as_ref()),
        (false, true) => Reply::Nil,
        (false, false) => Reply::ok(),
    })
}
