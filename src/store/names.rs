//! What the values of one name in one store share: it lives as long as one of them.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use super::in_memory::lock;

/// By name and type.
#[derive(Debug, Default)]
pub(crate) struct Names(Mutex<HashMap<Name, Weak<dyn Any + Send + Sync>>>);

type Name = (TypeId, Box<str>);

impl Names {
    pub(super) fn get<T: Send + Sync + 'static>(&self, name: &str, make: impl FnOnce() -> Arc<T>) -> Arc<T> {
        let mut names = lock(&self.0);
        let name = (TypeId::of::<T>(), name.into());
        let known = names.get(&name).and_then(Weak::upgrade);
        // The name has the type, so this does not fail.
        if let Some(Ok(known)) = known.map(Arc::downcast) {
            return known;
        }
        names.retain(|_, known| known.strong_count() > 0);
        let made = make();
        let shared: Weak<T> = Arc::downgrade(&made);
        names.insert(name, shared);
        made
    }
}
