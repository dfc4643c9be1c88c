//! The behaviour of a whole store: its limits, its shutdown, and the end of a runtime.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::time::Instant;

use super::*;
use crate::error::reasons::Cause;
use crate::store::Backend;
use crate::store::redis::errors;
use crate::store::redis::queue::Step;
use crate::store::stats::BreakerState;

const SPAN: Duration = Duration::from_secs(1);

#[test]
fn the_calls_of_a_key_are_on_one_of_the_connections() {
    let client = client::<Ask>(Store::builder().connections(3));
    let links: Vec<_> = (0..100)
        .map(|key: u64| client.link_of(&key.into()))
        .collect();
    assert_eq!(
        links,
        (0..100)
            .map(|key: u64| client.link_of(&key.into()))
            .collect::<Vec<_>>()
    );
    assert!((0..3).all(|link| links.contains(&link)) && links.iter().all(|link| *link < 3));
}

#[test]
fn a_call_may_take_as_long_as_its_three_parts() {
    let builder = Store::builder()
        .timeout(SPAN)
        .connect_timeout(10 * SPAN)
        .queue_timeout(30 * SPAN);
    let store = builder.clone().redis("redis://127.0.0.1:1").unwrap();
    assert_eq!(
        (store.call_limit(), store.durable_within()),
        (41 * SPAN, None)
    );
    let durable = builder
        .replicas(1, SPAN / 4)
        .redis("redis://127.0.0.1:1")
        .unwrap();
    assert_eq!(durable.durable_within(), Some(SPAN / 4));
    let memory = Store::in_memory();
    assert_eq!(
        (memory.call_limit(), memory.durable_within()),
        (Duration::ZERO, None)
    );
    assert_eq!(
        [&memory, &store].map(ToString::to_string),
        ["in-memory", "redis"]
    );
    assert_eq!(
        futures::executor::block_on(memory.ping()).unwrap(),
        Duration::ZERO
    );
}

#[test]
fn a_server_that_does_not_answer_is_no_overload() {
    let client = client::<Ask>(Store::builder());
    let runtime = Builder::new_current_thread().build().unwrap();
    let links = client.store.links(runtime.handle());
    let refusal = || {
        client
            .store
            .overloaded(&links.route(0).link, &links.budget, 1)
    };
    assert!(refusal().is_overloaded());
    links.route(0).link.failed();
    assert!(refusal().is_unavailable());
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_in_time_and_says_what_is_left() {
    let client = client::<Ask>(Store::builder());
    let store = &client.store;
    let began = Instant::now();
    let left = |operations| crate::store::detached::Left {
        operations,
        ..Default::default()
    };
    assert_eq!(store.shutdown(SPAN).await, left(0));
    assert!(began.elapsed() < SPAN / 10);
    let whole = crate::store::Store::on(Backend::Redis(Arc::clone(store)));
    whole.owed().unwrap().add(3);
    let published = whole.publication().unwrap();
    let began = Instant::now();
    assert_eq!(store.shutdown(SPAN).await, left(4));
    assert!(
        (SPAN..SPAN + SPAN / 10).contains(&began.elapsed()),
        "{:?}",
        began.elapsed()
    );
    drop(published);
    assert_eq!(store.shutdown(SPAN).await, left(3));
}

/// Without a server: the calls of the runtime are in flight when it ends.
#[test]
fn the_end_of_a_runtime_fails_its_operations_and_no_others() {
    let client = client::<Ask>(Store::builder());
    let runtimes = [(), ()].map(|()| Builder::new_current_thread().enable_all().build().unwrap());
    let enqueue = |runtime: &Handle, owed| {
        Arc::clone(&client).enqueue(Some(runtime.clone()), "k".into(), ask(1), None, owed)
    };
    let [others, steps] = runtimes
        .each_ref()
        .map(|runtime| [false, true].map(|owed| enqueue(runtime.handle(), owed)));
    let links = runtimes
        .each_ref()
        .map(|runtime| client.store.links(runtime.handle()));
    let outage = errors::of(Cause::NotSent, "x");
    links
        .iter()
        .for_each(|links| links.route(0).breaker.failed(Instant::now(), &outage, true));
    assert_eq!(client.store.owed.count(), 2);
    let [_other, ended] = runtimes;
    drop(ended);
    let polled = |step: &Step<Ask>| match step {
        Step::Queued(queued) => queued
            .batch
            .poll(queued.index, &mut Context::from_waker(Waker::noop())),
        _ => panic!("it was not queued"),
    };
    for step in &steps {
        assert!(
            matches!(polled(step), Poll::Ready(Err(error)) if error.to_string().contains("has ended"))
        );
    }
    assert!(others.iter().all(|step| polled(step).is_pending()));
    assert_eq!(client.store.owed.count(), 1, "that of the other runtime");
    assert_eq!(
        links.each_ref().map(|links| links.has_ended()),
        [false, true]
    );
    assert_eq!(
        links.each_ref().map(|links| links.breaker()),
        [BreakerState::Open, BreakerState::Closed]
    );
    // A new runtime may have the id of one that has ended.
    client.store.forget(links[0].id);
    assert_eq!(client.store.runtimes.lock().unwrap().len(), 1);
}
