//! Cases that other implementations publish: what they test, with the addresses that they expect.
//!
//! A case is listed with our result where it differs: for entries that are not addresses, `proxy-addr` returns the text
//! of the entry and `realclientip-go` returns nothing; for entries that are all trusted, `realclientip-go` returns
//! nothing.
//!
//! Fields are separated by `&`.

use super::{ClientIp, Extractor, client_ip, headers, ip};

/// <https://github.com/jshttp/proxy-addr>, test/test.js: trusted networks, peer, `X-Forwarded-For`, client.
const PROXY_ADDR: &str = "
 | 127.0.0.1 | 10.0.0.1, 10.0.0.2 | 127.0.0.1
10.0.0.0/8 | 127.0.0.1 | 10.0.0.1, 10.0.0.2 | 127.0.0.1
10.0.0.0/8 | 10.0.0.1 | 192.168.0.1 | 192.168.0.1
10.0.0.0/8 | 10.0.0.1 | 192.168.0.1, 10.0.0.2 | 192.168.0.1
10.0.0.0/8 | 10.0.0.1 | 10.0.0.3, 192.168.0.1, 10.0.0.2 | 192.168.0.1
127.0.0.0/8 10.0.0.0/8 | 127.0.0.1 | 10.0.0.1, 10.0.0.2 | 10.0.0.1
10.0.0.1 10.0.0.2 | 10.0.0.1 | 192.168.0.1, 10.0.0.2 | 192.168.0.1
10.0.0.1 10.0.0.2 | 10.0.0.1 | 192.168.0.1, 10.0.0.2, localhost | 10.0.0.1
127.0.0.1 192.168.0.100 | 10.0.0.1 | 192.168.0.1, 10.0.0.2 | 10.0.0.1
10.0.0.2/26 | 10.0.0.1 | 192.168.0.1, 10.0.0.200 | 10.0.0.200
fe80::1 fe80::2 | fe80::1 | 2002:c000:203::1, fe80::2 | 2002:c000:203::1
fe80::/125 | fe80::1 | 2002:c000:203::1, fe80::ff00 | fe80::ff00
127.0.0.1 ::1 | ::1 | 2002:c000:203::1 | 2002:c000:203::1
127.0.0.1 | ::1 | 2002:c000:203::1 | ::1
10.0.0.1 10.0.0.2 | ::ffff:a00:1 | 192.168.0.1, 10.0.0.2 | 192.168.0.1
10.0.0.1/16 | ::ffff:a00:1 | 192.168.0.1, 10.0.0.2 | 192.168.0.1
::ffff:a00:1 ::ffff:a00:2 | 10.0.0.1 | 192.168.0.1, 10.0.0.2 | 192.168.0.1
::ffff:a00:2/122 | 10.0.0.1 | 192.168.0.1, 10.0.0.200 | 10.0.0.200
::ffff:a00:2/122 fe80::/125 | 10.0.0.1 | 192.168.0.1, 10.0.0.200 | 10.0.0.200
127.0.0.1 | 127.0.0.1 | myrouter, 127.0.0.1, proxy | 127.0.0.1
127.0.0.1 | 127.0.0.1 | myrouter, 127.0.0.1, ::8:8:8:8:8:8:8:8:8 | 127.0.0.1";

/// <https://github.com/realclientip/realclientip-go>, `RightmostTrustedRangeStrategy`, which does not check the peer in
/// most cases: here the peer is trusted then.
const RANGES: &str = "
1.1.1.1 | 1.1.1.1 | 2.2.2.2:3384, 3.3.3.3 & 4.4.4.4 | 4.4.4.4
1.1.1.1 4.4.4.0/24 | 1.1.1.1 | 2.2.2.2:3384, 3.3.3.3 & 4.4.4.4 | 3.3.3.3
10.0.0.0/8 | 9.9.9.9 | 1.2.3.4, 10.0.0.1 | 9.9.9.9
10.0.0.0/8 | fe80::1 | 1.2.3.4 | fe80::1
10.0.0.0/8 | 10.0.0.5 | 3.3.3.3, 10.0.0.1 | 3.3.3.3
2.2.2.0/24 | 2.2.2.9 | 2.2.2.2:3384, 2.2.2.3 & 2.2.2.4 | 2.2.2.2
2.2.2.0/24 | 2.2.2.9 | nope, 2.2.2.2:3384, 2.2.2.3 & 2.2.2.4 | 2.2.2.2
2.2.2.0/24 | 2.2.2.9 | ::, 2.2.2.2:3384, 2.2.2.3 & 2.2.2.4 | 2.2.2.2";

