//! Claims without false positives: the digest of each handled item is stored until it expires.
//!
//! In order: the layout of items, the handled items of one bucket in memory, the operations on them, and the kind of
//! claims on them. The steps in memory do the same as `lua/exact.lua`.

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};

use crate::bloom_filter::layout::{Mismatch, UNREADABLE, read, read_flag};
use crate::dedupe::claims::{Found, HandledBy, Memory, step};
use crate::error::Error;
use crate::key::Key;
use crate::lease::holders::Holder;
use crate::lease::kind::Kind;
use crate::store::Store;
use crate::store::client::{Client, Namespace};
use crate::store::operation::{
    Arguments, Cell, Fields, Garbled, Operation, Repeat, Script, function,
};

/// How many slices a window has. One more slice counts, because the oldest is only partly inside the window.
const SLICES: u64 = 2;

/// How many hashes a bucket has. Each slice that counts is in another hash.
pub(crate) const RING: i64 = SLICES as i64 + 1;

/// How many digests a slice has in a bucket at capacity. Redis packs a hash of up to 128 fields
/// (`hash-max-listpack-entries`). This number is so far below 128 that random differences do not exceed it.
const PACKED: u64 = 72;

/// The layout of the handled items.
#[derive(Debug)]
pub(crate) struct Layout {
    buckets: u32,
    /// The length of a slice, µs.
    slice: i64,
    remember_for: Duration,
    /// The stored text.
    descriptor: Arc<str>,
}

/// The digest of an item, and its bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Digest {
    pub(crate) bucket: u32,
    /// How much earlier the slices of the bucket begin, µs, so that the buckets do not expire at the same time.
    shift: i64,
    pub(crate) bytes: Arc<[u8; 16]>,
}

impl Layout {
    /// `remember_for` is in whole ms.
    pub(crate) fn new(capacity: u64, remember_for: Duration) -> Self {
        let buckets = capacity.div_ceil(SLICES * PACKED).clamp(1, u32::MAX.into()) as u32;
        let millis = remember_for.as_millis() as u64;
        let slice = (millis * 1000).div_ceil(SLICES) as i64;
        let descriptor = format!("exact1 {buckets} {millis}").into();
        Self {
            buckets,
            slice,
            remember_for,
            descriptor,
        }
    }

    /// Reads the stored text of a layout.
    fn parse(text: &str) -> Option<Self> {
        let (buckets, millis) = text.strip_prefix("exact1 ")?.split_once(' ')?;
        let remember_for = Duration::from_millis(millis.parse().ok()?);
        let capacity = u64::from(buckets.parse::<u32>().ok()?) * SLICES * PACKED;
        // A text of another program could contain an impossible span.
        let is_possible = capacity > 0 && (1..1 << 40).contains(&remember_for.as_millis());
        let layout = is_possible.then(|| Self::new(capacity, remember_for))?;
        (*layout.descriptor == *text).then_some(layout)
    }

    pub(crate) fn digest(&self, item: &[u8]) -> Digest {
        let hash = Sha256::digest(item);
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash[..16]);
        let first = u64::from(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        let bucket = ((first * u64::from(self.buckets)) >> 32) as u32;
        let shift = i128::from(bucket) * i128::from(self.slice) / i128::from(self.buckets);
        Digest {
            bucket,
            shift: shift as i64,
            bytes: Arc::new(bytes),
        }
    }

    /// Returns the current slice of a bucket.
    fn slice_at(&self, digest: &Digest, now: i64) -> i64 {
        (now + digest.shift).div_euclid(self.slice)
    }

    /// Returns when a slice of a bucket no longer counts, in µs. The time from now is rounded up to whole ms, as in
    /// Redis.
    fn end_of(&self, digest: &Digest, slice: i64, now: i64) -> i64 {
        let left = (slice + RING) * self.slice - digest.shift - now;
        now + (left + 999) / 1000 * 1000
    }

    /// Returns the time to live of the stored text, ms.
    fn kept(&self) -> i64 {
        2 * self.remember_for.as_millis() as i64 + 3_600_000
    }

    fn descriptor(&self) -> &Arc<str> {
        &self.descriptor
    }

    /// Returns the number of items for which the buckets are sized.
    pub(crate) fn capacity(&self) -> u64 {
        u64::from(self.buckets) * SLICES * PACKED
    }

