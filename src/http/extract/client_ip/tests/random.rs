//! Properties that hold for random headers. For any bytes: `tests/fuzz`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::HeaderValue;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use crate::http::extract::client_ip::tests::headers;
use crate::http::extract::client_ip::{ClientIp, client_ip};
use crate::layers::extract::Extractor;

mod generate;

use crate::http::extract::client_ip::tests::random::generate::{
    Fields, append, client, entry, proxy, soup, well_formed,
};

const NETWORKS: [&str; 2] = ["10.0.0.0/8", "fd00::/8"];
const HEADERS: [&str; 2] = ["x-forwarded-for", "forwarded"];

fn is_trusted(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[0] == 10,
        IpAddr::V6(address) => address.octets()[0] == 0xfd,
    }
}

fn reading(header: &str) -> Extractor<ClientIp> {
    if header == "forwarded" {
        client_ip().forwarded()
    } else {
        client_ip()
    }
}

fn repeatedly(rounds: u64, test: impl Fn(&mut StdRng)) {
    let mut rng = StdRng::seed_from_u64(support::seed());
    (0..rounds).for_each(|_| test(&mut rng));
}

/// Whatever a client sends, the address is the one that the first trusted proxy has seen.
#[test]
fn clients_cannot_choose_their_address() {
    repeatedly(60_000, |rng| {
        let header = *HEADERS.choose(rng).unwrap();
        let client = client(rng);
        let proxies: Vec<IpAddr> = (0..rng.random_range(1..4)).map(|_| proxy(rng)).collect();
        // A proxy may not know or not report the address of the client. Then the client is counted as this proxy, or as
        // the peer.
        let tells = rng.random_ratio(7, 8);

        let mut fields: Fields = (0..rng.random_range(0..4)).map(|_| soup(rng)).collect();
        let first = entry(rng, header, Some(client).filter(|_| tells));
        append(rng, &mut fields, &first);
        for seen in &proxies[..proxies.len() - 1] {
            let entry = entry(rng, header, Some(*seen));
            append(rng, &mut fields, &entry);
        }
        let peer = proxies[proxies.len() - 1];

        let headers = headers(header, &fields);
        let shown = || {
            fields
                .iter()
                .map(|field| String::from_utf8_lossy(field))
                .collect::<Vec<_>>()
        };
        let by_network = reading(header)
            .trust(NETWORKS)
            .unwrap()
            .address(peer, &headers);
        assert_eq!(
            by_network,
            if tells { client } else { proxies[0] },
            "{header} {peer} {:#?}",
            shown()
        );
        let by_number = reading(header)
            .trust_hops(proxies.len())
            .unwrap()
            .address(peer, &headers);
        assert_eq!(
            by_number,
            if tells { client } else { peer },
            "{header} {peer} {:#?}",
            shown()
        );
        let direct = reading(header)
            .trust(NETWORKS)
            .unwrap()
            .address(client, &headers);
        assert_eq!(direct, client);
    });
}

/// The client behind trusted proxies, from the entries from left to right.
fn behind(peer: IpAddr, entries: &[Option<IpAddr>]) -> IpAddr {
    let mut chain = entries.to_vec();
    chain.push(Some(peer));
    let first = chain
        .iter()
        .rposition(|entry| !entry.is_some_and(is_trusted));
    match first {
        Some(index) => chain[index].or_else(|| chain[index + 1]).unwrap(),
        None => chain[0].unwrap(),
    }
}

/// The client behind a number of proxies.
fn behind_hops(n: usize, peer: IpAddr, entries: &[Option<IpAddr>]) -> IpAddr {
    let entry = entries
        .len()
        .checked_sub(n)
        .and_then(|index| entries[index]);
    entry.unwrap_or(peer)
}

#[test]
fn well_formed_headers_are_read_as_they_were_written() {
    repeatedly(20_000, |rng| {
        let header = *HEADERS.choose(rng).unwrap();
        let (fields, entries) = well_formed(rng, header);
        let headers = headers(header, &fields);
        let peer = if rng.random() {
            proxy(rng)
        } else {
            client(rng)
        };
        let by_network = reading(header)
            .trust(NETWORKS)
            .unwrap()
            .address(peer, &headers);
        assert_eq!(by_network, behind(peer, &entries), "{peer} {fields:#?}");
        let n = *[1, 2, 3, 4, 5, usize::MAX].choose(rng).unwrap();
        let by_number = reading(header)
            .trust_hops(n)
            .unwrap()
            .address(peer, &headers);
        assert_eq!(
            by_number,
            behind_hops(n, peer, &entries),
            "{n} {peer} {fields:#?}"
        );
    });
}
