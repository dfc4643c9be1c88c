//! The libraries of functions on each master, for operators.

use std::collections::HashMap;
use std::sync::Arc;

use redis::{self, Value};
use tokio::runtime::Handle;

use super::RedisStore;
use crate::error::Cause;
use crate::{Error, Store};

/// Matches the names of the libraries of all versions.
const NAMES: &str = "td_*";

/// A library of functions that a version of this crate has loaded on a server. See
/// [`Operator::libraries`](crate::operator::Operator::libraries).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// `td_` and 16 digits of the digest of its text.
    pub name: String,
    /// The address of the server.
    pub server: String,
    /// Whether this process uses it: it is of the same version and features of this crate.
    pub is_own: bool,
    master: usize,
}

impl Store {
    pub(crate) async fn libraries(&self) -> Result<Vec<Library>, Error> {
        let Some(store) = self.on_redis() else {
            return Ok(Vec::new());
        };
        let list = |store: Arc<RedisStore>, runtime: Handle| async move {
            store.libraries(&runtime).await
        };
        store.anywhere(list).await?
    }

    pub(crate) async fn delete_library(&self, library: &Library) -> Result<(), Error> {
        let Some(store) = self.on_redis() else {
            return Ok(());
        };
        let (master, mut delete) = (library.master, redis::cmd("FUNCTION"));
        delete.arg("DELETE").arg(&library.name);
        let ask = |store: Arc<RedisStore>, runtime: Handle| async move {
            store.ask_master(&runtime, master, &delete).await
        };
        store.anywhere(ask).await?.map(drop)
    }
}

impl RedisStore {
    async fn libraries(self: &Arc<Self>, runtime: &Handle) -> Result<Vec<Library>, Error> {
        let mut list = redis::cmd("FUNCTION");
        list.arg("LIST").arg("LIBRARYNAME").arg(NAMES);
        let (mut done, mut found) = (Vec::new(), Vec::new());
        while let Some(master) = self.next_master(&done) {
            let names = names(self.ask_master(runtime, master, &list).await?).ok_or_else(|| {
                Error::unavailable(
                    Cause::Unexpected,
                    "FUNCTION LIST returned something other than libraries with names",
                )
            })?;
            let in_pool = self.source.address_in_pool(master);
            let server = in_pool.unwrap_or_else(|| self.source.to_master(master).to_string());
            found.extend(names.into_iter().map(|name| Library {
                is_own: name == self.library.name,
                server: server.clone(),
                name,
                master,
            }));
            done.push(master);
        }
        found.sort_by(|one, other| (&one.name, &one.server).cmp(&(&other.name, &other.server)));
        Ok(found)
    }
}

fn names(reply: Value) -> Option<Vec<String>> {
    let libraries: Vec<HashMap<String, Value>> = redis::from_redis_value(reply).ok()?;
    let name = |mut library: HashMap<String, Value>| {
        redis::from_redis_value(library.remove("library_name")?).ok()
    };
    libraries.into_iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_have_names() {
        let text = |text: &str| Value::BulkString(text.into());
        let library = |field: &str| {
            [
                text(field),
                text("td_1"),
                text("functions"),
                Value::Array(Vec::new()),
            ]
        };
        let list = |library: Value| names(Value::Array(vec![library]));
        assert_eq!(
            list(Value::Array(library("library_name").into())),
            Some(vec!["td_1".to_owned()])
        );
        let [field, name, ..] = library("library_name");
        assert_eq!(
            list(Value::Map(vec![(field, name)])),
            Some(vec!["td_1".to_owned()])
        );
        assert_eq!(list(Value::Array(library("name").into())), None);
        assert_eq!((names(Value::Int(1)), list(Value::Nil)), (None, None));
    }
}
