//! Keys by the address of the client.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::Request;

use super::combinators;
use crate::{Extracted, Key, KeyExtractor};

type ReadPeer = Arc<dyn Fn(&http::Extensions) -> Option<IpAddr> + Send + Sync>;

/// By the address of the peer that the connection comes from, which the server has put among the request's extensions
/// as a `T`. Requests without one share a bucket.
///
/// ```
/// use std::net::SocketAddr;
/// use axum::extract::ConnectInfo;
/// use tower_distributed::extract::peer;
///
/// // axum: Router::into_make_service_with_connect_info::<SocketAddr>()
/// peer(|info: &ConnectInfo<SocketAddr>| info.0.ip());
/// // tonic: tonic::transport::server::TcpConnectInfo
/// // hyper: whatever you insert, a SocketAddr, say
/// peer(|addr: &SocketAddr| addr.ip());
/// ```
#[must_use]
pub fn peer<T: Send + Sync + 'static>(read: impl Fn(&T) -> IpAddr + Send + Sync + 'static) -> Peer {
    Peer(Arc::new(move |extensions| extensions.get::<T>().map(&read)))
}

/// See [`peer`].
#[derive(Clone)]
pub struct Peer(ReadPeer);

combinators!(Peer);

impl Peer {
    fn addr<B>(&self, request: &Request<B>) -> Option<IpAddr> {
        (self.0)(request.extensions()).map(|addr| addr.to_canonical())
    }
}

impl<B> KeyExtractor<Request<B>> for Peer {
    fn extract(&self, request: &Request<B>) -> Extracted {
        addr_key(self.addr(request)).into()
    }
}

/// By the address of the client behind `proxies` trusted proxies, each of which appends the address that it was
/// called from to `X-Forwarded-For`.
///
/// Counted from the end, so what a client writes into the field itself is never believed: with one proxy
/// the last address counts, with two the last but one. With none, or where the field is shorter than the
/// proxies would make it or not an address at that place, it is the [`peer`]'s.
///
/// This holds as long as the server cannot be reached past the proxies.
#[must_use]
pub fn client_addr(proxies: usize, peer: Peer) -> ClientAddr {
    ClientAddr { proxies, peer }
}

/// See [`client_addr`].
#[derive(Clone, Debug)]
pub struct ClientAddr {
    proxies: usize,
    peer: Peer,
}

combinators!(ClientAddr);

impl<B> KeyExtractor<Request<B>> for ClientAddr {
    fn extract(&self, request: &Request<B>) -> Extracted {
        addr_key(self.forwarded(request).or_else(|| self.peer.addr(request))).into()
    }
}

impl ClientAddr {
    fn forwarded<B>(&self, request: &Request<B>) -> Option<IpAddr> {
        let fields = request.headers().get_all("x-forwarded-for");
        let from_the_end = self.proxies.checked_sub(1)?;
        fields
            .iter()
            .rev()
            .flat_map(|field| field.as_bytes().rsplit(|&byte| byte == b','))
            .nth(from_the_end)
            .and_then(|entry| parse(std::str::from_utf8(entry).ok()?.trim()))
    }
}

/// An address with or without a port.
fn parse(entry: &str) -> Option<IpAddr> {
    let bare = entry.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(entry);
    bare.parse::<IpAddr>()
        .or_else(|_| entry.parse::<SocketAddr>().map(|addr| addr.ip()))
        .ok()
        .map(|addr| addr.to_canonical())
}

fn addr_key(addr: Option<IpAddr>) -> Key {
    addr.map_or_else(|| Key::from("unknown"), Key::from)
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Peer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(proxies: usize, forwarded: &[&str]) -> Key {
        let mut request = Request::new(());
        request.extensions_mut().insert(SocketAddr::from(([10, 0, 0, 1], 4711)));
        for field in forwarded {
            request.headers_mut().append("x-forwarded-for", field.parse().unwrap());
        }
        let peer = peer(|addr: &SocketAddr| addr.ip());
        match client_addr(proxies, peer).extract(&request) {
            Extracted::Ready(Ok(Some(key))) => key,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_client_is_counted_from_the_end() {
        assert_eq!(client(0, &["1.1.1.1"]), "10.0.0.1".into());
        assert_eq!(client(1, &["6.6.6.6, 1.1.1.1"]), "1.1.1.1".into());
        assert_eq!(client(2, &["6.6.6.6, 1.1.1.1, 10.0.0.2"]), "1.1.1.1".into());
        assert_eq!(client(2, &["6.6.6.6", "1.1.1.1", "10.0.0.2"]), "1.1.1.1".into());
    }

    #[test]
    fn what_is_no_address_is_not_believed() {
        assert_eq!(client(1, &[]), "10.0.0.1".into());
        assert_eq!(client(2, &["1.1.1.1"]), "10.0.0.1".into());
        assert_eq!(client(1, &["1.1.1.1, unknown"]), "10.0.0.1".into());
    }

    #[test]
    fn ports_brackets_and_mapped_addresses_are_understood() {
        assert_eq!(client(1, &["1.1.1.1:80"]), "1.1.1.1".into());
        assert_eq!(client(1, &["[2001:db8::1]:80"]), "2001:db8::1".into());
        assert_eq!(client(1, &["[2001:db8::1]"]), "2001:db8::1".into());
        assert_eq!(client(1, &["::ffff:1.1.1.1"]), "1.1.1.1".into());
    }
}
