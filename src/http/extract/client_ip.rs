//! The address of the client of an HTTP request, behind any number of trusted proxies: the configuration of trusted
//! proxies, and the walk from the peer towards the client.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, iter};

use http::{HeaderMap, Request};
use ipnet::IpNet;

use crate::error::Error;
use crate::http::extract::client_ip::address::{PEER_MISSING, Peer, parse_networks};
use crate::http::extract::client_ip::forwarded::ForwardingHeader;
use crate::http::extract::parameter::field_name;
use crate::key::Key;
use crate::layers::extract::Extractor;
use crate::layers::key::{Extracted, KeyExtractor};
use crate::telemetry::Event;
use crate::telemetry::emit::tell;

mod address;
mod forwarded;
#[cfg(test)]
mod tests;

/// Uses the address of the client as the key: all clients of an IPv6 /64 network, or of an IPv4 address, have one key.
/// By default no proxy is trusted, and the client is the peer of the connection. See [`ClientIp`] for the rules.
///
/// The server inserts the address of the peer into the extensions of the request: axum by
/// `into_make_service_with_connect_info::<SocketAddr>()` (needs the feature `axum`), tonic by itself (feature `tonic`).
/// For other servers, insert the [`SocketAddr`](std::net::SocketAddr) of the connection, or set [where it
/// is](Extractor::peer). **Requests without it are refused** with an error that names the missing call; they never
/// share one key.
///
/// ```
/// use http::HeaderMap;
/// use tower_distributed::extract::client_ip;
///
/// let client_ip = client_ip().trust(["10.0.0.0/8", "fd00::/8"])?;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("x-forwarded-for", "6.6.6.6, 203.0.113.7, 10.0.0.2".parse().unwrap());
/// let address = client_ip.address([10, 0, 0, 1].into(), &headers);
/// assert_eq!(address.to_string(), "203.0.113.7");
/// # Ok::<(), tower_distributed::Error>(())
/// ```
#[must_use]
pub fn client_ip() -> Extractor<ClientIp> {
    Extractor(ClientIp {
        header: ForwardingHeader::XForwardedFor,
        trust: Trust::Nobody,
        ipv4_prefix: Ipv4Addr::BITS as u8,
        ipv6_prefix: 64,
        peer: Peer::default(),
        warned: Arc::default(),
    })
}

/// Finds the address of the client of an HTTP request. See [`client_ip`].
///
/// # Which header is read
///
/// `X-Forwarded-For` by default, `Forwarded` after [`forwarded`](Extractor::forwarded), or another field after
/// [`one_address`](Extractor::one_address). Only one of them is read. A proxy that writes one of these fields passes
/// the others through as the client sent them. If several were read, a client could send one that the proxy does not
/// write, and choose its address.
///
/// # Which entry is the client
///
/// Every proxy appends the address of its own peer on the right. The entries are therefore read from the right, and
/// the entries that the client sent itself are on the left.
///
/// | trusted | the client |
/// |---|---|
/// | no proxy (default) | the peer; headers are ignored |
/// | networks ([`trust`](Extractor::trust)) | the first untrusted address: first the peer, then the entries |
/// | `n` proxies ([`trust_hops`](Extractor::trust_hops)) | the `n`-th entry from the right |
///
/// Some entries are not addresses: `unknown`, obfuscated identifiers such as `_hidden`, elements of `Forwarded` without
/// `for`, and text that cannot be parsed. At such an entry the result is the address of a proxy, and all clients for
/// which this happens share one rate limit:
///
/// * With trusted networks, the client is the last trusted address before that entry (the peer, if there is none).
///   Nothing to the left of the entry is read.
/// * With a number of proxies, the client is the peer. This is also so if the header has fewer than `n` entries.
///
/// If all entries are trusted, the client is the leftmost one.
///
/// # What is guaranteed
///
/// A client cannot choose the address, whatever it sends in any header, if the following is true. The random tests of
/// this module check it with arbitrary bytes.
///
/// * Every trusted proxy appends its peer to the configured header (or replaces the header), and writes well-formed
///   entries. A proxy that adds `host` to `Forwarded` has to quote it as RFC 7239 requires.
/// * With trusted networks: the client's own address is not in one of them.
/// * With `n` proxies: each request passes through exactly `n` proxies; no client can connect to the server directly.
///
/// # Forms of addresses
///
/// IPv4-mapped IPv6 addresses are treated as IPv4 addresses everywhere: in the peer, in headers, in trusted networks.
/// Ports, brackets, quotes and IPv6 zones are accepted in headers and removed. `0.0.0.0` and `::` are not addresses of
/// a client.
#[derive(Clone, Debug)]
pub struct ClientIp {
    header: ForwardingHeader,
    trust: Trust,
    ipv4_prefix: u8,
    ipv6_prefix: u8,
    peer: Peer,
    warned: Arc<Warned>,
}

