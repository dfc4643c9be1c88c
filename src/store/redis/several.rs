//! A Cluster by the URLs of some nodes, and a master by the URLs of its Sentinels.

use std::fmt;

use deadpool_redis::redis::ConnectionInfo;

use super::endpoint::{Access, is_tls};
use crate::Error;
use crate::error::Outage;

/// Servers that are one store together.
pub(crate) struct Urls {
    infos: Vec<ConnectionInfo>,
    access: Access,
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

    fn is_tls(&self) -> bool {
        self.infos.iter().any(is_tls)
    }

    /// Whether a server is named by both.
    fn overlap(&self, other: &Self) -> bool {
        self.infos.iter().any(|info| other.infos.iter().any(|another| info.addr() == another.addr()))
    }

    fn addresses(&self) -> String {
        let addresses: Vec<_> = self.infos.iter().map(|info| info.addr().to_string()).collect();
        addresses.join(", ")
    }
}

impl fmt::Debug for Urls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.addresses())
    }
}

#[cfg(feature = "cluster")]
mod cluster {
    use std::fmt;
    use std::sync::Arc;
    use std::time::Duration;

    use deadpool_redis::redis::ConnectionInfo;
    use deadpool_redis::redis::cluster::ClusterClientBuilder;
    use futures_util::StreamExt as _;
    use futures_util::stream::FuturesUnordered;
    use tokio::time::timeout;

    use super::super::endpoint::Endpoint;
    use super::super::slots::{self, Masters, Topology};
    use super::super::source::Connection;
    use super::{Error, Outage, Urls};
    use crate::error::Cause;
    use crate::random;

    /// How long one node alone may take to name the masters. Then the next one is asked as well.
    const PATIENCE: Duration = Duration::from_millis(250);

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
            let ask = async |node: Endpoint| {
                let mut connection = Connection::Server(node.connect().await?);
                slots::ask(&mut connection, &node.host()).await
            };
            let (mut nodes, mut asked) = (nodes.into_iter(), FuturesUnordered::new());
            let mut outage = None;
            loop {
                match nodes.next() {
                    Some(node) => asked.push(ask(node)),
                    None if asked.is_empty() => break,
                    None => {}
                }
                match timeout(PATIENCE, asked.next()).await {
                    Ok(Some(Ok(told))) => return Ok(told),
                    Ok(Some(Err(failed))) => outage = Some(failed),
                    Ok(None) | Err(_) => {}
                }
            }
            Err(outage.unwrap_or_else(|| self.unanswered()))
        }

        pub(in crate::store::redis) fn unanswered(&self) -> Outage {
            let text = format!("no connection to {self}: no node names the masters").into();
            Outage { cause: Cause::Disconnected, text, source: None }
        }
    }

    impl fmt::Display for Nodes {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "the cluster of {}", self.urls.addresses())
        }
    }
}

#[cfg(feature = "sentinel")]
mod sentinel {
    use std::fmt;

    use deadpool_redis::redis::aio::MultiplexedConnection;
    use deadpool_redis::redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
    use deadpool_redis::redis::{Client, ConnectionInfo, RedisError, TlsMode};

    use super::super::{endpoint, failure};
    use super::{Error, Outage, Urls};
    use crate::store::credentials::Credentials;

    /// The master that Sentinels name.
    pub(crate) struct Sentinels {
        urls: Urls,
        master: String,
        #[cfg(feature = "rustls")]
        certificates: Option<deadpool_redis::redis::TlsCertificates>,
    }

