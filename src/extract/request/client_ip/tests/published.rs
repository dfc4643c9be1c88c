//! Cases that other implementations publish: what they test, with the addresses that they expect.
//!
//! A case is listed with our result where it differs: for entries that are not addresses, `proxy-addr` returns the text
//! of the entry and `realclientip-go` returns nothing; for entries that are all trusted, `realclientip-go` returns
//! nothing.

use super::{client_ip, headers, ip};

const XFF: &str = "x-forwarded-for";
const FORWARDED: &str = "forwarded";

type Case = (&'static [&'static str], &'static str, &'static [&'static str], &'static str);

/// <https://github.com/jshttp/proxy-addr>, test/test.js: trusted networks, peer, `X-Forwarded-For`, client.
const PROXY_ADDR: &[Case] = &[
    (&[], "127.0.0.1", &["10.0.0.1, 10.0.0.2"], "127.0.0.1"),
    (&["10.0.0.0/8"], "127.0.0.1", &["10.0.0.1, 10.0.0.2"], "127.0.0.1"),
    (&["10.0.0.0/8"], "10.0.0.1", &["192.168.0.1"], "192.168.0.1"),
    (&["10.0.0.0/8"], "10.0.0.1", &["192.168.0.1, 10.0.0.2"], "192.168.0.1"),
    (&["10.0.0.0/8"], "10.0.0.1", &["10.0.0.3, 192.168.0.1, 10.0.0.2"], "192.168.0.1"),
    (&["127.0.0.0/8", "10.0.0.0/8"], "127.0.0.1", &["10.0.0.1, 10.0.0.2"], "10.0.0.1"),
    (&["10.0.0.1", "10.0.0.2"], "10.0.0.1", &["192.168.0.1, 10.0.0.2"], "192.168.0.1"),
    (&["10.0.0.1", "10.0.0.2"], "10.0.0.1", &["192.168.0.1, 10.0.0.2, localhost"], "10.0.0.1"),
    (&["127.0.0.1", "192.168.0.100"], "10.0.0.1", &["192.168.0.1, 10.0.0.2"], "10.0.0.1"),
    (&["10.0.0.2/26"], "10.0.0.1", &["192.168.0.1, 10.0.0.200"], "10.0.0.200"),
    (&["fe80::1", "fe80::2"], "fe80::1", &["2002:c000:203::1, fe80::2"], "2002:c000:203::1"),
    (&["fe80::/125"], "fe80::1", &["2002:c000:203::1, fe80::ff00"], "fe80::ff00"),
    (&["127.0.0.1", "::1"], "::1", &["2002:c000:203::1"], "2002:c000:203::1"),
    (&["127.0.0.1"], "::1", &["2002:c000:203::1"], "::1"),
    (&["10.0.0.1", "10.0.0.2"], "::ffff:a00:1", &["192.168.0.1, 10.0.0.2"], "192.168.0.1"),
    (&["10.0.0.1/16"], "::ffff:a00:1", &["192.168.0.1, 10.0.0.2"], "192.168.0.1"),
    (&["::ffff:a00:1", "::ffff:a00:2"], "10.0.0.1", &["192.168.0.1, 10.0.0.2"], "192.168.0.1"),
    (&["::ffff:a00:2/122"], "10.0.0.1", &["192.168.0.1, 10.0.0.200"], "10.0.0.200"),
    (&["::ffff:a00:2/122", "fe80::/125"], "10.0.0.1", &["192.168.0.1, 10.0.0.200"], "10.0.0.200"),
    (&["127.0.0.1"], "127.0.0.1", &["myrouter, 127.0.0.1, proxy"], "127.0.0.1"),
    (&["127.0.0.1"], "127.0.0.1", &["myrouter, 127.0.0.1, ::8:8:8:8:8:8:8:8:8"], "127.0.0.1"),
];

