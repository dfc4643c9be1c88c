//! Timeouts and bounds of a store on Redis, and its durability: whether replicas and the disk must have a call before
//! it counts.

use std::time::Duration;

use redis::{Arg, Cmd, FromRedisValue as _, RedisError, Value, cmd};

use crate::error::Error;
use crate::macros::in_range;
use crate::store::memory::bound::Bounds;
use crate::store::redis::budget::{MOST_BYTES, MOST_OPERATIONS};

/// Timeouts and bounds of a store on Redis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) queue_timeout: Duration,
    pub(crate) connections: usize,
    pub(crate) max_queued: usize,
    pub(crate) max_queued_bytes: usize,
    pub(crate) durability: Option<Durability>,
    pub(crate) functions: bool,
    pub(crate) local_share: Bounds,
}

impl Limits {
    /// The defaults of a builder.
    pub(crate) const DEFAULT: Self = Self {
        timeout: Duration::from_millis(500),
        connect_timeout: Duration::from_secs(2),
        queue_timeout: Duration::from_secs(1),
        connections: 1,
        max_queued: 131_072,
        max_queued_bytes: 64 << 20,
        durability: None,
        functions: true,
        local_share: Bounds::LOCAL_SHARE,
    };

    /// Checks that each value is in its range.
    pub(crate) fn check(&self) -> Result<(), Error> {
        for (what, span) in [
            ("timeout", self.timeout),
            ("connect_timeout", self.connect_timeout),
            ("queue_timeout", self.queue_timeout),
        ] {
            in_range(
                what,
                Duration::from_millis(1)..=Duration::from_secs(60),
                "1 ms to 60 s",
                span,
            )?;
        }
        if let Some(durability) = self.durability {
            durability.check_settings(self.timeout)?;
        }
        for (what, range, value) in [
            ("connections", 1..=64, self.connections),
            ("max_queued", 1..=MOST_OPERATIONS, self.max_queued),
            (
                "max_queued_bytes",
                1 << 16..=MOST_BYTES,
                self.max_queued_bytes,
            ),
        ] {
            let must = format!("{} to {}", range.start(), range.end());
            in_range(what, range, &must, value)?;
        }
        Ok(())
    }
}

/// Where a call must be stored before it counts: checked by the command `WAIT`, or by `WAITAOF` if the disk is
/// required.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Durability {
    pub(crate) replicas: u32,
    /// Whether the master, and that number of replicas, must have it in their append-only files on disk.
    pub(crate) fsync: bool,
    pub(crate) within: Duration,
}

impl Durability {
    /// The names of the commands, for an access control list.
    pub(crate) fn permission(self) -> &'static str {
        if self.fsync { " +waitaof" } else { " +wait" }
    }

    pub(crate) fn command(self) -> Cmd {
        let mut wait = if self.fsync {
            cmd("WAITAOF")
        } else {
            cmd("WAIT")
        };
        if self.fsync {
            wait.arg(1);
        }
        wait.arg(self.replicas).arg(self.within.as_millis() as u64);
        wait
    }

    /// Checks by the reply to [`command`](Self::command) whether the call counts. The error names what is missing.
    pub(crate) fn check(self, reply: Value) -> Result<(), String> {
        let Self {
            replicas,
            fsync,
            within,
        } = self;
        let (disk, acked) = match (fsync, reply) {
            (false, Value::Int(acked)) => (1, acked),
            (true, reply) => match <(i64, i64)>::from_redis_value(reply) {
                Ok(acked) => acked,
                Err(error) => {
                    return Err(format!("the answer to WAITAOF is not two numbers: {error}"));
                }
            },
            (false, other) => return Err(format!("the answer to WAIT is not a number: {other:?}")),
        };
        if disk < 1 {
            return Err(format!(
                "the server has not written the call to its disk within {within:?}"
            ));
        }
        if acked < replicas.into() {
            let where_to = if fsync {
                "have the call on their disks"
            } else {
                "have the call"
            };
            return Err(format!(
                "{acked} of {replicas} replicas {where_to} within {within:?}"
            ));
        }
        Ok(())
    }

    /// Returns the reason if the command itself fails.
    pub(crate) fn failed(self, error: &RedisError) -> String {
        if self.fsync && error.to_string().contains("unknown command") {
            return "`fsync` needs Redis 7.2 or Valkey: the server has no command WAITAOF"
                .to_owned();
        }
        error.to_string()
    }

    /// Checks the settings against the timeout of a call.
    pub(crate) fn check_settings(self, timeout: Duration) -> Result<(), Error> {
        let Self {
            replicas,
            fsync,
            within,
        } = self;
        if replicas == 0 && !fsync {
            return Err(Error::invalid(
                "the count of replicas must be 1 or more, is 0",
            ));
        }
        // The other half is for the call itself.
        let half = timeout / 2;
        let range = Duration::from_millis(1)..=half;
        let must = format_args!("1 ms to half of the timeout ({half:?})");
        in_range("the time for replicas or the disk", range, must, within)
    }
}

