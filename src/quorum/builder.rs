//! The builder of mutexes on a quorum.

use crate::error::Error;
use crate::macros::setters;
use crate::mutex::Mutex;
use crate::mutex::builder::MutexBuilder;
use crate::quorum::Quorum;
use crate::store::Store;

setters! { MutexBuilder:
    /// Sets how long each server of a quorum may take to reply, as a share of the ttl. Above 0 and below 1. Default:
    /// 0.05.
    ///
    /// The time is at least 1 ms. The [timeout](crate::StoreBuilder::timeout) of the store applies as well.
    fn timeout_factor(factor: f64) => settings.quorum.timeout_factor = factor;

    /// Sets whether an attempt on a quorum ends as soon as the result is certain, instead of waiting for every
    /// server. Default: `false`.
    fn fail_fast(fail_fast: bool) => settings.quorum.fail_fast = fail_fast;

    /// Sets whether an attempt on a quorum calls the servers in random order. Default: `false`.
    fn shuffle_nodes(shuffle: bool) => settings.quorum.shuffle_nodes = shuffle;
}

impl MutexBuilder {
    /// Builds the mutexes of the namespace `name` on several independent stores. A lock needs the grants of a majority
    /// of them.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let nodes = [Store::in_memory(), Store::in_memory(), Store::in_memory()];
    /// let leaders = Mutex::builder()
    ///     .ttl(Duration::from_secs(10))
    ///     .drift_factor(0.02)   // a lock is valid for 9.8 s less 2 ms
    ///     .timeout_factor(0.05) // a server may take 500 ms to reply
    ///     .fail_fast(true)      // an attempt ends once two servers agree
    ///     .shuffle_nodes(true)  // processes call the servers in different orders
    ///     .tries(8)
    ///     .retry_delay(|_| Duration::from_millis(100))
    ///     .build_quorum(nodes, "leaders")?;
    /// let lock = leaders.lock("eu-1").await?;
    /// assert!(leaders.is_locked("eu-1").await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if there are no stores, or if a store is given twice. Otherwise the same as
    /// [`build`](Self::build).
    pub fn build_quorum(
        self,
        stores: impl IntoIterator<Item = Store>,
        name: &str,
    ) -> Result<Mutex, Error> {
        let stores: Vec<_> = stores.into_iter().collect();
        if stores.is_empty() {
            return Err(Error::invalid(
                "a quorum needs at least one store, got none",
            ));
        }
        for (position, store) in stores.iter().enumerate() {
            if let Some(same) = stores[..position]
                .iter()
                .position(|other| other.is_same(store))
            {
                return Err(Error::invalid(format!(
                    "the stores of a quorum must be independent: stores {same} and {position} (counted from 0) are \
                     the same"
                )));
            }
        }
        let nodes = stores
            .iter()
            .map(|store| self.leases(store, name))
            .collect::<Result<_, _>>()?;
        let (first, quorum) = Quorum::new(nodes, self.settings.quorum.clone());
        Ok(self.mutex(first, Some(quorum), name))
    }
}
