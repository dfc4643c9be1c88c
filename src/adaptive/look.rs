//! Reads the limit of a key: [`AdaptiveState`].

use std::time::Duration;

use crate::adaptive::step::{Adapted, LONGEST};
use crate::error::Error;
use crate::key::Key;
use crate::store::client::Namespace;
use crate::store::operation::{Field, Fields, Garbled, Operation, Repeat, Script, function};
use crate::wait_group::WaitGroup;

/// The limit of a key that [adapts](super::Adaptive), and the measurements of all processes. The figures are
/// approximate.
///
/// ```
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_distributed::wait_group::{Adaptive, Signal};
/// use tower_distributed::{ConcurrencyLimitLayer, Store, WaitGroup};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
/// let backend = WaitGroup::new(&Store::in_memory(), "backend", 20)?;
/// assert!(backend.inspect_limit("all").await?.is_none(), "no request was limited yet");
///
/// let adaptive = Adaptive::gradient().window(std::time::Duration::from_millis(10))
///     .classify(|_: &Result<(), std::io::Error>| Signal::Success);
/// let limit = ConcurrencyLimitLayer::new(backend.clone(), |_: &()| "all").adaptive(adaptive)?;
/// let call = limit.layer(service_fn(async |()| Ok(())));
/// while backend.inspect_limit("all").await?.is_none() {
///     call.clone().oneshot(()).await?;
/// }
/// let state = backend.inspect_limit("all").await?.expect("it was stored");
/// assert!(state.limit >= 20 && state.in_flight <= 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdaptiveState {
    /// The limit. While the latency without a queue is measured, half of it applies.
    pub limit: u32,
    /// The permits in flight: the sum of the most that each process had at once, with permits that response bodies
    /// hold, as a mean of about four windows.
    pub in_flight: u32,
    /// The mean latency of the successful requests in the last window. Zero if there were none.
    pub latency: Duration,
    /// The latency without a queue. `None` if it is not known yet, and for [`Adaptive::aimd`](super::Adaptive::aimd).
    pub base_latency: Option<Duration>,
}

impl AdaptiveState {
    fn of(adapted: &Adapted) -> Self {
        let count = |number: i64| u32::try_from(number).unwrap_or(u32::MAX);
        let micros =
            |span: i64| Duration::from_micros(u64::try_from(span.min(LONGEST)).unwrap_or(0));
        Self {
            limit: count(adapted.limit / 1000),
            in_flight: count(adapted.permits_in_flight()),
            latency: micros(adapted.mean),
            base_latency: (adapted.base > 0).then(|| micros(adapted.base / 1000)),
        }
    }
}

/// Reads the limit of a key. Changes nothing.
#[derive(Debug)]
pub(crate) struct LookAtLimit;

impl Operation for LookAtLimit {
    type Cell = Adapted;
    type Reply = Option<AdaptiveState>;
    type Undo = Self;
    const SCRIPT: Script = function!(Reads: "look_at_limit"; &["adapt"]);
    const PARTS: &'static [&'static str] = super::step::Adapt::PARTS;
    const REPEAT: Repeat = Repeat::Safe;

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<Self::Reply, Garbled> {
        fields.integer()?;
        // A key of another type, or text in another form, is not a limit: the next report replaces it.
        let Field::Text(text) = fields.next()? else {
            return Err(Garbled("a script returned no text"));
        };
        Ok(std::str::from_utf8(text)
            .ok()
            .and_then(Adapted::parse)
            .as_ref()
            .map(AdaptiveState::of))
    }

    fn apply(self, cell: &mut Adapted, now: i64) -> Self::Reply {
        use crate::store::operation::Cell as _;
        (!cell.is_idle(now)).then(|| AdaptiveState::of(cell))
    }
}

/// Reads the limit of a key; `None` if none is stored.
pub(crate) async fn look(
    namespace: &Namespace<Adapted>,
    key: Key,
) -> Result<Option<AdaptiveState>, Error> {
    namespace.client().run(key, LookAtLimit).await
}

impl WaitGroup {
    /// Returns the limit of a key that [adapts](crate::ConcurrencyLimitLayer::adaptive), and its last
    /// measurements. `None` if none is stored. Changes nothing. [`AdaptiveState`] has an example.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) if the store is unavailable.
    pub async fn inspect_limit(&self, key: impl Into<Key>) -> Result<Option<AdaptiveState>, Error> {
        look(&Namespace::open(self.store(), self.name()), key.into()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_shown_in_whole_permits() {
        let of = |base| {
            Adapted::parse(&format!("20999 {base} 7 0 1 2 3 4 5 1500 1600 0 0 0 0 1")).unwrap()
        };
        let state = LookAtLimit.apply(&mut of(3999), 1).unwrap();
        assert_eq!((state.limit, state.in_flight), (20, 2));
        let [latency, base] = [1600, 3].map(Duration::from_micros);
        assert_eq!((state.latency, state.base_latency), (latency, Some(base)));
        assert_eq!(LookAtLimit.apply(&mut of(0), 1).unwrap().base_latency, None);
        assert_eq!(LookAtLimit.apply(&mut Adapted::default(), 1), None);
    }
}
