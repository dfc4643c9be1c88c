//! Operations on handled items apart from claims: reading the stored layout, looking an item up, forgetting it.

use std::sync::Arc;

use super::bucket::Bucket;
use super::claims::bucket_key;
use super::layout::{Digest, Layout};
use super::open::Stored;
use crate::store::{Arguments, Field, Fields, Garbled, Namespace, Never, Operation, Repeat, Script, script};
use crate::{Error, Key, Store};

/// The hashes of a bucket.
const HASHES: &[&str] = &["exact:0", "exact:1", "exact:2"];

const WRONG_TYPE: Garbled = Garbled(
    "WRONGTYPE a key of handled items has a value of another type: delete the key or use another name",
);

const UNREADABLE: Garbled = Garbled(
    "WRONGTYPE the layout of handled items is not one that this version reads: delete the key or use another name",
);

/// Reads the stored layout.
#[derive(Debug)]
struct ReadLayout;

/// Looks an item up.
#[derive(Debug)]
struct Look(Arc<Layout>, Digest);

/// Removes an item.
#[derive(Debug)]
struct Forget(Digest);

/// Returns the layout that is stored under a name.
pub(crate) async fn stored(store: &Store, name: &str) -> Result<Option<Layout>, Error> {
    let client = Namespace::<Stored>::open(store, name).client();
    client.run(Key::from("layout"), ReadLayout).await
}

/// Returns whether an item was handled.
pub(crate) async fn look(
    store: &Store,
    name: &str,
    layout: &Arc<Layout>,
    item: &[u8],
) -> Result<bool, Error> {
    let (client, digest) = (Namespace::<Bucket>::open(store, name).client(), layout.digest(item));
    client.run(bucket_key(&digest), Look(Arc::clone(layout), digest)).await
}

/// Removes an item. Returns whether it was stored.
pub(crate) async fn forget(store: &Store, name: &str, digest: Digest) -> Result<bool, Error> {
    let client = Namespace::<Bucket>::open(store, name).client();
    client.run(bucket_key(&digest), Forget(digest)).await
}

/// Reads 0 or 1.
fn flag(mut fields: Fields<'_>) -> Result<bool, Garbled> {
    match fields.integer()? {
        -1 => Err(WRONG_TYPE),
        flag => Ok(flag == 1),
    }
}

impl Operation for ReadLayout {
    type Cell = Stored;
    type Reply = Option<Layout>;
    type Undo = Never<Stored>;
    const SCRIPT: Script = script!("dedupe/layout");
    const PARTS: &'static [&'static str] = &["layout"];
    const REPEAT: Repeat = Repeat::Safe;

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<Option<Layout>, Garbled> {
        match fields.next()? {
            Field::Text(text) => Layout::parse(&String::from_utf8_lossy(text)).map(Some).ok_or(UNREADABLE),
            Field::Integer(0) => Ok(None),
            _ => Err(WRONG_TYPE),
        }
    }

    fn apply(self, stored: &mut Stored, now: i64) -> Option<Layout> {
        stored.0.as_ref().filter(|(_, until)| *until > now).and_then(|(layout, _)| Layout::parse(layout))
    }
}

impl Operation for Look {
    type Cell = Bucket;
    type Reply = bool;
    type Undo = Never<Bucket>;
    const SCRIPT: Script = script!("dedupe/look");
    const PARTS: &'static [&'static str] = HASHES;
    const REPEAT: Repeat = Repeat::Safe;

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        self.0.write(call);
        self.1.write(call);
    }

    fn decode(self, _: usize, _: i64, fields: Fields<'_>) -> Result<bool, Garbled> {
        flag(fields)
    }

    fn apply(self, bucket: &mut Bucket, now: i64) -> bool {
        bucket.contains(&self.0, &self.1, now)
    }
}

impl Operation for Forget {
    type Cell = Bucket;
    type Reply = bool;
    type Undo = Never<Bucket>;
    const SCRIPT: Script = script!("dedupe/forget");
    const PARTS: &'static [&'static str] = HASHES;
    const REPEAT: Repeat = Repeat::Never;

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.bytes(Arc::<[u8; 16]>::clone(&self.0.bytes));
    }

    fn decode(self, _: usize, _: i64, fields: Fields<'_>) -> Result<bool, Garbled> {
        flag(fields)
    }

    fn apply(self, bucket: &mut Bucket, _: i64) -> bool {
        bucket.remove(&self.0)
    }
}
