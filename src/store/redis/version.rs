//! Whether a server is new enough for the scripts.

use deadpool_redis::redis::{self, Value};

use super::failure;
use super::pool::Connection;
use crate::error::{Cause, Outage};

/// `SET` with both `PX` and `GET` came with this.
const OLDEST: (u32, u32) = (6, 2);

/// Asks the server for its version. One that will not tell (INFO may be forbidden) is given the benefit of the doubt.
pub(super) async fn check(connection: &mut Connection) -> Result<(), Outage> {
    let told = match connection.send(redis::cmd("INFO").arg("server")).await {
        Ok(told) => told,
        Err(error) => {
            let outage = failure::outage(error);
            return if outage.cause == Cause::Disconnected { Err(outage) } else { Ok(()) };
        }
    };
    match version(&told) {
        Some((version, text)) if version < OLDEST => {
            let text = format!("Redis {text} is too old: {}.{} or later is needed", OLDEST.0, OLDEST.1);
            Err(Outage { cause: Cause::NotServing, text: text.into(), source: None })
        }
        _ => Ok(()),
    }
}

/// The version in an answer to INFO, or in the first of those that the nodes of a cluster gave.
fn version(told: &Value) -> Option<((u32, u32), &str)> {
    let text = match told {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => text,
        Value::Map(nodes) => return nodes.iter().find_map(|(_, told)| version(told)),
        _ => return None,
    };
    let text = text.lines().find_map(|line| line.strip_prefix("redis_version:"))?.trim();
    let mut numbers = text.split('.').map(str::parse);
    Some(((numbers.next()?.ok()?, numbers.next()?.ok()?), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_compared() {
        let told =
            |text: &str| Value::BulkString(format!("# Server\r\nredis_version:{text}\r\nos:x\r\n").into());
        assert_eq!(version(&told("7.0.15")), Some(((7, 0), "7.0.15")));
        assert!(version(&told("6.0.16")).unwrap().0 < OLDEST);
        assert!(version(&told("6.2.0")).unwrap().0 >= OLDEST);
        assert!(version(&told("10.1")).unwrap().0 >= OLDEST);
        assert_eq!(version(&told("unstable")), None);
        let nodes = vec![(Value::SimpleString("a:1".into()), told("5.0.3"))];
        assert_eq!(version(&Value::Map(nodes)), Some(((5, 0), "5.0.3")));
        assert_eq!(version(&Value::Okay), None);
    }
}
