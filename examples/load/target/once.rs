//! What is done once for all callers: flights and items.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tower_distributed::dedupe::{Claimed, FilterFull};
use tower_distributed::single_flight::Postcard;
use tower_distributed::{BloomFilter, Dedupe, Error, SingleFlight, Store, StoreFailure};

use super::random_key;
use crate::args;
use crate::clock;
use crate::message::{Held, Note};
use crate::recorder::{Call, Outcome};

/// Longer than any run.
const REMEMBERED: Duration = Duration::from_secs(2 * 3600);
/// How much longer than the origin takes a flight keeps its lease, even if its process stands still.
const SPARE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Flights {
    flights: SingleFlight<u64>,
    keys: u64,
    origin: Duration,
}

impl Flights {
    pub(super) fn new(
        arguments: &args::SingleFlight,
        store: &Store,
        name: &str,
    ) -> Result<Self, Error> {
        let flights = SingleFlight::builder(Postcard)
            .ttl(arguments.ttl_ms)
            .max_wait(arguments.max_wait_ms)
            .lease_ttl(arguments.origin_ms + SPARE)
            // Runs without the store are not promised to be alone.
            .on_store_failure(StoreFailure::FailClosed)
            .build(store, name)?;
        Ok(Self {
            flights,
            keys: arguments.keys.keys,
            origin: arguments.origin_ms,
        })
    }

    pub(super) async fn call(&self, call: Call<'_>) {
        let key = random_key(self.keys);
        let (has_run, origin, recorder) = (
            Arc::new(AtomicBool::new(false)),
            self.origin,
            call.recorder.clone(),
        );
        let ran = Arc::clone(&has_run);
        // The lease was granted after the call began. Later than this it may be lost, and another run be promised.
        let is_held_until = call.from + self.origin + SPARE;
        let work = move || async move {
            let from = clock::now();
            tokio::time::sleep(origin).await;
            ran.store(true, Ordering::Relaxed);
            recorder.held(
                from,
                || clock::now() < is_held_until,
                Held {
                    key,
                    from: 0,
                    to: 0,
                    shared: false,
                    fence: 0,
                },
            );
            key
        };
        match self.flights.run(key, work).await {
            Ok(answer) if answer != key => call.failed("the answer of another key"),
            Ok(_) if has_run.load(Ordering::Relaxed) => {
                call.answered(Outcome::Admitted, "called the origin")
            }
            Ok(_) => call.answered(Outcome::Admitted, "shared"),
            Err(error) => call.error(&error),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Items {
    dedupe: Dedupe,
    repeat: u64,
    /// Begins each item, so that items of an earlier run in the same namespace are others.
    run: String,
}

impl Items {
    pub(super) fn new(
        arguments: &args::Dedupe,
        store: &Store,
        name: &str,
        run: &str,
    ) -> Result<Self, Error> {
        let dedupe = if arguments.exact {
            let exact = Dedupe::exact(store, name).capacity(arguments.capacity);
            exact.remember_for(REMEMBERED).build()?
        } else {
            let filter = BloomFilter::builder()
                .capacity(arguments.capacity)
                .false_positive_rate(arguments.false_positive_rate)
                .remember_for(REMEMBERED)
                .build(store, name)?;
            // Above its capacity it then still lets no item pass twice.
            Dedupe::builder()
                .on_filter_full(FilterFull::FailClosed)
                .build(&filter)?
        };
        Ok(Self {
            dedupe,
            repeat: arguments.repeat,
            run: run.to_owned(),
        })
    }

    pub(super) async fn call(&self, call: Call<'_>) {
        // The same items in every process, each so often.
        let item = call.number / self.repeat;
        let recorder = call.recorder;
        match self
            .dedupe
            .claim(format!("{}:{item}", self.run), Duration::from_secs(5))
            .await
        {
            Ok(Claimed::New(claim)) => match claim.confirm().await {
                Ok(true) => {
                    recorder.note(Note::Passed(item));
                    call.answered(Outcome::Admitted, "new");
                }
                Ok(false) => {
                    recorder.claim_lost(item);
                    call.answered(Outcome::Admitted, "new, claim lost");
                }
                Err(error) => {
                    recorder.note(Note::Unknown(item));
                    call.error(&error);
                }
            },
            Ok(Claimed::Duplicate) => {
                recorder.note(Note::Duplicate(item));
                call.answered(Outcome::Refused, "duplicate");
            }
            Err(error) => {
                recorder.note(Note::Unknown(item));
                call.error(&error);
            }
        }
    }
}
