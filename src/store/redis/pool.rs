//! Connections that a user's pool makes.

use std::sync::Arc;

#[cfg(feature = "pools")]
use deadpool::managed::Manager as _;
use futures_util::future::BoxFuture;
use redis::RedisError;

#[cfg(feature = "cluster")]
use super::slots::Masters;
use super::source::Connection;
use crate::store::background::Background;

/// A pool. No idle connection is taken from it, because such a connection is driven by the runtime that made it.
pub(crate) trait Pool: Send + Sync {
    /// Makes a connection on the current runtime.
    fn connect(&self) -> BoxFuture<'_, Result<Connection, RedisError>>;

    /// What its connections lead to.
    fn name(&self) -> &'static str;

    /// The commands that it needs beside those of every store, for the ACL.
    fn more_commands(&self) -> &'static str {
        ""
    }

    /// The masters, if its connections lead to a Cluster. Such a connection reconnects to its nodes by itself.
    #[cfg(feature = "cluster")]
    fn masters(&self) -> Option<&Arc<Masters>> {
        None
    }
}

/// What a [`Pool`] is made of.
pub trait Sealed {
    #[doc(hidden)]
    #[allow(private_interfaces)]
    fn into_pool(self, home: &Background) -> Arc<dyn Pool>;
}

#[cfg(feature = "pools")]
impl Sealed for deadpool_redis::Pool {
    #[allow(private_interfaces)]
    fn into_pool(self, _: &Background) -> Arc<dyn Pool> {
        Arc::new(self)
    }
}

#[cfg(feature = "pools")]
impl Pool for deadpool_redis::Pool {
    fn connect(&self) -> BoxFuture<'_, Result<Connection, RedisError>> {
        Box::pin(async { self.manager().create().await.map(Connection::Server) })
    }

    fn name(&self) -> &'static str {
        "the server of the pool"
    }
}

#[cfg(all(feature = "pools", feature = "sentinel"))]
impl Sealed for deadpool_redis::sentinel::Pool {
    #[allow(private_interfaces)]
    fn into_pool(self, _: &Background) -> Arc<dyn Pool> {
        Arc::new(self)
    }
}

#[cfg(all(feature = "pools", feature = "sentinel"))]
impl Pool for deadpool_redis::sentinel::Pool {
    fn connect(&self) -> BoxFuture<'_, Result<Connection, RedisError>> {
        Box::pin(async { self.manager().create().await.map(Connection::Server) })
    }

    fn name(&self) -> &'static str {
        "the master that Sentinel names"
    }

    fn more_commands(&self) -> &'static str {
        super::source::OF_SENTINELS
    }
}

#[cfg(all(feature = "pools", feature = "cluster"))]
impl Sealed for deadpool_redis::cluster::Pool {
    #[allow(private_interfaces)]
    fn into_pool(self, home: &Background) -> Arc<dyn Pool> {
        Arc::new(OfCluster { pool: self, masters: Arc::new(Masters::new(home)) })
    }
}

#[cfg(all(feature = "pools", feature = "cluster"))]
struct OfCluster {
    pool: deadpool_redis::cluster::Pool,
    masters: Arc<Masters>,
}

#[cfg(all(feature = "pools", feature = "cluster"))]
impl Pool for OfCluster {
    fn connect(&self) -> BoxFuture<'_, Result<Connection, RedisError>> {
        Box::pin(async { self.pool.manager().create().await.map(Connection::Cluster) })
    }

    fn name(&self) -> &'static str {
        "the cluster of the pool"
    }

    fn more_commands(&self) -> &'static str {
        super::source::OF_CLUSTERS
    }

    fn masters(&self) -> Option<&Arc<Masters>> {
        Some(&self.masters)
    }
}
