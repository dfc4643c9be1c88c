//! Items whose digests are stored: the twin of `lua/exact.lua`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::bucket::Bucket;
use super::items::{Open, bucket_key, forget};
use super::layout::{Digest, Layout};
use crate::bloom_filter::stored_layout::Mismatch;
use crate::dedupe::claims::{Found, Known, Memory, step};
use crate::lease::holder::Holder;
use crate::lease::kind::Kind;
use crate::store::{Arguments, Client, Namespace};
use crate::{Error, Key, Store};

/// Claims without false positives.
#[derive(Clone, Debug)]
pub(crate) enum ExactClaims {}

impl Kind for ExactClaims {
    type Holders = Holder<false>;
    type Outcome = Exact;
    const PARTS: &'static [&'static str] = &[
        "exact:claim",
        "@exact:0",
        "exact:waiters",
        "exact:beats",
        "@exact:1",
        "@exact:2",
    ];
    const NAME: &'static str = "exact";
    const PIECES: &'static [&'static str] = &["mutex", "exact"];
    const FENCED: bool = false;
}

/// The digests of the handled items.
#[derive(Debug)]
pub(crate) struct Exact {
    name: String,
    pub(crate) layout: Arc<Layout>,
    buckets: Namespace<Bucket>,
    open: Client<Open>,
    began: Instant,
    /// When the stored layout was last checked, ms since `began`, plus one; 0: never.
    opened: AtomicU64,
}

impl Exact {
    /// Opens a namespace whose name was already checked.
    pub(crate) fn new(store: &Store, name: &str, layout: Arc<Layout>) -> Self {
        Self {
            name: name.to_owned(),
            layout,
            buckets: Namespace::open(store, name),
            open: Namespace::open(store, name).client(),
            began: Instant::now(),
            opened: AtomicU64::new(0),
        }
    }

    /// Removes a handled item. Returns whether it was stored.
    pub(crate) async fn forget(&self, item: &[u8]) -> Result<bool, Error> {
        self.open().await?;
        forget(&self.buckets, self.layout.digest(item)).await
    }
}

impl Memory for Exact {
    type Item = Digest;

    fn item(&self, item: &[u8]) -> Digest {
        self.layout.digest(item)
    }

    fn digest(digest: &Digest) -> (u32, u128) {
        (digest.bucket, u128::from_be_bytes(*digest.bytes))
    }

    /// Checks the layout at the first call and again before it expires. With another number of buckets, handled items would
    /// not be found.
    async fn open(&self) -> Result<(), Error> {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        let (last, half) = (
            self.opened.load(Ordering::Relaxed),
            self.layout.remember_for() / 2,
        );
        if last > 0 && u128::from(now - (last - 1).min(now)) < half.as_millis() {
            return Ok(());
        }
        let open = Open(Some(Arc::clone(&self.layout)));
        let stored = self.open.run(Key::from("layout"), open).await?;
        if let Some(stored) = stored {
            return Err(self.mismatch(&stored));
        }
        self.opened.store(now + 1, Ordering::Relaxed);
        Ok(())
    }

    fn known(&self, _: &Digest, _: u64) -> Known {
        Known::Exactly
    }

    fn mismatch(&self, stored: &Mismatch) -> Error {
        stored.error(
            format_args!("the Dedupe {:?}", self.name),
            &*self.layout,
            Layout::parse,
        )
    }

    fn write(&self, call: &mut Arguments<'_>) {
        self.layout.write(call);
    }

    fn write_item(digest: &Digest, call: &mut Arguments<'_>) {
        digest.write(call);
    }

    fn find(&self, digest: &Digest) -> Result<Option<u64>, Found> {
        step(&self.buckets, &bucket_key(digest), |bucket, now| {
            bucket.reserve(&self.layout, digest, now);
            Ok(bucket.contains(&self.layout, digest, now).then_some(0))
        })
    }

    fn insert(&self, digest: &Digest) -> Result<u64, Found> {
        step(&self.buckets, &bucket_key(digest), |bucket, now| {
            bucket.insert(&self.layout, digest, now);
            Ok(0)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Otherwise the stored layout would expire while it is used.
    #[tokio::test]
    async fn the_layout_is_checked_again_after_half_the_time_that_items_are_remembered() {
        let layout = Arc::new(Layout::new(1, Duration::from_secs(100)));
        let mut exact = Exact::new(&Store::in_memory(), "items", layout);
        exact.began -= Duration::from_secs(60);
        for (opened, is_checked) in [(0, true), (5000, true), (60_000, false)] {
            exact.opened.store(opened, Ordering::Relaxed);
            exact.open().await.unwrap();
            assert_eq!(
                exact.opened.load(Ordering::Relaxed) != opened,
                is_checked,
                "{opened}"
            );
        }
    }
}
