//! Operations on handled items apart from claims: the stored layout, looking an item up, forgetting it.

use std::sync::Arc;

use super::bucket::Bucket;
use super::layout::{Digest, Layout};
use crate::bloom_filter::stored_layout::{Mismatch, UNREADABLE, read, read_flag};
use crate::store::{
    Arguments, Cell, Fields, Garbled, Namespace, Operation, Repeat, Script, function,
};
use crate::{Error, Key, Store};

/// The hashes of a bucket.
const HASHES: &[&str] = &["exact:0", "exact:1", "exact:2"];

/// Returns the stored layout if it differs. Otherwise stores the layout, which lives longer than the items that use it.
/// Without a layout, only returns the stored one.
#[derive(Debug)]
pub(super) struct Open(pub(super) Option<Arc<Layout>>);

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
pub(super) fn bucket_key(digest: &Digest) -> Key {
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
