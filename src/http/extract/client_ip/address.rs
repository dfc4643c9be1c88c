//! Addresses: the address of the peer, which the server inserts into the extensions of a request, addresses in
//! forwarding headers, and the networks of trusted proxies, parsed from text.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use http::Extensions;
use ipnet::IpNet;

#[cfg(test)]
mod tests;

type Read = Arc<dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync>;

/// Reads the address of the peer: with a closure, or from the extensions of known servers.
#[derive(Clone, Default)]
pub(super) struct Peer(Option<Read>);

/// The error for requests without the address of the peer, for the operators of the service.
pub(super) const PEER_MISSING: &str = "the address of the peer is not among the extensions of the request. axum: serve with \
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

/// Reads the extensions that known servers insert.
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

/// Longer texts, in bytes, are not addresses. The longest address has 45 bytes; brackets, a zone (16 bytes on Linux)
/// and a port fit as well.
pub(super) const MAX_NODE_LEN: usize = 128;

/// The address of a node as RFC 7239 defines it, in canonical form. It may have a port, brackets and a zone, as in
/// `[2001:db8::1]:80`. `None` for everything else: `unknown`, obfuscated identifiers, host names, bytes that are not
/// ASCII, unspecified addresses, malformed ports.
///
/// | accepted | |
/// |---|---|
/// | `192.0.2.1`, `2001:db8::1` | |
/// | `[2001:db8::1]`, `[192.0.2.1]` | in brackets |
/// | `192.0.2.1:80`, `[2001:db8::1]:80`, `192.0.2.1:_p` | with a port or an obfuscated port |
/// | `fe80::1%eth0` | with a zone |
pub(super) fn parse_node(text: &[u8]) -> Option<IpAddr> {
    if text.len() > MAX_NODE_LEN {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    let (host, port) = if let Some(bracketed) = text.strip_prefix('[') {
        let (host, rest) = bracketed.split_once(']')?;
        (
            host,
            if rest.is_empty() {
                None
            } else {
                Some(rest.strip_prefix(':')?)
            },
        )
    } else {
        // Two colons or more: an IPv6 address without a port.
        match text.split_once(':') {
            Some((host, port)) if !port.contains(':') => (host, Some(port)),
            _ => (text, None),
        }
    };
    if !port.is_none_or(is_port) {
        return None;
    }
    let address = match host.split_once('%') {
        Some((address, zone)) if !zone.is_empty() => IpAddr::V6(address.parse::<Ipv6Addr>().ok()?),
        Some(_) => return None,
        None => host.parse().ok()?,
    };
    let address = address.to_canonical();
    (!address.is_unspecified()).then_some(address)
}

/// `node-port` of RFC 7239: 1 to 5 digits, or `_` and a name.
fn is_port(port: &str) -> bool {
    match port.strip_prefix('_') {
        Some(name) => {
            !name.is_empty()
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        }
        None => (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// All networks, in their canonical form, or the first error. Networks and addresses are parsed from their text as
/// well.
pub(super) fn parse_networks(
    networks: impl IntoIterator<Item: fmt::Display>,
) -> Result<Vec<IpNet>, String> {
    let checked = |network: &str| {
        let error =
            || format!("{network:?} is neither an IP address nor a network such as \"10.0.0.0/8\"");
        parse_network(network).ok_or_else(error).and_then(canonical)
    };
    networks
        .into_iter()
        .map(|network| checked(network.to_string().trim()))
        .collect()
}

/// A network or an address. It uses the parser of the standard library, which is stricter than that of `ipnet`.
fn parse_network(text: &str) -> Option<IpNet> {
    let Some((address, bits)) = text.split_once('/') else {
        return text.parse::<IpAddr>().ok().map(IpNet::from);
    };
    let digits = !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
    IpNet::new(address.parse().ok()?, bits.parse().ok().filter(|_| digits)?).ok()
}

/// The network without host bits, and as an IPv4 network if it is IPv4-mapped.
fn canonical(network: IpNet) -> Result<IpNet, String> {
    let canonical = match (network.addr().to_canonical(), network) {
        (IpAddr::V4(address), IpNet::V6(mapped)) => {
            let bits = mapped.prefix_len().checked_sub(96);
            bits.and_then(|bits| IpNet::new(address.into(), bits).ok())
                .ok_or_else(|| {
                    format!("the prefix of the IPv4-mapped network {network} has less than 96 bits")
                })?
        }
        _ => network,
    };
    if canonical.prefix_len() == 0 {
        return Err(format!(
            "{network} trusts every address, so that each client could choose its own; \
             use `trust_hops` for proxies whose addresses are not known"
        ));
    }
    Ok(canonical.trunc())
}
