//! A lease on an item, and the digests of handled items: the twin of `lua/lib/exact.lua`.

use std::io::Write as _;
use std::sync::Arc;

use super::bucket::Bucket;
use super::layout::{Digest, Layout};
use crate::primitive::lease::kind::{Kind, Scripts, scripts};
use crate::primitive::lease::outcome::{Completing, Entered, Look, Outcome};
use crate::primitive::mutex::holder::Holder;
use crate::store::{Arguments, Field, Garbled, Namespace};
use crate::{Error, Key};

/// One holder at a time handles an item. A confirmation then stores the item's digest.
#[derive(Clone, Debug)]
pub(crate) enum ExactClaims {}

impl Kind for ExactClaims {
    type Holders = Holder<false>;
    type Outcome = Handled;
    const PARTS: &'static [&'static str] =
        &["exact:claim", "@exact:0", "exact:queue", "exact:beats", "@exact:1", "@exact:2"];
    const SCRIPTS: Scripts = scripts!("lib/quick_exact"; "lib/mutex", "lib/exact");
    const FENCED: bool = false;
}

/// The handled items.
#[derive(Debug)]
pub(crate) enum Handled {}

/// The layout of the handled items, and their buckets if the store is in memory.
#[derive(Debug)]
pub(crate) struct Records {
    pub(crate) layout: Arc<Layout>,
    pub(crate) buckets: Namespace<Bucket>,
}

/// What a look at an item finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The item was handled.
    Handled,
    /// In memory: the store is full and takes no new bucket.
    Full,
}

impl Records {
    fn step<R>(&self, digest: &Digest, step: impl FnOnce(&mut Bucket, i64) -> R) -> Option<Result<R, Error>> {
        Some(self.buckets.cells()?.step(bucket_key(digest).as_bytes(), step))
    }
}

/// Returns the key of a bucket.
pub(super) fn bucket_key(digest: &Digest) -> Key {
    Key::from(digest.bucket)
}

/// Returns the key of the claim on an item, beside its bucket.
pub(crate) fn key(digest: &Digest) -> Key {
    let mut key = Vec::with_capacity(44);
    // Writing to a `Vec` does not fail.
    let _ = write!(key, "{}:{:032x}", digest.bucket, u128::from_be_bytes(*digest.bytes));
    Key::from(key)
}

impl Outcome<Holder<false>> for Handled {
    type Scope = Records;
    type Query = Digest;
    type Found = Found;
    type Entry = Digest;

    fn write_scope(records: &Records, call: &mut Arguments<'_>) {
        records.layout.write(call);
    }

    fn write_query(digest: &Digest, call: &mut Arguments<'_>) {
        digest.write(call);
    }

    fn write_entry(digest: &Digest, call: &mut Arguments<'_>) {
        digest.write(call);
    }

    fn decode(field: Field<'_>) -> Result<Found, Garbled> {
        match field {
            Field::Integer(1) => Ok(Found::Handled),
            _ => Err(Garbled("a script returned another value than 1")),
        }
    }

    fn look(_: &Holder<false>, records: &Records, digest: &Digest, bypass: bool, _: i64) -> Look<Found> {
        let is_bounded = records.buckets.cells().is_some_and(|cells| cells.is_bounded());
        let seen = records.step(digest, |bucket, now| {
            // The item will be recorded later. Its bucket is allocated before the item is handled.
            if is_bounded {
                bucket.reserve(&records.layout, digest, now);
            }
            bucket.contains(&records.layout, digest, now)
        });
        match seen {
            Some(Ok(true)) if !bypass => Look::Done(Found::Handled),
            Some(Err(_)) => Look::Done(Found::Full),
            Some(Ok(_)) | None => Look::Open(None),
        }
    }

    fn enter(
        _: &mut Holder<false>,
        records: &Records,
        digest: &Digest,
        _: Completing,
        _: i64,
    ) -> Result<Entered, Found> {
        // The item is recorded even if the claim was lost, since it was handled.
        match records.step(digest, |bucket, now| bucket.insert(&records.layout, digest, now)) {
            Some(Err(_)) => Err(Found::Full),
            Some(Ok(())) | None => Ok(Entered::Something),
        }
    }
}
