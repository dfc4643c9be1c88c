//! The items of the tests, and what has become of them.

use tower_distributed::dedupe::{Claim, Claimed, Dedupe};
use tower_distributed::{BloomFilter, Store};

use crate::stores::Stores;

pub(crate) fn dedupe(store: &Store) -> Dedupe {
    Dedupe::builder()
        .remember_forever()
        .build(&BloomFilter::new(store, "items", 1000, 1e-9).unwrap())
        .unwrap()
}

pub(crate) fn by_name(name: &&'static str) -> &'static str {
    name
}

/// Somebody else's claim.
pub(crate) async fn claim(stores: &Stores, item: &str) -> Claim {
    let Claimed::New(claim) = dedupe(&stores.open()).try_claim(item).await.unwrap() else {
        panic!("{item}")
    };
    claim
}

/// Somebody else has handled it.
pub(crate) async fn handled(stores: &Stores, item: &str) {
    assert!(claim(stores, item).await.confirm().await.unwrap());
}

/// `None` where it is in flight, else whether it was handled.
pub(crate) async fn is_handled(stores: &Stores, item: &str) -> Option<bool> {
    match dedupe(&stores.open()).try_claim(item).await {
        Ok(Claimed::New(claim)) => claim.release().await.unwrap().then_some(false),
        Ok(Claimed::Duplicate) => Some(true),
        Err(error) => {
            assert!(error.is_refused(), "{error}");
            None
        }
    }
}
