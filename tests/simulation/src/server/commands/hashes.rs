//! Hashes.

use super::super::database::{Database, Outcome};
use super::super::reply::{Bytes, Reply};

pub fn get(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let hash = database.hash(&arguments[1])?;
    Ok(Reply::of(hash.and_then(|hash| hash.get(&arguments[2]))))
}

pub fn exists(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let hash = database.hash(&arguments[1])?;
    let exists = hash.is_some_and(|hash| hash.contains_key(&arguments[2]));
    Ok(Reply::Int(exists.into()))
}

/// The fields of a server have no order. Here they have that of their names.
pub fn get_all(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let hash = database.hash(&arguments[1])?;
    let pairs = hash.into_iter().flat_map(|hash| hash.iter());
    Ok(Reply::Map(
        pairs
            .map(|(field, value)| (Reply::bulk(&field[..]), Reply::bulk(&value[..])))
            .collect(),
    ))
}

pub fn set(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let pairs = &arguments[2..];
    if pairs.len() % 2 == 1 {
        return Err("ERR wrong number of arguments for 'hset' command".into());
    }
    let hash = database.hash_or_new(&arguments[1])?;
    let new = pairs
        .chunks(2)
        .filter(|pair| hash.insert(pair[0].clone(), pair[1].clone()).is_none());
    Ok(Reply::count(new.count()))
}

pub fn del(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let Some(hash) = database.hash(&arguments[1])? else {
        return Ok(Reply::Int(0));
    };
    let fields = arguments[2..].iter();
    let removed = fields.filter(|field| hash.remove(*field).is_some()).count();
    database.drop_empty(&arguments[1]);
    Ok(Reply::count(removed))
}
