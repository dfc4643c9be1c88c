use crate::http::extract::client_ip::address::MAX_NODE_LEN;
use crate::http::extract::client_ip::forwarded::{parse_element, split_last};

/// Elements and their addresses.
const ELEMENTS: &[(&str, &str)] = &[
    // The examples of RFC 7239, sections 4, 6 and 7.
    (r#"For="[2001:db8:cafe::17]:4711""#, "2001:db8:cafe::17"),
    ("for=192.0.2.60;proto=http;by=203.0.113.43", "192.0.2.60"),
    ("for=192.0.2.43", "192.0.2.43"),
    (r#"for="192.0.2.43:47011""#, "192.0.2.43"),
    (r#"for="[2001:db8:cafe::17]:47011""#, "2001:db8:cafe::17"),
    (r#"for="192.0.2.1:_port""#, "192.0.2.1"),
    // Quoted strings.
    (r#"for="\3\.\3\.\3\.\3""#, "3.3.3.3"),
    (r#"host="a\",for=6.6.6.6;\"";for=2.2.2.2"#, "2.2.2.2"),
    ("host=\"\u{fc}\t\";for=2.2.2.2", "2.2.2.2"),
    // Values without quotes that the grammar wants quotes around, and addresses without brackets.
    ("for=[2607:f8b0:4004:83f::200e]", "2607:f8b0:4004:83f::200e"),
    (r#"for="fe80::abcd%zone""#, "fe80::abcd"),
    ("host=;for=2.2.2.2;proto=", "2.2.2.2"),
    ("by=1::1;host=a:80;for=2::2;secret=abc==", "2::2"),
];

/// Elements without an address: hidden or other values, malformed elements, and elements with more than one `for`.
const NONE: &str = r#"for="_gazonk"|for=_hidden|for=_SEVKISEK|for=unknown|for=_hidden;by="[2001:db8::1]"|proto=https|;
forward=2.2.2.2;x-for=3.3.3.3|secret="for=6.6.6.6"|for=192.0.2.999|for=""|for="::1]"
for="1.1.1.1, 2.2.2.2"|for=" 1.1.1.1"|for=0.0.0.0|2.2.2.2|for|for;for=2.2.2.2|for=|for=;for=2.2.2.2
=x;for=2.2.2.2|=2.2.2.2|for =2.2.2.2|for= 2.2.2.2|for=2.2.2.2 proto=https|for=2.2.2.2;proto
for=2.2.2.2;@!=x|for=2.2.2.2;x=ü|for=2.2.2.2;ü=x|for=1.1.1.\1|for="1.1.1.1|for=1.1.1.1"
for="1.1.1.1\"|for="1.1.1.1""2.2.2.2"|for="1.1.1.1"2|for=1.1"."1.1|for="[0:0:0:0:0:ffff:bc15:0006"]
for=2.2.2.2;host="""|for=1.1.1.1;for=2.2.2.2|for=1.1.1.1;FOR=1.1.1.1|for=_hidden;For=2.2.2.2"#;

#[test]
fn addresses_of_elements() {
    // Other names, orders and quotes: `client_ip::tests::random`.
    for (element, address) in ELEMENTS {
        assert_eq!(
            parse_element(element.as_bytes()),
            Some(address.parse().unwrap()),
            "{element}"
        );
    }
    for element in NONE.lines().flat_map(|line| line.split('|')) {
        assert_eq!(parse_element(element.as_bytes()), None, "{element}");
    }
}

#[test]
fn long_values_with_escapes_are_not_addresses() {
    let quoted = |zone: usize| format!(r#"for="\[fe80::1%{}\]""#, "z".repeat(zone));
    assert!(parse_element(quoted(MAX_NODE_LEN - 10).as_bytes()).is_some());
    assert!(parse_element(quoted(MAX_NODE_LEN - 9).as_bytes()).is_none());
    assert!(parse_element(quoted(1 << 20).as_bytes()).is_none());
    assert!(
        parse_element(format!(r#"for="\fe80::1%{}""#, "z".repeat(1 << 20)).as_bytes()).is_none(),
        "not cut off"
    );
}

/// Fields, and their elements from right to left. `<malformed>` where the division ends.
const FIELDS: &[(&str, &[&str])] = &[
    ("", &[""]),
    ("a,b,", &["", "b", "a"]),
    (r#"a="1\\",b="\\\",""#, &[r#"b="\\\",""#, r#"a="1\\""#]),
    // Quotes that are not closed, before well-formed elements.
    (
        r#"for="6.6.6.6, for=1.1.1.1"#,
        &[" for=1.1.1.1", "<malformed>"],
    ),
    (
        r#"for=6.6.6.6;by=", for=1.1.1.1"#,
        &[" for=1.1.1.1", "<malformed>"],
    ),
    (
        r#"for="6.6.6.6\, for="[::1]", for=2.2.2.2"#,
        &[" for=2.2.2.2", r#" for="[::1]""#, "<malformed>"],
    ),
    (
        r#"a",for=1.1.1.1;host="b,c""#,
        &[r#"for=1.1.1.1;host="b,c""#, "<malformed>"],
    ),
    (r#"","#, &["", "<malformed>"]),
    // The quotes are paired from the right.
    (r#"a="1, b="2, c"#, &[" c", r#"a="1, b="2"#]),
    (r#"a="1", b="2, c"#, &[" c", "<malformed>"]),
    // Not closed at the end: the client's part of the field, if the proxies use other fields.
    (r#"for=6.6.6.6, for="1.1.1.1"#, &["<malformed>"]),
    (r#"""#, &["<malformed>"]),
    (r#"\""#, &["<malformed>"]),
    (r#"\"\""#, &["<malformed>"]),
    (r#"a="1\\"2""#, &["<malformed>"]),
];

#[test]
fn fields_are_divided_from_the_right() {
    for (field, elements) in FIELDS {
        let mut divided = Vec::new();
        let mut rest = Some(field.as_bytes());
        while let Some(field) = rest {
            let element = match split_last(field) {
                Some((left, element)) => {
                    rest = left;
                    str::from_utf8(element).unwrap()
                }
                None => {
                    rest = None;
                    "<malformed>"
                }
            };
            divided.push(element);
        }
        assert_eq!(divided, *elements, "{field}");
    }
}
