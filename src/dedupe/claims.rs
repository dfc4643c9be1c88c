//! Claims under one name, and the trait of the memory that records handled items.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::bloom_filter::layout::Mismatch;
use crate::error::Error;
use crate::error::reasons::{Cause, Subject};
use crate::key::Key;
use crate::lease::handle::{Lease, LeaseState};
use crate::lease::holders::Holder;
use crate::lease::key_state::KeyState;
use crate::lease::kind::{Completing, Entered, Kind, Look, Outcome, Scope};
use crate::lease::namespace::{LeaseNamespace, Leases};
use crate::lease::options::LeaseOptions;
use crate::lease::waiter::{AcquireRequest, Acquired, Patience};
use crate::store::Store;
use crate::store::client::Namespace;
use crate::store::operation::{Arguments, Cell, Field, Garbled};
use crate::telemetry;
use crate::telemetry::counters::Decisions;

/// Claims under one name.
pub(crate) struct Claims<K: Kind> {
    pub(super) common: Common,
    pub(super) leases: Leases<K>,
}

/// The common fields of all kinds of claims.
pub(super) struct Common {
    pub(super) store: Store,
    pub(super) name: String,
    pub(super) decisions: Decisions,
}

/// The result of a claim: the lease on an item, or the source of the knowledge that the item was handled.
pub(super) enum Taken<I> {
    Lease(Lease, I),
    HandledBy(HandledBy),
}

/// The source of the knowledge that an item was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandledBy {
    Exactly,
    ByFilter,
    /// The filter is above its capacity and fails open, so the item must be handled.
    ByFullFilter,
}

/// Records which items were handled. One holder at a time handles an item; a confirmation then records it.
pub(crate) trait Memory: fmt::Debug + Send + Sync + Sized + 'static {
    /// The recorded form of an item.
    type Item: Clone + fmt::Debug + Send + Sync + 'static;
    /// The maximum number of runs in one call.
    const MOST_RUNS: usize = 64;

    fn item(&self, item: &[u8]) -> Self::Item;
    /// Returns the bucket or shard of an item, and its digest.
    fn digest(item: &Self::Item) -> (u32, u128);
    /// Returns the key of the claim on an item, beside the key where the item is recorded.
    fn key(item: &Self::Item) -> Key {
        let (place, digest) = Self::digest(item);
        Key::written(|key| {
            key.reserve(44);
            key.extend_from_slice(itoa::Buffer::new().format(place).as_bytes());
            key.push(b':');
            // Written by hand for speed, because each claim uses it.
            let digit = |digit| b"0123456789abcdef"[usize::from(digit)];
            let digits = digest
                .to_be_bytes()
                .map(|byte| [byte >> 4, byte & 0xf].map(digit));
            key.extend_from_slice(digits.as_flattened());
        })
    }
    /// Makes sure that the stored layout is the same.
    fn open(&self) -> impl Future<Output = Result<(), Error>> + Send;
    /// Returns the source of the knowledge that a found item was handled, given the fill level of the memory.
    fn known(&self, item: &Self::Item, level: u64) -> HandledBy;
    /// Records the fill level of the memory after an item was recorded.
    fn note(&self, _item: &Self::Item, _level: u64) {}
    /// Returns the error for another layout that is stored under the name.
    fn mismatch(&self, stored: &Mismatch) -> Error;

    /// Writes the arguments that all runs of a call share.
    fn write(&self, call: &mut Arguments<'_>);
    /// Writes the arguments of a run.
    fn write_item(item: &Self::Item, call: &mut Arguments<'_>);
    /// Looks for an item, in memory. Returns the fill level of the memory if it was found.
    fn find(&self, item: &Self::Item) -> Result<Option<u64>, Found>;
    /// Records an item, in memory. Returns the fill level of the memory.
    fn insert(&self, item: &Self::Item) -> Result<u64, Found>;
}

/// How to treat an item that a filter above its capacity reports as a duplicate.
///
/// Above its capacity, a filter exceeds its false-positive rate. For example, a filter with a rate of 10⁻⁴ reports
/// about 16 % of the new items as duplicates at three times its capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterFull {
    /// The item can be claimed and is handled. No new item is lost, but real duplicates are handled again. Each is
    /// counted with the outcome `filter_full` in the [decisions](crate::telemetry). This is the default.
    #[default]
    FailOpen,
    /// The item is a duplicate, as below the capacity. New items can be lost.
    FailClosed,
}

/// The result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The item was handled. For a filter, the value is the sample of the item's generation.
    Handled(u64),
    /// Another layout is stored under the name.
    Other(Mismatch),
    /// In memory: the store is full and takes no new key.
    Full,
}

impl<K: Kind> Claims<K> {
    pub(super) fn new(
        store: &Store,
        namespace: &Namespace<KeyState<K::Holders>>,
        name: &str,
        scope: Scope<K>,
        options: LeaseOptions,
    ) -> Arc<Self> {
        let namespace = LeaseNamespace::new(store, namespace, scope);
        let leases = Leases::new(namespace, options, telemetry::Leases::new("claim", name));
        let decisions = Decisions::new("dedupe", name);
        Arc::new(Self {
            common: Common {
                store: store.clone(),
                name: name.to_owned(),
                decisions,
            },
            leases,
        })
    }

