//! `Forwarded` and `X-Forwarded-For`: whoever is not a proxy cannot choose its address.
#![no_main]

use std::net::IpAddr;

use tower_distributed::extract::client_ip;
use tower_distributed_fuzz::fields;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let headers = fields(data);
    let (client, proxy) = (IpAddr::from([203, 0, 113, 7]), IpAddr::from([10, 0, 0, 1]));
    for trusted in [client_ip().trust(["10.0.0.0/8"]), client_ip().trust_hops(2)] {
        let Ok(trusted) = trusted else { return };
        for client_ip in [trusted.clone().forwarded(), trusted] {
            let _ = client_ip.address(proxy, &headers);
        }
    }
    if let Ok(client_ip) = client_ip().trust(["10.0.0.0/8"]) {
        assert_eq!(client_ip.address(client, &headers), client);
        // A proxy adds the address that it sees at the end.
        let mut behind = headers.clone();
        behind.append(
            "x-forwarded-for",
            "203.0.113.7".parse().expect("it is a value"),
        );
        assert_eq!(client_ip.address(proxy, &behind), client);
        let client_ip = client_ip.forwarded();
        let mut behind = headers;
        behind.append(
            "forwarded",
            "for=203.0.113.7".parse().expect("it is a value"),
        );
        assert_eq!(client_ip.address(proxy, &behind), client);
    }
});