/// <https://github.com/realclientip/realclientip-go>, `RightmostTrustedRangeStrategy`, which does not check the peer in
/// most cases: here the peer is trusted then.
const RANGES: &[(&str, Case)] = &[
    (XFF, (&["1.1.1.1"], "1.1.1.1", &["2.2.2.2:3384, 3.3.3.3", "4.4.4.4"], "4.4.4.4")),
    (XFF, (&["1.1.1.1", "4.4.4.0/24"], "1.1.1.1", &["2.2.2.2:3384, 3.3.3.3", "4.4.4.4"], "3.3.3.3")),
    (XFF, (&["10.0.0.0/8"], "9.9.9.9", &["1.2.3.4, 10.0.0.1"], "9.9.9.9")),
    (XFF, (&["10.0.0.0/8"], "fe80::1", &["1.2.3.4"], "fe80::1")),
    (XFF, (&["10.0.0.0/8"], "10.0.0.5", &["3.3.3.3, 10.0.0.1"], "3.3.3.3")),
    (XFF, (&["2.2.2.0/24"], "2.2.2.9", &["2.2.2.2:3384, 2.2.2.3", "2.2.2.4"], "2.2.2.2")),
    (XFF, (&["2.2.2.0/24"], "2.2.2.9", &["nope, 2.2.2.2:3384, 2.2.2.3", "2.2.2.4"], "2.2.2.2")),
    (XFF, (&["2.2.2.0/24"], "2.2.2.9", &["::, 2.2.2.2:3384, 2.2.2.3", "2.2.2.4"], "2.2.2.2")),
    (
        FORWARDED,
        (
            &[
                "2.2.2.2/32",
                "2607:f8b0:4004:83f::200e/128",
                "3.3.0.0/16",
                "2001:db7::/64",
                "::ffff:4.4.4.4/124",
                "64:ff9b::188.0.2.128/112",
            ],
            "2.2.2.2",
            &[
                r#"For=99.99.99.99, For=4.4.4.8, For="[2607:f8b0:4004:83f::200e]:4747""#,
                "For=2.2.2.2:8883, For=64:ff9b::188.0.2.200, For=3.3.5.5, For=2001:db7::abcd",
            ],
            "99.99.99.99",
        ),
    ),
];

const LONG: &[&str] = &[
    "4.4.4.4, 5.5.5.5",
    "::1, fe80::382b:141b:fa4a:2a16%28",
    "7.7.7.7.7, 8.8.8.8, 9.9.9.9, 10.10.10.10,11.11.11.11, 12.12.12.12",
];
const MAPPED: &str = r#"For="::ffff:bc15:0006""#;
const WHAT: &str = "host=what;for=6.6.6.6;proto=https";

/// `realclientip-go`, `RightmostTrustedCountStrategy`: header, number of proxies, fields, client. Where the client is
/// empty, `realclientip-go` returns nothing and we return the peer.
const COUNTS: &[(&str, usize, &[&str], &str)] = &[
    (FORWARDED, 1, &[MAPPED, WHAT], "6.6.6.6"),
    (FORWARDED, 2, &[MAPPED, WHAT], "188.21.0.6"),
    (XFF, 5, LONG, "8.8.8.8"),
    (XFF, 6, LONG, ""),
    (XFF, 7, LONG, "fe80::382b:141b:fa4a:2a16"),
    (XFF, 50, LONG, ""),
    (FORWARDED, 2, &[MAPPED, "For=nope", WHAT], ""),
    (FORWARDED, 2, &[MAPPED, "For=0.0.0.0", WHAT], ""),
    (FORWARDED, 1, &[], ""),
];

#[test]
fn proxy_addr() {
    for case in PROXY_ADDR {
        check(XFF, case);
    }
}

#[test]
fn real_client_ip_by_range() {
    for (header, case) in RANGES {
        check(header, case);
    }
}

fn check(header: &'static str, (trusted, peer, fields, client): &Case) {
    let trusting = client_ip().trust(trusted.iter().copied()).unwrap();
    let trusting = if header == FORWARDED { trusting.forwarded() } else { trusting };
    assert_eq!(
        trusting.address(ip(peer), &headers(header, fields)),
        ip(client),
        "{trusted:?} {peer} {fields:?}"
    );
}

#[test]
fn real_client_ip_by_count() {
    for (header, n, fields, client) in COUNTS {
        let trusting = client_ip().trust_hops(*n).unwrap();
        let trusting = if *header == FORWARDED { trusting.forwarded() } else { trusting };
        let client = if client.is_empty() { "10.0.0.1" } else { client };
        assert_eq!(trusting.address(ip("10.0.0.1"), &headers(header, fields)), ip(client), "{n} {fields:?}");
    }
}
