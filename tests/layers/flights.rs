//! Flights of text for probes, and whether they have left anything behind.

use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use tower::util::MapResult;
use tower::{BoxError, ServiceExt as _};
#[cfg(feature = "http")]
use tower_distributed::response::{Answer, AnswerCodec};
use tower_distributed::single_flight::{Codec, SingleFlightBuilder};
use tower_distributed::{Key, Refusal, RefusalKind, SingleFlight, SingleFlightLayer, Store};

use crate::probe::Probe;
use crate::stores::{HOUR, SOON, Stores};
use support::eventually;

/// Text as it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text;

impl Codec<String> for Text {
    fn name(&self) -> &str {
        "text/1"
    }

    fn encode(&self, answer: &String) -> Result<Vec<u8>, BoxError> {
        Ok(answer.clone().into_bytes())
    }

    fn decode(&self, bytes: &[u8]) -> Result<String, BoxError> {
        Ok(String::from_utf8(bytes.to_vec())?)
    }
}

/// Nothing comes about by the time that passes: neither lease nor answer ends while a test runs.
pub(crate) fn builder<E: Send + Sync + 'static>() -> SingleFlightBuilder<String, E> {
    SingleFlight::builder(Text).ttl(HOUR).lease_ttl(HOUR)
}

pub(crate) fn build<E>(
    builder: SingleFlightBuilder<String, E>,
    store: &Store,
) -> SingleFlight<String, E>
where
    E: Send + Sync + 'static,
{
    builder.build(store, "flights").unwrap()
}

/// A flight of HTTP responses.
#[cfg(feature = "http")]
pub(crate) fn pages(stores: &Stores) -> SingleFlight<Answer> {
    SingleFlight::builder(AnswerCodec)
        .ttl(HOUR)
        .lease_ttl(HOUR)
        .build(&stores.open(), "pages")
        .unwrap()
}

/// By closures that name a key or none.
pub(crate) type Named<E> = SingleFlightLayer<String, String, E>;

/// Of `ann:7` the key is `ann`; what has no colon passes.
#[allow(clippy::ptr_arg, reason = "the request is a String")]
pub(crate) fn by_name(request: &String) -> Option<Key> {
    request.split_once(':').map(|(name, _)| name.into())
}

pub(crate) fn layer<E: Send + Sync + 'static>(stores: &Stores) -> Named<E> {
    SingleFlightLayer::new(build(builder(), &stores.open()), by_name)
}

/// What was asked, and failed.
#[derive(Clone, Debug)]
pub(crate) struct Failed(pub(crate) String);

impl From<Infallible> for Failed {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failed {}

impl Codec<Failed> for Text {
    fn name(&self) -> &str {
        "failed/1"
    }

    fn encode(&self, failed: &Failed) -> Result<Vec<u8>, BoxError> {
        self.encode(&failed.0)
    }

    fn decode(&self, bytes: &[u8]) -> Result<Failed, BoxError> {
        self.decode(bytes).map(Failed)
    }
}

/// Fails what ends in `!`, and panics at what ends in `?`.
pub(crate) type Moody = MapResult<Probe, fn(Result<String, Infallible>) -> Result<String, Failed>>;

pub(crate) fn moody(probe: &Probe) -> Moody {
    probe.clone().map_result(|outcome| match outcome {
        Ok(text) if text.ends_with('!') => Err(Failed(text)),
        Ok(text) if text.ends_with('?') => panic!("{text}"),
        Ok(text) => Ok(text),
        Err(never) => match never {},
    })
}

/// How a request was refused.
pub(crate) fn kind(error: &BoxError) -> Option<RefusalKind> {
    error.downcast_ref::<Refusal>().map(Refusal::kind)
}

/// Whether nobody flies a key; no answer is left then. What its caller has run is published before the caller forgets it.
pub(crate) async fn is_free(stores: &Stores, key: &str) -> bool {
    let flight = build::<Infallible>(builder().max_wait(Duration::from_secs(1)), &stores.open());
    flight.forget(key).await.unwrap();
    let told = flight.run(key, async || "free".to_owned()).await;
    flight.forget(key).await.unwrap();
    told.is_ok_and(|answer| answer == "free")
}

pub(crate) async fn becomes_free(stores: &Stores, key: &'static str) {
    eventually(&format!("{key} to be free"), SOON, async || {
        is_free(stores, key).await
    })
    .await;
}
