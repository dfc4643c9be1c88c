//! How a call is written to its connection, and waits there until it is durable.

use std::pin::pin;

use redis::{self, RedisError};

use super::call::noting;
use super::source::Connection;
use super::{RedisStore, failure, shards};
use crate::store::durability;

impl RedisStore {
    /// Sends a call; with `asking`, to a node that is getting the slot of its keys. If that is set, waits until it is
    /// durable. Returns the reply, and why the call does not count.
    pub(super) async fn send(
        &self,
        connection: &mut Connection,
        (command, slot): (&redis::Cmd, Option<u16>),
        asking: bool,
        written: &mut bool,
    ) -> Result<(redis::Value, Option<RedisError>), RedisError> {
        let durability = self.limits.durability;
        if !asking && durability.is_none() {
            return noting(pin!(connection.send(command)), written)
                .await
                .map(|reply| (reply, None));
        }
        let ask = redis::cmd("ASKING");
        let mut together: Vec<&redis::Cmd> = Vec::from_iter(asking.then_some(&ask));
        together.push(command);
        // WAIT is for what its connection has written. A call that finds the lease held writes nothing, although another
        // connection wrote it. So each call is followed by a write.
        let after =
            durability.map(|durability| (durability::mark(command, asking), durability.command()));
        if let Some((mark, wait)) = &after {
            together.extend(asking.then_some(&ask));
            together.extend([mark, wait]);
        }
        let mut replies = noting(
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
        // The call has run, so an error from here on must not look as if it had not.
        let (marked, mut acked) = (next(&mut replies), next(&mut replies));
        let is_enough = |acked: &redis::Value| durability.check(acked.clone()).is_ok();
        // Who has waited in vain for less need not wait for more.
        if let Err(error) = marked
            && acked.as_ref().is_ok_and(is_enough)
        {
            let others = self.other_marks(&error, (command, slot), asking);
            acked = Err(error);
            for (asking, mark) in others {
                let again: Vec<_> = asking
                    .then_some(&ask)
                    .into_iter()
                    .chain([&mark, &wait])
                    .collect();
                let replies = connection.send_together(&again, asking.into()).await;
                acked = replies.and_then(|replies| acked_by(&mut replies.into_iter()));
                if acked.is_ok() {
                    break;
                }
            }
        }
        let missing = match acked {
            Ok(acked) => durability.check(acked).err(),
            Err(error) => Some(durability.failed(&error)),
        };
        Ok((reply, missing.map(failure::not_durable)))
    }

    /// What is to be written instead of a mark that failed so, and whether that has to ask first.
    fn other_marks(
        &self,
        error: &RedisError,
        (command, slot): (&redis::Cmd, Option<u16>),
        asking: bool,
    ) -> Vec<(bool, redis::Cmd)> {
        if failure::is_out_of_memory(error) {
            return vec![(asking, durability::mark_when_full(command, asking))];
        }
        // A node that passes on the slot has the keys of the call, but takes no new one.
        let is_moving = failure::redirect(error).is_some();
        let beside = is_moving
            .then(|| self.marks_beside(slot))
            .into_iter()
            .flatten();
        beside.map(|mark| (false, mark)).collect()
    }

    /// Writes to other slots of the master of a slot: few, since these may be on their way too.
    fn marks_beside(&self, slot: Option<u16>) -> Vec<redis::Cmd> {
        let prefix = format!("{}:", self.base.prefix);
        let master = self.source.master(slot);
        shards::prefixes(&prefix)
            .filter(|(_, other)| Some(*other) != slot && self.source.master(Some(*other)) == master)
            .map(|(prefix, _)| durability::mark_at(prefix.as_bytes(), "wait"))
            .take(3)
            .collect()
    }
}

/// Takes the replies to a mark, and to the wait for it.
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