/// The warnings that this value and its clones have logged.
#[derive(Debug, Default)]
struct Warned {
    peer_missing: AtomicBool,
    header_untrusted: AtomicBool,
}

/// For [`client_ip`].
impl Extractor<ClientIp> {
    /// Trusts proxies by their addresses: networks such as `10.0.0.0/8` or single addresses, as text or as values whose
    /// text it is, such as [`IpAddr`]s. White space around the text is ignored. Several calls add up. An empty list
    /// trusts no proxy.
    ///
    /// List every proxy between the clients and this server, and nothing else: an address in these networks can choose
    /// the address that it is counted under. An IPv6 network does not match IPv4 addresses.
    ///
    /// # Errors
    ///
    /// If a text is not a network (the error names it), if a network is `0.0.0.0/0` or `::/0`, or after
    /// [`trust_hops`](Self::trust_hops).
    ///
    /// ```
    /// use tower_distributed::extract::client_ip;
    ///
    /// let error = client_ip().trust(["10.0.0.0/8", "10.0.300.1"]).unwrap_err();
    /// assert!(error.is_invalid() && error.to_string().contains("\"10.0.300.1\""));
    /// ```
    pub fn trust(self, proxies: impl IntoIterator<Item: fmt::Display>) -> Result<Self, Error> {
        let networks = parse_networks(proxies).map_err(Error::invalid)?;
        let trust = self
            .0
            .trust
            .with_networks(networks)
            .map_err(Error::invalid)?;
        Ok(Self(ClientIp { trust, ..self.0 }))
    }

    /// Trusts `n` proxies by their number, for proxies whose addresses are not known. With 1, the client is the last
    /// entry of the header. 0 trusts no proxy.
    ///
    /// Prefer [`trust`](Self::trust) if the addresses are known: this method does not check the address of the peer.
    /// Use it only if the server cannot be reached except through all `n` proxies. The last call replaces earlier ones.
    ///
    /// # Errors
    ///
    /// After [`trust`](Self::trust): proxies are trusted either by address or by number. If a number replaced the
    /// addresses, the configured check of addresses would be silently lost.
    ///
    /// ```
    /// use http::HeaderMap;
    /// use tower_distributed::extract::client_ip;
    ///
    /// let mut headers = HeaderMap::new();
    /// headers.insert("x-forwarded-for", "6.6.6.6, 203.0.113.7".parse().unwrap());
    /// let address = client_ip().trust_hops(1)?.address([10, 0, 0, 1].into(), &headers);
    /// assert_eq!(address.to_string(), "203.0.113.7");
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    pub fn trust_hops(self, n: usize) -> Result<Self, Error> {
        let trust = self.0.trust.with_hops(n).map_err(Error::invalid)?;
        Ok(Self(ClientIp { trust, ..self.0 }))
    }

