//! `TokenBucket::allow`.

use tower_distributed::{Quota, Store, TokenBucket};

use super::Contestant;

#[derive(Clone)]
pub struct Bucket(TokenBucket);

pub fn bucket(store: &Store, quota: Quota) -> Bucket {
    Bucket(TokenBucket::new(store, "bench", quota).unwrap())
}

impl Contestant for Bucket {
    async fn admits(&mut self, key: &'static str) -> bool {
        self.0.allow(key).await.unwrap().is_admitted()
    }
}