    pub(crate) fn remember_for(&self) -> Duration {
        self.remember_for
    }

    /// Returns the length of a slice (µs), and the number of buckets.
    #[cfg(test)]
    pub(crate) fn slices(&self) -> (i64, u64) {
        (self.slice, self.buckets.into())
    }

    /// Writes the arguments that all runs of a call share.
    fn write(&self, call: &mut Arguments<'_>) {
        call.integer(self.slice);
    }
}

impl Digest {
    /// Writes the arguments of a run.
    fn write(&self, call: &mut Arguments<'_>) {
        call.integer(self.shift);
        call.bytes(Arc::<[u8; 16]>::clone(&self.bytes));
    }
}

/// `6945 buckets, remember_for 604800s`.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} buckets, remember_for {:?}",
            self.buckets, self.remember_for
        )
    }
}

/// The slices of a bucket. Slice n is in slot n % 3.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bucket([Slot; RING as usize]);

#[derive(Clone, Debug, Default)]
struct Slot {
    slice: i64,
    /// When the slice expires in Redis, µs; 0: the slot is empty.
    ends: i64,
    digests: HashSet<[u8; 16]>,
}

impl Bucket {
    /// Returns whether an item was handled within the window. A later slice, from before the clock was set back,
    /// counts.
    fn contains(&self, layout: &Layout, digest: &Digest, now: i64) -> bool {
        let oldest = layout.slice_at(digest, now) + 1 - RING;
        self.0.iter().any(|slot| {
            slot.ends > 0 && slot.slice >= oldest && slot.digests.contains(&*digest.bytes)
        })
    }

    /// Records that an item was handled.
    fn insert(&mut self, layout: &Layout, digest: &Digest, now: i64) {
        self.enter(layout, digest, now)
            .digests
            .insert(*digest.bytes);
    }

    /// Removes an item. Returns whether it was stored.
    fn remove(&mut self, digest: &Digest) -> bool {
        let removed = self
            .0
            .iter_mut()
            .filter_map(|slot| slot.digests.remove(&*digest.bytes).then_some(()));
        removed.count() > 0
    }

    /// Makes sure that the current slice exists.
    fn reserve(&mut self, layout: &Layout, digest: &Digest, now: i64) {
        self.enter(layout, digest, now);
    }

    /// Drops the slices that have expired in Redis.
    #[cfg(test)]
    fn expire(&mut self, now: i64) {
        self.0
            .iter_mut()
            .filter(|slot| slot.ends <= now)
            .for_each(|slot| *slot = Slot::default());
    }

    fn enter(&mut self, layout: &Layout, digest: &Digest, now: i64) -> &mut Slot {
        let slice = layout.slice_at(digest, now);
        let slot = &mut self.0[slice.rem_euclid(RING) as usize];
        if slot.ends == 0 || slot.slice < slice {
            slot.digests = HashSet::new();
        }
        if slot.ends == 0 || slot.slice != slice {
            // The digests of a later slice, from before the clock was set back, move to this slice.
            slot.slice = slice;
            slot.ends = layout.end_of(digest, slice, now);
        }
        slot
    }
}

impl Cell for Bucket {
    fn is_idle(&self, now: i64) -> bool {
        self.0.iter().all(|slot| slot.ends <= now)
    }

    fn heap_bytes(&self) -> usize {
        self.0
            .iter()
            .map(|slot| slot.digests.capacity() * size_of::<[u8; 16]>())
            .sum()
    }
}

/// The hashes of a bucket.
const HASHES: &[&str] = &["exact:0", "exact:1", "exact:2"];

/// Returns the stored layout if it differs. Otherwise stores the layout, with a longer ttl than the items that use it.
/// Without a layout, only returns the stored one.
#[derive(Debug)]
struct Open(Option<Arc<Layout>>);

/// The stored layout, and when it expires (µs).
#[derive(Clone, Debug, Default)]
pub(crate) struct Stored(Option<(Arc<str>, i64)>);

/// Looks an item up.
#[derive(Debug)]
struct Look(Arc<Layout>, Digest);

/// Removes an item.
#[derive(Debug)]
struct Forget(Digest);

