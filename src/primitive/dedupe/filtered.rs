//! A lease on an item of a filter: the twin of `lua/lib/claim.lua`.

use std::io::Write as _;
use std::sync::Arc;

use super::builder::FilterFull;
use super::fill::Fill;
use super::{Found as Answer, Known};
use crate::primitive::bloom_filter::{BloomFilter, Mismatch, Probe};
use crate::primitive::lease::kind::{Kind, Scripts, scripts};
use crate::primitive::lease::outcome::{Completing, Entered, Look, Outcome};
use crate::primitive::lease::{Admission, Got, LeaseOptions, LeaseState, Leases};
use crate::primitive::mutex::holder::Holder;
use crate::store::{Arguments, Field, Garbled, Namespace};
use crate::{Error, Key, telemetry};

/// Claims on the items of a filter.
pub(super) struct Filtered {
    pub(super) filter: BloomFilter,
    leases: Leases<Claims>,
    fill: Arc<Fill>,
    when_full: FilterFull,
}

impl Filtered {
    pub(super) fn open(filter: BloomFilter, options: LeaseOptions, when_full: FilterFull) -> Self {
        let (store, name) = (filter.store(), filter.name());
        let namespace = Namespace::beside(store, name);
        let admission = Admission::new(store, &namespace, filter.clone());
        let leases = Leases::new(admission, options, telemetry::Leases::new("claim", name));
        let fill = store.shared(name, || Arc::new(Fill::new(name, filter.keys())));
        Self { leases, fill, when_full, filter }
    }

    pub(super) fn local_share(&self) -> Self {
        Self::open(self.filter.local_share(), self.leases.options().clone(), self.when_full)
    }

    pub(super) fn fill(&self) -> Option<f64> {
        self.fill.known()
    }

    /// Claims an item, or answers how it is known.
    pub(super) async fn claim(&self, item: &[u8], asked: super::Asked) -> Result<Answer<Probe>, Error> {
        let probe = self.filter.probe(item);
        self.filter.open().await?;
        match self.leases.acquire_or_find(key(&probe), asked.about(probe)).await? {
            Got::Lease(lease, _) => Ok(Answer::New(lease, probe)),
            Got::Done(Found::Seen(ones)) => {
                let is_full = self.note(&probe, ones) > 1.0 && self.when_full == FilterFull::FailOpen;
                Ok(Answer::Known(if is_full { Known::ByFullFilter } else { Known::ByFilter }))
            }
            Got::Done(found) => Err(self.error(found)),
        }
    }

    /// Inserts a claimed item. Returns whether the claim was still held. `again`: this
    /// was sent before, and the answer is not known.
    pub(super) async fn confirm(&self, state: &LeaseState, probe: Probe, again: bool) -> Result<bool, Error> {
        let entered = self.leases.admission.complete(state, probe, again).await?;
        let (was_held, level) = entered.map_err(|found| self.error(found))?;
        self.note(&probe, level);
        Ok(was_held)
    }

    /// Records how full a generation is, by its sample. Returns the level.
    fn note(&self, probe: &Probe, ones: u64) -> f64 {
        let fill = self.filter.fill(ones);
        self.fill.note(probe.shard, fill);
        fill
    }

    fn error(&self, found: Found) -> Error {
        match found {
            Found::Other(stored) => self.filter.mismatch(&stored),
            Found::Full => super::no_room(),
            Found::Seen(_) => super::unasked(),
        }
    }
}

/// One holder at a time handles an item. A confirmation then inserts the item into the filter.
#[derive(Clone, Debug)]
pub(crate) enum Claims {}

impl Kind for Claims {
    type Holders = Holder<false>;
    type Outcome = Seen;
    const PARTS: &'static [&'static str] = &["claim", "@config", "queue", "beats", "@bits0", "@bits1"];
    const SCRIPTS: Scripts = scripts!("lib/quick_claim"; "lib/bloom", "lib/mutex", "lib/claim");
    const FENCED: bool = false;
}

/// The items that a filter contains.
#[derive(Debug)]
pub(crate) enum Seen {}

/// What a look at an item finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The filter contains the item. The value is the sample of the item's generation.
    Seen(u64),
    /// A filter with another configuration is stored under the name.
    Other(Mismatch),
    /// In memory: the store is full and takes no new shard of a filter.
    Full,
}

/// Returns the key of the claim on an item, beside the item's key of the filter.
pub(crate) fn key(probe: &Probe) -> Key {
    let mut key = Vec::with_capacity(40);
    // Writing to a `Vec` does not fail.
    let _ = write!(key, "{}:{:032x}", probe.shard, probe.hash());
    Key::from(key)
}

fn write_positions(probe: &Probe, call: &mut Arguments<'_>) {
    for position in probe.positions() {
        call.integer(position as i64);
    }
}

/// Reads `seen N`.
fn sample(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text.strip_prefix(b"seen ")?).ok()?.parse().ok()
}

impl Outcome<Holder<false>> for Seen {
    // Each run reads one bit per hash.
    const MOST_RUNS: usize = 32;
    type Scope = BloomFilter;
    type Query = Probe;
    type Found = Found;
    type Entry = Probe;

    fn write_scope(filter: &BloomFilter, call: &mut Arguments<'_>) {
        filter.layout().write(call);
    }

    fn write_query(probe: &Probe, call: &mut Arguments<'_>) {
        write_positions(probe, call);
    }

    fn write_entry(probe: &Probe, call: &mut Arguments<'_>) {
        write_positions(probe, call);
    }

    fn decode(field: Field<'_>) -> Result<Found, Garbled> {
        match field {
            Field::Text(text) => Ok(match sample(text) {
                Some(ones) => Found::Seen(ones),
                None => Found::Other(Mismatch(String::from_utf8_lossy(text).into_owned())),
            }),
            _ => Err(Garbled("a script returned another value than a text for a filter")),
        }
    }

    fn look(_: &Holder<false>, filter: &BloomFilter, probe: &Probe, bypass: bool, _: i64) -> Look<Found> {
        match filter.look(probe) {
            Some(Ok(Ok(Some(ones)))) if !bypass => Look::Done(Found::Seen(ones)),
            Some(Ok(Err(mismatch))) => Look::Done(Found::Other(mismatch)),
            Some(Err(_)) => Look::Done(Found::Full),
            Some(Ok(Ok(_))) | None => Look::Open(None),
        }
    }

    fn enter(
        _: &mut Holder<false>,
        filter: &BloomFilter,
        probe: &Probe,
        _: Completing,
        _: i64,
    ) -> Result<Entered, Found> {
        // The item is inserted even if the claim was lost, since it was handled.
        match filter.enter(probe) {
            Some(Err(_)) => Err(Found::Full),
            Some(Ok(Err(mismatch))) => Err(Found::Other(mismatch)),
            Some(Ok(Ok(ones))) => Ok(Entered::Filled(ones)),
            None => Ok(Entered::Something),
        }
    }
}
