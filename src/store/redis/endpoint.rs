//! One server from a URL: the settings of its connections, and how to connect to it.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "cluster")]
use redis::PushInfo;
use redis::aio::{MultiplexedConnection, PubSub};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    ProtocolVersion, ToRedisArgs,
};
#[cfg(feature = "cluster")]
use tokio::sync::mpsc::UnboundedSender;

use crate::error::Error;
use crate::error::reasons::{Cause, Outage};
use crate::macros::in_range;
use crate::store::credentials::{Credentials, ProvideCredentials};
use crate::store::redis::errors::connecting::no_connection;
use crate::store::redis::errors::outage;

/// The settings that all servers of a store share.
#[derive(Clone, Default)]
pub(crate) struct Access {
    #[cfg(simulation)]
    pub(crate) dial: Option<Arc<dyn crate::store::dial::Dial>>,
    pub(crate) credentials: Option<Arc<dyn ProvideCredentials>>,
    pub(crate) tcp: Tcp,
    #[cfg(any(feature = "rustls", feature = "native-tls"))]
    pub(crate) tls: crate::store::redis::tls::Tls,
}

/// One server.
pub(crate) struct Endpoint {
    pub(super) info: ConnectionInfo,
    pub(super) access: Access,
}

impl Access {
    /// Whether nothing is set. A pool has its own settings.
    pub(crate) fn is_default(&self) -> bool {
        #[cfg(any(feature = "rustls", feature = "native-tls"))]
        if !self.tls.is_default() {
            return false;
        }
        self.credentials.is_none() && self.tcp == Tcp::default()
    }

    /// The credentials for a new connection, if they do not come from the URL.
    pub(super) async fn credentials(&self) -> Result<Option<Credentials>, Outage> {
        let Some(provider) = &self.credentials else {
            return Ok(None);
        };
        provider
            .credentials()
            .await
            .map(Some)
            .map_err(|error| Outage {
                cause: Cause::Disconnected,
                text: format!("no credentials for Redis: {error}").into(),
                source: Some(error.into()),
            })
    }

    /// Parses the URL of a server.
    pub(super) fn info(&self, url: &str) -> Result<ConnectionInfo, Error> {
        let info = url.into_connection_info().map_err(|error| {
            let tls = url.starts_with("rediss:") || url.starts_with("valkeys:");
            if tls && cfg!(not(any(feature = "rustls", feature = "native-tls"))) {
                return Error::invalid(
                    "a rediss:// URL needs TLS: enable the feature `rustls` or `native-tls` of tower-distributed",
                );
            }
            // The URL may contain a password, so the text does not repeat it.
            Error::invalid(format!(
                "not a Redis URL (redis://[user:password@]host[:port][/db], rediss:// for TLS, \
                 redis+unix:///path): {error}"
            ))
        })?;
        #[cfg(any(feature = "rustls", feature = "native-tls"))]
        let info = crate::store::redis::tls::secured(info, &self.tls)?;
        Ok(info.set_tcp_settings(self.tcp.settings()?))
    }
}

impl Endpoint {
    /// Parses a URL.
    pub(crate) fn new(url: &str, access: &Access) -> Result<Self, Error> {
        Ok(Self {
            info: access.info(url)?,
            access: access.clone(),
        })
    }

    pub(super) fn address(&self) -> String {
        self.info.addr().to_string()
    }