    // Without the certificates, which older versions of redis-rs do not print.
    impl fmt::Debug for Sentinels {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Sentinels")
                .field("urls", &self.urls)
                .field("master", &self.master)
                .finish_non_exhaustive()
        }
    }

    impl Sentinels {
        pub(crate) fn new(urls: Urls, master: &str) -> Result<Self, Error> {
            if master.is_empty() {
                return Err(Error::invalid("the name of the master must not be empty"));
            }
            agree(&urls.infos)?;
            #[cfg(all(feature = "native-tls", not(feature = "rustls")))]
            if urls.access.tls.is_some() {
                return Err(Error::invalid(
                    "`tls` is not supported for Sentinel with `native-tls`: enable the feature `rustls`",
                ));
            }
            let sentinels = Self {
                master: master.into(),
                #[cfg(feature = "rustls")]
                certificates: match urls.is_tls() {
                    true => Some(urls.access.tls.clone().unwrap_or_default().certificates()?),
                    false => None,
                },
                urls,
            };
            let built = sentinels.client(None);
            built.map(|_| sentinels).map_err(|error| Error::invalid(format!("not Sentinels: {error}")))
        }

        fn client(&self, credentials: Option<Credentials>) -> Result<SentinelClient, RedisError> {
            let addresses = self.urls.infos.iter().map(|info| info.addr().clone());
            let mut builder =
                SentinelClientBuilder::new(addresses, &self.master, SentinelServerType::Master)?;
            if self.urls.is_tls() {
                builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
            }
            #[cfg(feature = "rustls")]
            if let Some(certificates) = &self.certificates {
                builder = builder
                    .set_client_to_redis_certificates(certificates.clone())
                    .set_client_to_sentinel_certificates(certificates.clone());
            }
            // Sentinels have no databases: that of the URL is the master's.
            if let Some(info) = self.urls.infos.first() {
                let settings = info.redis_settings();
                builder = builder.set_client_to_redis_db(settings.db());
                if let Some(username) = settings.username() {
                    builder = builder.set_client_to_sentinel_username(username);
                }
                if let Some(password) = settings.password() {
                    builder = builder.set_client_to_sentinel_password(password);
                }
            }
            if let Some(Credentials { username, password }) = credentials {
                builder = builder.set_client_to_redis_password(password);
                if let Some(username) = username {
                    builder = builder.set_client_to_redis_username(username);
                }
            }
            builder.build()
        }

        /// Asks the Sentinels for the master.
        pub(in crate::store::redis) async fn master(&self) -> Result<Client, Outage> {
            let failed = |error| failure::no_connection(self, error);
            if self.urls.is_tls() {
                endpoint::prepare_tls();
            }
            let mut client = self.client(self.urls.access.credentials().await?).map_err(failed)?;
            client.async_get_client().await.map_err(failed)
        }

        pub(in crate::store::redis) async fn connect(&self) -> Result<MultiplexedConnection, Outage> {
            let master = self.master().await?;
            let connected = master.get_multiplexed_async_connection_with_config(&endpoint::untimed()).await;
            connected.map_err(|error| failure::no_connection(self, error))
        }

        /// Whether both are certainly the same master and database.
        pub(in crate::store::redis) fn is_same(&self, other: &Self) -> bool {
            let same = self.master == other.master && self.database() == other.database();
            same && self.urls.overlap(&other.urls)
        }

        pub(in crate::store::redis) fn database(&self) -> i64 {
            self.urls.infos.first().map_or(0, |info| info.redis_settings().db())
        }
    }

    /// Checks that all URLs have the same user, password and database, since the client library takes one of each.
    fn agree(infos: &[ConnectionInfo]) -> Result<(), Error> {
        let [first, others @ ..] = infos else { return Ok(()) };
        for other in others {
            let (one, two) = (first.redis_settings(), other.redis_settings());
            let settings = [
                ("user", one.username() != two.username()),
                ("password", one.password() != two.password()),
                ("database", one.db() != two.db()),
            ];
            let differ: Vec<_> =
                settings.into_iter().filter_map(|(what, differs)| differs.then_some(what)).collect();
            if !differ.is_empty() {
                let (what, one, two) = (differ.join(" and "), first.addr(), other.addr());
                let text =
                    format!("the URLs of Sentinel must have the same {what}, but {one} and {two} differ");
                return Err(Error::invalid(text));
            }
        }
        Ok(())
    }

    impl fmt::Display for Sentinels {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "the master {:?} of {}", self.master, self.urls.addresses())
        }
    }
}

#[cfg(feature = "cluster")]
pub(crate) use self::cluster::Nodes;
#[cfg(feature = "sentinel")]
pub(crate) use self::sentinel::Sentinels;
