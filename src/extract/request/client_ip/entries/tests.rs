use std::time::Duration;

use super::*;

fn entries(header: ForwardingHeader, fields: &[&[u8]]) -> Vec<String> {
    let mut headers = HeaderMap::new();
    for field in fields {
        headers.append(header.name(), HeaderValue::from_bytes(field).unwrap());
    }
    let name = |entry: Option<IpAddr>| entry.map_or_else(|| "-".into(), |address| address.to_string());
    header.entries(&headers).map(name).collect()
}

/// With quadratic work each of these would take minutes.
#[test]
fn megabytes_are_read_in_linear_time() {
    let patterns: [&[u8]; 9] =
        [b"\"", b"\\", b"\\\"", b",", b",\"", b"=\"\\\"\\\",", b"for=\"\",", b"a;\" ", b" "];
    let started = std::time::Instant::now();
    for pattern in patterns {
        for header in ForwardingHeader::ALL {
            for end in [&b""[..], b"\"", b", for=1.1.1.1", b", for=\"1.1.1.1\""] {
                entries(header.clone(), &[&[&pattern.repeat((1 << 20) / pattern.len()), end].concat()]);
            }
        }
    }
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}
