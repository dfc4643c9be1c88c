use super::*;

mod elements;

/// With quadratic work this would take hours.
#[test]
fn megabytes_are_read_in_linear_time() {
    let patterns: [&[u8]; 9] = [
        b"\"",
        b"\\",
        b"\\\"",
        b",",
        b",\"",
        b"=\"\\\"\\\",",
        b"for=\"\",",
        b"a;\" ",
        b" ",
    ];
    for pattern in patterns {
        for header in ForwardingHeader::ALL {
            for end in [&b""[..], b"\"", b", for=1.1.1.1", b", for=\"1.1.1.1\""] {
                let field = [&pattern.repeat((1 << 20) / pattern.len()), end].concat();
                let value = HeaderValue::from_bytes(&field).unwrap();
                let headers = HeaderMap::from_iter([(header.name().clone(), value)]);
                header.entries(&headers).for_each(drop);
            }
        }
    }
}
