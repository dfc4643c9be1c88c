//! Properties that hold for random headers. A failure shows its seed; `SEED=…` repeats it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::HeaderValue;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use super::super::{forwarded, node};
use super::{ClientIp, Extractor, client_ip, headers, reference};

mod generate;

use generate::{Fields, append, bytes, client, entry, proxy, soup, well_formed};

const NETWORKS: [&str; 2] = ["10.0.0.0/8", "fd00::/8"];
const HEADERS: [&str; 2] = ["x-forwarded-for", "forwarded"];

fn is_trusted(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[0] == 10,
        IpAddr::V6(address) => address.octets()[0] == 0xfd,
    }
}

fn reading(header: &str) -> Extractor<ClientIp> {
    if header == "forwarded" { client_ip().forwarded() } else { client_ip() }
}

/// Runs a test with many random number generators, and prints the seed that it fails with.
fn with_seeds(rounds: u64, test: impl Fn(&mut StdRng)) {
    let seed = support::seed();
    for seed in (0..rounds).map(|round| seed.wrapping_add(round)) {
        let failed =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&mut StdRng::seed_from_u64(seed))));
        if let Err(panic) = failed {
            println!("SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn arbitrary_bytes_do_not_panic() {
    with_seeds(20_000, |rng| {
        let text = if rng.random() { bytes(rng) } else { soup(rng) };
        node::parse(&text);
        forwarded::parse(&text);
        let mut rest = Some(&text[..]);
        while let Some(field) = rest {
            rest = forwarded::split_last(field).and_then(|(left, element)| {
                forwarded::parse(element);
                left
            });
        }
    });
}

/// Whatever a client sends, the address is the one that the first trusted proxy has seen.
#[test]
fn clients_cannot_choose_their_address() {
    with_seeds(60_000, |rng| {
        let header = *HEADERS.choose(rng).unwrap();
        let client = client(rng);
        let proxies: Vec<IpAddr> = (0..rng.random_range(1..4)).map(|_| proxy(rng)).collect();
        // A proxy may not know or not tell the address of the client. Then the client is counted as this proxy, or as
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
        let shown = || fields.iter().map(|field| String::from_utf8_lossy(field)).collect::<Vec<_>>();
        let by_network = reading(header).trust(NETWORKS).unwrap().address(peer, &headers);
        assert_eq!(by_network, if tells { client } else { proxies[0] }, "{header} {peer} {:#?}", shown());
        let by_number = reading(header).trust_hops(proxies.len()).unwrap().address(peer, &headers);
        assert_eq!(by_number, if tells { client } else { peer }, "{header} {peer} {:#?}", shown());
        let direct = reading(header).trust(NETWORKS).unwrap().address(client, &headers);
        assert_eq!(direct, client);
    });
}

/// The result is the peer or an address that the header contains.
#[test]
fn no_address_is_made_up() {
    with_seeds(20_000, |rng| {
        let header = *HEADERS.choose(rng).unwrap();
        let fields: Fields = (0..rng.random_range(1..3)).map(|_| soup(rng)).collect();
        let headers = headers(header, &fields);
        let peer = proxy(rng);
        let reading = reading(header);
        let trusting =
            if rng.random() { reading.trust(NETWORKS) } else { reading.trust_hops(rng.random_range(1..4)) };
        let address = trusting.unwrap().address(peer, &headers);
        let contains = |text: &str| {
            let text: String = text.chars().filter(|c| *c != '\\').collect();
            let is_end = |at: &usize| text.is_char_boundary(*at);
            (0..text.len()).filter(is_end).any(|start| {
                let ends = (start + 2..=text.len().min(start + 45)).filter(is_end);
                ends.into_iter()
                    .any(|end| text[start..end].parse().is_ok_and(|it: IpAddr| it.to_canonical() == address))
            })
        };
        let shown: Vec<_> = fields.iter().map(|field| String::from_utf8_lossy(field)).collect();
        assert!(address == peer || shown.iter().any(|field| contains(field)), "{address} {peer} {shown:#?}");
    });
}

#[test]
fn well_formed_headers_are_read_like_the_reference_reads_them() {
    with_seeds(20_000, |rng| {
        let header = *HEADERS.choose(rng).unwrap();
        let (fields, written) = well_formed(rng, header);
        let parse = if header == "forwarded" { reference::forwarded } else { reference::x_forwarded_for };
        let entries = parse(&fields);
        assert_eq!(entries, written, "the reference: {fields:#?}");

        let headers = headers(header, &fields);
        let peer = if rng.random() { proxy(rng) } else { client(rng) };
        let by_network = reading(header).trust(NETWORKS).unwrap().address(peer, &headers);
        assert_eq!(by_network, reference::behind(is_trusted, peer, &entries), "{peer} {fields:#?}");
        let n = *[1, 2, 3, 4, 5, usize::MAX].choose(rng).unwrap();
        let by_number = reading(header).trust_hops(n).unwrap().address(peer, &headers);
        assert_eq!(by_number, reference::behind_hops(n, peer, &entries), "{n} {peer} {fields:#?}");
    });
}
