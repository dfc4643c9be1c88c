//! Checks whether a server is new enough for the scripts.

use redis::{self, RedisError, Value};

use tokio::time::timeout;

use super::failure;
use super::source::{Connection, NODE_TIMEOUT};
use crate::error::{Cause, Outage};

/// The oldest supported version. It introduced `SET` with both `PX` and `GET`.
const OLDEST: (u32, u32) = (6, 2);

/// The command that asks for it.
pub(super) fn question() -> redis::Cmd {
    let mut info = redis::cmd("INFO");
    info.arg("server");
    info
}

/// Asks for it. INFO is sent to all nodes of a Cluster, and one node may not answer.
pub(super) async fn ask(connection: &mut Connection) -> Result<Option<String>, Outage> {
    let is_cluster = connection.is_cluster();
    let info = question();
    let asked = connection.send(&info);
    if !is_cluster {
        return check(asked.await, false);
    }
    match timeout(NODE_TIMEOUT, asked).await {
        Ok(told) => check(told, true),
        Err(_) => Ok(None),
    }
}

/// Reads the version of the server, as it reports it. A server that does not report it, for example because INFO is forbidden, is
/// accepted.
pub(super) fn check(
    told: Result<Value, RedisError>,
    is_cluster: bool,
) -> Result<Option<String>, Outage> {
    let error = match told {
        Ok(told) => return accepted(&told),
        Err(error) => error,
    };
    let outage = failure::outage(error);
    // In a Cluster one node may be down while the others serve.
    if outage.cause != Cause::Disconnected || is_cluster {
        return Ok(None);
    }
    let text = format!(
        "{} (at INFO, which a proxy must answer: it may refuse it by an error)",
        outage.text
    );
    Err(Outage {
        text: text.into(),
        ..outage
    })
}

/// Returns the version in a reply to INFO, unless it is too old.
fn accepted(told: &Value) -> Result<Option<String>, Outage> {
    match version(told) {
        Some((numbers, version)) if numbers < OLDEST => {
            let text = format!(
                "Redis {version} is too old, must be {}.{} or later",
                OLDEST.0, OLDEST.1
            );
            Err(failure::of(Cause::NotServing, text))
        }
        version => Ok(version.map(|(_, text)| text)),
    }
}

/// Parses the version in a reply to INFO, or in the first reply from the nodes of a cluster. The numbers of Valkey are those
/// of the version of Redis that it is compatible with.
fn version(told: &Value) -> Option<((u32, u32), String)> {
    let text = match told {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => text,
        Value::Map(nodes) => return nodes.iter().find_map(|(_, told)| version(told)),
        _ => return None,
    };
    let line = |name| {
        text.lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim)
    };
    let redis = line("redis_version:")?;
    let mut numbers = redis.split('.').map(str::parse);
    let numbers = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some((numbers, line("valkey_version:").unwrap_or(redis).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_compared() {
        let told = |text: &str| {
            Value::BulkString(format!("# Server\r\nredis_version:{text}\r\nos:x\r\n").into())
        };
        assert_eq!(version(&told("7.0.15")).unwrap().1, "7.0.15");
        let valkey = version(&told("7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2")).unwrap();
        assert_eq!(valkey, ((7, 2), "9.1.2".to_owned()));
        for new in ["6.2.0", "6.10.1", "10.1"] {
            assert_eq!(accepted(&told(new)).unwrap().as_deref(), Some(new));
        }
        for old in ["6.0.16", "6.1.99", "5.9.0"] {
            assert!(accepted(&told(old)).unwrap_err().text.contains(old));
        }
        assert_eq!(
            accepted(&Value::Okay).unwrap(),
            None,
            "INFO may be forbidden"
        );
        let text = "redis_version:7.0.1\r\n".to_owned();
        assert_eq!(
            version(&Value::SimpleString(text.clone())).unwrap().0,
            (7, 0)
        );
        let format = redis::VerbatimFormat::Text;
        assert_eq!(
            version(&Value::VerbatimString { format, text }).unwrap().0,
            (7, 0)
        );
        assert!(version(&told("unstable")).is_none());
        let nodes = vec![(Value::SimpleString("a:1".into()), told("5.0.3"))];
        assert_eq!(version(&Value::Map(nodes)).unwrap().0, (5, 0));
        assert!(version(&Value::Okay).is_none());
    }
}
