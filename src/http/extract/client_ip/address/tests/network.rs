use std::net::IpAddr;

use ipnet::IpNet;

use crate::http::extract::client_ip::address::parse_networks;

/// Text and the network that it is.
const NETWORKS: &[(&str, &str)] = &[
    ("1.1.1.1", "1.1.1.1/32"),
    ("2607:f8b0:4004:83f::200e", "2607:f8b0:4004:83f::200e/128"),
    ("10.0.0.0/8", "10.0.0.0/8"),
    ("1.1.1.1/16", "1.1.0.0/16"),
    ("1.1.1.1/32", "1.1.1.1/32"),
    ("fd00::/8", "fd00::/8"),
    ("2607:f8b0:4004:83f::200e/48", "2607:f8b0:4004::/48"),
    ("2607:f8b0:4004:83f::200e/56", "2607:f8b0:4004:800::/56"),
    ("::ffff:188.0.2.128", "188.0.2.128/32"),
    ("::ffff:188.0.2.128/112", "188.0.0.0/16"),
    ("::ffff:bc15:0006/104", "188.0.0.0/8"),
    ("::ffff:a00:2/122", "10.0.0.0/26"),
    ("64:ff9b::188.0.2.128/112", "64:ff9b::bc00:0/112"),
    (" 10.0.0.0/8\t", "10.0.0.0/8"),
];

/// Texts that are none.
const NO_NETWORKS: &str = "| |blargh|-1|loopback|10.0.300.1|010.0.0.0/8|1.1.1.nope|::ffff:30.168.1.9000|10.0.0.1/internet|\
     10.0.0.1/33|10.0.0.1/6000|10.0.0.1/|10.0.0.1/+8|10.0.0.1/-1|10.0.0.1/8/8|10.0.0.1 /8|\
     10.0.0.1/255.255.0.0|::1/129|::ffff:a00:2/136|fe80::/ffc0::|fe80::abcd%nope/64|fe80::abcd%nope|[::1]|\
     10.0.0.1:80|10.0.0.0/8,fd00::/8";

#[test]
fn networks_from_text() {
    for (text, network) in NETWORKS {
        assert_eq!(
            parse_networks([*text]),
            Ok(vec![network.parse().unwrap()]),
            "{text:?}"
        );
        assert_eq!(
            parse_networks([&String::from(*text)]),
            parse_networks([String::from(*text)])
        );
    }
}

#[test]
fn errors_name_the_text() {
    for text in NO_NETWORKS.split('|') {
        let error = parse_networks(["10.0.0.0/8", text, "fd00::/8"]).unwrap_err();
        assert!(
            error.contains(&format!("{:?} is neither", text.trim())),
            "{text:?}: {error}"
        );
    }
}

#[test]
fn networks_from_values() {
    let networks = |values: &[&str]| {
        values
            .iter()
            .map(|value| value.parse().unwrap())
            .collect::<Vec<IpNet>>()
    };
    let values = networks(&["10.1.2.3/8", "::ffff:10.0.0.0/104", "fd00::1/8"]);
    let canonical = networks(&["10.0.0.0/8", "10.0.0.0/8", "fd00::/8"]);
    assert_eq!(parse_networks(&values), Ok(canonical.clone()));
    assert_eq!(parse_networks(values), Ok(canonical));
    let address: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
    assert_eq!(parse_networks([address]), Ok(networks(&["10.0.0.1/32"])));
}

#[test]
fn networks_of_too_many_addresses_are_refused() {
    for text in "0.0.0.0/0|10.0.0.1/0|::/0|::1/0|::ffff:0.0.0.0/96".split('|') {
        let error = parse_networks([text]).unwrap_err();
        assert!(
            error.contains("trusts every address") && error.contains("trust_hops"),
            "{text}: {error}"
        );
        assert!(
            parse_networks([text.parse::<IpNet>().unwrap()]).is_err(),
            "{text}"
        );
    }
    // Mapped ones of more than IPv4.
    let error = parse_networks(["::ffff:10.0.0.0/8"]).unwrap_err();
    assert!(
        error.contains("::ffff:10.0.0.0/8") && error.contains("96"),
        "{error}"
    );
}
