//! What is told by events, and in whose span requests are handled.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex};

use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_distributed::SingleFlightLayer;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Instrument as _, Metadata, Span, Subscriber, info_span};
use tracing_core::span::Current;

use crate::flights::{build, builder, by_name};
use crate::probe::Probe;
use crate::stores::{Stores, on_each_store};

on_each_store!(
    what_is_too_large_is_told_once_and_without_its_key,
    requests_are_handled_in_their_callers_span
);

/// Writes down the events of this crate, and knows which span is the current one.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Heard>>);

#[derive(Default)]
struct Heard {
    events: Vec<String>,
    spans: HashMap<u64, &'static Metadata<'static>>,
    entered: Vec<Id>,
}

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push_str(&format!(" {field}={value:?}"));
    }
}

impl Subscriber for Listener {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut heard = self.0.lock().unwrap();
        let id = heard.spans.len() as u64 + 1;
        heard.spans.insert(id, span.metadata());
        Id::from_u64(id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if event.metadata().target() == "tower_distributed" {
            let mut text = event.metadata().level().to_string();
            event.record(&mut Fields(&mut text));
            self.0.lock().unwrap().events.push(text);
        }
    }

    fn enter(&self, span: &Id) {
        self.0.lock().unwrap().entered.push(span.clone());
    }

    fn exit(&self, _: &Id) {
        self.0.lock().unwrap().entered.pop();
    }

    fn current_span(&self) -> Current {
        let heard = self.0.lock().unwrap();
        match heard.entered.last() {
            Some(id) => Current::new(id.clone(), heard.spans[&id.into_u64()]),
            None => Current::none(),
        }
    }
}

async fn what_is_too_large_is_told_once_and_without_its_key(stores: Stores) {
    let listener = Listener::default();
    let _guard = tracing::subscriber::set_default(listener.clone());
    let flight = build::<Infallible>(builder().largest_answer(6), &stores.open());
    let probe = Probe::yielding(3);
    let service = SingleFlightLayer::new(flight, by_name).layer(probe.clone());
    let calls = (0..9).map(|number| service.clone().oneshot(format!("secret:{number}")));
    for outcome in futures::future::join_all(calls).await {
        assert_eq!(outcome.unwrap(), "secret:0", "those of its process get it all the same");
    }
    assert_eq!(probe.calls(), 1);
    assert_eq!(service.oneshot("ann:1".into()).await.unwrap(), "ann:1", "as long as is allowed, or shorter");
    let events = listener.0.lock().unwrap().events.clone();
    let [event] = &events[..] else { panic!("{events:?}") };
    assert!(event.starts_with("WARN") && event.contains("namespace=\"flights\""), "{event}");
    assert!(event.contains("event=\"answer_too_large\"") && !event.contains("secret"), "{event}");
}

async fn requests_are_handled_in_their_callers_span(stores: Stores) {
    let listener = Listener::default();
    let _guard = tracing::subscriber::set_default(listener);
    let flight = build::<Infallible>(builder(), &stores.open());
    let handle = service_fn(async |_: String| {
        tokio::task::yield_now().await;
        Ok(Span::current().metadata().map_or("none", |span| span.name()).to_owned())
    });
    let service = SingleFlightLayer::new(flight, by_name).layer(handle);
    let call = service.oneshot("ann:1".into()).instrument(info_span!("request"));
    assert_eq!(call.await.unwrap(), "request");
}