    /// Returns another server with the settings of this one.
    #[cfg(any(feature = "cluster", feature = "sentinel"))]
    pub(super) fn at(self, address: &str) -> Self {
        let (new_host, new_port) = address.rsplit_once(':').unwrap_or((address, ""));
        let mut address = self.info.addr().clone();
        if let ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } =
            &mut address
        {
            *host = new_host.into();
            *port = new_port.parse().unwrap_or(*port);
        }
        Self {
            info: self.info.set_addr(address),
            access: self.access,
        }
    }

    #[cfg(feature = "cluster")]
    pub(super) fn host(&self) -> String {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
            _ => String::new(),
        }
    }

    pub(super) fn database(&self) -> i64 {
        self.info.redis_settings().db()
    }

    pub(super) fn is_tls(&self) -> bool {
        is_tls(&self.info)
    }

    /// Makes a client with the current credentials.
    async fn client(&self, protocol: Option<ProtocolVersion>) -> Result<Client, Outage> {
        if self.is_tls() {
            prepare_tls();
        }
        let mut info = self.info.clone();
        if let Some(Credentials { username, password }) = self.access.credentials().await? {
            let mut settings = info.redis_settings().clone().set_password(password);
            if let Some(username) = username {
                settings = settings.set_username(username);
            }
            info = info.set_redis_settings(settings);
        }
        if let Some(protocol) = protocol {
            let settings = info.redis_settings().clone().set_protocol(protocol);
            info = info.set_redis_settings(settings);
        }
        Client::open(info).map_err(|error| no_connection(self.info.addr(), error))
    }

    /// Subscribes to channels, on a separate connection.
    pub(super) async fn subscribe(
        &self,
        channels: &[impl ToRedisArgs + Sync],
    ) -> Result<PubSub, Outage> {
        let client = self.client(None).await?;
        #[cfg(not(simulation))]
        let connected = client.get_async_pubsub().await;
        #[cfg(simulation)]
        let connected = match &self.access.dial {
            Some(dial) => crate::store::dial::pubsub(dial, &client).await,
            None => client.get_async_pubsub().await,
        };
        let mut connection = connected.map_err(|error| no_connection(self.info.addr(), error))?;
        connection
            .subscribe(channels)
            .await
            .map_err(outage)
            .map(|()| connection)
    }

    /// Connects for pushed messages, and for commands that subscribe to them.
    #[cfg(feature = "cluster")]
    pub(super) async fn listen(
        &self,
        pushes: UnboundedSender<PushInfo>,
    ) -> Result<MultiplexedConnection, Outage> {
        self.multiplexed(
            Some(ProtocolVersion::RESP3),
            untimed().set_push_sender(pushes),
        )
        .await
    }

    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, Outage> {
        self.multiplexed(None, untimed()).await
    }

    async fn multiplexed(
        &self,
        protocol: Option<ProtocolVersion>,
        config: AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, Outage> {
        let client = self.client(protocol).await?;
        #[cfg(not(simulation))]
        let connected = client
            .get_multiplexed_async_connection_with_config(&config)
            .await;
        #[cfg(simulation)]
        let connected = match &self.access.dial {
            Some(dial) => crate::store::dial::multiplexed(dial, &client, config).await,
            None => {
                client
                    .get_multiplexed_async_connection_with_config(&config)
                    .await
            }
        };
        connected.map_err(|error| no_connection(self.info.addr(), error))
    }
}

/// The configuration of connections without timeouts, because the store has its own.
pub(super) fn untimed() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_connection_timeout(None::<Duration>)
}

pub(super) fn is_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

/// Prepares the process for connections over TLS, including those of a user's pool.
pub(super) fn prepare_tls() {
    #[cfg(any(feature = "rustls", feature = "native-tls"))]
    crate::store::redis::tls::prepare();
}

/// The range of the times in socket options.
const ALLOWED: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

/// The options of the sockets that a store makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tcp {
    /// Whether a call is sent although the server has not acknowledged the previous one.
    pub(crate) nodelay: bool,
    /// After how long without traffic the peer is probed.
    pub(crate) keepalive: Option<Duration>,
    /// How long sent data may be unacknowledged.
    pub(crate) user_timeout: Option<Duration>,
}

impl Default for Tcp {
    fn default() -> Self {
        Self {
            nodelay: true,
            keepalive: Some(Duration::from_secs(15)),
            user_timeout: Some(Duration::from_secs(10)),
        }
    }
}

impl Tcp {
    pub(super) fn settings(&self) -> Result<TcpSettings, Error> {
        for (what, span) in [
            ("tcp_keepalive", self.keepalive),
            ("tcp_user_timeout", self.user_timeout),
        ] {
            in_range(what, ALLOWED, "1 s to 1 hour", span)?;
        }
        // The system would cut off the rest.
        if let Some(idle) = self.keepalive.filter(|idle| idle.subsec_nanos() > 0) {
            return Err(Error::invalid(format!(
                "tcp_keepalive must be whole seconds, is {idle:?}"
            )));
        }
        let mut settings = TcpSettings::default().set_nodelay(self.nodelay);
        if let Some(idle) = self.keepalive {
            settings = settings.set_keepalive(probed(idle));
        }
        #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
        if let Some(timeout) = self.user_timeout {
            settings = settings.set_user_timeout(timeout);
        }
        Ok(settings)
    }
}

/// The system sends the probes in whole seconds.
fn probed(idle: Duration) -> TcpKeepalive {
    let keepalive = TcpKeepalive::new().with_time(idle);
    #[cfg(any(
        target_os = "android",
        target_os = "linux",
        target_os = "macos",
        target_os = "windows"
    ))]
    let keepalive = keepalive.with_interval((idle / 3).max(Duration::from_secs(1)));
    keepalive
}

#[cfg(test)]
mod tests;
