use crate::http::extract::client_ip::address::{MAX_NODE_LEN, parse_node};

/// Text and the address in it.
const CASES: &[(&str, &str)] = &[
    ("192.0.2.60", "192.0.2.60"),
    ("192.0.2.60:4833", "192.0.2.60"),
    ("192.0.2.60:_p", "192.0.2.60"),
    ("192.0.2.60:_a.b-c_9", "192.0.2.60"),
    ("[192.0.2.60]", "192.0.2.60"),
    ("[192.0.2.60]:80", "192.0.2.60"),
    ("127.0.0.1", "127.0.0.1"),
    ("2607:f8b0:4004:83f::200e", "2607:f8b0:4004:83f::200e"),
    ("2607:F8B0:4004:083F::200E", "2607:f8b0:4004:83f::200e"),
    ("[2607:f8b0:4004:83f::200e]", "2607:f8b0:4004:83f::200e"),
    (
        "[2607:f8b0:4004:83f::200e]:4711",
        "2607:f8b0:4004:83f::200e",
    ),
    (
        "[2607:f8b0:4004:83f::200e]:_port",
        "2607:f8b0:4004:83f::200e",
    ),
    ("::1", "::1"),
    ("[::1]:80", "::1"),
    // An address, not `::1` with a port.
    ("::1:80", "::1:80"),
    ("fe80::abcd%eth0", "fe80::abcd"),
    ("fe80::abcd%eth0:1", "fe80::abcd"),
    ("[fe80::abcd%25eth0]:4711", "fe80::abcd"),
    (
        "[2607:f8b0:4004:83f::200e%zone]:4484",
        "2607:f8b0:4004:83f::200e",
    ),
    // IPv4-mapped addresses are IPv4 addresses; NAT64, 6to4 and IPv4-compatible addresses are not.
    ("::ffff:188.0.2.128", "188.0.2.128"),
    ("[::ffff:188.0.2.128]:48483", "188.0.2.128"),
    ("0:0:0:0:0:ffff:bc15:0006", "188.21.0.6"),
    ("::ffff:172.21.0.6%eth0", "172.21.0.6"),
    ("64:ff9b::188.0.2.128", "64:ff9b::bc00:280"),
    ("2002:c000:204::", "2002:c000:204::"),
    ("::1.2.3.4", "::102:304"),
];

/// Texts that are neither addresses nor nodes of RFC 7239 with one.
const NONE: &str = "\
     |unknown|unknown:80|_hidden|_gazonk:_p|localhost|nope%zone|unix:|0.0.0.0|0.0.0.0:80|::|[::]:80|\
     ::ffff:0.0.0.0|10.0.300.1|7.7.7.7.7|1.2.3|010.0.0.1|0x7f.0.0.1|2130706433|::ffff:30.168.1.9000|\
     ::8:8:8:8:8:8:8:8:8|2607:f8b0:4004:83f::999999|1.1.1.1%|1.1.1.1%eth0|fe80::1%|[fe80::1%]:80|\
     1.2.3.4:|1.2.3.4:-1|1.2.3.4:+80|1.2.3.4:123456|1.2.3.4:http|1.2.3.4:_|1.2.3.4:_a b|\
     1.2.3.4:80:80|[::1|::1]|[]|[]:80|[[::1]]|[::1]80|[::1]:|[::1]:80:80|[::1] | 1.2.3.4|\
     1.2.3.4 5.6.7.8|1.2.3.4/32|http://1.2.3.4|١.٢.٣.٤|1.2.3.4\0";

#[test]
fn addresses_in_all_forms() {
    for (text, address) in CASES {
        assert_eq!(
            parse_node(text.as_bytes()),
            Some(address.parse().unwrap()),
            "{text:?}"
        );
    }
    for text in NONE.split('|') {
        assert_eq!(parse_node(text.as_bytes()), None, "{text:?}");
    }
    assert!(
        [&b"1.2.3.4\xff"[..], b"\xff1.2.3.4", b"fe80::1%\xff"]
            .iter()
            .all(|text| parse_node(text).is_none())
    );
    let with_zone = |len: usize| parse_node(format!("fe80::1%{}", "z".repeat(len)).as_bytes());
    assert!(with_zone(MAX_NODE_LEN - 8).is_some() && with_zone(MAX_NODE_LEN - 7).is_none());
}
