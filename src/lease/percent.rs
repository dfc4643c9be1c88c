//! Percent-encoding (RFC 3986, section 2.1), which writes arbitrary bytes in a restricted alphabet.

/// Writes each byte outside of `A-Z a-z 0-9 - _ .` as `%` and two hexadecimal digits.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                text.push(char::from(*byte))
            }
            _ => text.push_str(&format!("%{byte:02x}")),
        }
    }
    text
}

/// Returns the bytes that [`encode`] writes as `text`; `None` if there are none.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    (encode(&bytes) == text).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_come_back() {
        let all: Vec<_> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)).as_deref(), Some(&all[..]));
        assert_eq!(encode("shop/ä".as_bytes()), "shop%2f%c3%a4");
        for other in ["%", "%2", "%zz", "%41", "a b", "%+1", "%2F"] {
            assert_eq!(decode(other), None, "{other}");
        }
    }
}
