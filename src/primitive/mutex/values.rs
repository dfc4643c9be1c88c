//! The values of the user's that are in use in this process: who locks with one twice has made a mistake, and would wait for
//! itself.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use crate::store::lock;
use crate::{Error, Key, Store};

/// Those of one namespace.
#[derive(Debug, Default)]
pub(super) struct Values(Mutex<HashSet<Name>>);

type Name = (Key, Box<str>);

/// A value in use, until this is dropped.
#[derive(Debug)]
pub(super) struct InUse {
    values: Arc<Values>,
    name: Name,
}

impl Values {
    /// Those of all mutexes of a name.
    pub(super) fn shared(store: &Store, name: &str) -> Arc<Self> {
        store.shared(name, Arc::default)
    }

    /// Takes a value for a key into use.
    pub(super) fn take(self: &Arc<Self>, key: &Key, value: &str) -> Result<InUse, Error> {
        let name: Name = (key.clone(), value.into());
        if lock(&self.0).insert(name.clone()) {
            return Ok(InUse { values: Arc::clone(self), name });
        }
        Err(Error::invalid(format!(
            "the value {value:?} is in use for this key in this process: it must differ from holder to holder, and is free \
             again when its guard is gone"
        )))
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        lock(&self.values.0).remove(&self.name);
    }
}
