//! What the layer does with duplicates.

/// How the layer knows that a request is a duplicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Evidence {
    /// By the filter only. This is wrong at the filter's [false-positive
    /// rate](crate::bloom_filter::BloomFilterBuilder::false_positive_rate).
    Filter,
    /// By [`confirm_duplicate`](crate::DedupeLayer::confirm_duplicate), or by [exact mode](crate::Dedupe::exact).
    LookedUp,
}

/// What to do with a duplicate: what the closure of [`on_duplicate`](crate::DedupeLayer::on_duplicate) returns.
#[derive(Debug)]
pub enum DuplicateAction<Req, Res> {
    /// Refuse the request.
    Refuse,
    /// Pass the request to the inner service.
    Pass(Req),
    /// Return this response.
    Answer(Res),
}
