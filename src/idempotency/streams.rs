//! Responses that are streams: they are passed on as they arrive, and not stored.

use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::response;

use crate::http::shareable::is_stream;

/// The rules for streams and their claims.
pub(super) struct Streams {
    /// The user's rule for streams.
    pub(super) named: Option<IsStream>,
    /// Whether the key counts as used after a stream begins.
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
    /// Returns whether a response is a stream. An unknown length does not make a response a stream: compressed and
    /// proxied responses have no length.
    pub(super) fn has(&self, parts: &response::Parts) -> bool {
        parts.headers.get(CONTENT_TYPE).is_some_and(is_stream)
            || self.named.as_ref().is_some_and(|named| named(parts))
    }
}
