//! The pools that connections come from, and the connections: one server, a cluster, or what Sentinel names.

use std::fmt;

pub(crate) use deadpool_redis::redis::Client as Subscriber;
use deadpool_redis::redis::aio::{ConnectionLike, MultiplexedConnection};
use deadpool_redis::redis::{
    AsyncConnectionConfig, Cmd, ConnectionInfo, IntoConnectionInfo, RedisError, Value,
};

use crate::Error;
use crate::error::{Cause, Outage};

/// Where connections are taken from.
#[derive(Clone)]
pub(crate) enum Pool {
    Server(deadpool_redis::Pool),
    #[cfg(feature = "cluster")]
    Cluster(deadpool_redis::cluster::Pool),
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

/// What a URL says.
fn connection_info(url: &str) -> Result<ConnectionInfo, Error> {
    url.into_connection_info().map_err(|error| {
        // The URL may hold a password, so it is not repeated.
        Error::invalid(format!("not a Redis URL (redis://[user:password@]host[:port][/db]): {error}"))
    })
}

/// A client for what needs a connection of its own.
pub(crate) fn client(url: &str) -> Result<Subscriber, Error> {
    let client = Subscriber::open(connection_info(url)?);
    client.map_err(|error| Error::invalid(format!("cannot make a client: {error}")))
}

impl Pool {
    /// A pool for one server. Its connections have no response time-out of their own: the store has one.
    pub(crate) fn from_url(url: &str) -> Result<Self, Error> {
        let info = connection_info(url)?;
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let invalid = |error: &dyn fmt::Display| Error::invalid(format!("cannot make a pool: {error}"));
        let manager =
            deadpool_redis::Manager::new_with_config(info, config).map_err(|error| invalid(&error))?;
        let pool = deadpool_redis::Pool::builder(manager).build().map_err(|error| invalid(&error))?;
        Ok(Self::Server(pool))
    }

    /// How many breakers it takes.
    pub(super) fn breakers(&self) -> usize {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => 64,
            _ => 1,
        }
    }

    /// Whether an outage means that the connection is of no more use: broken, or to a server that is not (or
    /// no longer) the right one. A connection to a Cluster mends its nodes by itself.
    pub(super) fn is_lost(&self, cause: Cause) -> bool {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => cause == Cause::Disconnected,
            _ => super::failure::is_outage(cause),
        }
    }

    /// Takes a connection out of the pool for good.
    pub(crate) async fn take(&self) -> Result<Connection, Outage> {
        match self {
            Self::Server(pool) => {
                pool.get().await.map(deadpool_redis::Connection::take).map(Connection::Server).map_err(outage)
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(pool) => pool
                .get()
                .await
                .map(deadpool_redis::cluster::Connection::take)
                .map(Connection::Cluster)
                .map_err(outage),
            #[cfg(feature = "sentinel")]
            Self::Sentinel(pool) => pool
                .get()
                .await
                .map(deadpool_redis::sentinel::Connection::take)
                .map(Connection::Server)
                .map_err(outage),
        }
    }
}

fn outage(error: deadpool_redis::PoolError) -> Outage {
    Outage {
        cause: Cause::Disconnected,
        text: format!("no connection: {error}").into(),
        source: Some(std::sync::Arc::new(error)),
    }
}

impl Connection {
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
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server(_) => "Server",
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => "Cluster",
            #[cfg(feature = "sentinel")]
            Self::Sentinel(_) => "Sentinel",
        })
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}
