//! The language model: a stream of events, of which the last one says how many tokens they were.

use std::time::Duration;

use axum::extract::Query;
use axum::response::sse::{Event, Sse};
use futures::{Stream, StreamExt as _, stream};
use serde::Deserialize;
use tower::BoxError;

/// If a request does not say how long its answer may be.
const MAX_TOKENS: u32 = 1000;
/// How many tokens an event of the answer has.
pub(crate) const TOKENS_OF_AN_EVENT: u32 = 8;
/// The time between two events.
const EVERY: Duration = Duration::from_millis(80);

/// What a client asks for.
#[derive(Deserialize)]
pub(crate) struct Asked {
    max_tokens: Option<u32>,
}

impl Asked {
    /// How many tokens the answer may have.
    pub(crate) fn max_tokens(&self) -> u32 {
        self.max_tokens.unwrap_or(MAX_TOKENS)
    }
}

/// The answer has 40 % of the tokens that it may have.
pub(crate) async fn complete(
    Query(asked): Query<Asked>,
) -> Sse<impl Stream<Item = Result<Event, BoxError>>> {
    let events = asked.max_tokens() / 20;
    let words = stream::iter(0..events).then(async |nth| {
        tokio::time::sleep(EVERY).await;
        Ok(Event::default().data(format!("\"word {nth}\"")))
    });
    let usage = format!("{{\"total_tokens\":{}}}", TOKENS_OF_AN_EVENT * events);
    let last = stream::iter([Ok(Event::default().data(usage))]);
    Sse::new(words.chain(last))
}
