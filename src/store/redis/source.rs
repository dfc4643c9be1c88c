//! The servers of a store: one server, a Cluster, or the master that Sentinels report.

use std::fmt;
use std::sync::Arc;

use tokio::time::timeout;

use crate::error::Error;
use crate::error::reasons::{Cause, Outage};
#[cfg(feature = "cluster")]
use crate::store::redis::cluster::Cluster;
use crate::store::redis::connection::{Connection, NODE_TIMEOUT};
#[cfg(feature = "cluster")]
use crate::store::redis::endpoint::is_tls;
use crate::store::redis::endpoint::{Access, Endpoint, prepare_tls};
use crate::store::redis::errors::connecting::no_connection;
use crate::store::redis::errors::is_outage;
use crate::store::redis::names::RedisKey;
#[cfg(feature = "cluster")]
use crate::store::redis::pool::OF_CLUSTERS;
#[cfg(feature = "sentinel")]
use crate::store::redis::pool::OF_SENTINELS;
use crate::store::redis::pool::Pool;
#[cfg(feature = "sentinel")]
use crate::store::redis::sentinel::Sentinels;
use crate::store::redis::slots::{Masters, Topology};
use crate::store::redis::{errors, slots};

/// Makes connections.
#[derive(Clone)]
pub(crate) enum Source {
    Url(Arc<Endpoint>),
    /// Connects as a user's pool does.
    #[cfg_attr(not(feature = "pools"), allow(dead_code))]
    Pool(Arc<Pool>),
    /// All masters of a Cluster, or one by its number.
    #[cfg(feature = "cluster")]
    Cluster(Arc<Cluster>, Option<usize>),
    #[cfg(feature = "sentinel")]
    Sentinel(Arc<Sentinels>),
}

impl Source {
    /// Makes connections to one server.
    pub(crate) fn url(url: &str, access: &Access) -> Result<Self, Error> {
        Ok(Self::Url(Arc::new(Endpoint::new(url, access)?)))
    }

    pub(in crate::store) fn masters(&self) -> Option<&Arc<Masters>> {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster, _) => Some(&cluster.masters),
            Self::Pool(pool) => pool.masters.as_ref(),
            _ => None,
        }
    }

    pub(in crate::store) fn is_pool(&self) -> bool {
        matches!(self, Self::Pool(_))
    }

    /// Whether a connection leads to several masters, and reconnects to them by itself.
    pub(in crate::store) fn is_pool_of_cluster(&self) -> bool {
        self.is_pool() && self.masters().is_some()
    }

    /// Whether both are certainly the same server and database, or the same Cluster or a node of it.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Url(one), Self::Url(other)) => {
                one.address() == other.address() && one.database() == other.database()
            }
            #[cfg(feature = "cluster")]
            (Self::Cluster(one, _), Self::Cluster(other, _)) => one.urls.overlap(&other.urls.infos),
            #[cfg(feature = "sentinel")]
            (Self::Sentinel(one), Self::Sentinel(other)) => one.is_same(other),
            #[cfg(feature = "cluster")]
            (Self::Url(server), Self::Cluster(cluster, _))
            | (Self::Cluster(cluster, _), Self::Url(server)) => {
                cluster.urls.overlap(std::slice::from_ref(&server.info))
            }
            _ => false,
        }
    }

    /// Returns the source for the calls of one master: it connects to that master if its address is known.
    #[cfg_attr(not(feature = "cluster"), expect(unused_variables))]
    pub(super) fn to_master(&self, number: usize) -> Self {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster, _) => Self::Cluster(Arc::clone(cluster), Some(number)),
            source => source.clone(),
        }
    }

    /// Returns the number of the master at an address, to which another master has redirected a call.
    pub(super) fn redirected_to(&self, address: &str) -> Option<usize> {
        self.masters()
            .filter(|_| !self.is_pool())?
            .number_of(address)
    }

    /// Returns the address of a master, for connections that lead to all of them.
    pub(super) fn address_in_pool(&self, number: usize) -> Option<String> {
        self.masters().filter(|_| self.is_pool())?.address(number)
    }

    /// Returns the numbers of the masters to which calls are sent.
    pub(super) fn numbers(&self) -> Vec<usize> {
        if self.is_pool_of_cluster() {
            vec![0]
        } else {
            self.all_masters()
        }
    }

    /// Returns the numbers of all masters that have slots; 0 if none is known.
    pub(super) fn all_masters(&self) -> Vec<usize> {
        let known: Vec<_> = self
            .masters()
            .into_iter()
            .flat_map(|masters| masters.numbers())
            .collect();
        if known.is_empty() { vec![0] } else { known }
    }

    /// Whether a master still has slots.
    pub(super) fn is_current(&self, number: usize) -> bool {
        self.masters()
            .is_none_or(|masters| masters.is_current(number))
    }

    /// Whether the connection is useless after this outage: it is broken, or it leads to a server that is not (or no
    /// longer) the right one. A connection of a pool for a Cluster reconnects to its nodes by itself.
    pub(super) fn is_lost(&self, cause: Cause) -> bool {
        if self.is_pool_of_cluster() {
            cause == Cause::Disconnected
        } else {
            is_outage(cause)
        }
    }

    /// Returns the hash slot of a key; `None` if one server has all keys.
    pub(in crate::store) fn slot(&self, key: impl FnOnce() -> RedisKey) -> Option<u16> {
        self.masters().map(|_| slots::slot(&key()))
    }

    /// Returns the number of the master of a slot.
    pub(super) fn master(&self, slot: Option<u16>) -> usize {
        self.masters()
            .zip(slot)
            .map_or(0, |(masters, slot)| masters.of(slot))
    }

    /// Starts to read the masters of a Cluster again. `connection`: one that may still work.
    pub(super) fn look_for_masters(&self, connection: Option<Connection>) {
        match (self, connection) {
            #[cfg(feature = "cluster")]
            (Self::Cluster(cluster, _), _) if cluster.masters.is_due() => {
                drop(cluster.look_for_masters())
            }
            (Self::Pool(pool), Some(connection)) => {
                if let Some(masters) = pool.masters.as_ref().filter(|masters| masters.is_due()) {
                    drop(masters.refresh(read_masters(connection)));
                }
            }
            _ => {}
        }
    }

    /// Ends the task that follows the Sentinels. It starts again with the next connection.
    pub(super) fn stop(&self) {
        #[cfg(feature = "sentinel")]
        if let Self::Sentinel(sentinels) = self {
            sentinels.stop();
        }
    }

    /// Returns the commands that it needs in addition to those of every store, for the ACL.
    pub(in crate::store) fn more_commands(&self) -> &'static str {
        match self {
            Self::Url(endpoint) if endpoint.database() != 0 => " +select",
            #[cfg(feature = "cluster")]
            Self::Cluster(..) => OF_CLUSTERS,
            #[cfg(feature = "sentinel")]
            Self::Sentinel(..) => OF_SENTINELS,
            Self::Pool(pool) => pool.more_commands,
            _ => "",
        }
    }

    /// Returns the possible reason if connecting takes too long.
    pub(super) fn hint(&self) -> &'static str {
        match self {
            // A server without TLS waits for the end of a line.
            Self::Url(endpoint) if endpoint.is_tls() => SPEAKS_TLS,
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster, _) if cluster.urls.infos.iter().any(is_tls) => SPEAKS_TLS,
            _ => "",
        }
    }

    /// Makes a connection on the current runtime.
    pub(crate) async fn connect(&self) -> Result<Connection, Outage> {
        match self {
            Self::Url(endpoint) => endpoint.connect().await.map(Connection::Server),
            Self::Pool(pool) => {
                prepare_tls();
                let connection = (pool.connect)()
                    .await
                    .map_err(|error| no_connection(self, error))?;
                if let Some(masters) = &pool.masters {
                    masters.refresh(read_masters(connection.clone())).await;
                }
                Ok(connection)
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster, number) => cluster
                .connect(number.unwrap_or(0))
                .await
                .map(Connection::Server),
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinels) => sentinels.connect().await.map(Connection::Server),
        }
    }
}

