//! In whose span requests are handled.

use std::convert::Infallible;
use std::sync::Mutex;

use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_distributed::SingleFlightLayer;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Instrument as _, Metadata, Span, Subscriber, info_span};
use tracing_core::span::Current;

use crate::flights::{build, builder, by_name};
use crate::stores::{Stores, on_each_store};

on_each_store!(requests_are_handled_in_their_callers_span);

/// All spans, in their order, and those that are entered.
#[derive(Default)]
struct Spans(Mutex<(Vec<&'static Metadata<'static>>, Vec<Id>)>);

impl Subscriber for Spans {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let (all, _) = &mut *self.0.lock().unwrap();
        all.push(span.metadata());
        Id::from_u64(all.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, span: &Id) {
        self.0.lock().unwrap().1.push(span.clone());
    }

    fn exit(&self, _: &Id) {
        self.0.lock().unwrap().1.pop();
    }

    fn current_span(&self) -> Current {
        let (all, entered) = &*self.0.lock().unwrap();
        match entered.last() {
            Some(id) => Current::new(id.clone(), all[id.into_u64() as usize - 1]),
            None => Current::none(),
        }
    }
}

async fn requests_are_handled_in_their_callers_span(stores: Stores) {
    let _guard = tracing::subscriber::set_default(Spans::default());
    let flight = build::<Infallible>(builder(), &stores.open());
    let handle = service_fn(async |_: String| {
        tokio::task::yield_now().await;
        Ok(Span::current().metadata().map_or("none", |span| span.name()).to_owned())
    });
    let service = SingleFlightLayer::new(flight, by_name).layer(handle);
    let call = service.oneshot("ann:1".into()).instrument(info_span!("request"));
    assert_eq!(call.await.unwrap(), "request");
}
