//! A Cluster by the URLs of some nodes, and a master by the URLs of its Sentinels.

use std::fmt;

use deadpool_redis::redis::ConnectionInfo;
#[cfg(feature = "rustls")]
use deadpool_redis::redis::TlsCertificates;

use super::endpoint::{Access, is_tls, prepare_tls};
use crate::Error;
use crate::error::Outage;
use crate::store::credentials::Credentials;

/// Servers that are one store together.
pub(crate) struct Urls {
    infos: Vec<ConnectionInfo>,
    access: Access,
    /// For all servers, also those that are not in the list.
    #[cfg(feature = "rustls")]
    certificates: Option<TlsCertificates>,
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
        #[cfg(all(feature = "native-tls", not(feature = "rustls")))]
        if access.tls.is_some() {
            return Err(Error::invalid(format!(
                "`tls` is not supported for {what} with `native-tls`: enable the feature `rustls`"
            )));
        }
        Ok(Self {
            #[cfg(feature = "rustls")]
            certificates: match infos.iter().any(is_tls) {
                true => Some(access.tls.clone().unwrap_or_default().certificates()?),
                false => None,
            },
            infos,
            access: access.clone(),
        })
    }

    fn addresses(&self) -> String {
        let addresses: Vec<_> = self.infos.iter().map(|info| info.addr().to_string()).collect();
        addresses.join(", ")
    }

    /// The credentials for a new connection, after what a connection over TLS needs.
    async fn prepare(&self) -> Result<Option<Credentials>, Outage> {
        if self.infos.iter().any(is_tls) {
            prepare_tls();
        }
        self.access.credentials().await
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
    use std::time::Duration;

    use deadpool_redis::cluster::ClusterConnection;
    use deadpool_redis::redis::RedisError;
    use deadpool_redis::redis::cluster::{ClusterClient, ClusterClientBuilder};
    use tokio::time::timeout;

    use super::super::endpoint::Endpoint;
    use super::super::failure;
    use super::super::slots::{self, Masters};
    use super::super::source::Connection;
    use super::{Credentials, Error, Outage, Urls, is_tls};

    /// The time-out of the connection for one reply. The store has its own, which is at most this.
    const LONGEST: Duration = Duration::from_secs(60);

    /// How long one node may take to name the masters.
    const PATIENCE: Duration = Duration::from_secs(1);

    /// The pauses before a call is sent again because of a redirection or a lost node, ms.
    const PAUSES: [u64; 2] = [10, 300];

    /// A Cluster.
    #[derive(Debug)]
    pub(crate) struct Nodes(Urls);

    impl Nodes {
        pub(crate) fn new(urls: Urls) -> Result<Self, Error> {
            let nodes = Self(urls);
            let built = nodes.client(None);
            built.map(|_| nodes).map_err(|error| Error::invalid(format!("not a Cluster: {error}")))
        }

        fn client(&self, credentials: Option<Credentials>) -> Result<ClusterClient, RedisError> {
            let mut builder = ClusterClientBuilder::new(self.0.infos.clone())
                .response_timeout(LONGEST)
                .min_retry_wait(PAUSES[0])
                .max_retry_wait(PAUSES[1]);
            #[cfg(feature = "rustls")]
            if let Some(certificates) = &self.0.certificates {
                builder = builder.certs(certificates.clone());
            }
            if let Some(Credentials { username, password }) = credentials {
                builder = builder.password(password);
                if let Some(username) = username {
                    builder = builder.username(username);
                }
            }
            builder.build()
        }

        pub(in crate::store::redis) async fn connect(&self) -> Result<ClusterConnection, Outage> {
            let failed = |error| failure::no_connection(self, error);
            let client = self.client(self.0.prepare().await?).map_err(failed)?;
            client.get_async_connection().await.map_err(failed)
        }

        pub(in crate::store::redis) fn is_tls(&self) -> bool {
            self.0.infos.iter().any(is_tls)
        }

        /// The nodes that the URLs name.
        pub(in crate::store::redis) fn named(&self) -> impl Iterator<Item = Endpoint> {
            let access = &self.0.access;
            self.0.infos.iter().map(|info| Endpoint { info: info.clone(), access: access.clone() })
        }

        pub(in crate::store::redis) fn first(&self) -> Endpoint {
            // There is at least one.
            Endpoint { info: self.0.infos[0].clone(), access: self.0.access.clone() }
        }

        /// A node of the Cluster, by `host:port`.
        pub(in crate::store::redis) fn node(&self, address: &str) -> Endpoint {
            self.first().at(address)
        }

        /// Reads the masters of the Cluster again, from the first node that answers: first from those that are known.
        /// Returns why the last of them did not answer, if none does.
        pub(in crate::store::redis) async fn look_for(&self, masters: &Masters) -> Option<Outage> {
            let ask = async |node: Endpoint| {
                let mut connection = Connection::Server(node.connect().await?);
                let told = slots::ask(&mut connection).await.map_err(failure::outage)?;
                Ok::<_, Outage>((told, node.host()))
            };
            let mut outage = None;
            let answer = async {
                let known = masters.addresses();
                for node in known.iter().map(|address| self.node(address)).chain(self.named()) {
                    match timeout(PATIENCE, ask(node)).await {
                        Ok(Ok(told)) => return Some(told),
                        Ok(Err(failed)) => outage = Some(failed),
                        Err(_) => {}
                    }
                }
                None
            };
            masters.refresh(answer).await;
            outage
        }
    }

    impl fmt::Display for Nodes {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "the cluster of {}", self.0.addresses())
        }
    }
}

#[cfg(feature = "sentinel")]
mod sentinel {
    use std::fmt;

    use deadpool_redis::redis::aio::MultiplexedConnection;
    use deadpool_redis::redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
    use deadpool_redis::redis::{Client, RedisError, TlsMode};

    use super::super::{endpoint, failure};
    use super::{Credentials, Error, Outage, Urls, is_tls};

    /// The master that Sentinels name.
    #[derive(Debug)]
    pub(crate) struct Sentinels {
        urls: Urls,
        master: String,
    }

    impl Sentinels {
        pub(crate) fn new(urls: Urls, master: &str) -> Result<Self, Error> {
            if master.is_empty() {
                return Err(Error::invalid("the name of the master must not be empty"));
            }
            let sentinels = Self { urls, master: master.into() };
            let built = sentinels.client(None);
            built.map(|_| sentinels).map_err(|error| Error::invalid(format!("not Sentinels: {error}")))
        }

        fn client(&self, credentials: Option<Credentials>) -> Result<SentinelClient, RedisError> {
            let addresses = self.urls.infos.iter().map(|info| info.addr().clone());
            let mut builder =
                SentinelClientBuilder::new(addresses, &self.master, SentinelServerType::Master)?;
            if self.urls.infos.iter().any(is_tls) {
                builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
            }
            #[cfg(feature = "rustls")]
            if let Some(certificates) = &self.urls.certificates {
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
            let mut client = self.client(self.urls.prepare().await?).map_err(failed)?;
            client.async_get_client().await.map_err(failed)
        }

        pub(in crate::store::redis) async fn connect(&self) -> Result<MultiplexedConnection, Outage> {
            let master = self.master().await?;
            let connected = master.get_multiplexed_async_connection_with_config(&endpoint::untimed()).await;
            connected.map_err(|error| failure::no_connection(self, error))
        }

        pub(in crate::store::redis) fn database(&self) -> i64 {
            self.urls.infos.first().map_or(0, |info| info.redis_settings().db())
        }
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