const SPEAKS_TLS: &str = "; does the server speak TLS on this port?";

/// Reads the masters of a Cluster.
async fn read_masters(mut connection: Connection) -> Result<Topology, Outage> {
    timeout(NODE_TIMEOUT, slots::ask(&mut connection, ""))
        .await
        .unwrap_or_else(|_| {
            Err(errors::of(
                Cause::TimedOut,
                "the cluster does not name its masters",
            ))
        })
}

/// Writes the server that it connects to, without passwords.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(endpoint) => f.write_str(&endpoint.address()),
            Self::Pool(pool) => f.write_str(pool.name),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster, number) => {
                match number.and_then(|number| cluster.masters.address(number)) {
                    Some(address) => f.write_str(&address),
                    None => cluster.fmt(f),
                }
            }
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinels) => sentinels.fmt(f),
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(all(test, feature = "cluster", feature = "sentinel"))]
mod tests {
    use crate::store::Store;

    #[tokio::test]
    async fn what_is_certainly_the_same_place() {
        let one = |url: &str| Store::redis(url).unwrap();
        let cluster = |hosts: [&str; 2]| {
            Store::builder()
                .cluster(hosts.map(|host| format!("redis://{host}/")))
                .unwrap()
        };
        let sentinel = |hosts: [&str; 2], master: &str, database: u8| {
            let urls = hosts.map(|host| format!("redis://{host}/{database}"));
            Store::builder().sentinel(urls, master).unwrap()
        };
        let first = sentinel(["a", "b"], "first", 1);
        for (this, other, expected) in [
            (&one("redis://a/1"), one("redis://a:6379/1"), true),
            (&one("redis://a/1"), one("redis://a/2"), false),
            (&one("redis://a/1"), one("redis://a:6380/1"), false),
            (&cluster(["a", "b"]), cluster(["b", "c"]), true),
            (&cluster(["a", "b"]), cluster(["c", "d"]), false),
            (&cluster(["a", "b"]), one("redis://a"), true),
            (&cluster(["a", "b"]), one("redis://c"), false),
            (&first, sentinel(["b", "c"], "first", 1), true),
            (&first, sentinel(["b", "c"], "second", 1), false),
            (&first, sentinel(["b", "c"], "first", 2), false),
            (&first, sentinel(["c", "d"], "first", 1), false),
            (&first, cluster(["a", "b"]), false),
        ] {
            assert_eq!(
                [this.is_same(&other), other.is_same(this)],
                [expected; 2],
                "{this:?} {other:?}"
            );
        }
    }
}
