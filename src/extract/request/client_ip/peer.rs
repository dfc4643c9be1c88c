//! The peer of a request's connection, which the server has put among the request's extensions.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::Extensions;

type Read = Arc<dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync>;

/// Reads the address of the peer: by a closure, or as the servers that this crate knows insert it.
#[derive(Clone, Default)]
pub(super) struct Peer(Option<Read>);

/// What is missing, for who runs the service.
pub(super) const MISSING: &str = "the address of the peer is not among the extensions of the request. axum: serve with \
     `into_make_service_with_connect_info::<SocketAddr>()`, and use the feature `axum` of this crate. hyper: insert the \
     `SocketAddr` of the connection. Elsewhere: say where it is, with `client_ip().peer(..)`";

impl Peer {
    pub(super) fn by<T: Send + Sync + 'static>(
        read: impl Fn(&T) -> IpAddr + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Arc::new(move |extensions| {
            extensions.get::<T>().map(&read)
        })))
    }

    pub(super) fn address(&self, extensions: &Extensions) -> Option<IpAddr> {
        match &self.0 {
            Some(read) => read(extensions),
            None => known(extensions),
        }
    }
}

/// As the servers that this crate knows insert it.
fn known(extensions: &Extensions) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(info) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>() {
        return Some(info.0.ip());
    }
    #[cfg(feature = "axum")]
    if let Some(mock) = extensions.get::<axum::extract::connect_info::MockConnectInfo<SocketAddr>>()
    {
        return Some(mock.0.ip());
    }
    #[cfg(feature = "tonic")]
    {
        use tonic::transport::server::TcpConnectInfo;
        if let Some(address) = extensions
            .get::<TcpConnectInfo>()
            .and_then(TcpConnectInfo::remote_addr)
        {
            return Some(address.ip());
        }
    }
    let address = extensions.get::<SocketAddr>().map(SocketAddr::ip);
    address.or_else(|| extensions.get::<IpAddr>().copied())
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "Peer(by a closure)"
        } else {
            "Peer"
        })
    }
}