    /// Reads `Forwarded` (RFC 7239) instead of `X-Forwarded-For`. Choose the header that your proxies write.
    ///
    /// ```
    /// use http::HeaderMap;
    /// use tower_distributed::extract::client_ip;
    ///
    /// let mut headers = HeaderMap::new();
    /// headers.insert("forwarded", "for=\"[2001:db8::7]:4711\";proto=https".parse().unwrap());
    /// let address = client_ip().forwarded().trust_hops(1)?.address([10, 0, 0, 1].into(), &headers);
    /// assert_eq!(address.to_string(), "2001:db8::7");
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    #[must_use]
    pub fn forwarded(self) -> Self {
        Self(ClientIp {
            header: ForwardingHeader::Forwarded,
            ..self.0
        })
    }

    /// Reads a field that contains only the address of the client, instead of `X-Forwarded-For`: `CF-Connecting-IP` of
    /// Cloudflare, `True-Client-IP` of Akamai, `X-Real-IP` of nginx, `Fly-Client-IP`. It is used only if the peer is
    /// [trusted](Self::trust): list the networks of the CDN, or of the proxy that sets the field.
    ///
    /// The proxy must set or remove the field in each request, whatever the client sent. If the field is missing, is
    /// sent several times, or is not one address, the client is the peer. With [`trust_hops`](Self::trust_hops), the
    /// field is used for every peer.
    ///
    /// ```
    /// use http::HeaderMap;
    /// use tower_distributed::extract::client_ip;
    ///
    /// let client_ip = client_ip().one_address("cf-connecting-ip")?.trust(["173.245.48.0/20", "103.21.244.0/22"])?;
    ///
    /// let mut headers = HeaderMap::new();
    /// headers.insert("cf-connecting-ip", "203.0.113.7".parse().unwrap());
    /// assert_eq!(client_ip.address([173, 245, 48, 1].into(), &headers).to_string(), "203.0.113.7");
    /// // A client that connects directly cannot choose its address.
    /// assert_eq!(client_ip.address([198, 51, 100, 9].into(), &headers).to_string(), "198.51.100.9");
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If `field` is not a valid field name, or is `X-Forwarded-For` or `Forwarded`, which have several addresses.
    pub fn one_address(self, field: &str) -> Result<Self, Error> {
        let name = field_name(field)?;
        if ForwardingHeader::ALL
            .iter()
            .any(|header| *header.name() == name)
        {
            return Err(Error::invalid(format!(
                "one_address takes a field with one address, is {field:?}: client_ip() reads X-Forwarded-For by itself, and \
                 Forwarded after forwarded()"
            )));
        }
        Ok(Self(ClientIp {
            header: ForwardingHeader::OneAddress(name),
            ..self.0
        }))
    }

    /// Reads the address of the peer from an extension of the request, of type `T`.
    ///
    /// ```
    /// use std::net::SocketAddr;
    /// use tower_distributed::extract::client_ip;
    ///
    /// #[derive(Clone)]
    /// struct Connection { from: SocketAddr } // inserted by your server
    ///
    /// client_ip().peer(|connection: &Connection| connection.from.ip());
    /// ```
    #[must_use]
    pub fn peer<T: Send + Sync + 'static>(
        self,
        read: impl Fn(&T) -> IpAddr + Send + Sync + 'static,
    ) -> Self {
        Self(ClientIp {
            peer: Peer::by(read),
            ..self.0
        })
    }

    /// The number of leading bits of an IPv4 address that [`network`](ClientIp::network) keeps: 1 to 32, by default 32.
    ///
    /// ```
    /// use tower_distributed::extract::client_ip;
    ///
    /// let by_network = client_ip().ipv4_prefix(24)?;
    /// assert_eq!(by_network.network([203, 0, 113, 7].into()).to_string(), "203.0.113.0");
    /// assert!(client_ip().ipv4_prefix(33).unwrap_err().is_invalid());
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the number is out of this range.
    pub fn ipv4_prefix(self, bits: u8) -> Result<Self, Error> {
        Ok(Self(ClientIp {
            ipv4_prefix: prefix("IPv4", bits, Ipv4Addr::BITS)?,
            ..self.0
        }))
    }

    /// The number of leading bits of an IPv6 address that [`network`](ClientIp::network) keeps: 1 to 128, by default
    /// 64.
    ///
    /// A customer of a provider usually gets a /64 or a larger network, and can use every address in it. With a prefix
    /// longer than the customer's network, one client gets a rate limit for each of its addresses.
    ///
    /// ```
    /// use tower_distributed::extract::client_ip;
    ///
    /// // For providers that give each customer a /56.
    /// let by_customer = client_ip().ipv6_prefix(56)?;
    /// let network = by_customer.network("2001:db8:1:2ff:3:4:5:6".parse().unwrap());
    /// assert_eq!(network.to_string(), "2001:db8:1:200::");
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the number is out of this range.
    pub fn ipv6_prefix(self, bits: u8) -> Result<Self, Error> {
        Ok(Self(ClientIp {
            ipv6_prefix: prefix("IPv6", bits, Ipv6Addr::BITS)?,
            ..self.0
        }))
    }
}

