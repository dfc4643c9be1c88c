//! `SCAN` on one master, for those who list what is stored.

use std::sync::Arc;

use redis::{self, Value};
use tokio::runtime::Handle;

use super::RedisStore;
use crate::Error;
use crate::error::Cause;

/// How many keys the server looks at in one call: about 0.3 ms of its time.
const LOOKED_AT: usize = 1000;

/// How far a scan has come: through which masters, and where in the current one.
#[derive(Clone, Debug, Default)]
pub(in crate::store) struct Position {
    done: Vec<usize>,
    /// The current master, and its cursor.
    at: Option<(usize, u64)>,
}

impl Position {
    /// Returns the position for the next call, and leaves the one for the case that it fails or is dropped: the current
    /// master is then scanned again from its first key. It may be another server by then, whose cursors differ.
    pub(in crate::store) fn take(&mut self) -> Self {
        Self {
            done: self.done.clone(),
            at: self.at.take(),
        }
    }
}

impl RedisStore {
    /// Returns the next names that match a pattern; `None` at the end.
    pub(in crate::store) async fn scan(
        self: &Arc<Self>,
        runtime: &Handle,
        position: &mut Position,
        pattern: &str,
    ) -> Result<Option<Vec<Vec<u8>>>, Error> {
        let next = || self.next_master(&position.done).map(|master| (master, 0));
        let Some((master, cursor)) = position.at.take().or_else(next) else {
            return Ok(None);
        };
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor)
            .arg("MATCH")
            .arg(pattern)
            .arg("COUNT")
            .arg(LOOKED_AT);
        let (cursor, names) =
            read(self.ask_master(runtime, master, &scan).await?).ok_or_else(|| {
                Error::unavailable(
                    Cause::Unexpected,
                    "SCAN returned something other than a cursor and names",
                )
            })?;
        match cursor {
            0 => position.done.push(master),
            cursor => position.at = Some((master, cursor)),
        }
        Ok(Some(names))
    }
}

fn read(reply: Value) -> Option<(u64, Vec<Vec<u8>>)> {
    let Value::Array(reply) = reply else {
        return None;
    };
    let [Value::BulkString(cursor), Value::Array(names)] = <[Value; 2]>::try_from(reply).ok()?
    else {
        return None;
    };
    let name = |name| {
        if let Value::BulkString(name) = name {
            Some(name)
        } else {
            None
        }
    };
    let cursor = std::str::from_utf8(&cursor).ok()?.parse().ok()?;
    Some((cursor, names.into_iter().map(name).collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_a_cursor_and_names() {
        let text = |text: &str| Value::BulkString(text.into());
        let page =
            |cursor, names: Vec<Value>| read(Value::Array(vec![cursor, Value::Array(names)]));
        let names = Some((17, vec![b"a".to_vec(), b"b".to_vec()]));
        assert_eq!(page(text("17"), vec![text("a"), text("b")]), names);
        assert_eq!(page(text("0"), Vec::new()), Some((0, Vec::new())));
        assert_eq!(page(text("x"), Vec::new()), None);
        assert_eq!(page(Value::Int(0), Vec::new()), None);
        assert_eq!(page(text("0"), vec![Value::Nil]), None);
        for none in [Value::Nil, Value::Array(vec![text("0")])] {
            assert_eq!(read(none), None);
        }
    }

    #[test]
    fn a_page_that_fails_leaves_the_master_to_its_beginning() {
        let mut position = Position {
            done: vec![1],
            at: Some((2, 17)),
        };
        let taken = position.take();
        assert_eq!((taken.done, taken.at), (vec![1], Some((2, 17))));
        assert_eq!((position.done, position.at), (vec![1], None));
    }
}
