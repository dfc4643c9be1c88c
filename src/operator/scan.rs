//! Lists the stored entries: [`Scan`].

use std::collections::BTreeSet;
use std::vec::IntoIter;

use crate::adaptive::step::Adapted;
use crate::bloom_filter::bits::Bits;
use crate::bucket::Bucket;
use crate::bucket::chosen::QuotaTable;
use crate::bucket::quotas::Quotas;
use crate::dedupe::exact::{Bucket as Handled, ExactClaims, Stored};
use crate::error::Error;
use crate::fleet::operations::Versions;
use crate::key::Key;
use crate::lease::holders::Exclusive;
use crate::lease::kind::Kind as LeaseKind;
use crate::lease::operations::StateOf;
use crate::operator::entry::{Entry, Kind};
use crate::refused_keys::operations::Stored as Refused;
use crate::rw_lock::holders::ReadWrite;
use crate::single_flight::answer::Flight;
use crate::store::Store;
use crate::store::inspect::Listing;
use crate::store::redis::names::Stem;
use crate::wait_group::permits::Permits;

/// The maximum number of entries in a page of a store in memory.
const PAGE: usize = 1000;

/// Lists the entries of a store, page by page. See [`Operator::scan`](super::Operator::scan).
#[derive(Debug)]
#[must_use = "a scan does nothing until its pages are read"]
pub struct Scan(Pages);

#[derive(Debug)]
enum Pages {
    Redis(Listing),
    InMemory(IntoIter<Entry>),
}

impl Scan {
    pub(super) fn new(store: &Store, namespace: Option<&str>) -> Self {
        Self(match store.listing(namespace) {
            Some(listing) => Pages::Redis(listing),
            None => Pages::InMemory(in_memory(store, namespace).into_iter()),
        })
    }

    /// Returns the next entries, sorted and at least one; `None` at the end.
    ///
    /// Each call of `SCAN` reads about 1000 keys. If few keys in the database belong to this store, one page takes many
    /// calls.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) if a server does not reply, or denies `SCAN`. The next call starts
    /// again with the first key of this server, so entries may be listed twice.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the next call starts again with the first key of the current server.
    pub async fn next(&mut self) -> Result<Option<Vec<Entry>>, Error> {
        let listing = match &mut self.0 {
            Pages::Redis(listing) => listing,
            Pages::InMemory(entries) => {
                let page: Vec<_> = entries.by_ref().take(PAGE).collect();
                return Ok((!page.is_empty()).then_some(page));
            }
        };
        while let Some(found) = listing.next().await? {
            let page: BTreeSet<_> = found.into_iter().filter_map(Entry::of).collect();
            if !page.is_empty() {
                return Ok(Some(page.into_iter().collect()));
            }
        }
        Ok(None)
    }
}

/// Returns the entries of a store in memory, sorted.
fn in_memory(store: &Store, namespace: Option<&str>) -> Vec<Entry> {
    let mut entries = BTreeSet::new();
    let is_wanted = |name: &str| !name.is_empty() && namespace.is_none_or(|wanted| wanted == name);
    let mut add = |kind: Kind, keys: Vec<(String, Key)>| {
        for (name, key) in keys.into_iter().filter(|(name, _)| is_wanted(name)) {
            let stem = (!kind.is_whole()).then_some(Stem::Key(key));
            entries.insert(Entry {
                namespace: name,
                kind,
                stem,
            });
        }
    };
    add(Kind::TokenBucket, store.keys_of::<Bucket>(|_, _| true));
    add(Kind::WaitGroup, leased::<Permits>(store));
    add(Kind::WaitGroup, store.keys_of::<Adapted>(|_, _| true));
    add(Kind::Mutex, leased::<Exclusive>(store));
    add(Kind::RwLock, leased::<ReadWrite>(store));
    let flights = store.keys_of::<StateOf<Flight>>(|state, now| {
        state.is_in_use(now) || state.holders.outcome.is_some(now)
    });
    add(Kind::SingleFlight, flights);
    add(Kind::BloomFilter, store.keys_of::<Bits>(|_, _| true));
    add(Kind::Dedupe, store.keys_of::<Stored>(|_, _| true));
    add(
        Kind::FleetQuotas,
        store.keys_of::<Versions<Quotas>>(|_, _| true),
    );
    add(
        Kind::FleetTable,
        store.keys_of::<Versions<QuotaTable>>(|_, _| true),
    );
    add(
        Kind::FleetLimit,
        store.keys_of::<Versions<u32>>(|_, _| true),
    );
    add(Kind::RefusedKeys, store.keys_of::<Refused>(|_, _| true));
    // Both kinds of claims have the same cells.
    let (exact, filters): (Vec<_>, Vec<_>) = leased::<ExactClaims>(store)
        .into_iter()
        .partition(|(name, _)| is_exact(store, name));
    add(Kind::ExactClaim, exact);
    add(Kind::FilterClaim, filters);
    entries.into_iter().collect()
}

fn leased<K: LeaseKind>(store: &Store) -> Vec<(String, Key)> {
    store.keys_of::<StateOf<K>>(|state, now| state.is_in_use(now))
}

/// Whether a namespace in memory has an exact `Dedupe`.
fn is_exact(store: &Store, name: &str) -> bool {
    let has = |keys: Vec<(String, Key)>| keys.iter().any(|(other, _)| other == name);
    has(store.keys_of::<Stored>(|_, _| true)) || has(store.keys_of::<Handled>(|_, _| true))
}