impl ClientIp {
    /// The address of the client, from the address of the peer and the headers of the request. The result is the peer
    /// or an address from the configured header.
    ///
    /// The header is read from the right, and only as far as the client's entry. Nothing is allocated.
    #[must_use]
    pub fn address(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let peer = peer.to_canonical();
        match &self.header {
            one @ ForwardingHeader::OneAddress(_) if self.trust.is_trusted(peer) => {
                one.one_address(headers).unwrap_or(peer)
            }
            ForwardingHeader::OneAddress(_) => peer,
            header => self.trust.client(peer, || header.entries(headers)),
        }
    }

    /// An address with the bits after its prefix set to zero. Clients with the same network share a rate limit.
    ///
    /// For an address that NAT64 has translated (`64:ff9b::/96`, RFC 6052), this is the network of the embedded IPv4
    /// address: otherwise all IPv4 clients would share a limit.
    ///
    /// ```
    /// use tower_distributed::extract::client_ip;
    ///
    /// let network = client_ip().network("2001:db8:1:2:3:4:5:6".parse().unwrap());
    /// assert_eq!(network.to_string(), "2001:db8:1:2::");
    /// ```
    #[must_use]
    pub fn network(&self, address: IpAddr) -> IpAddr {
        let address = without_nat64(address.to_canonical());
        let bits = if address.is_ipv4() {
            self.ipv4_prefix
        } else {
            self.ipv6_prefix
        };
        IpNet::new(address, bits).map_or(address, |network| network.network())
    }

    /// The name of a forwarding header that the request has and that [`address`](Self::address) ignores, because the
    /// peer is not trusted. `None` if there is none.
    ///
    /// If no proxy is trusted, this is the configured header, `x-forwarded-for` or `forwarded`. If networks are
    /// trusted, it is the configured header only. Such a header suggests that a proxy is missing in the configuration:
    /// then all clients of that proxy share one rate limit. A client that connects directly can send the header as
    /// well, so it is logged once, not per request.
    fn untrusted_header(&self, peer: IpAddr, headers: &HeaderMap) -> Option<&str> {
        if self.trust.is_trusted(peer.to_canonical()) {
            return None;
        }
        let others = match self.trust {
            Trust::Nobody => &ForwardingHeader::ALL[..],
            _ => &[],
        };
        let mut read = std::iter::once(&self.header).chain(others);
        read.find(|header| headers.contains_key(header.name()))
            .map(|header| header.name().as_str())
    }
}

