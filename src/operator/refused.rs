//! The keys that a whole fleet has refused most.

use std::collections::BTreeSet;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use crate::error::Error;
use crate::operator::Operator;
use crate::operator::entry::{Entry, Kind};
use crate::refused_keys::RefusedKey;
use crate::refused_keys::list::List;
use crate::refused_keys::operations::look;

/// How many lists are read at the same time, and the maximum number of lists.
const AT_ONCE: usize = 32;
const MOST: usize = 10_000;

impl Operator {
    /// Returns the `n` keys of a namespace that all processes together have refused most, sorted by the lower bounds of
    /// their counts. It adds up the lists that their [`RefusedKeys`](crate::fleet::RefusedKeys) have stored.
    ///
    /// Each process stores its first 32 keys. A key that is missing in a list may have had a few refusals there, so the
    /// bounds of a number are wider than in one process. It reads at most 10 000 lists, and skips lists in a form that
    /// this version cannot read.
    ///
    /// ```
    /// use tower_distributed::Store;
    /// use tower_distributed::operator::Operator;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
    /// for refused in Operator::new(&store).top_refused("mail", 10).await? {
    ///     println!("{}: refused {} to {} times", refused.key, refused.at_least, refused.at_most);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`is_invalid`](Error::is_invalid) if the name is not valid for a namespace.
    /// * [`is_unavailable`](Error::is_unavailable) if a server does not reply, or denies `SCAN`.
    pub async fn top_refused(&self, namespace: &str, n: usize) -> Result<Vec<RefusedKey>, Error> {
        let (mut scan, mut entries) = (self.scan_namespace(namespace)?, BTreeSet::new());
        while let Some(page) = scan.next().await? {
            entries.extend(
                page.into_iter()
                    .filter(|entry| entry.kind == Kind::RefusedKeys),
            );
            if entries.len() >= MOST {
                break;
            }
        }
        let read = async |entry: Entry| match self.refused(&entry).await {
            Err(error) if error.is_wrong_type() => Ok(None),
            list => list,
        };
        let lists = stream::iter(entries.into_iter().take(MOST))
            .map(read)
            .buffered(AT_ONCE);
        let lists: Vec<_> = lists
            .try_filter_map(async |list| Ok(list))
            .try_collect()
            .await?;
        Ok(List::combined(lists).top(n).into())
    }

    /// Returns the list of a process.
    pub(super) async fn refused(&self, entry: &Entry) -> Result<Option<List>, Error> {
        let (namespace, process) = self.place(entry)?;
        look(&namespace, process).await
    }
}
