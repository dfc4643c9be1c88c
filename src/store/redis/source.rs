//! Makes connections: to one server, to a cluster, or to the master that Sentinel names.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use deadpool::managed::Manager as _;
pub(crate) use deadpool_redis::redis::Client as Subscriber;
use deadpool_redis::redis::aio::{ConnectionLike, MultiplexedConnection};
use deadpool_redis::redis::{
    AsyncConnectionConfig, Cmd, ConnectionInfo, IntoConnectionInfo, RedisError, Value,
};
use tokio::runtime::Handle;

#[cfg(feature = "cluster")]
use super::slots::Masters;
use crate::Error;
use crate::error::{Cause, Outage};
use crate::store::key::RedisKey;

/// Makes connections.
#[derive(Clone)]
pub(crate) enum Source {
    Url(Arc<deadpool_redis::Manager>, Arc<str>),
    Server(deadpool_redis::Pool),
    #[cfg(feature = "cluster")]
    Cluster(deadpool_redis::cluster::Pool, Arc<Masters>),
    #[cfg(feature = "sentinel")]
    Sentinel(deadpool_redis::sentinel::Pool),
}

/// A connection that many calls share.
#[derive(Clone)]
pub(crate) enum Connection {
    Server(MultiplexedConnection),
    #[cfg(feature = "cluster")]
    Cluster(deadpool_redis::cluster::ClusterConnection),
}

/// Parses a URL.
fn connection_info(url: &str) -> Result<ConnectionInfo, Error> {
    url.into_connection_info().map_err(|error| {
        // The URL may contain a password, so the text does not repeat it.
        Error::invalid(format!("not a Redis URL (redis://[user:password@]host[:port][/db]): {error}"))
    })
}

/// Makes a client for a separate connection, such as a subscription.
pub(crate) fn subscriber(url: &str) -> Result<Subscriber, Error> {
    let client = Subscriber::open(connection_info(url)?);
    client.map_err(|error| Error::invalid(format!("the client cannot be created: {error}")))
}

impl Source {
    /// Makes connections to one server. They have no timeouts, because the store has its own.
    pub(crate) fn url(url: &str) -> Result<Self, Error> {
        let info = connection_info(url)?;
        let address = info.addr().to_string();
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let manager = deadpool_redis::Manager::new_with_config(info, config)
            .map_err(|error| Error::invalid(format!("the client cannot be created: {error}")))?;
        Ok(Self::Url(Arc::new(manager), address.into()))
    }

    /// Whether the state is spread over several masters.
    pub(in crate::store) fn is_cluster(&self) -> bool {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(..) => true,
            _ => false,
        }
    }

    /// Whether the connection is useless after this outage: it is broken, or it leads to a server that is not (or
    /// no longer) the right one. A connection to a Cluster reconnects to its nodes by itself.
    pub(super) fn is_lost(&self, cause: Cause) -> bool {
        if self.is_cluster() { cause == Cause::Disconnected } else { super::failure::is_outage(cause) }
    }

    /// The hash slot of a key; `None` if one server has all keys.
    #[cfg_attr(not(feature = "cluster"), expect(unused_variables))]
    pub(in crate::store) fn slot(&self, key: impl FnOnce() -> RedisKey) -> Option<u16> {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(..) => Some(super::slots::slot(&key())),
            _ => None,
        }
    }

    /// The number of the master of a slot.
    #[cfg_attr(not(feature = "cluster"), expect(unused_variables))]
    pub(super) fn master(&self, slot: Option<u16>) -> usize {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(_, masters) => slot.map_or(0, |slot| masters.of(slot)),
            _ => 0,
        }
    }

    /// Starts to read the masters of a Cluster again.
    #[cfg_attr(not(feature = "cluster"), expect(unused_variables))]
    pub(super) fn look_for_masters(&self, connection: Connection, runtime: &Handle) {
        #[cfg(feature = "cluster")]
        if let Self::Cluster(_, masters) = self {
            let (masters, mut connection) = (Arc::clone(masters), connection);
            runtime.spawn(async move { masters.refresh(&mut connection).await });
        }
    }

    /// Makes a connection on the current runtime. It never takes an idle connection from a pool, because such a
    /// connection is driven by the runtime that made it.
    pub(crate) async fn connect(&self) -> Result<Connection, Outage> {
        let connected = match self {
            Self::Url(manager, _) => manager.create().await.map(Connection::Server),
            Self::Server(pool) => pool.manager().create().await.map(Connection::Server),
            #[cfg(feature = "cluster")]
            Self::Cluster(pool, masters) => match pool.manager().create().await {
                Ok(connection) => {
                    let mut connection = Connection::Cluster(connection);
                    masters.refresh(&mut connection).await;
                    Ok(connection)
                }
                Err(error) => Err(error),
            },
            #[cfg(feature = "sentinel")]
            Self::Sentinel(pool) => pool.manager().create().await.map(Connection::Server),
        };
        connected.map_err(|error| Outage {
            cause: Cause::Disconnected,
            text: format!("no connection to {self}: {error}").into(),
            source: Some(Arc::new(error)),
        })
    }
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
        match reply? {
            Value::ServerError(error) => Err(error.into()),
            reply => Ok(reply),
        }
    }

    /// Like [`send`](Self::send). Sets `written` to whether anything may have been written. A connection that has
    /// ended fails the command at once, without writing.
    pub(super) async fn send_noting(
        &mut self,
        command: &Cmd,
        written: &mut bool,
    ) -> Result<Value, RedisError> {
        let mut sending = pin!(self.send(command));
        let first = poll_fn(|context| Poll::Ready(sending.as_mut().poll(context))).await;
        *written = !matches!(&first, Poll::Ready(Err(error)) if error.is_io_error());
        match first {
            Poll::Ready(reply) => reply,
            Poll::Pending => sending.await,
        }
    }
}

/// Writes the server that it connects to, without a secret.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Url(_, address) => address,
            Self::Server(_) => "the server of the pool",
            #[cfg(feature = "cluster")]
            Self::Cluster(..) => "the cluster of the pool",
            #[cfg(feature = "sentinel")]
            Self::Sentinel(_) => "the master that Sentinel names",
        })
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}
