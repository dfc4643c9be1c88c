use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{ClientIp, client_ip};
use crate::layers::extract::Extractor;

mod random;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn headers<T: AsRef<[u8]>>(name: &'static str, fields: &[T]) -> HeaderMap {
    let name = HeaderName::from_static(name);
    let mut headers = HeaderMap::new();
    for field in fields {
        headers.append(&name, HeaderValue::from_bytes(field.as_ref()).unwrap());
    }
    headers
}

fn x_forwarded_for(client_ip: &Extractor<ClientIp>, peer: &str, fields: &[&str]) -> String {
    client_ip
        .address(ip(peer), &headers("x-forwarded-for", fields))
        .to_string()
}

#[test]
fn nobody_is_trusted_by_default() {
    for client_ip in [
        client_ip(),
        client_ip().forwarded(),
        client_ip().trust([""; 0]).unwrap(),
        client_ip().trust_hops(0).unwrap(),
        client_ip().trust_hops(2).unwrap().trust_hops(0).unwrap(),
    ] {
        for name in ["x-forwarded-for", "forwarded"] {
            let headers = headers(name, &["1.1.1.1, for=1.1.1.1", "for=1.1.1.1, 1.1.1.1"]);
            assert_eq!(client_ip.address(ip("9.9.9.9"), &headers), ip("9.9.9.9"));
            assert_eq!(
                client_ip.address(ip("::ffff:9.9.9.9"), &headers),
                ip("9.9.9.9")
            );
        }
    }
}

#[test]
fn one_header_is_read() {
    let mut headers = headers("x-forwarded-for", &["1.1.1.1"]);
    headers.insert("forwarded", HeaderValue::from_static("for=2.2.2.2"));
    let x_forwarded_for = client_ip().trust_hops(1).unwrap();
    let forwarded = x_forwarded_for.clone().forwarded();
    let peer = ip("10.0.0.1");
    assert_eq!(x_forwarded_for.address(peer, &headers), ip("1.1.1.1"));
    assert_eq!(forwarded.address(peer, &headers), ip("2.2.2.2"));
    headers.remove("forwarded");
    assert_eq!(forwarded.address(peer, &headers), peer);
}

#[test]
fn networks_of_one_version_do_not_match_the_other() {
    let trusting = client_ip().trust(["::/1"]).unwrap();
    assert_eq!(
        x_forwarded_for(&trusting, "10.0.0.1", &["1.1.1.1"]),
        "10.0.0.1"
    );
    assert_eq!(
        x_forwarded_for(&trusting, "::1", &["6.6.6.6, 1.1.1.1"]),
        "1.1.1.1"
    );
    let trusting = client_ip().trust(["::ffff:10.0.0.0/104"]).unwrap();
    assert_eq!(
        x_forwarded_for(&trusting, "10.0.0.1", &["1.1.1.1"]),
        "1.1.1.1"
    );
}

#[test]
fn hops_are_not_counted_past_an_unclosed_quote() {
    let headers = headers(
        "forwarded",
        &["for=6.6.6.6", "for=6.6.6.6, for=\"6.6.6.6, for=1.1.1.1"],
    );
    for (n, client) in [
        (1, "1.1.1.1"),
        (2, "10.0.0.1"),
        (3, "10.0.0.1"),
        (4, "10.0.0.1"),
    ] {
        let trusting = client_ip().forwarded().trust_hops(n).unwrap();
        assert_eq!(
            trusting.address(ip("10.0.0.1"), &headers),
            ip(client),
            "{n}"
        );
    }
}

#[test]
fn addresses_and_a_number_exclude_each_other() {
    let by_address = || client_ip().trust(["10.0.0.0/8"]);
    let error = by_address()
        .and_then(|it| it.trust_hops(2))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`trust`") && error.contains("`trust_hops(2)`"),
        "{error}"
    );
    assert!(
        client_ip()
            .trust_hops(2)
            .and_then(|it| it.trust(["10.0.0.0/8"]))
            .is_err()
    );
    assert!(
        client_ip()
            .trust_hops(2)
            .and_then(|it| it.trust([""; 0]))
            .is_ok()
    );
}

/// Bits of IPv4, bits of IPv6, an address, and its network.
const PREFIXES: &str = "\
32 64 1.2.3.4 1.2.3.4
24 64 1.2.3.4 1.2.3.0
1 64 255.255.255.255 128.0.0.0
24 64 ::ffff:1.2.3.4 1.2.3.0
32 16 ::ffff:102:304 1.2.3.4
24 64 0123:4567:89ab:cdef:0123:4567:89ab:cdef 123:4567:89ab:cdef::
24 63 0123:4567:89ab:cdef:0123:4567:89ab:cdef 123:4567:89ab:cdee::
24 56 0123:4567:89ab:cdef:0123:4567:89ab:cdef 123:4567:89ab:cd00::
24 128 0123:4567:89ab:cdef:0123:4567:89ab:cdef 123:4567:89ab:cdef:123:4567:89ab:cdef
24 1 ffff::1 8000::
24 56 2001:db8:1234:5678::1.2.3.4 2001:db8:1234:5600::
24 56 64:ff9b::1.2.3.4 1.2.3.0
32 64 64:ff9b::1.2.3.4 1.2.3.4
32 64 64:ff9b:1::1.2.3.4 64:ff9b:1::
24 56 ::1 ::";

