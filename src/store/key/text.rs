//! Keys as text that is safe to print.

use sha2::{Digest as _, Sha256};

/// Writes bytes as text that is safe to print.
pub(crate) fn text_of(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let escape = |text: &mut String, bytes: &[u8]| {
        bytes
            .iter()
            .for_each(|byte| text.push_str(&format!("%{byte:02x}")));
    };
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            // Quotes and backslashes can be printed, but `escape_debug` escapes them.
            let is_printable = "'\"\\".contains(c) || c.escape_debug().len() == 1;
            if is_printable && c != '%' {
                text.push(c)
            } else {
                escape(&mut text, c.to_string().as_bytes())
            }
        }
        escape(&mut text, chunk.invalid());
    }
    let inner = text.trim_matches(' ');
    if inner.len() == text.len() {
        return text;
    }
    let before = text.len() - text.trim_start_matches(' ').len();
    let after = if inner.is_empty() {
        0
    } else {
        text.len() - before - inner.len()
    };
    format!("{}{inner}{}", "%20".repeat(before), "%20".repeat(after))
}

/// Returns the bytes that [`text_of`] writes as `text`, or would write in another way.
pub(crate) fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.bytes());
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                let digit = |byte: u8| char::from(byte).to_digit(16);
                (digit(digits[0])? * 16 + digit(digits[1])?) as u8
            }
            byte => byte,
        });
    }
    Some(bytes)
}

/// Whether a text is the 64 hexadecimal digits of a SHA-256 digest.
pub(crate) fn is_digest(text: &str) -> bool {
    text.len() == 64
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Writes `%#` and the SHA-256 digest of a key, which stand for a long key in names.
pub(crate) fn digest_text(key: &[u8]) -> String {
    let mut text = "%#".to_owned();
    Sha256::digest(key)
        .iter()
        .for_each(|byte| text.push_str(&format!("{byte:02x}")));
    text
}
