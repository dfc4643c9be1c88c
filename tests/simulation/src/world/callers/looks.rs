//! What is rarer: looks, revocations, corrections of charges, filters on their own, charges in advance.

use std::time::Duration;

use tower_distributed::{BloomFilter, Error, Mutex, Quota, Store, TokenBucket, WaitGroup};

use super::super::shape::Shape;
use super::super::{Process, World};

/// How long a process keeps tokens that it has charged in advance.
const IN_ADVANCE: Duration = Duration::from_millis(10);

/// No other callers use these names.
pub struct Looks {
    filter: BloomFilter,
    cleared: BloomFilter,
    mutex: Mutex,
    permits: WaitGroup,
    corrected: TokenBucket,
    month: TokenBucket,
    hot: TokenBucket,
}

impl Looks {
    pub fn new(shape: &Shape, store: &Store) -> Result<Self, Error> {
        let filter =
            |name| BloomFilter::builder().capacity(1_000).false_positive_rate(1e-9).build(store, name);
        let bucket = |name, quota: Quota| TokenBucket::new(store, name, quota);
        Ok(Self {
            filter: filter("lf")?,
            cleared: filter("cf")?,
            mutex: Mutex::builder().ttl(shape.ttl).max_wait(shape.max_wait).build(store, "lm")?,
            permits: WaitGroup::builder(2).ttl(shape.ttl).max_wait(shape.max_wait).build(store, "lg")?,
            corrected: bucket("lc", Quota::per_second(5))?,
            month: bucket("ld", Quota::per_calendar_month(50).starting(9))?,
            hot: bucket("lh", Quota::per_second(1_000).burst(1_000))?.prefetch(IN_ADVANCE)?,
        })
    }
}

impl World {
    pub(super) async fn look(&self, process: &Process, looks: &Looks, key: &str) {
        match self.network.draw(8) {
            0 => self.insert(looks, key).await,
            1 => {
                let inserted = self.call("insert", Duration::ZERO, looks.cleared.insert(key)).await;
                if matches!(inserted, Some(Ok(false))) {
                    self.call("estimate", Duration::ZERO, looks.cleared.estimated_count()).await;
                    self.call("clear", Duration::ZERO, looks.cleared.clear()).await;
                }
            }
            2 => self.revoke(looks, key).await,
            3 => self.correct(&looks.corrected, key).await,
            4 => self.correct(&looks.month, key).await,
            5 => {
                for _ in 0..10 {
                    self.call("hot", Duration::ZERO, looks.hot.allow(key)).await;
                }
            }
            _ => self.inspect(process, key).await,
        }
    }

    /// What was inserted is contained.
    async fn insert(&self, looks: &Looks, key: &str) {
        let filter = &looks.filter;
        let since = self.judges.losses();
        let items = [key.to_owned(), format!("{key}-{}", self.network.draw(5))];
        let inserted = self.call("insert all", Duration::ZERO, filter.insert_all(&items)).await;
        let contained = self.call("contains all", Duration::ZERO, filter.contains_all(&items)).await;
        let (Some(Ok(_)), Some(Ok(contained))) = (inserted, contained) else { return };
        if contained.contains(&false) && self.judges.losses() == since && !self.may_forget() {
            self.judges.condemn(format!("a filter does not contain what was inserted: {items:?}"));
        }
    }

    async fn correct(&self, bucket: &TokenBucket, key: &str) {
        self.call("allow to be corrected", Duration::ZERO, bucket.allow(key)).await;
        match self.network.happens(500) {
            true => drop(self.call("charge", Duration::ZERO, bucket.charge(key, 2)).await),
            false => drop(self.call("give back", Duration::ZERO, bucket.give_back(key, 1)).await),
        }
    }

    /// Revokes what it and others hold.
    async fn revoke(&self, looks: &Looks, key: &str) {
        if self.network.happens(500) {
            let mutex = &looks.mutex;
            let locked = self.call("lock to be revoked", self.shape.max_wait, mutex.lock(key)).await;
            let Some(Ok(guard)) = locked else { return };
            let seen = self.call("look", Duration::ZERO, mutex.inspect(key)).await;
            for holder in seen.into_iter().flatten().flat_map(|seen| seen.holders) {
                self.call("revoke", Duration::ZERO, mutex.revoke(key, &holder)).await;
            }
            return drop(guard);
        }
        let permits = &looks.permits;
        let added = self.call("permit to be revoked", self.shape.max_wait, permits.add(key)).await;
        let seen = self.call("look", Duration::ZERO, permits.inspect(key)).await;
        for holder in seen.into_iter().flatten().flat_map(|seen| seen.holders) {
            self.call("revoke", Duration::ZERO, permits.revoke(key, &holder)).await;
        }
        drop(added);
    }

    async fn inspect(&self, process: &Process, key: &str) {
        let all = &process.primitives;
        self.call("look", Duration::ZERO, all.mutex.inspect(key)).await;
        self.call("look", Duration::ZERO, all.permits.inspect(key)).await;
        self.call("look", Duration::ZERO, all.lock.inspect(key)).await;
    }
}
