//! What should not go unnoticed is told, by namespace and event, and never by key.

use std::collections::BTreeMap;

use tower_distributed::single_flight::{Json, Postcard};
use tower_distributed::{SingleFlight, Store};

use super::{Place, Work, asked, begin, builder, ended, lead};
use crate::scene::{LONG, SOON};
use support::eventually;
use support::seen::{Event, Seen, named};

/// What never may be told.
const SECRET: &str = "user-4711";

/// What was told of namespaces on this thread. What is told of servers, see `tests/telemetry`.
fn told(seen: &Seen) -> Vec<Event> {
    seen.events()
        .into_iter()
        .filter(|event| event.contains_key("namespace"))
        .collect()
}

/// Which events of namespaces were counted, and how often.
fn counted(seen: &Seen) -> Vec<(String, f64)> {
    let ours = |name: &str| name.starts_with("tower_distributed_events_total namespace=");
    let counts = seen
        .series_seen()
        .into_iter()
        .map(|(name, (count, _))| (name, count));
    counts
        .filter(|(name, count)| ours(name) && *count > 0.0)
        .collect()
}

/// Waits until this event alone was told of this namespace, once, and forgets it.
async fn is_told(seen: &Seen, namespace: &str, event: &str) {
    eventually(&format!("{event} of {namespace}"), SOON, async || {
        !told(seen).is_empty()
    })
    .await;
    let events = told(seen);
    assert_eq!(events.len(), 1, "{events:?}");
    for (field, value) in [
        ("target", "tower_distributed"),
        ("level", "WARN"),
        ("namespace", namespace),
        ("event", event),
    ] {
        assert_eq!(events[0][field], value);
    }
    assert!(!events[0]["message"].is_empty());
    let fields: Vec<_> = events[0].keys().map(String::as_str).collect();
    assert_eq!(fields, ["event", "level", "message", "namespace", "target"]);
    assert!(
        events[0].values().all(|value| !value.contains(SECRET)),
        "{events:?}"
    );
    let labels = [("namespace", namespace), ("event", event)];
    assert_eq!(
        counted(seen),
        [(named("tower_distributed_events_total", &labels), 1.0)]
    );
    seen.forget();
}

/// Both are told on the thread that this is, where all that is spawned runs too.
macro_rules! listening {
    ($seen:ident) => {
        let $seen = Seen::default();
        let _tracing = tracing::subscriber::set_default($seen.clone());
        let _metrics = metrics::set_default_local_recorder(&$seen);
    };
}

#[tokio::test]
async fn what_becomes_of_answers_is_told() {
    listening!(seen);
    let server = Place::redis(1).await;
    for store in [Store::in_memory(), server.stores[0].clone()] {
        let work = Work::open();
        let sign = || async { "+".to_owned() };
        let small = SingleFlight::<String>::builder(Json)
            .largest_answer(2)
            .build(&store, "small")
            .unwrap();
        assert_eq!(small.run(SECRET, sign).await.unwrap(), "+");
        is_told(&seen, "small", "answer_too_large").await;

        let json = SingleFlight::<u64, String>::builder(Json).ttl(LONG);
        let [json, postcard] = [json, builder()].map(|flight| flight.build(&store, "f").unwrap());
        // Where a run fails, or an answer is found, there is nothing to tell.
        json.try_run("fails", || async { Err(String::new()) })
            .await
            .unwrap_err();
        for _ in 0..2 {
            assert_eq!(asked(&json, SECRET, &work).await.unwrap(), 1);
        }
        assert_eq!(asked(&postcard, SECRET, &work).await.unwrap(), 2);
        is_told(&seen, "f", "answer_foreign").await;

        let text = SingleFlight::<String>::builder(Postcard)
            .ttl(LONG)
            .build(&store, "f")
            .unwrap();
        let long = || async { "quite another type".to_owned() };
        assert_eq!(text.run("text", long).await.unwrap(), "quite another type");
        let number = SingleFlight::<bool>::builder(Postcard)
            .ttl(LONG)
            .build(&store, "f")
            .unwrap();
        assert!(number.run("text", || async { true }).await.unwrap());
        is_told(&seen, "f", "answer_garbled").await;

        let keyed = SingleFlight::<BTreeMap<(u8, u8), u8>>::builder(Json)
            .build(&store, "g")
            .unwrap();
        let tuples = || async { BTreeMap::from([((1, 2), 3)]) };
        assert_eq!(keyed.run(SECRET, tuples).await.unwrap().len(), 1);
        is_told(&seen, "g", "answer_not_encodable").await;
    }
}

/// Not each time, but once a second.
#[tokio::test]
async fn what_is_not_stored_is_told() {
    const ASKED: usize = 500;
    listening!(seen);
    let place = Place::redis(1).await;
    let flight = SingleFlight::<String>::builder(Json)
        .ttl(LONG)
        .largest_answer(1000)
        .max_stored(64 << 10);
    let flight = flight.build(&place.stores[0], "f").unwrap();
    for question in 0..ASKED {
        flight
            .run(format!("{SECRET} {question}"), || async { "x".repeat(900) })
            .await
            .unwrap();
    }
    let event = named(
        "tower_distributed_events_total",
        &[("namespace", "f"), ("event", "answer_over_budget")],
    );
    let stored = (64 << 10) / (900 + 256);
    eventually("those beyond the budget to be counted", SOON, async || {
        counted(&seen)
            .iter()
            .any(|(name, count)| *name == event && *count >= (ASKED - stored) as f64)
    })
    .await;
    let events = told(&seen);
    assert!((1..100).contains(&events.len()), "{}", events.len());
    assert_eq!(events[0]["event"], "answer_over_budget");
    assert!(
        events
            .iter()
            .flat_map(|event| event.values())
            .all(|value| !value.contains(SECRET))
    );
}

/// All in the process get the answer, though it cannot be published.
#[tokio::test]
async fn what_becomes_of_leases_is_told() {
    listening!(seen);
    let place = Place::redis(1).await;
    let (flight, work) = (place.flights().remove(0), Work::shut());
    let leader = lead(&flight, SECRET, &work).await;
    place.server().cli(&[
        "SET",
        &format!("td:{{flights:{SECRET}}}:flight:lock"),
        "somebody",
        "PX",
        "600000",
    ]);
    work.let_go(1);
    assert_eq!(ended(leader).await.unwrap(), 1);
    is_told(&seen, "flights", "flight_lost").await;

    let key = &format!("{SECRET} again");
    let leader = lead(&flight, key, &work).await;
    let follower = begin(&flight, key, &work);
    tokio::task::yield_now().await;
    place.server().kill9();
    work.let_go(1);
    for caller in [leader, follower] {
        assert_eq!(ended(caller).await.unwrap(), 2);
    }
    is_told(&seen, "flights", "answer_not_published").await;
}
