//! What is known of a server by its replies, and the routes of a runtime.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, advance};

use super::*;
use crate::error::Cause;
use crate::store::BreakerState;
use crate::store::redis::failure;
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

#[tokio::test]
async fn each_master_has_routes_of_its_own() {
    let client = client::<Ask>(Store::builder().connections(3));
    let links = client.store.links(&Handle::current());
    assert!(Arc::ptr_eq(&links, &client.store.links(&Handle::current())), "made once");
    // Three links and one for bulk operations.
    assert_eq!(
        [(0, 0), (0, 3), (1, 0), (2, 1)].map(|(master, link)| links.number(master, link)),
        [0, 3, 4, 9]
    );
    let masters = [9, 0, 3, 4, 9].map(|number| links.route(number).master);
    assert_eq!(masters, [2, 0, 0, 1, 2]);
    assert!(Arc::ptr_eq(&links.route(4), &links.route(4)) && !Arc::ptr_eq(&links.route(4), &links.route(3)));
    let is_of = |runtime: &Handle| links.is_of(runtime.id());
    assert!(is_of(&Handle::current()) && !is_of(&client.store.background.handle().unwrap()));
}

#[tokio::test]
async fn the_worst_breaker_counts_until_the_server_answers() {
    let client = client::<Ask>(Store::builder());
    let (store, links) = (&client.store, client.store.links(&Handle::current()));
    let state = |is_open| if is_open { BreakerState::Open } else { BreakerState::Closed };
    let stats = |id| store.stats(id).breaker;
    assert_eq!(links.breaker(), BreakerState::Closed);
    links.route(0);
    links.route(1).breaker.failed(Instant::now(), &failure::of(Cause::NotSent, "x"), true);
    assert_eq!((links.breaker(), stats(Some(Handle::current().id()))), (state(true), state(true)));
    assert_eq!(stats(None), state(false));
    links.half_open();
    assert_eq!(links.breaker(), BreakerState::HalfOpen);
    links.retire();
    assert_eq!(links.breaker(), BreakerState::Closed);
}
