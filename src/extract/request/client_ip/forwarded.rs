//! The grammar of `Forwarded` (RFC 7239), read from the right.
//!
//! ```text
//! Forwarded         = #forwarded-element
//! forwarded-element = [ forwarded-pair ] *( ";" [ forwarded-pair ] )
//! forwarded-pair    = token "=" ( token / quoted-string )
//! ```
//!
//! Quoted strings may contain commas, and a client may send an unclosed quote: `for="6.6.6.6`. If a proxy appends
//! `, for=1.1.1.1` to that field, a parser that starts on the left takes the proxy's element for a part of the quoted
//! string. A parser that splits at each comma is misled by `host="a, for=6.6.6.6"`, where the host comes from the
//! client and the proxy has quoted it correctly.
//!
//! This parser therefore divides a field into elements from the right. The boundaries of well-formed elements are found
//! without reading what is left of them:
//!
//! * The end of the field is outside of quoted strings, since the last element is well-formed.
//! * The first quote to the left of such a place closes a quoted string. Within the string each quote follows an odd
//!   number of backslashes. The quote that opens it follows `=`, hence an even number (0).
//! * A comma outside of quoted strings ends the element before it. The place left of that comma is again the end of an
//!   element.
//!
//! So the elements that honest proxies have appended are divided the same way whatever bytes are left of them. Where a
//! quote is closed but never opened, the division ends. Each element is then parsed from the left, by the grammar.

use std::net::IpAddr;

use super::entries::Split;
use super::node;

#[cfg(test)]
mod tests;

/// The last element of a field, and what is left of the comma before it. `None` if a quoted string at the end of the
/// field is not opened.
pub(super) fn split_last(field: &[u8]) -> Option<Split<'_>> {
    let mut end = field.len();
    loop {
        match field[..end]
            .iter()
            .rposition(|byte| matches!(byte, b',' | b'"'))
        {
            None => return Some((None, field)),
            Some(comma) if field[comma] == b',' => {
                return Some((Some(&field[..comma]), &field[comma + 1..]));
            }
            Some(closing) => end = opening_quote(&field[..closing])?,
        }
    }
}

/// Where the quoted string is opened that is closed at the end of the text.
fn opening_quote(text: &[u8]) -> Option<usize> {
    let mut end = text.len();
    loop {
        let quote = text[..end].iter().rposition(|&byte| byte == b'"')?;
        let backslashes = text[..quote]
            .iter()
            .rev()
            .take_while(|&&byte| byte == b'\\')
            .count();
        if backslashes % 2 == 0 {
            return Some(quote);
        }
        end = quote;
    }
}

/// The address of the parameter `for`. `None` if there is no such parameter or more than one, if its value is not an
/// address, or if the element is malformed.
///
/// Deviations from the grammar are accepted where they are common and not ambiguous: white space around `;`, and any
/// visible characters but `"`, `\`, `,` and `;` in a value without quotes, as in `for=[2001:db8::1]:80`. Such a value
/// may also be empty, as in `host=`: otherwise a client that sends no host could be counted as the proxy.
pub(super) fn parse(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    let mut rest = element;
    loop {
        rest = rest.trim_ascii_start();
        if !matches!(rest.first(), None | Some(b';')) {
            let (name, value, after) = pair(rest)?;
            // A second `for` would make it depend on the parser which address counts.
            if name.eq_ignore_ascii_case(b"for") && found.replace(value).is_some() {
                return None;
            }
            rest = after.trim_ascii_start();
        }
        match rest.split_first() {
            Some((b';', after)) => rest = after,
            Some(_) => return None,
            None => return node_of(found?),
        }
    }
}

/// The name of a parameter, its value (what is between the quotes, with its backslashes), and what follows.
fn pair(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (name, rest) = text.split_at(text.iter().position(|byte| !is_token(*byte))?);
    let value = rest.strip_prefix(b"=").filter(|_| !name.is_empty())?;
    let (value, after) = match value.strip_prefix(b"\"") {
        Some(quoted) => {
            let closing = closing_quote(quoted)?;
            (&quoted[..closing], &quoted[closing + 1..])
        }
        None => {
            let is_end = |byte: &u8| !byte.is_ascii_graphic() || b"\"\\,;".contains(byte);
            value.split_at(value.iter().position(is_end).unwrap_or(value.len()))
        }
    };
    Some((name, value, after))
}

/// `tchar` of RFC 9110, 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Where a quoted string is closed, from what follows the quote that opens it.
fn closing_quote(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += text
            .get(at..)?
            .iter()
            .position(|byte| matches!(byte, b'"' | b'\\'))?;
        if text[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}

/// The address of a value. One without quotes has no backslashes.
fn node_of(value: &[u8]) -> Option<IpAddr> {
    if !value.contains(&b'\\') {
        return node::parse(value);
    }
    let (mut unescaped, mut len) = ([0; node::MAX_LEN], 0);
    let mut bytes = value.iter();
    while let Some(&byte) = bytes.next() {
        let byte = if byte == b'\\' { *bytes.next()? } else { byte };
        *unescaped.get_mut(len)? = byte;
        len += 1;
    }
    node::parse(&unescaped[..len])
}
