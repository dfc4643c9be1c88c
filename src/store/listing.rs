//! Lists what is stored: names of keys in Redis, page by page.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::redis::RedisStore;
use super::redis::scan::Position;
use super::redis_name::{Stem, parse};
use super::{Backend, Cells, Store};
use crate::{Error, Key};

/// A part of a state in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) namespace: String,
    pub(crate) stem: Stem,
    /// The last part of the name.
    pub(crate) part: String,
}

/// Lists the parts of all states in Redis.
#[derive(Debug)]
pub(crate) struct Listing {
    store: Arc<RedisStore>,
    pattern: String,
    position: Position,
}

impl Store {
    /// Lists the parts of all states, or of those in one namespace, if the store is on Redis. The name must be valid.
    pub(crate) fn listing(&self, namespace: Option<&str>) -> Option<Listing> {
        let store = self.on_redis()?;
        // A prefix and a name have no character with a meaning in patterns.
        let pattern = match namespace {
            Some(name) => format!("{}:{{{name}:*", store.base.prefix),
            None => format!("{}:{{*", store.base.prefix),
        };
        Some(Listing {
            store: Arc::clone(store),
            pattern,
            position: Position::default(),
        })
    }

    /// Lists the keys of the cells of one type for which `shown` returns `true`, with their namespaces, if the store is in
    /// memory.
    pub(crate) fn keys_of<C: super::Cell>(
        &self,
        shown: impl Fn(&C, i64) -> bool,
    ) -> Vec<(String, Key)> {
        let Backend::InMemory(store) = self.backend() else {
            return Vec::new();
        };
        let of_one = |name: String| {
            let keys = store.cells::<C>(&name).keys(&shown);
            keys.into_iter()
                .map(move |key| (name.clone(), key))
                .collect::<Vec<_>>()
        };
        store
            .namespaces
            .of_type::<Cells<C>>()
            .into_iter()
            .flat_map(of_one)
            .collect()
    }
}

impl Listing {
    /// Returns the next page, which may be empty; `None` at the end. Cancel safe: the pages of the current
    /// server are then read again.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Found>>, Error> {
        let Some(names) = self.names().await? else {
            return Ok(None);
        };
        let found = |name: Vec<u8>| {
            let (namespace, stem, part) = parse(&self.store.base.prefix, &name)?;
            Some(Found {
                namespace: namespace.to_owned(),
                stem,
                part: part.to_owned(),
            })
        };
        Ok(Some(names.into_iter().filter_map(found).collect()))
    }

    async fn names(&mut self) -> Result<Option<Vec<Vec<u8>>>, Error> {
        let (mut position, pattern) = (self.position.take(), self.pattern.clone());
        let scan = |store: Arc<RedisStore>, runtime: Handle| async move {
            let names = store.scan(&runtime, &mut position, &pattern).await;
            (names, position)
        };
        let (names, position) = self.store.anywhere(scan).await?;
        self.position = position;
        names
    }
}
