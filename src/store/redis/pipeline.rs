//! A call that is sent in one write with other commands: `ASKING` before it, and with durability settings a mark and a
//! `WAIT` after it.

use std::pin::pin;

use redis::RedisError;

use crate::store::redis::connection::{Connection, was_written};
use crate::store::redis::{RedisStore, errors, limits, slots};

impl RedisStore {
    /// Sends a call; with `asking`, to a node that is importing the slot of its keys. With durability settings, waits
    /// until the call is durable. Returns the reply, and the reason why the call does not count.
    pub(super) async fn send_in_pipeline(
        &self,
        connection: &mut Connection,
        (command, slot): (&redis::Cmd, Option<u16>),
        asking: bool,
        written: &mut bool,
    ) -> Result<(redis::Value, Option<RedisError>), RedisError> {
        let durability = self.limits.durability;
        let ask = redis::cmd("ASKING");
        let mut together: Vec<&redis::Cmd> = Vec::from_iter(asking.then_some(&ask));
        together.push(command);
        // `WAIT` only covers the writes of its own connection. A call that finds the lease held writes nothing,
        // although another connection wrote it. So each call is followed by a write.
        let after =
            durability.map(|durability| (limits::mark(command, asking), durability.command()));
        if let Some((mark, wait)) = &after {
            together.extend(asking.then_some(&ask));
            together.extend([mark, wait]);
        }
        let mut replies = was_written(
            pin!(connection.send_together(&together, asking.into())),
            written,
        )
        .await?
        .into_iter();
        let reply = next(&mut replies)?;
        let Some((durability, (_, wait))) = durability.zip(after) else {
            return Ok((reply, None));
        };
        if asking {
            next(&mut replies)?;
        }
        // The call has run, so a later error must not look as if it had not.
        let marked = next(&mut replies);
        let mut acked = next(&mut replies);
        let is_enough = |acked: &redis::Value| durability.check(acked.clone()).is_ok();
        // If the durability check has already failed, waiting for another mark is useless.
        if let Err(error) = marked
            && acked.as_ref().is_ok_and(is_enough)
        {
            let others = self.other_marks(&error, (command, slot), asking);
            acked = mark_again(connection, &others, &wait, error).await;
        }
        let missing = match acked {
            Ok(acked) => durability.check(acked).err(),
            Err(error) => Some(durability.failed(&error)),
        };
        Ok((reply, missing.map(errors::not_durable)))
    }

    /// Returns the writes to try instead of a mark that failed with `error`, and whether each needs `ASKING`.
    fn other_marks(
        &self,
        error: &RedisError,
        (command, slot): (&redis::Cmd, Option<u16>),
        asking: bool,
    ) -> Vec<(bool, redis::Cmd)> {
        if errors::is_out_of_memory(error) {
            return vec![(asking, limits::mark_when_full(command, asking))];
        }
        // A node that is migrating the slot has the keys of the call, but accepts no new key.
        let is_moving = errors::redirect(error).is_some();
        let beside = is_moving
            .then(|| self.marks_beside(slot))
            .into_iter()
            .flatten();
        beside.map(|mark| (false, mark)).collect()
    }

    /// Returns writes to other slots on the master of a slot: only a few, since these slots may be migrating too.
    fn marks_beside(&self, slot: Option<u16>) -> Vec<redis::Cmd> {
        let prefix = format!("{}:", self.base.prefix);
        let master = self.source.master(slot);
        slots::prefixes(&prefix)
            .filter(|(_, other)| Some(*other) != slot && self.source.master(Some(*other)) == master)
            .map(|(prefix, _)| limits::mark_at(prefix.as_bytes(), "wait"))
            .take(3)
            .collect()
    }
}

/// Writes another mark after one that failed with `error`, and waits until it is durable. It tries `others` one after
/// the other.
async fn mark_again(
    connection: &mut Connection,
    others: &[(bool, redis::Cmd)],
    wait: &redis::Cmd,
    error: RedisError,
) -> Result<redis::Value, RedisError> {
    let ask = redis::cmd("ASKING");
    let mut acked = Err(error);
    for (asking, mark) in others {
        let again: Vec<_> = asking
            .then_some(&ask)
            .into_iter()
            .chain([mark, wait])
            .collect();
        let replies = connection.send_together(&again, (*asking).into()).await;
        acked = replies.and_then(|replies| acked_by(&mut replies.into_iter()));
        if acked.is_ok() {
            break;
        }
    }
    acked
}

/// Takes the reply to a mark, and returns the reply to the wait for it.
fn acked_by(replies: &mut impl Iterator<Item = redis::Value>) -> Result<redis::Value, RedisError> {
    next(replies)?;
    next(replies)
}

/// Takes the next reply of several calls.
fn next(replies: &mut impl Iterator<Item = redis::Value>) -> Result<redis::Value, RedisError> {
    match replies.next() {
        Some(redis::Value::ServerError(error)) => Err(RedisError::from(error)),
        reply => Ok(reply.unwrap_or(redis::Value::Nil)),
    }
}

#[cfg(test)]
#[cfg(feature = "cluster")]
mod tests {
    use redis::Value;

    use super::*;

    #[test]
    fn an_error_of_the_mark_or_of_the_wait_is_one_of_the_call() {
        let error = || match redis::parse_redis_value(b"-ERR x\r\n") {
            Ok(error @ Value::ServerError(_)) => error,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            acked_by(&mut [Value::Okay, Value::Int(2)].into_iter()).unwrap(),
            Value::Int(2)
        );
        assert!(acked_by(&mut [error(), Value::Int(2)].into_iter()).is_err());
        assert!(acked_by(&mut [Value::Okay, error()].into_iter()).is_err());
    }
}
