//! Responses that are streams: they are passed on as they arrive, and not stored.

use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::response;

use crate::http::shareable::is_stream;

/// Which responses are streams, and what becomes of their claims.
pub(super) struct Streams {
    /// Those that the user names.
    pub(super) named: Option<IsStream>,
    /// Whether the key counts as used.
    pub(super) confirms: bool,
}

pub(super) type IsStream = Arc<dyn Fn(&response::Parts) -> bool + Send + Sync>;

impl Default for Streams {
    fn default() -> Self {
        Self {
            named: None,
            confirms: true,
        }
    }
}

impl Streams {
    /// Returns whether a response is a stream. A length that is not known does not make it one: compressed and proxied
    /// responses have none.
    pub(super) fn has(&self, parts: &response::Parts) -> bool {
        parts.headers.get(CONTENT_TYPE).is_some_and(is_stream)
            || self.named.as_ref().is_some_and(|named| named(parts))
    }
}