/// Returns a write to a key beside those of a script call, in the same slot. `asking`: for a node that is importing the
/// slot. The key has another name there, since a node does not migrate a key to a node that already has the name.
pub(in crate::store) fn mark(call: &Cmd, asking: bool) -> Cmd {
    let (key, part) = beside(call, asking);
    mark_at(key, part)
}

/// Like [`mark`], for a server that is out of memory but has run the call, because the call frees memory or extends an
/// expiry. Such a server lets a script continue that has already written.
pub(in crate::store) fn mark_when_full(call: &Cmd, asking: bool) -> Cmd {
    let (key, part) = beside(call, asking);
    let mut mark = cmd("EVAL");
    mark.arg("redis.call('DEL', KEYS[1]) return redis.call('SET', KEYS[1], 1, 'PX', 1000)");
    mark.arg(1).arg([key, part.as_bytes()].concat());
    mark
}

/// Returns the two parts of the name of such a key. The second key of a lease always has a hash tag, even if the first
/// one is named by the user.
fn beside(call: &Cmd, asking: bool) -> (&[u8], &'static str) {
    let simple = |position| match call.args_iter().nth(position) {
        Some(Arg::Simple(bytes)) => bytes,
        _ => &[],
    };
    let key = if simple(2) == b"1" {
        simple(3)
    } else {
        simple(4)
    };
    (key, if asking { ":asked" } else { ":wait" })
}

/// Returns a write to a key with this beginning and end.
pub(in crate::store) fn mark_at(key: &[u8], part: &str) -> Cmd {
    let mut mark = cmd("SET");
    mark.arg([key, part.as_bytes()].concat())
        .arg(1)
        .arg("PX")
        .arg(1000);
    mark
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_millis(100);

    fn args(durability: Durability) -> String {
        String::from_utf8(durability.command().get_packed_command())
            .unwrap()
            .replace("\r\n", " ")
    }

    #[test]
    fn half_of_the_timeout_is_left_for_the_call() {
        let timeout = Duration::from_millis(201);
        let check = |within| {
            Durability {
                replicas: 1,
                fsync: false,
                within,
            }
            .check_settings(timeout)
        };
        let most = Duration::from_micros(100_500);
        assert!(check(most).is_ok() && check(Duration::from_millis(1)).is_ok());
        for bad in [
            most + Duration::from_nanos(1),
            Duration::from_nanos(999_999),
        ] {
            let text = check(bad).unwrap_err().to_string();
            assert!(
                text.contains("100.5ms") && text.contains(&format!("{bad:?}")),
                "{text}"
            );
        }
        let none = Durability {
            replicas: 0,
            fsync: false,
            within: most,
        };
        assert!(none.check_settings(timeout).unwrap_err().is_invalid());
        assert!(
            Durability {
                fsync: true,
                ..none
            }
            .check_settings(timeout)
            .is_ok()
        );
    }

    #[test]
    fn replicas_are_waited_for_with_or_without_their_disks() {
        let replicas = Durability {
            replicas: 2,
            fsync: false,
            within: WITHIN,
        };
        assert_eq!(args(replicas), "*3 $4 WAIT $1 2 $3 100 ");
        assert_eq!(replicas.check(Value::Int(2)), Ok(()));
        assert!(
            replicas
                .check(Value::Int(1))
                .unwrap_err()
                .starts_with("1 of 2 replicas have")
        );
        assert!(replicas.check(Value::Nil).is_err());

        let disk = Durability {
            replicas: 0,
            fsync: true,
            within: WITHIN,
        };
        assert_eq!(args(disk), "*4 $7 WAITAOF $1 1 $1 0 $3 100 ");
        let acked = |disk, replicas| Value::Array(vec![Value::Int(disk), Value::Int(replicas)]);
        assert_eq!(disk.check(acked(1, 0)), Ok(()));
        assert!(disk.check(acked(0, 0)).unwrap_err().contains("to its disk"));
        let both = Durability {
            replicas: 1,
            ..disk
        };
        assert!(
            both.check(acked(1, 0))
                .unwrap_err()
                .contains("on their disks")
        );
        assert!(both.check(Value::Int(1)).is_err());
        let error = redis::make_extension_error("ERR".into(), Some("out of files".into()));
        assert!(disk.failed(&error).contains("out of files"));
    }

    #[test]
    fn a_call_is_followed_by_a_write_in_its_slot() {
        let call = |keys: &[&str]| {
            let mut call = cmd("EVALSHA");
            call.arg("sha").arg(keys.len()).arg(keys).arg("argument");
            call
        };
        let mark = |keys: &[&str], asking| {
            String::from_utf8(mark(&call(keys), asking).get_packed_command())
                .unwrap()
                .replace("\r\n", " ")
        };
        assert_eq!(
            mark(&["{a}"], false),
            "*5 $3 SET $8 {a}:wait $1 1 $2 PX $4 1000 "
        );
        assert!(mark(&["a", "{a}:td:queue"], false).contains(" {a}:td:queue:wait "));
        assert!(mark(&["a", "{a}:td:queue"], true).contains(" {a}:td:queue:asked "));
    }
}
