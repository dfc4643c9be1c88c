//! The header fields of a request, in case its response names some of them in `Vary`.

use http::{HeaderMap, HeaderName, HeaderValue};

/// The header fields of a request, as lines of HTTP: names and values contain no line feeds, and names no colons.
///
/// Most responses have no `Vary`. So this is quick to write, where a clone of the map is not.
pub struct Asked(Vec<u8>);

impl Asked {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut lines = Vec::with_capacity(512);
        for (name, value) in headers {
            lines.extend_from_slice(name.as_str().as_bytes());
            lines.push(b':');
            lines.extend_from_slice(value.as_bytes());
            lines.push(b'\n');
        }
        Self(lines)
    }

    /// Returns the values of a field.
    pub(super) fn values(&self, name: &HeaderName) -> Vec<HeaderValue> {
        let value = |line: &[u8]| {
            let value = line
                .strip_prefix(name.as_str().as_bytes())?
                .strip_prefix(b":")?;
            let mut value = HeaderValue::from_bytes(value).ok()?;
            // It may be, and is not sent anywhere.
            value.set_sensitive(true);
            Some(value)
        };
        self.0
            .split(|byte| *byte == b'\n')
            .filter_map(value)
            .collect()
    }
}

debug!(Asked);

#[cfg(test)]
mod tests {
    use super::*;

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
}
