//! A connection that many calls share, and the check that its server is new enough for the scripts.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
#[cfg(feature = "cluster")]
use redis::cluster_async::ClusterConnection;
#[cfg(feature = "cluster")]
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::time::timeout;

use crate::error::reasons::{Cause, Outage};
use crate::store::redis::errors;

/// How long to wait for a node's reply, because the node may be down.
pub(super) const NODE_TIMEOUT: Duration = Duration::from_millis(500);

/// A connection that many calls share.
#[derive(Clone)]
pub(crate) enum Connection {
    Server(MultiplexedConnection),
    /// A connection to all masters of a Cluster.
    #[cfg(feature = "cluster")]
    #[cfg_attr(not(feature = "pools"), allow(dead_code))]
    Cluster(ClusterConnection),
}

impl Connection {
    pub(in crate::store) fn is_cluster(&self) -> bool {
        !matches!(self, Self::Server(_))
    }

    pub(crate) async fn send(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        let reply = match self {
            Self::Server(connection) => connection.req_packed_command(command).await,
            #[cfg(feature = "cluster")]
            Self::Cluster(connection) => connection.req_packed_command(command).await,
        };
        checked(reply?)
    }

    /// Sends a command. If the connection leads to several nodes, sends it to the node at the address.
    #[cfg_attr(not(feature = "cluster"), expect(unused_variables))]
    pub(super) async fn send_at(
        &mut self,
        address: Option<String>,
        command: &Cmd,
    ) -> Result<Value, RedisError> {
        #[cfg(feature = "cluster")]
        if let Self::Cluster(connection) = self
            && let Some((host, port)) = address
                .as_deref()
                .and_then(|address| address.rsplit_once(':'))
            && let Ok(port) = port.parse()
        {
            let node = SingleNodeRoutingInfo::ByAddress {
                host: host.into(),
                port,
            };
            return checked(
                connection
                    .route_command(command.clone(), RoutingInfo::SingleNode(node))
                    .await?,
            );
        }
        self.send(command).await
    }

    /// Sends two commands in one write, and returns the reply to each.
    pub(super) async fn send_both(
        &mut self,
        one: &Cmd,
        other: &Cmd,
    ) -> Result<(Result<Value, RedisError>, Result<Value, RedisError>), RedisError> {
        let mut replies = self
            .send_together(&[one, other], 0)
            .await?
            .into_iter()
            .map(checked);
        let mut next = || replies.next().unwrap_or(Ok(Value::Nil));
        Ok((next(), next()))
    }

    /// Sends commands in one write. Returns the replies without the first `skip`; each may be an error of the server.
    pub(super) async fn send_together(
        &mut self,
        commands: &[&Cmd],
        skip: usize,
    ) -> Result<Vec<Value>, RedisError> {
        let mut all = Pipeline::new();
        for command in commands {
            all.add_command((*command).clone());
        }
        let replies = commands.len() - skip;
        match self {
            Self::Server(connection) => connection.req_packed_commands(&all, skip, replies).await,
            #[cfg(feature = "cluster")]
            Self::Cluster(connection) => connection.req_packed_commands(&all, skip, replies).await,
        }
    }
}

fn checked(reply: Value) -> Result<Value, RedisError> {
    match reply {
        Value::ServerError(error) => Err(error.into()),
        reply => Ok(reply),
    }
}

/// Awaits a reply. Sets `written` to whether anything was probably written: a connection that has ended fails at once,
/// without writing. It is only probable, because the thread may have been suspended during the first poll, while the
/// call ran and then the connection ended.
pub(super) async fn was_written<T>(
    mut reply: Pin<&mut impl Future<Output = Result<T, RedisError>>>,
    written: &mut bool,
) -> Result<T, RedisError> {
    let first = poll_fn(|context| Poll::Ready(reply.as_mut().poll(context))).await;
    *written = !matches!(&first, Poll::Ready(Err(error)) if error.is_io_error());
    match first {
        Poll::Ready(reply) => reply,
        Poll::Pending => reply.await,
    }
}

debug!(Connection);

/// The oldest supported version. It introduced `SET` with both `PX` and `GET`.
const OLDEST: (u32, u32) = (6, 2);

/// Returns the command that reads the version of a server.
pub(super) fn version_question() -> redis::Cmd {
    let mut info = redis::cmd("INFO");
    info.arg("server");
    info
}

/// Reads the version of a server. INFO is sent to all nodes of a Cluster, and one of them may not reply.
pub(super) async fn ask_version(connection: &mut Connection) -> Result<Option<String>, Outage> {
    let is_cluster = connection.is_cluster();
    let info = version_question();
    let pending = connection.send(&info);
    if !is_cluster {
        return check_version(pending.await, false);
    }
    match timeout(NODE_TIMEOUT, pending).await {
        Ok(reply) => check_version(reply, true),
        Err(_) => Ok(None),
    }
}

/// Reads the version of the server from its reply. A server that does not report it, for example because INFO is
/// forbidden, is accepted.
pub(super) fn check_version(
    reply: Result<Value, RedisError>,
    is_cluster: bool,
) -> Result<Option<String>, Outage> {
    let error = match reply {
        Ok(reply) => return accepted(&reply),
        Err(error) => error,
    };
    let outage = errors::outage(error);
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
fn accepted(reply: &Value) -> Result<Option<String>, Outage> {
    match version(reply) {
        Some((numbers, version)) if numbers < OLDEST => {
            let text = format!(
                "Redis {version} is too old, must be {}.{} or later",
                OLDEST.0, OLDEST.1
            );
            Err(errors::of(Cause::NotServing, text))
        }
        version => Ok(version.map(|(_, text)| text)),
    }
}

/// Parses the version in a reply to INFO, or in the first reply from the nodes of a cluster. For Valkey, the numbers
/// are those of the version of Redis that it is compatible with.
fn version(reply: &Value) -> Option<((u32, u32), String)> {
    let text = match reply {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => text,
        Value::Map(nodes) => return nodes.iter().find_map(|(_, reply)| version(reply)),
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
        let reply = |text: &str| {
            Value::BulkString(format!("# Server\r\nredis_version:{text}\r\nos:x\r\n").into())
        };
        assert_eq!(version(&reply("7.0.15")).unwrap().1, "7.0.15");
        let valkey = version(&reply(
            "7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2",
        ))
        .unwrap();
        assert_eq!(valkey, ((7, 2), "9.1.2".to_owned()));
        for new in ["6.2.0", "6.10.1", "10.1"] {
            assert_eq!(accepted(&reply(new)).unwrap().as_deref(), Some(new));
        }
        for old in ["6.0.16", "6.1.99", "5.9.0"] {
            assert!(accepted(&reply(old)).unwrap_err().text.contains(old));
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
        assert!(version(&reply("unstable")).is_none());
        let nodes = vec![(Value::SimpleString("a:1".into()), reply("5.0.3"))];
        assert_eq!(version(&Value::Map(nodes)).unwrap().0, (5, 0));
        assert!(version(&Value::Okay).is_none());
    }
}
