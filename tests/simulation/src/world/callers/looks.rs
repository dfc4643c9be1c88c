//! What is rarer: looks, revocations, corrections of charges, filters on their own, charges in advance.

use std::time::Duration;

use tower_distributed::{BloomFilter, Error, Mutex, Quota, Store, TokenBucket, WaitGroup};

use super::super::World;
use super::super::shape::Shape;
use super::Primitives;

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
        let filter = |name| {
            BloomFilter::builder()
                .capacity(1_000)
                .false_positive_rate(1e-9)
                .build(store, name)
        };
        let bucket = |name, quota: Quota| TokenBucket::new(store, name, quota);
        Ok(Self {
            filter: filter("lf")?,
            cleared: filter("cf")?,
            mutex: Mutex::builder()
                .ttl(shape.ttl)
                .max_wait(shape.max_wait)
                .build(store, "lm")?,
            permits: super::permits(shape, 2).build(store, "lg")?,
            corrected: bucket("lc", Quota::per_second(5))?,
            month: bucket("ld", Quota::per_calendar_month(50).starting(9))?,
            hot: bucket("lh", Quota::per_second(1_000).burst(1_000))?.prefetch(IN_ADVANCE)?,
        })
    }
}

impl World {
    pub(super) async fn look(&self, all: &Primitives, looks: &Looks, key: &str) -> Option<()> {
        match self.network.draw(8) {
            0 => self.insert(looks, key).await,
            1 => {
                if !self.ask("insert", looks.cleared.insert(key)).await? {
                    self.ask("estimate", looks.cleared.estimated_count()).await;
                    self.ask("clear", looks.cleared.clear()).await;
                }
                Some(())
            }
            2 => self.revoke(looks, key).await,
            3 => self.correct(&looks.corrected, key).await,
            4 => self.correct(&looks.month, key).await,
            5 => {
                for _ in 0..10 {
                    self.ask("hot", looks.hot.allow(key)).await;
                }
                Some(())
            }
            _ => self.inspect(all, key).await,
        }
    }

    /// What was inserted is contained.
    async fn insert(&self, looks: &Looks, key: &str) -> Option<()> {
        let filter = &looks.filter;
        let since = self.judges.losses();
        let items = [key.to_owned(), format!("{key}-{}", self.network.draw(5))];
        let inserted = self.ask("insert all", filter.insert_all(&items)).await;
        let call = filter.contains_all(&items);
        let contained = self.ask("contains all", call).await?;
        if inserted.is_some() && contained.contains(&false) && self.has_all(since) {
            self.condemn(format!(
                "a filter does not contain what is in it: {items:?}"
            ));
        }
        Some(())
    }

    async fn correct(&self, bucket: &TokenBucket, key: &str) -> Option<()> {
        self.ask("allow to be corrected", bucket.allow(key)).await;
        let corrected = match self.network.happens(500) {
            true => self.ask("charge", bucket.charge(key, 2)).await,
            false => self.ask("give back", bucket.give_back(key, 1)).await,
        };
        corrected.map(drop)
    }

    /// Revokes what it and others hold.
    async fn revoke(&self, looks: &Looks, key: &str) -> Option<()> {
        let (Looks { mutex, permits, .. }, wait) = (looks, self.shape.max_wait);
        if self.network.happens(500) {
            let call = mutex.lock(key);
            let _guard = self.get("lock to be revoked", wait, call).await?;
            for holder in self.ask("look", mutex.inspect(key)).await?.holders {
                self.ask("revoke", mutex.revoke(key, &holder)).await;
            }
        } else {
            let call = permits.add(key);
            let _permit = self.call("permit to be revoked", wait, call).await;
            for holder in self.ask("look", permits.inspect(key)).await?.holders {
                self.ask("revoke", permits.revoke(key, &holder)).await;
            }
        }
        Some(())
    }

    async fn inspect(&self, all: &Primitives, key: &str) -> Option<()> {
        self.ask("look", all.mutex.inspect(key)).await;
        self.ask("look", all.permits.inspect(key)).await;
        self.ask("look", all.lock.inspect(key)).await.map(drop)
    }
}