impl<B> KeyExtractor<Request<B>> for ClientIp {
    fn extract(&self, request: &Request<B>) -> Extracted {
        let first = |warned: &AtomicBool| !warned.swap(true, Ordering::Relaxed);
        let Some(peer) = self.peer.address(request.extensions()) else {
            if first(&self.warned.peer_missing) {
                tell("client_ip", Event::PeerMissing, PEER_MISSING);
            }
            return Extracted::Ready(Err(Error::invalid(PEER_MISSING)));
        };
        let headers = request.headers();
        if !self.warned.header_untrusted.load(Ordering::Relaxed)
            && let Some(header) = self.untrusted_header(peer, headers)
            && first(&self.warned.header_untrusted)
        {
            let text = format_args!(
                "a request from {peer} has {header}, which is ignored. If {peer} is a proxy of yours, name it with \
                 client_ip().trust([..]): until then all of its clients share one key"
            );
            tell("client_ip", Event::HeaderUntrusted, text);
        }
        Key::from(self.network(self.address(peer, headers))).into()
    }
}

/// The IPv4 address in an address that NAT64 has translated; any other address unchanged.
fn without_nat64(address: IpAddr) -> IpAddr {
    const NAT64: u128 = 0x0064_ff9b << 96;
    match address {
        IpAddr::V6(v6) if v6.to_bits() >> 32 == NAT64 >> 32 => {
            Ipv4Addr::from_bits(v6.to_bits() as u32).into()
        }
        address => address,
    }
}

fn prefix(version: &str, bits: u8, longest: u32) -> Result<u8, Error> {
    if bits == 0 || u32::from(bits) > longest {
        return Err(Error::invalid(format!(
            "an {version} prefix has 1 to {longest} bits, not {bits}"
        )));
    }
    Ok(bits)
}

/// The proxies whose entries are used.
#[derive(Clone, Debug)]
enum Trust {
    /// No proxy. Headers are ignored.
    Nobody,
    /// The proxies with an address in one of these networks. Shared, since services are cloned per connection.
    Networks(Arc<[IpNet]>),
    /// The last proxies before the server, by their number.
    Hops(NonZeroUsize),
}

impl Trust {
    /// Adds networks to the trusted networks.
    fn with_networks(self, added: Vec<IpNet>) -> Result<Self, String> {
        match self {
            _ if added.is_empty() => Ok(self),
            Self::Nobody => Ok(Self::Networks(added.into())),
            Self::Networks(networks) => Ok(Self::Networks(
                networks.iter().copied().chain(added).collect(),
            )),
            Self::Hops(n) => Err(both(n.get())),
        }
    }

    /// Sets the number of trusted proxies.
    fn with_hops(self, n: usize) -> Result<Self, String> {
        match self {
            Self::Networks(_) => Err(both(n)),
            Self::Nobody | Self::Hops(_) => {
                Ok(NonZeroUsize::new(n).map_or(Self::Nobody, Self::Hops))
            }
        }
    }

    /// Whether entries that this address appended are used. With a number of proxies, the peer is never checked.
    fn is_trusted(&self, address: IpAddr) -> bool {
        match self {
            Self::Nobody => false,
            Self::Networks(networks) => networks.iter().any(|network| network.contains(&address)),
            Self::Hops(_) => true,
        }
    }

    /// The client, from the peer and the entries of the header from right to left. `None` is an entry that is not an
    /// address.
    fn client<E>(&self, peer: IpAddr, entries: impl FnOnce() -> E) -> IpAddr
    where
        E: Iterator<Item = Option<IpAddr>>,
    {
        match self {
            Self::Nobody => peer,
            Self::Networks(_) => {
                // Not created for a peer that is not trusted: finding the header takes time.
                let mut entries = iter::once_with(entries).flatten();
                let mut client = peer;
                // The address to the right of an entry is the last one that was appended by a trusted proxy.
                while self.is_trusted(client)
                    && let Some(Some(address)) = entries.next()
                {
                    client = address;
                }
                client
            }
            Self::Hops(n) => entries().nth(n.get() - 1).flatten().unwrap_or(peer),
        }
    }
}

fn both(hops: usize) -> String {
    format!(
        "proxies are trusted either by address or by number, but both `trust` and `trust_hops({hops})` are called"
    )
}
