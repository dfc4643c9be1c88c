//! What should not go unnoticed is told, by family and event, and never by key.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tower_distributed::single_flight::{Json, Postcard};
use tower_distributed::{SingleFlight, Store};
use tracing::field::{Field, Visit};
use tracing::span;

use crate::flights::{call, ended, lead};
use crate::places::{LONG, Place, SOON, open};
use crate::support::eventually;
use crate::work::Work;

const SECRET: &str = "user-4711";

/// All that was told of namespaces on this thread. What is told of servers, see `tests/telemetry`.
#[derive(Clone, Default)]
struct Seen(Arc<Everything>);

#[derive(Default)]
struct Everything {
    events: Mutex<Vec<BTreeMap<String, String>>>,
    counts: Mutex<BTreeMap<Vec<String>, Arc<Count>>>,
}

#[derive(Default)]
struct Count(AtomicU64);

impl CounterFn for Count {
    fn increment(&self, value: u64) {
        self.0.fetch_add(value, Ordering::SeqCst);
    }

    fn absolute(&self, _: u64) {
        panic!("it counts");
    }
}

impl Recorder for Seen {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let is_ours = key.labels().any(|label| label.key() == "namespace");
        if key.name() != "tower_distributed_events_total" || !is_ours {
            return Counter::noop();
        }
        let mut name = vec![key.name().to_owned()];
        name.extend(key.labels().map(|label| format!("{}={}", label.key(), label.value())));
        Counter::from_arc(Arc::clone(self.0.counts.lock().unwrap().entry(name).or_default()))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

struct Fields<'a>(&'a mut BTreeMap<String, String>);

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

impl tracing::Subscriber for Seen {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("tower_distributed")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let metadata = event.metadata();
        let mut fields = BTreeMap::from([
            ("target".to_owned(), metadata.target().to_owned()),
            ("level".to_owned(), metadata.level().to_string()),
        ]);
        event.record(&mut Fields(&mut fields));
        if fields.contains_key("namespace") {
            self.0.events.lock().unwrap().push(fields);
        }
    }
}

impl Seen {
    /// Waits until this event alone was told in this family, once, and forgets it.
    async fn is_told(&self, family: &str, event: &str) {
        eventually(&format!("{event} of {family}"), SOON, async || !self.0.events.lock().unwrap().is_empty())
            .await;
        let events = std::mem::take(&mut *self.0.events.lock().unwrap());
        assert_eq!(events.len(), 1, "{events:?}");
        for (field, value) in
            [("target", "tower_distributed"), ("level", "WARN"), ("namespace", family), ("event", event)]
        {
            assert_eq!(events[0][field], value);
        }
        assert!(!events[0]["message"].is_empty());
        let fields: Vec<_> = events[0].keys().map(String::as_str).collect();
        assert_eq!(fields, ["event", "level", "message", "namespace", "target"]);
        assert!(events[0].values().all(|value| !value.contains(SECRET)), "{events:?}");
        let counts = std::mem::take(&mut *self.0.counts.lock().unwrap());
        let counts: Vec<_> =
            counts.into_iter().map(|(name, count)| (name, count.0.load(Ordering::SeqCst))).collect();
        let labels = [format!("namespace={family}"), format!("event={event}")];
        let name = [&["tower_distributed_events_total".to_owned()], &labels[..]].concat();
        assert_eq!(counts, [(name, 1)]);
    }
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
        let json = || SingleFlight::<u64, String>::builder(Json).life(LONG);
        let sign = || async { "+".to_owned() };
        let small = SingleFlight::<String>::builder(Json).largest_answer(2).build(&store, "small").unwrap();
        assert_eq!(small.run(SECRET, sign).await.unwrap(), "+");
        seen.is_told("small", "answer_too_large").await;

        let [json, postcard] =
            [json(), crate::flights::builder()].map(|flight| flight.build(&store, "f").unwrap());
        assert_eq!(ended(tokio::spawn(call(&json, SECRET, &work))).await.unwrap(), 1);
        assert_eq!(ended(tokio::spawn(call(&postcard, SECRET, &work))).await.unwrap(), 2);
        seen.is_told("f", "answer_foreign").await;

        let text = SingleFlight::<String>::builder(Postcard).life(LONG).build(&store, "f").unwrap();
        let long = || async { "quite another type".to_owned() };
        assert_eq!(text.run("text", long).await.unwrap(), "quite another type");
        let number = SingleFlight::<bool>::builder(Postcard).life(LONG).build(&store, "f").unwrap();
        assert!(number.run("text", || async { true }).await.unwrap());
        seen.is_told("f", "answer_garbled").await;

        let keyed = SingleFlight::<BTreeMap<(u8, u8), u8>>::builder(Json).build(&store, "g").unwrap();
        let tuples = || async { BTreeMap::from([((1, 2), 3)]) };
        assert_eq!(keyed.run(SECRET, tuples).await.unwrap().len(), 1);
        seen.is_told("g", "answer_not_encodable").await;
    }
}

#[tokio::test]
async fn what_becomes_of_leases_is_told() {
    listening!(seen);
    let place = Place::redis(1).await;
    let server = place.server.as_ref().unwrap();
    let flight = crate::flights::builder().build(&open(&server.url()), "f").unwrap();
    let work = Work::shut();
    let leader = lead(&flight, SECRET, &work).await;
    server.cli(&["SET", &format!("td:{{f:{SECRET}}}:flight:lock"), "somebody", "PX", "600000"]);
    work.let_go(1);
    assert_eq!(ended(leader).await.unwrap(), 1);
    seen.is_told("f", "flight_lost").await;

    let leader = lead(&flight, &format!("{SECRET} again"), &work).await;
    server.kill9();
    work.let_go(1);
    assert_eq!(ended(leader).await.unwrap(), 2);
    seen.is_told("f", "answer_not_published").await;
}

/// Where all goes well there is nothing to tell.
#[tokio::test]
async fn nothing_else_is_told() {
    listening!(seen);
    let place = Place::redis(2).await;
    let (flights, work) = (crate::flights::flights(&place), Work::failing());
    let leader = lead(&flights[0], SECRET, &work).await;
    let follower = tokio::spawn(call(&flights[1], SECRET, &work));
    place.lined_up(SECRET, 1).await;
    work.let_go(2);
    ended(leader).await.unwrap_err();
    assert_eq!(ended(follower).await.unwrap(), 2);
    assert_eq!(ended(tokio::spawn(call(&flights[0], SECRET, &work))).await.unwrap(), 2);
    assert!(seen.0.events.lock().unwrap().is_empty());
    assert!(seen.0.counts.lock().unwrap().is_empty());
}