/// The same with `Forwarded`.
const FORWARDED_RANGES: &str = "2.2.2.2/32 2607:f8b0:4004:83f::200e/128 3.3.0.0/16 2001:db7::/64 \
     ::ffff:4.4.4.4/124 64:ff9b::188.0.2.128/112 | 2.2.2.2 | For=99.99.99.99, For=4.4.4.8, \
     For=\"[2607:f8b0:4004:83f::200e]:4747\" & For=2.2.2.2:8883, For=64:ff9b::188.0.2.200, For=3.3.5.5, \
     For=2001:db7::abcd | 99.99.99.99";

const LONG: &str = "4.4.4.4, 5.5.5.5 & ::1, fe80::382b:141b:fa4a:2a16%28 & \
     7.7.7.7.7, 8.8.8.8, 9.9.9.9, 10.10.10.10,11.11.11.11, 12.12.12.12";

/// `realclientip-go`, `RightmostTrustedCountStrategy`: number of proxies, `X-Forwarded-For`, client. Where
/// `realclientip-go` returns nothing, we return the peer, 10.0.0.1.
const COUNTS: &str = "
5 | LONG | 8.8.8.8
6 | LONG | 10.0.0.1
7 | LONG | fe80::382b:141b:fa4a:2a16
50 | LONG | 10.0.0.1";

/// The same with `Forwarded`.
const FORWARDED_COUNTS: &str = r#"
1 | For="::ffff:bc15:0006" & host=what;for=6.6.6.6;proto=https | 6.6.6.6
2 | For="::ffff:bc15:0006" & host=what;for=6.6.6.6;proto=https | 188.21.0.6
2 | For="::ffff:bc15:0006" & For=nope & host=what;for=6.6.6.6;proto=https | 10.0.0.1
2 | For="::ffff:bc15:0006" & For=0.0.0.0 & host=what;for=6.6.6.6;proto=https | 10.0.0.1
1 |  | 10.0.0.1"#;

fn check(
    client_ip: &Extractor<ClientIp>,
    is_forwarded: bool,
    peer: &str,
    fields: &str,
    client: &str,
    row: &str,
) {
    let fields: Vec<_> = fields.split(" & ").filter(|field| !field.is_empty()).collect();
    let address = if is_forwarded {
        client_ip.clone().forwarded().address(ip(peer), &headers("forwarded", &fields))
    } else {
        client_ip.address(ip(peer), &headers("x-forwarded-for", &fields))
    };
    assert_eq!(address, ip(client), "{row}");
}

#[test]
fn by_range() {
    for (rows, is_forwarded) in [(PROXY_ADDR, false), (RANGES, false), (FORWARDED_RANGES, true)] {
        for row in rows.trim().lines() {
            let [trusted, peer, fields, client] = row.split('|').map(str::trim).collect::<Vec<_>>()[..]
            else {
                panic!("{row}")
            };
            let trusting = client_ip().trust(trusted.split_whitespace()).unwrap();
            check(&trusting, is_forwarded, peer, fields, client, row);
        }
    }
}

#[test]
fn by_count() {
    for (rows, is_forwarded) in [(COUNTS, false), (FORWARDED_COUNTS, true)] {
        for row in rows.trim().lines() {
            let [n, fields, client] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
                panic!("{row}")
            };
            let trusting = client_ip().trust_hops(n.parse().unwrap()).unwrap();
            check(&trusting, is_forwarded, "10.0.0.1", &fields.replace("LONG", LONG), client, row);
        }
    }
}