    pub(super) fn memory(&self) -> &Scope<K> {
        self.leases.namespace.scope()
    }
}

impl<M: Memory, K: Kind<Holders = Holder<false>, Outcome = M>> Claims<K> {
    pub(super) fn beside(store: &Store, name: &str, memory: M, options: LeaseOptions) -> Arc<Self> {
        Self::new(
            store,
            &Namespace::beside(store, name),
            name,
            memory,
            options,
        )
    }

    /// Claims an item, or returns why it is known. With `bypass`, a known item is claimed too, unless the call had to
    /// wait and the item was handled during the wait.
    pub(super) async fn claim(
        &self,
        item: &[u8],
        max_wait: Option<Duration>,
        bypass: bool,
    ) -> Result<Taken<M::Item>, Error> {
        let item = self.memory().item(item);
        self.memory().open().await?;
        let wait = max_wait.map(|max_wait| Patience {
            max_wait: Some(max_wait),
            ..Patience::FOR_EVER
        });
        let ask = AcquireRequest {
            bypass,
            ..AcquireRequest::new(item.clone(), Subject::Flight, Default::default(), 0, wait)
        };
        match self.leases.acquire(M::key(&item), ask).await? {
            Acquired::Lease(lease, _) => Ok(Taken::Lease(lease, item)),
            Acquired::Done(Found::Handled(level)) => {
                Ok(Taken::HandledBy(self.memory().known(&item, level)))
            }
            Acquired::Done(found) => Err(self.error(&found)),
        }
    }

    /// Records that a claimed item was handled. Returns whether the claim was still held. `again`: this was sent
    /// before, and the reply is unknown.
    pub(super) async fn confirm(
        &self,
        state: &LeaseState,
        item: &M::Item,
        again: bool,
    ) -> Result<bool, Error> {
        let entered = self
            .leases
            .namespace
            .complete(state, item.clone(), again)
            .await?;
        let (was_held, level) = entered.map_err(|found| self.error(&found))?;
        self.memory().note(item, level);
        Ok(was_held)
    }

    fn error(&self, found: &Found) -> Error {
        match found {
            Found::Other(stored) => self.memory().mismatch(stored),
            Found::Full => Error::overloaded(
                "max_keys or max_bytes is reached, so the store cannot record that an item was handled",
            ),
            Found::Handled(_) => unasked(),
        }
    }
}

pub(super) fn unasked() -> Error {
    Error::unavailable(
        Cause::Unexpected,
        "the store sent an unexpected answer for a claim",
    )
}

/// Runs a step where an item is recorded, if the store is in memory. Because the memory is bounded, the step must
/// create everything that a later insertion needs: a handled item must always fit.
pub(super) fn step<C: Cell, T: Default>(
    namespace: &Namespace<C>,
    key: &Key,
    step: impl FnOnce(&mut C, i64) -> Result<T, Mismatch>,
) -> Result<T, Found> {
    let Some(cells) = namespace.cells() else {
        return Ok(T::default());
    };
    match cells.step(key.as_bytes(), step) {
        Ok(stepped) => stepped.map_err(Found::Other),
        Err(_) => Err(Found::Full),
    }
}

/// Reads `seen N`.
fn sample(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text.strip_prefix(b"seen ")?)
        .ok()?
        .parse()
        .ok()
}

impl<M: Memory> Outcome<Holder<false>> for M {
    const MOST_RUNS: usize = M::MOST_RUNS;
    type Scope = Self;
    type Query = M::Item;
    type Found = Found;
    type Entry = M::Item;

    fn write_scope(memory: &Self, call: &mut Arguments<'_>) {
        memory.write(call);
    }

    fn write_query(item: &M::Item, call: &mut Arguments<'_>) {
        M::write_item(item, call);
    }

    fn write_entry(item: &M::Item, call: &mut Arguments<'_>) {
        M::write_item(item, call);
    }

    fn decode(field: Field<'_>) -> Result<Found, Garbled> {
        match field {
            Field::Integer(1) => Ok(Found::Handled(0)),
            Field::Text(text) => Ok(match sample(text) {
                Some(ones) => Found::Handled(ones),
                None => Found::Other(Mismatch(String::from_utf8_lossy(text).into_owned())),
            }),
            _ => Err(Garbled(
                "a script returned an unexpected value for a handled item",
            )),
        }
    }

    fn look(_: &Holder<false>, memory: &Self, item: &M::Item, bypass: bool, _: i64) -> Look<Found> {
        match memory.find(item) {
            Ok(Some(level)) if !bypass => Look::Done(Found::Handled(level)),
            Ok(_) => Look::Open(None),
            Err(obstacle) => Look::Done(obstacle),
        }
    }

    fn enter(
        _: &mut Holder<false>,
        memory: &Self,
        item: &M::Item,
        _: Completing,
        _: i64,
    ) -> Result<Entered, Found> {
        // The item was handled, so it is recorded even if the claim was lost.
        memory.insert(item).map(Entered::Filled)
    }
}
