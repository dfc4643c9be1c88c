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

#[test]
fn x_forwarded_for_from_the_right() {
    let cases: &[(&[&[u8]], &[&str])] = &[
        (&[], &[]),
        (&[b""], &[]),
        (&[b" ,\t, "], &[]),
        (&[b"1.1.1.1"], &["1.1.1.1"]),
        (&[b"1.1.1.1,2.2.2.2 ,\t3.3.3.3"], &["3.3.3.3", "2.2.2.2", "1.1.1.1"]),
        (&[b"1.1.1.1, 2.2.2.2", b"", b"3.3.3.3"], &["3.3.3.3", "2.2.2.2", "1.1.1.1"]),
        (&[b", 1.1.1.1,, ,2.2.2.2,"], &["2.2.2.2", "1.1.1.1"]),
        (&[b"\"1.1.1.1:80\", \"[::1]:80\", \"::1\""], &["::1", "::1", "1.1.1.1"]),
        (&[b"unknown, _hidden, 1.1.1.1\xff, 1.1.1.1"], &["1.1.1.1", "-", "-", "-"]),
        // There are no quoted strings: a quote does not extend over a comma.
        (&[b"\"6.6.6.6, 1.1.1.1", b"2.2.2.2\", \", \"\""], &["-", "-", "-", "1.1.1.1", "-"]),
        (&[b"for=1.1.1.1", b"1.1.1.1;2.2.2.2", b"1.1.1.1 2.2.2.2"], &["-", "-", "-"]),
    ];
    for (fields, expected) in cases {
        assert_eq!(entries(ForwardingHeader::XForwardedFor, fields), *expected, "{fields:?}");
    }
}

#[test]
fn forwarded_from_the_right() {
    let cases: &[(&[&[u8]], &[&str])] = &[
        (&[], &[]),
        (&[b" , "], &[]),
        (&[b"for=192.0.2.43, for=198.51.100.17"], &["198.51.100.17", "192.0.2.43"]),
        (
            &[b"for=192.0.2.43,FOR=\"[2001:db8:cafe::17]\"", b"for=unknown"],
            &["-", "2001:db8:cafe::17", "192.0.2.43"],
        ),
        (&[b"for=_hidden, for=_SEVKISEK"], &["-", "-"]),
        // An element without `for` counts, an empty one does not.
        (&[b"for=1.1.1.1, proto=https,, ;"], &["-", "-", "1.1.1.1"]),
        (&[b"For=\"1.1.1.1, For=2.2.2.2, For=3.3.3.3\", For=\"4.4.4.4\""], &["4.4.4.4", "-"]),
        (&[b"For=1.1.1.1;For=2.2.2.2, For=3.3.3.3"], &["3.3.3.3", "-"]),
        // A quote that is not closed ends the entries, also those of the fields before.
        (&[b"for=1.1.1.1", b"for=2.2.2.2, for=\"3.3.3.3, for=4.4.4.4"], &["4.4.4.4", "-"]),
        (&[b"for=1.1.1.1", b"for=\"2.2.2.2", b"for=3.3.3.3"], &["3.3.3.3", "-"]),
        // Malformed otherwise: the division goes on.
        (&[b"for=1.1.1.1, \xff, for=3.3.3.3"], &["3.3.3.3", "-", "1.1.1.1"]),
    ];
    for (fields, expected) in cases {
        assert_eq!(entries(ForwardingHeader::Forwarded, fields), *expected, "{fields:?}");
    }
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
