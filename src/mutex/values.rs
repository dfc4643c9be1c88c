//! The user's lock values that are in use in this process. Locking twice with one value is an error, because the
//! caller would wait for itself.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use crate::sync::lock;
use crate::{Error, Key};

/// The values in use in one namespace. All mutexes of a name share them.
#[derive(Debug, Default)]
pub(super) struct Values(Mutex<HashSet<Name>>);

type Name = (Key, Box<str>);

/// A value in use. Dropping this frees the value.
#[derive(Debug)]
pub(super) struct InUse {
    values: Arc<Values>,
    name: Name,
}

impl Values {
    /// Marks a value as in use for a key. Fails if it is in use already.
    pub(super) fn take(self: &Arc<Self>, key: &Key, value: &str) -> Result<InUse, Error> {
        let name: Name = (key.clone(), value.into());
        if lock(&self.0).insert(name.clone()) {
            return Ok(InUse {
                values: Arc::clone(self),
                name,
            });
        }
        Err(Error::invalid(format!(
            "the lock value {value:?} is already in use for this key in this process: each holder needs its own \
             value, and dropping the guard frees the value"
        )))
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        lock(&self.values.0).remove(&self.name);
    }
}
