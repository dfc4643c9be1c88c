//! What is known of a server by its replies.

use std::time::Duration;

use tokio::time::{Instant, advance};

use super::*;
use crate::store::redis::link::Link;

const SPAN: Duration = Duration::from_secs(1);

fn link() -> Link {
    let client = client::<Ask>(Store::builder());
    let store = &client.store;
    Link::new(store.source.clone(), SPAN, store.process, store.telemetry.clone(), None)
}

#[tokio::test(start_paused = true)]
async fn a_reply_counts_for_a_while() {
    let (link, began) = (link(), Instant::now());
    assert!(!link.answered_within(SPAN), "there was none");
    assert_eq!(link.answered_since(began), None);
    advance(SPAN).await;
    link.answered();
    let answered = Instant::now();
    assert_eq!(link.answered_since(answered), Some(answered));
    assert_eq!(link.answered_since(began), Some(answered));
    assert_eq!(link.answered_since(answered + Duration::from_micros(1)), None);
    advance(SPAN).await;
    assert!(link.answered_within(SPAN));
    advance(Duration::from_micros(1)).await;
    assert!(!link.answered_within(SPAN));
    assert!(link.answered_within(SPAN + Duration::from_micros(1)));
}

#[tokio::test(start_paused = true)]
async fn a_server_answers_until_an_attempt_has_failed_and_no_reply_is_recent() {
    let link = link();
    assert!(link.answers(SPAN), "nothing has failed");
    link.failed();
    assert!(!link.answers(SPAN));
    link.answered();
    advance(2 * SPAN).await;
    assert!(link.answers(SPAN), "nothing has failed since the last reply");
    link.failed();
    assert!(!link.answers(SPAN) && link.answers(2 * SPAN));
}
