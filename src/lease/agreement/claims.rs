//! The agreement test for claims, on a filter and exact.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rand::rngs::StdRng;

use crate::bloom_filter::BloomFilter;
use crate::bloom_filter::bits::Probe;
use crate::dedupe::claims::{FilterFull, Found, Memory as _};
use crate::dedupe::exact::{Digest, Exact, ExactClaims, Layout};
use crate::dedupe::filter::{FilterClaims, Filtered};
use crate::key::Key;
use crate::lease::agreement::{Tried, agree};
use crate::lease::key_state::KeyState;
use crate::store::Store;
use crate::store::client::Namespace;

fn filter(store: &Store) -> BloomFilter {
    let builder = BloomFilter::builder()
        .capacity(10_000)
        .false_positive_rate(0.05);
    builder
        .remember_for(Duration::from_secs(300))
        .build(store, "agreement")
        .unwrap()
}

fn probe(sequence: usize) -> Probe {
    static FILTER: LazyLock<BloomFilter> = LazyLock::new(|| filter(&Store::in_memory()));
    FILTER.probe(sequence.to_string().as_bytes())
}

impl Tried for FilterClaims {
    const BYPASSES: bool = true;

    fn scopes(store: &Store) -> Vec<Filtered> {
        vec![Filtered::new(filter(store), FilterFull::default())]
    }

    fn query(sequence: usize, _: i64) -> Probe {
        probe(sequence)
    }

    fn entry(sequence: usize, _: &mut StdRng) -> Option<Probe> {
        Some(probe(sequence))
    }

    fn blur(found: &mut Found) {
        if let Found::Handled(ones) = found {
            *ones = 0;
        }
    }

    fn namespace(store: &Store) -> Namespace<KeyState<Self::Holders>> {
        Namespace::beside(store, "agreement")
    }

    fn key(sequence: usize) -> Key {
        Filtered::key(&probe(sequence))
    }
}

#[tokio::test]
async fn claims_agree() {
    agree::<FilterClaims>(&[""]).await;
}

/// The steps of a sequence are up to 31 s apart, so a sequence crosses slices.
fn layout() -> Arc<Layout> {
    Layout::new(10_000, Duration::from_millis(50_001)).into()
}

fn digest(sequence: usize) -> Digest {
    layout().digest(sequence.to_string().as_bytes())
}

impl Tried for ExactClaims {
    const BYPASSES: bool = true;

    fn scopes(store: &Store) -> Vec<Exact> {
        vec![Exact::new(store, "exact-agreement", layout())]
    }

    fn query(sequence: usize, _: i64) -> Digest {
        digest(sequence)
    }

    fn entry(sequence: usize, _: &mut StdRng) -> Option<Digest> {
        Some(digest(sequence))
    }

    fn namespace(store: &Store) -> Namespace<KeyState<Self::Holders>> {
        Namespace::beside(store, "exact-agreement")
    }

    fn key(sequence: usize) -> Key {
        Exact::key(&digest(sequence))
    }

    fn slices() -> (i64, u64) {
        layout().slices()
    }
}

#[tokio::test]
async fn exact_claims_agree() {
    agree::<ExactClaims>(&[""]).await;
}
