//! Connections that a user's pool makes.

use std::sync::Arc;

#[cfg(feature = "pools")]
use deadpool::managed::{self, Manager};
use futures_util::future::BoxFuture;
use redis::RedisError;

use crate::store::background::Background;
use crate::store::redis::connection::Connection;
use crate::store::redis::slots::Masters;

/// The commands that a store on a Cluster, or with Sentinels, needs in addition to those of every store.
#[cfg(feature = "cluster")]
pub(super) const OF_CLUSTERS: &str = " +cluster|slots +asking +ssubscribe +spublish";
#[cfg(feature = "sentinel")]
pub(super) const OF_SENTINELS: &str = " +role +select";

/// A pool. No idle connection is taken from it, because such a connection is driven by the runtime that made it.
pub(crate) struct Pool {
    /// Makes a connection on the current runtime.
    pub(super) connect:
        Box<dyn Fn() -> BoxFuture<'static, Result<Connection, RedisError>> + Send + Sync>,
    /// The description of the pool in errors.
    pub(super) name: &'static str,
    /// The commands that it needs in addition to those of every store, for the ACL.
    pub(super) more_commands: &'static str,
    /// The masters, if its connections lead to a Cluster. Such a connection reconnects to its nodes by itself.
    pub(super) masters: Option<Arc<Masters>>,
}

/// The conversion of a user's pool into a [`Pool`].
pub trait Sealed {
    #[doc(hidden)]
    #[allow(private_interfaces)]
    fn into_pool(self, home: &Background) -> Arc<Pool>;
}

#[cfg(feature = "pools")]
impl Pool {
    fn new<M, W>(
        pool: managed::Pool<M, W>,
        wrap: fn(M::Type) -> Connection,
        name: &'static str,
    ) -> Self
    where
        M: Manager<Error = RedisError> + 'static,
        W: From<managed::Object<M>> + 'static,
    {
        let connect = move || -> BoxFuture<'static, _> {
            let pool = pool.clone();
            Box::pin(async move { pool.manager().create().await.map(wrap) })
        };
        Self {
            connect: Box::new(connect),
            name,
            more_commands: "",
            masters: None,
        }
    }
}

#[cfg(feature = "pools")]
impl Sealed for deadpool_redis::Pool {
    #[allow(private_interfaces)]
    fn into_pool(self, _: &Background) -> Arc<Pool> {
        Arc::new(Pool::new(
            self,
            Connection::Server,
            "the server of the pool",
        ))
    }
}

#[cfg(all(feature = "pools", feature = "sentinel"))]
impl Sealed for deadpool_redis::sentinel::Pool {
    #[allow(private_interfaces)]
    fn into_pool(self, _: &Background) -> Arc<Pool> {
        let pool = Pool::new(self, Connection::Server, "the master that Sentinel names");
        Arc::new(Pool {
            more_commands: OF_SENTINELS,
            ..pool
        })
    }
}

#[cfg(all(feature = "pools", feature = "cluster"))]
impl Sealed for deadpool_redis::cluster::Pool {
    #[allow(private_interfaces)]
    fn into_pool(self, home: &Background) -> Arc<Pool> {
        let pool = Pool::new(self, Connection::Cluster, "the cluster of the pool");
        let masters = Some(Arc::new(Masters::new(home)));
        Arc::new(Pool {
            more_commands: OF_CLUSTERS,
            masters,
            ..pool
        })
    }
}
