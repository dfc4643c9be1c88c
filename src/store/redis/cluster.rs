//! A Cluster from the URLs of some nodes: finds its masters, and connects to them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::ConnectionInfo;
use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClientBuilder;
use tokio::time::timeout;

use crate::clock;
use crate::error::Error;
use crate::error::reasons::Outage;
use crate::store::redis::connection::Connection;
use crate::store::redis::endpoint::{Access, Endpoint};
use crate::store::redis::errors::disconnected;
use crate::store::redis::nodes::{Urls, ask_in_turn};
use crate::store::redis::slots;
use crate::store::redis::slots::{Masters, Topology};

pub(crate) struct Cluster {
    pub(super) urls: Urls,
    /// How long all nodes together may take to report the masters: as long as a caller waits. A longer look-up would
    /// delay the next one.
    longest: Duration,
    pub(super) masters: Arc<Masters>,
}

impl Cluster {
    pub(crate) fn new(
        urls: impl IntoIterator<Item = impl AsRef<str>>,
        access: &Access,
        longest: Duration,
        masters: Arc<Masters>,
    ) -> Result<Arc<Self>, Error> {
        let urls = Urls::new("a Cluster", urls, access)?;
        // Checks that the URLs fit together.
        let built = ClusterClientBuilder::new(urls.infos.clone()).build();
        built.map_err(|error| Error::invalid(format!("not a Cluster: {error}")))?;
        Ok(Arc::new(Self {
            urls,
            longest,
            masters,
        }))
    }

    fn endpoint(&self, info: &ConnectionInfo) -> Endpoint {
        Endpoint {
            info: info.clone(),
            access: self.urls.access.clone(),
        }
    }

    /// A node of the Cluster, by `host:port`.
    pub(super) fn node(&self, address: &str) -> Endpoint {
        // There is at least one URL.
        self.endpoint(&self.urls.infos[0]).at(address)
    }

    /// Connects to a master. If its address is not known, looks for the masters first.
    pub(super) async fn connect(
        self: &Arc<Self>,
        number: usize,
    ) -> Result<MultiplexedConnection, Outage> {
        let masters = &self.masters;
        if masters.address(number).is_none() && !masters.are_denied() {
            self.look_for_masters().await;
        }
        match masters.address(number) {
            Some(address) => self.node(&address).connect().await,
            None => Err(masters.outage().unwrap_or_else(|| self.unanswered())),
        }
    }

    /// Reads the masters of the Cluster again, or waits until another task has done so. See [`Masters::refresh`].
    pub(super) fn look_for_masters(self: &Arc<Self>) -> impl Future<Output = ()> + use<> + Send {
        let cluster = Arc::clone(self);
        self.masters.refresh(async move {
            let answer = timeout(cluster.longest, cluster.topology()).await;
            answer.unwrap_or_else(|_| Err(cluster.unanswered()))
        })
    }

    /// Queries one node after the other. It starts at a random node: a node may be cut off from the others without
    /// knowing it.
    async fn topology(&self) -> Result<Topology, Outage> {
        let known = self
            .masters
            .addresses()
            .into_iter()
            .map(|address| self.node(&address));
        let named = self.urls.infos.iter().map(|info| self.endpoint(info));
        let mut nodes: Vec<_> = known.chain(named).collect();
        let first = clock::bits() as usize % nodes.len();
        nodes.rotate_left(first);
        let ask = |node: Endpoint| async move {
            let mut connection = Connection::Server(node.connect().await?);
            slots::ask(&mut connection, &node.host()).await
        };
        let answer = ask_in_turn(nodes.into_iter(), true, ask).await;
        answer.map_err(|outage| outage.unwrap_or_else(|| self.unanswered()))
    }

    fn unanswered(&self) -> Outage {
        disconnected(format!(
            "no connection to {self}: no node names the masters"
        ))
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the cluster of {}", self.urls.addresses())
    }
}
