//! What the targets share: header fields and requests from bytes.

use http::{HeaderMap, HeaderName, HeaderValue, Request};

/// Reads lines `name: value`. Lines that are none are left out.
#[must_use]
pub fn fields(bytes: &[u8]) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let (name, value) = (
            HeaderName::from_bytes(&line[..colon]),
            HeaderValue::from_bytes(&line[colon + 1..]),
        );
        if let (Ok(name), Ok(value)) = (name, value) {
            fields.append(name, value);
        }
    }
    fields
}

/// Reads a request: its target in the first line, and fields.
#[must_use]
pub fn request(bytes: &[u8]) -> Option<Request<String>> {
    let (target, rest) = bytes.split_at(
        bytes
            .iter()
            .position(|byte| *byte == b'\n')
            .unwrap_or(bytes.len()),
    );
    let mut request = Request::get(target).body(String::new()).ok()?;
    *request.headers_mut() = fields(rest);
    Some(request)
}
