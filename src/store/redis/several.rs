//! Servers that are one store together: a Cluster by the URLs of some nodes, or the Sentinels of a master.

use std::fmt;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::ConnectionInfo;
use tokio::time::timeout;

#[cfg(feature = "cluster")]
use super::endpoint::is_tls;
use super::endpoint::{Access, Endpoint};
use crate::Error;
use crate::error::Outage;

/// How long one server alone may take to answer. Then the next one is asked as well.
const PATIENCE: Duration = Duration::from_millis(250);

/// Servers that are one store together.
pub(crate) struct Urls {
    pub(super) infos: Vec<ConnectionInfo>,
    pub(super) access: Access,
}

impl Urls {
    pub(crate) fn new(
        what: &str,
        urls: impl IntoIterator<Item = impl AsRef<str>>,
        access: &Access,
    ) -> Result<Self, Error> {
        let infos = urls.into_iter().map(|url| access.info(url.as_ref())).collect::<Result<Vec<_>, _>>()?;
        if infos.is_empty() {
            return Err(Error::invalid(format!("{what} needs the URL of at least one server, got none")));
        }
        Ok(Self { infos, access: access.clone() })
    }

    #[cfg(feature = "cluster")]
    fn is_tls(&self) -> bool {
        self.infos.iter().any(is_tls)
    }

    /// Whether a server is named by both.
    pub(super) fn overlap(&self, other: &Self) -> bool {
        self.infos.iter().any(|info| other.infos.iter().any(|another| info.addr() == another.addr()))
    }

    pub(super) fn addresses(&self) -> String {
        let addresses: Vec<_> = self.infos.iter().map(|info| info.addr().to_string()).collect();
        addresses.join(", ")
    }
}

impl fmt::Debug for Urls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.addresses())
    }
}

/// Asks one server after the other until one answers. Fails with the last outage, if there was any. `waits`: until all have
/// answered; otherwise the last one gets no more time than the others.
pub(super) async fn ask_in_turn<T, A: Future<Output = Result<T, Outage>>>(
    mut servers: impl Iterator<Item = Endpoint>,
    waits: bool,
    ask: impl Fn(Endpoint) -> A,
) -> Result<T, Option<Outage>> {
    let (mut asked, mut outage) = (FuturesUnordered::new(), None);
    loop {
        match servers.next() {
            Some(server) => asked.push(ask(server)),
            None if asked.is_empty() || !waits => return Err(outage),
            None => {}
        }
        match timeout(PATIENCE, asked.next()).await {
            Ok(Some(Ok(told))) => return Ok(told),
            Ok(Some(Err(failed))) => outage = Some(failed),
            Ok(None) | Err(_) => {}
        }
    }
}

#[cfg(feature = "cluster")]
mod cluster {
    use std::fmt;
    use std::sync::Arc;
    use std::time::Duration;

    use redis::ConnectionInfo;
    use redis::cluster::ClusterClientBuilder;
    use tokio::time::timeout;

    use super::super::endpoint::Endpoint;
    use super::super::failure::disconnected;
    use super::super::slots::{self, Masters, Topology};
    use super::super::source::Connection;
    use super::{Error, Outage, Urls, ask_in_turn};
    use crate::random;

    /// A Cluster.
    #[derive(Debug)]
    pub(crate) struct Nodes {
        urls: Urls,
        /// How long all nodes together may take to name the masters: as long as a caller waits. A longer look-up would hold
        /// up the next one.
        longest: Duration,
    }

    impl Nodes {
        pub(crate) fn new(urls: Urls, longest: Duration) -> Result<Self, Error> {
            // Checks that they go together.
            let built = ClusterClientBuilder::new(urls.infos.clone()).build();
            built
                .map(|_| Self { urls, longest })
                .map_err(|error| Error::invalid(format!("not a Cluster: {error}")))
        }

        pub(in crate::store::redis) fn is_tls(&self) -> bool {
            self.urls.is_tls()
        }

        /// Whether both are certainly the same Cluster: a node is in one.
        pub(in crate::store::redis) fn is_same(&self, other: &Self) -> bool {
            self.urls.overlap(&other.urls)
        }

        /// Whether a server is one of the nodes that the URLs name.
        pub(in crate::store::redis) fn names(&self, server: &Endpoint) -> bool {
            self.urls.infos.iter().any(|info| info.addr() == server.info.addr())
        }

        /// The nodes that the URLs name.
        fn named(&self) -> impl Iterator<Item = Endpoint> {
            self.urls.infos.iter().map(|info| self.endpoint(info))
        }

        pub(in crate::store::redis) fn first(&self) -> Endpoint {
            // There is at least one.
            self.endpoint(&self.urls.infos[0])
        }

        fn endpoint(&self, info: &ConnectionInfo) -> Endpoint {
            Endpoint { info: info.clone(), access: self.urls.access.clone() }
        }

        /// A node of the Cluster, by `host:port`.
        pub(in crate::store::redis) fn node(&self, address: &str) -> Endpoint {
            self.first().at(address)
        }

        /// Reads the masters of the Cluster again, or waits until another task has done so. See [`Masters::refresh`].
        pub(in crate::store::redis) fn look_for(
            self: &Arc<Self>,
            masters: &Arc<Masters>,
        ) -> impl Future<Output = ()> + use<> + Send {
            let (nodes, known) = (Arc::clone(self), Arc::clone(masters));
            masters.refresh(async move {
                timeout(nodes.longest, nodes.topology(&known))
                    .await
                    .unwrap_or_else(|_| Err(nodes.unanswered()))
            })
        }

        /// Asks one node after the other. It begins anywhere: one may be cut off from the others, and not know it.
        async fn topology(&self, masters: &Masters) -> Result<Topology, Outage> {
            let known = masters.addresses();
            let mut nodes: Vec<_> =
                known.iter().map(|address| self.node(address)).chain(self.named()).collect();
            let first = random::bits() as usize % nodes.len();
            nodes.rotate_left(first);
            let ask = |node: Endpoint| async move {
                let mut connection = Connection::Server(node.connect().await?);
                slots::ask(&mut connection, &node.host()).await
            };
            let asked = ask_in_turn(nodes.into_iter(), true, ask).await;
            asked.map_err(|outage| outage.unwrap_or_else(|| self.unanswered()))
        }

        pub(in crate::store::redis) fn unanswered(&self) -> Outage {
            disconnected(format!("no connection to {self}: no node names the masters"))
        }
    }

    impl fmt::Display for Nodes {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "the cluster of {}", self.urls.addresses())
        }
    }
}

#[cfg(feature = "cluster")]
pub(crate) use self::cluster::Nodes;
