//! Percent-encoding.

use crate::lease::token::percent::{decode, encode};

#[test]
fn any_bytes_come_back() {
    let all: Vec<_> = (0..=255).collect();
    assert_eq!(decode(&encode(&all)).as_deref(), Some(&all[..]));
    assert_eq!(encode("shop/ä".as_bytes()), "shop%2f%c3%a4");
    for other in ["%", "%2", "%zz", "%41", "a b", "%+1", "%2F"] {
        assert_eq!(decode(other), None, "{other}");
    }
}
