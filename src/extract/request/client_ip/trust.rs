//! Which proxies are trusted, and the walk from the peer towards the client.

use std::iter;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

use ipnet::IpNet;

/// The proxies whose entries are believed.
#[derive(Clone, Debug)]
pub(super) enum Trust {
    /// No proxy. Headers are ignored.
    Nobody,
    /// The proxies with an address in one of these networks. Shared, since services are cloned per connection.
    Networks(Arc<[IpNet]>),
    /// The last proxies before the server, by their number.
    Hops(NonZeroUsize),
}

impl Trust {
    /// Adds networks to those that are trusted already.
    pub(super) fn with_networks(self, added: Vec<IpNet>) -> Result<Self, String> {
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
    pub(super) fn with_hops(self, n: usize) -> Result<Self, String> {
        match self {
            Self::Networks(_) => Err(both(n)),
            Self::Nobody | Self::Hops(_) => {
                Ok(NonZeroUsize::new(n).map_or(Self::Nobody, Self::Hops))
            }
        }
    }

    /// Whether entries that this address appended are believed. With a number of proxies, the peer is never checked.
    pub(super) fn is_trusted(&self, address: IpAddr) -> bool {
        match self {
            Self::Nobody => false,
            Self::Networks(networks) => networks.iter().any(|network| network.contains(&address)),
            Self::Hops(_) => true,
        }
    }

    /// The client, from the peer and the entries of the header from right to left. `None` is an entry that is not an
    /// address.
    pub(super) fn client<E>(&self, peer: IpAddr, entries: impl FnOnce() -> E) -> IpAddr
    where
        E: Iterator<Item = Option<IpAddr>>,
    {
        match self {
            Self::Nobody => peer,
            Self::Networks(_) => {
                // Not made for a peer that is not trusted: to find the header takes time.
                let (mut client, mut entries) = (peer, iter::once_with(entries).flatten());
                // The address to the right of an entry is the last one that a trusted proxy vouches for.
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
