//! The content of a request in a normal form for comparison: two spellings of the same content have the same form.

/// Returns the normal form of a `Content-Type`, and the texts of a body to compare.
///
/// The case of the names of types, parameters and charsets does not count, nor does the order of parameters. The
/// default charset is UTF-8. The boundary of a multipart body does not count either: its parts are compared.
pub(super) fn compared<'a>(content_type: &[u8], body: &'a [u8]) -> (Vec<u8>, Vec<&'a [u8]>) {
    let Some(MediaType {
        essence,
        mut parameters,
    }) = MediaType::read(content_type)
    else {
        return (content_type.to_vec(), vec![body]);
    };
    parameters.retain(|(name, value)| !(name == b"charset" && value == b"utf-8"));
    let mut texts = vec![body];
    if essence.starts_with(b"multipart/")
        && let Some(at) = parameters.iter().position(|(name, _)| name == b"boundary")
        && let Some(parts) = multipart(body, &parameters[at].1)
    {
        parameters.remove(at);
        texts = parts;
    }
    let mut form = essence;
    for (name, value) in parameters {
        form.push(b';');
        form.extend(name);
        form.push(b'=');
        form.extend(value);
    }
    (form, texts)
}

/// A `Content-Type`.
struct MediaType {
    /// In lower case.
    essence: Vec<u8>,
    /// In the order of their names, which are in lower case. The values are without quotes.
    parameters: Vec<(Vec<u8>, Vec<u8>)>,
}

impl MediaType {
    /// `None`: the text is not a media type, or is malformed.
    fn read(text: &[u8]) -> Option<Self> {
        let mut items = split_outside_quotes(text).into_iter();
        let essence = items.next()?.trim_ascii().to_ascii_lowercase();
        let mut parameters = Vec::new();
        for item in items
            .map(<[u8]>::trim_ascii)
            .filter(|item| !item.is_empty())
        {
            let equals = item.iter().position(|byte| *byte == b'=')?;
            let name = item[..equals].trim_ascii().to_ascii_lowercase();
            let mut value = unquoted(item[equals + 1..].trim_ascii())?;
            if name == b"charset" {
                value.make_ascii_lowercase();
                if value == b"utf8" {
                    value = b"utf-8".to_vec();
                }
            }
            parameters.push((name, value));
        }
        parameters.sort();
        essence.contains(&b'/').then_some(Self {
            essence,
            parameters,
        })
    }
}