/// Returns the layout that is stored under a name.
pub(crate) async fn stored(store: &Store, name: &str) -> Result<Option<Layout>, Error> {
    let client = Namespace::<Stored>::open(store, name).client();
    let stored = client.run(Key::from("layout"), Open(None)).await?;
    Ok(stored.and_then(|Mismatch(text)| Layout::parse(&text)))
}

/// Returns whether an item was handled.
pub(crate) async fn look(
    buckets: &Namespace<Bucket>,
    layout: &Arc<Layout>,
    item: &[u8],
) -> Result<bool, Error> {
    let digest = layout.digest(item);
    buckets
        .client()
        .run(bucket_key(&digest), Look(Arc::clone(layout), digest))
        .await
}

/// Removes an item. Returns whether it was stored.
pub(crate) async fn forget(buckets: &Namespace<Bucket>, digest: Digest) -> Result<bool, Error> {
    buckets
        .client()
        .run(bucket_key(&digest), Forget(digest))
        .await
}

/// Returns the key of a bucket.
fn bucket_key(digest: &Digest) -> Key {
    Key::from(digest.bucket)
}

/// The pieces of the Lua library for handled items.
const EXACT: &[&str] = &["mutex", "exact"];

impl Operation for Open {
    type Cell = Stored;
    type Reply = Option<Mismatch>;
    type Undo = Self;
    const SCRIPT: Script = function!(Writes: "open_layout"; EXACT);
    const PARTS: &'static [&'static str] = &["layout"];
    const REPEAT: Repeat = Repeat::Safe;

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        if let Some(layout) = &self.0 {
            call.text(Arc::clone(layout.descriptor()));
            call.integer(layout.kept());
        }
    }

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<Option<Mismatch>, Garbled> {
        match read(&mut fields)?.err() {
            Some(Mismatch(text)) if self.0.is_none() && Layout::parse(&text).is_none() => {
                Err(UNREADABLE)
            }
            stored => Ok(stored),
        }
    }

    fn apply(self, Stored(stored): &mut Stored, now: i64) -> Option<Mismatch> {
        let there = stored
            .as_ref()
            .filter(|(_, until)| *until > now)
            .map(|(text, _)| text);
        let differs = |text: &&Arc<str>| {
            self.0
                .as_ref()
                .is_none_or(|layout| *text != layout.descriptor())
        };
        if let Some(text) = there.filter(differs) {
            return Some(Mismatch(text.to_string()));
        }
        if let Some(layout) = self.0 {
            *stored = Some((Arc::clone(layout.descriptor()), now + layout.kept() * 1000));
        }
        None
    }
}

impl Cell for Stored {
    fn is_idle(&self, now: i64) -> bool {
        self.0.as_ref().is_none_or(|(_, until)| *until <= now)
    }
}

impl Operation for Look {
    type Cell = Bucket;
    type Reply = bool;
    type Undo = Self;
    const SCRIPT: Script = function!(Reads: "look_at_item"; EXACT);
    const PARTS: &'static [&'static str] = HASHES;
    const REPEAT: Repeat = Repeat::Safe;

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        self.0.write(call);
        self.1.write(call);
    }

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<bool, Garbled> {
        read_flag(&mut fields)
    }

    fn apply(self, bucket: &mut Bucket, now: i64) -> bool {
        bucket.contains(&self.0, &self.1, now)
    }
}

impl Operation for Forget {
    type Cell = Bucket;
    type Reply = bool;
    type Undo = Self;
    const SCRIPT: Script = function!(Writes: "forget_item"; EXACT);
    const PARTS: &'static [&'static str] = HASHES;
    const REPEAT: Repeat = Repeat::Never;

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.bytes(Arc::<[u8; 16]>::clone(&self.0.bytes));
    }

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<bool, Garbled> {
        read_flag(&mut fields)
    }

    fn apply(self, bucket: &mut Bucket, _: i64) -> bool {
        bucket.remove(&self.0)
    }
}

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

    /// Checks the layout at the first call and again before it expires. If the number of buckets differed, handled
    /// items would not be found.
    async fn open(&self) -> Result<(), Error> {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        let last = self.opened.load(Ordering::Relaxed);
        let half = self.layout.remember_for() / 2;
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

    fn known(&self, _: &Digest, _: u64) -> HandledBy {
        HandledBy::Exactly
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
