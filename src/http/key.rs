//! Key extractors for HTTP requests.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::{HeaderName, Request};

use crate::{Error, Key, KeyExtractor};

/// By the value of a header field, the first where there are several; requests without it pass.
///
/// # Errors
///
/// [`is_invalid`](Error::is_invalid) where the name cannot be that of a field.
pub fn header(name: &str) -> Result<Header, Error> {
    field_name(name).map(Header)
}

pub(super) fn field_name(name: &str) -> Result<HeaderName, Error> {
    HeaderName::try_from(name)
        .map_err(|_| Error::invalid(format!("a header field cannot be named {name:?} (see RFC 9110, 5.1)")))
}

/// See [`header`].
#[derive(Clone, Debug)]
pub struct Header(HeaderName);

impl<B> KeyExtractor<Request<B>> for Header {
    fn extract(&self, request: &Request<B>) -> Option<Key> {
        request.headers().get(&self.0).map(|value| Key::from(value.as_bytes()))
    }
}

/// By the path.
#[must_use]
pub fn path() -> Path {
    Path
}

/// See [`path`].
#[derive(Clone, Copy, Debug)]
pub struct Path;

impl<B> KeyExtractor<Request<B>> for Path {
    fn extract(&self, request: &Request<B>) -> Option<Key> {
        Some(request.uri().path().into())
    }
}

/// By the method.
#[must_use]
pub fn method() -> Method {
    Method
}

/// See [`method`].
#[derive(Clone, Copy, Debug)]
pub struct Method;

impl<B> KeyExtractor<Request<B>> for Method {
    fn extract(&self, request: &Request<B>) -> Option<Key> {
        Some(request.method().as_str().into())
    }
}

type ReadPeer = Arc<dyn Fn(&http::Extensions) -> Option<IpAddr> + Send + Sync>;

/// By the address of the peer that the connection comes from, which the server has put among the request's extensions
/// as a `T`. Requests without one share a bucket.
///
/// ```
/// use std::net::SocketAddr;
/// use axum::extract::ConnectInfo;
/// use tower_distributed::http::peer;
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

impl Peer {
    fn addr<B>(&self, request: &Request<B>) -> Option<IpAddr> {
        (self.0)(request.extensions()).map(|addr| addr.to_canonical())
    }
}

impl<B> KeyExtractor<Request<B>> for Peer {
    fn extract(&self, request: &Request<B>) -> Option<Key> {
        Some(addr_key(self.addr(request)))
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

impl<B> KeyExtractor<Request<B>> for ClientAddr {
    fn extract(&self, request: &Request<B>) -> Option<Key> {
        Some(addr_key(self.forwarded(request).or_else(|| self.peer.addr(request))))
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
        client_addr(proxies, peer).extract(&request).unwrap()
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

    #[test]
    fn names_of_fields_are_checked() {
        assert!(header("x-api-key").is_ok());
        let error = header("x api key").unwrap_err();
        assert!(error.is_invalid() && error.to_string().contains("\"x api key\""), "{error}");
    }
}