/// Splits a text at semicolons that are not within quotes.
fn split_outside_quotes(text: &[u8]) -> Vec<&[u8]> {
    let (mut items, mut begin, mut is_quoted, mut is_escaped) = (Vec::new(), 0, false, false);
    for (at, byte) in text.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b';' if !is_quoted => {
                items.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    items.push(&text[begin..]);
    items
}

/// Returns a value without its quotes. `None`: the closing quote is missing.
fn unquoted(value: &[u8]) -> Option<Vec<u8>> {
    let Some(quoted) = value.strip_prefix(b"\"") else {
        return Some(value.to_vec());
    };
    let (mut plain, mut is_escaped) = (Vec::new(), false);
    for byte in quoted.strip_suffix(b"\"")? {
        if *byte == b'\\' && !is_escaped {
            is_escaped = true;
        } else {
            is_escaped = false;
            plain.push(*byte);
        }
    }
    Some(plain)
}

/// Returns the parts of a multipart body (RFC 2046, 5.1.1), with their header fields. `None`: the body is not multipart
/// with this boundary, or has text before the first or after the last part.
fn multipart<'a>(body: &'a [u8], boundary: &[u8]) -> Option<Vec<&'a [u8]>> {
    let delimiter = [b"\r\n--", boundary].concat();
    let mut rest = body.strip_prefix(&delimiter[2..])?;
    let mut parts = Vec::new();
    loop {
        if let Some(end) = rest.strip_prefix(b"--") {
            return end.trim_ascii().is_empty().then_some(parts);
        }
        // Spaces after a delimiter have no meaning.
        let line = rest.iter().position(|byte| !b" \t".contains(byte))?;
        rest = rest[line..].strip_prefix(b"\r\n")?;
        let end = rest
            .windows(delimiter.len())
            .position(|bytes| bytes == delimiter)?;
        parts.push(&rest[..end]);
        rest = &rest[end + delimiter.len()..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(content_type: &str, body: &'static str) -> (String, Vec<&'static str>) {
        let (form, texts) = compared(content_type.as_bytes(), body.as_bytes());
        let text = |bytes| std::str::from_utf8(bytes).unwrap();
        (
            String::from_utf8(form).unwrap(),
            texts.into_iter().map(text).collect(),
        )
    }

    #[test]
    fn spellings_of_a_content_type_are_one() {
        for (same, one) in [
            ("text/plain", "text/plain"),
            ("Text/Plain; charset=UTF-8", "text/plain"),
            ("text/plain;charset=\"utf-8\" ;", "text/plain"),
            ("text/plain ; Charset=utf8", "text/plain"),
            ("application/json; charset=Utf-8", "application/json"),
            (
                "text/plain; CHARSET=\"ISO-8859-1\"",
                "text/plain;charset=iso-8859-1",
            ),
            (
                "text/plain; format=Flowed; charset=x",
                "text/plain;charset=x;format=Flowed",
            ),
            (
                "text/plain; charset=x; format=Flowed",
                "text/plain;charset=x;format=Flowed",
            ),
            ("a/b; c=\"d;\\\"e\"", "a/b;c=d;\"e"),
            // A malformed value is compared unchanged.
            ("text", "text"),
            ("a/b; c", "a/b; c"),
            ("a/b; c=\"d", "a/b; c=\"d"),
            ("", ""),
        ] {
            assert_eq!(form(same, "body"), (one.to_owned(), vec!["body"]), "{same}");
        }
    }

    #[test]
    fn parts_do_not_depend_on_the_boundary() {
        let one = "--x1\r\na: b\r\n\r\n10 EUR\r\n--x1\r\n\r\n--x2\r\n--x1--\r\n";
        let parts = vec!["a: b\r\n\r\n10 EUR", "\r\n--x2"];
        assert_eq!(
            form("multipart/form-data; boundary=x1", one),
            ("multipart/form-data".to_owned(), parts)
        );
        let other = "--y \r\na: b\r\n\r\n10 EUR\r\n--y\r\n\r\n--x2\r\n--y--";
        assert_eq!(
            form("Multipart/Form-Data; Boundary=\"y\"", other),
            form("multipart/form-data; boundary=x1", one)
        );
        for (content_type, body) in [
            (
                "multipart/form-data; boundary=x1",
                "--x1\r\na: b\r\n\r\n11 EUR\r\n--x1\r\n\r\n--x2\r\n--x1--\r\n",
            ),
            (
                "multipart/form-data; boundary=x1",
                "--x1\r\na: b\r\n\r\n10 EUR\r\n--x1--\r\n",
            ),
            ("multipart/mixed; boundary=x1", one),
        ] {
            assert_ne!(
                form(content_type, body),
                form("multipart/form-data; boundary=x1", one),
                "{body}"
            );
        }
    }

    #[test]
    fn a_body_that_is_not_of_its_boundary_is_compared_as_it_is() {
        let bodies = "|--x1|--x1\r\n|--x1\r\na|before\r\n--x1\r\na\r\n--x1--|--x1\r\na\r\n--x1-- after|\
             --x1\r\na\r\n--x1 b\r\n--x1--|--x2\r\na\r\n--x2--";
        for body in bodies.split('|') {
            let form = form("multipart/mixed; boundary=x1", body);
            assert_eq!(form, ("multipart/mixed;boundary=x1".to_owned(), vec![body]));
        }
        assert_eq!(
            form("multipart/mixed", "--\r\na\r\n----").1,
            ["--\r\na\r\n----"]
        );
    }
}
