//! The header fields that `Vary` names.

use super::super::*;

#[test]
fn the_values_of_a_field_are_found_in_their_order() {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("x-a", "1:2"),
        ("x", ""),
        ("x-a", "\t\u{e9}, 3 "),
        ("x-ab", "4"),
        ("x-b", "x-a:5"),
    ] {
        headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    let asked = Asked::of(&headers);
    for name in ["x-a", "x", "x-ab", "x-b", "y"] {
        let name = HeaderName::from_static(name);
        let values = asked.values(&name);
        assert!(values.iter().eq(headers.get_all(&name)), "{name}");
        assert!(
            values.iter().all(HeaderValue::is_sensitive),
            "a credential is not shown"
        );
    }
    assert_eq!(
        Asked::of(&HeaderMap::new())
            .values(&HeaderName::from_static("x"))
            .len(),
        0
    );
}
