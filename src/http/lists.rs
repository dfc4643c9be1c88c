//! Lists in header fields.

use http::HeaderValue;
use http::header::{CACHE_CONTROL, HeaderMap, HeaderName};

/// Returns whether `Cache-Control` has one of these directives, with or without an argument.
pub(crate) fn any_directive(headers: &HeaderMap, directives: &[&str]) -> bool {
    let has_any = |value| {
        directives
            .iter()
            .any(|name| arguments(value, name).next().is_some())
    };
    headers.get_all(CACHE_CONTROL).iter().any(has_any)
}

/// Returns the argument of each occurrence of a `Cache-Control` directive. `None`: the directive has no argument.
pub(crate) fn directive<'a>(
    headers: &'a HeaderMap,
    name: &str,
) -> impl Iterator<Item = Option<&'a [u8]>> {
    headers
        .get_all(CACHE_CONTROL)
        .iter()
        .flat_map(move |value| arguments(value, name))
}

/// Returns the same for one line.
pub(crate) fn arguments<'a>(
    value: &'a HeaderValue,
    name: &str,
) -> impl Iterator<Item = Option<&'a [u8]>> {
    list(value).filter_map(move |item| {
        let mut parts = item.splitn(2, |&byte| byte == b'=').map(<[u8]>::trim_ascii);
        parts
            .next()?
            .eq_ignore_ascii_case(name.as_bytes())
            .then(|| parts.next())
    })
}

/// Returns the items of a list field, from all its lines.
pub(crate) fn items<'a>(
    headers: &'a HeaderMap,
    field: &HeaderName,
) -> impl Iterator<Item = &'a [u8]> {
    headers.get_all(field).iter().flat_map(list)
}

/// Returns the items of one line of a list field.
pub(crate) fn list(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    let items = value
        .as_bytes()
        .split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii);
    items.filter(|item| !item.is_empty())
}
