//! Telemetry of a store's server: outages, breakers, connections, batches and load.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::names::{BATCH, BREAKERS_OPEN, CALL, Event, QUEUE, RECONNECTS};
use crate::error::reasons::Outage;
use crate::sync::lock;
use crate::telemetry::emit::{Fields, Series, emit, series};
use crate::telemetry::throttle::Throttle;

static OVERLOADED: Throttle = Throttle::new();

/// The telemetry of a store, shared by all parts of it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Server(Arc<Inner>);

struct Inner {
    address: Arc<str>,
    state: Mutex<State>,
    subscription_lost: AtomicBool,
    /// Whether the lack of functions was already reported.
    without_functions: AtomicBool,
    succeeded: Series,
    failed: Series,
    batch: Series,
    queue: Series,
    reconnects: Series,
    breakers_open: Series,
    overloaded: Series,
}

#[derive(Debug, Default)]
struct State {
    /// The number of breakers that are open or half-open. May be briefly below 0, because a breaker reports a change
    /// only afterwards.
    open: i64,
    /// When the current outage began.
    since: Option<Instant>,
}

impl Server {
    /// Creates the telemetry of a server. The address must not contain a secret.
    pub(crate) fn new(address: &str) -> Self {
        let address: Arc<str> = address.into();
        let call =
            |result: &str| Series::new(&CALL, [("server", &address), ("result", &result.into())]);
        let series_of = |metric| Series::new(metric, [("server", &address)]);
        Self(Arc::new(Inner {
            succeeded: call("ok"),
            failed: call("error"),
            batch: series_of(&BATCH),
            queue: series_of(&QUEUE),
            reconnects: series_of(&RECONNECTS),
            breakers_open: series_of(&BREAKERS_OPEN),
            overloaded: series(Event::Overloaded, "server", &address),
            state: Mutex::default(),
            subscription_lost: AtomicBool::new(false),
            without_functions: AtomicBool::new(false),
            address,
        }))
    }

    /// A breaker has opened.
    pub(crate) fn breaker_opened(&self, outage: &Outage) {
        self.0.breakers_open.add(1.0);
        let is_first = {
            let mut state = lock(&self.0.state);
            state.open += 1;
            let is_first = state.open > 0 && state.since.is_none();
            if is_first {
                state.since = Some(Instant::now());
            }
            is_first
        };
        if is_first {
            self.tell(
                Event::OutageBegan,
                format_args!("the store is unavailable: {}", outage.text),
            );
        }
        self.breaker_reopened(outage);
    }

    /// A probe has failed.
    pub(crate) fn breaker_reopened(&self, outage: &Outage) {
        self.tell(
            Event::BreakerOpened,
            format_args!("the breaker is open: {}", outage.text),
        );
    }

    pub(crate) fn breaker_half_open(&self) {
        self.tell(
            Event::BreakerHalfOpen,
            format_args!("the breaker is half-open: one call is made as a probe"),
        );
    }

    pub(crate) fn breaker_closed(&self) {
        self.tell(Event::BreakerClosed, format_args!("the breaker is closed"));
        self.breaker_dropped();
        self.works();
    }

    /// An open breaker was dropped with its runtime or its store.
    pub(crate) fn breaker_dropped(&self) {
        self.0.breakers_open.add(-1.0);
        lock(&self.0.state).open -= 1;
    }

    /// The server has replied: the outage is over unless a breaker is open.
    fn works(&self) {
        let began = {
            let mut state = lock(&self.0.state);
            if state.open > 0 {
                None
            } else {
                state.since.take()
            }
        };
        if let Some(began) = began {
            let lasted = began.elapsed();
            let fields = Fields {
                seconds: Some(lasted.as_secs_f64()),
                ..self.fields()
            };
            self.tell_with(
                Event::OutageEnded,
                fields,
                format_args!("the store answers again, after {lasted:?}"),
            );
        }
    }

    /// A connection was made. `again`: it replaces another.
    pub(crate) fn connected(&self, again: bool) {
        if again {
            self.0.reconnects.count(1);
            self.tell(Event::Reconnected, format_args!("connected again"));
        }
        self.works();
    }

    /// The subscription was made (`up`) or lost.
    pub(crate) fn subscription(&self, up: bool) {
        let was_lost = self.0.subscription_lost.swap(!up, Ordering::Relaxed);
        if !up {
            let text = "the subscription was lost: waiters poll the store until it is back";
            self.tell(Event::SubscriptionLost, format_args!("{text}"));
        } else if was_lost {
            self.tell(Event::SubscriptionBack, format_args!("subscribed again"));
        }
    }

    /// There is no subscription. Reported once.
    pub(crate) fn subscription_failed(&self, why: &str) {
        if !self.0.subscription_lost.swap(true, Ordering::Relaxed) {
            let text = format_args!("no subscription, so waiters poll the store: {why}");
            self.tell(Event::SubscriptionLost, text);
        }
    }

    /// Calls are sent as scripts. Reported once.
    pub(crate) fn without_functions(&self, why: &str) {
        if !self.0.without_functions.swap(true, Ordering::Relaxed) {
            let text = format_args!(
                "the server has no functions for this user, so calls are scripts: {why}"
            );
            self.tell(Event::FunctionsMissing, text);
        }
    }

    /// A batch was sent. `waiting` returns how many operations still wait.
    pub(crate) fn batch(&self, operations: usize, waiting: impl FnOnce() -> u64) {
        self.0.batch.record(|| operations as f64);
        self.0.queue.set(|| waiting() as f64);
    }

    /// A call that began at `began` has ended.
    pub(crate) fn call(&self, began: tokio::time::Instant, succeeded: bool) {
        let series = if succeeded {
            &self.0.succeeded
        } else {
            &self.0.failed
        };
        series.record(|| began.elapsed().as_secs_f64());
    }

    /// Operations were refused because a bound is reached. `waiting` returns how many operations wait.
    pub(crate) fn overloaded(&self, operations: usize, waiting: impl FnOnce() -> u64) {
        self.0.queue.set(|| waiting() as f64);
        self.0.overloaded.count(operations as u64);
        if let Some(count) = OVERLOADED.note(operations as u64) {
            let fields = Fields {
                count: Some(count),
                ..self.fields()
            };
            let text = format_args!(
                "{count} operations of this process were refused: a store bound is reached"
            );
            emit(Event::Overloaded, fields, text);
        }
    }

    fn fields(&self) -> Fields<'_> {
        Fields {
            server: Some(&self.0.address),
            ..Fields::default()
        }
    }

    fn tell(&self, event: Event, text: fmt::Arguments<'_>) {
        self.tell_with(event, self.fields(), text);
    }

    fn tell_with(&self, event: Event, fields: Fields<'_>, text: fmt::Arguments<'_>) {
        series(event, "server", &self.0.address).count(1);
        emit(event, fields, text);
    }
}

// Omits the series, because there are many.
debug!(Server, 0.address);
