//! Lists.

use super::super::database::{Database, Outcome};
use super::super::reply::{Bytes, Reply};
use super::{integer, part};

pub fn push(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let list = database.list_or_new(&arguments[1])?;
    list.extend_from_slice(&arguments[2..]);
    Ok(Reply::count(list.len()))
}

pub fn range(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let (from, to) = (integer(&arguments[2])?, integer(&arguments[3])?);
    let Some(list) = database.list(&arguments[1])? else {
        return Ok(Reply::Array(vec![]));
    };
    let part = list[part(list.len(), from, to)].iter();
    Ok(Reply::Array(part.cloned().map(Reply::Bulk).collect()))
}

pub fn trim(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let (from, to) = (integer(&arguments[2])?, integer(&arguments[3])?);
    let Some(list) = database.list(&arguments[1])? else {
        return Ok(Reply::ok());
    };
    let part = part(list.len(), from, to);
    list.truncate(part.end);
    list.drain(..part.start);
    database.drop_empty(&arguments[1]);
    Ok(Reply::ok())
}