#[test]
fn prefixes() {
    for row in PREFIXES.lines() {
        let [v4, v6, address, network] = row.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let client_ip = client_ip().ipv4_prefix(v4.parse().unwrap()).unwrap();
        let client_ip = client_ip.ipv6_prefix(v6.parse().unwrap()).unwrap();
        assert_eq!(client_ip.network(ip(address)), ip(network), "{row}");
    }
    assert_eq!(client_ip().network(ip("1.2.3.4")), ip("1.2.3.4"));
    assert_eq!(client_ip().network(ip("1:2:3:4:5:6:7:8")), ip("1:2:3:4::"));
}

#[test]
fn prefixes_out_of_range() {
    for bits in [0, 33, 255] {
        let error = client_ip().ipv4_prefix(bits).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("an IPv4 prefix has 1 to 32 bits, not {bits}")
        );
    }
    for bits in [0, 129, 255] {
        let error = client_ip().ipv6_prefix(bits).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("an IPv6 prefix has 1 to 128 bits, not {bits}")
        );
    }
}

#[test]
fn headers_that_are_ignored() {
    let x_forwarded_for = headers("x-forwarded-for", &["1.1.1.1"]);
    let forwarded = headers("forwarded", &["for=1.1.1.1"]);
    let (proxy, other) = (ip("::ffff:10.0.0.1"), ip("9.9.9.9"));
    let (nobody, hops) = (client_ip(), client_ip().trust_hops(1).unwrap());
    let networks = client_ip().trust(["10.0.0.0/8"]).unwrap();
    let by_forwarded = networks.clone().forwarded();
    for (by, peer, headers, ignored) in [
        (&nobody, proxy, &HeaderMap::new(), None),
        (&nobody, proxy, &x_forwarded_for, Some("x-forwarded-for")),
        (&nobody, proxy, &forwarded, Some("forwarded")),
        (&networks, proxy, &x_forwarded_for, None),
        (&networks, other, &x_forwarded_for, Some("x-forwarded-for")),
        (&networks, other, &forwarded, None),
        (&by_forwarded, other, &forwarded, Some("forwarded")),
        (&hops, other, &x_forwarded_for, None),
    ] {
        assert_eq!(
            by.untrusted_header(peer, headers),
            ignored,
            "{peer} {headers:?}"
        );
    }
}

/// The address that is extracted from fields with these values, of a peer.
fn one_address(client_ip: &Extractor<ClientIp>, peer: [u8; 4], values: &[&str]) -> String {
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append("cf-connecting-ip", value.parse().unwrap());
    }
    headers.insert("x-forwarded-for", "6.6.6.6".parse().unwrap());
    client_ip.address(peer.into(), &headers).to_string()
}

#[test]
fn a_field_with_one_address_is_believed_from_trusted_peers_alone() {
    let by = || client_ip().one_address("CF-Connecting-IP").unwrap();
    let trusting = by().trust(["10.0.0.0/8"]).unwrap();
    let (nobody, hops) = (by(), by().trust_hops(1).unwrap());
    let (cdn, stranger) = ([10, 0, 0, 1], [198, 51, 100, 9]);
    for (value, address) in [
        ("203.0.113.7", "203.0.113.7"),
        (" 203.0.113.7:4711 ", "203.0.113.7"),
        ("2001:DB8::7", "2001:db8::7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("10.0.0.9", "10.0.0.9"),
    ] {
        for (by, peer, expected) in [
            (&trusting, cdn, address),
            (&trusting, stranger, "198.51.100.9"),
            (&nobody, cdn, "10.0.0.1"),
            (&hops, stranger, address),
        ] {
            let told = format!("{value} of {peer:?}");
            assert_eq!(one_address(by, peer, &[value]), expected, "{told}");
        }
    }
    // Neither a choice of addresses nor another text is an address.
    for values in [
        &[][..],
        &[""],
        &["unknown"],
        &["203.0.113.7, 6.6.6.6"],
        &["203.0.113.7", "6.6.6.6"],
        &["0.0.0.0"],
    ] {
        assert_eq!(
            one_address(&trusting, cdn, values),
            "10.0.0.1",
            "{values:?}"
        );
    }
}

#[test]
fn fields_of_several_addresses_are_not_fields_of_one() {
    for field in ["X-Forwarded-For", "forwarded", "a b", ""] {
        let error = client_ip().one_address(field).unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains(&format!("{field:?}")),
            "{error}"
        );
    }
}
