//! Values that all users of a name in a store share. A value lives as long as one of its users.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use crate::sync::lock;

/// The shared values by name and type.
#[derive(Debug, Default)]
pub(crate) struct Names(Mutex<HashMap<Name, Weak<dyn Any + Send + Sync>>>);

type Name = (TypeId, Box<str>);

/// Drops the names of values that nobody uses any more.
fn prune(names: &mut HashMap<Name, Weak<dyn Any + Send + Sync>>) {
    names.retain(|_, known| known.strong_count() > 0);
    let few = 2 * names.len();
    names.shrink_to(few);
}

impl Names {
    pub(super) fn get<T: Send + Sync + 'static>(
        &self,
        name: &str,
        make: impl FnOnce() -> Arc<T>,
    ) -> Arc<T> {
        let mut names = lock(&self.0);
        let name = (TypeId::of::<T>(), name.into());
        let known = names.get(&name).and_then(Weak::upgrade);
        // The type is part of the name, so this does not fail.
        if let Some(Ok(known)) = known.map(Arc::downcast) {
            return known;
        }
        if names.len() == names.capacity() {
            prune(&mut names);
        }
        let made = make();
        let shared: Weak<T> = Arc::downgrade(&made);
        names.insert(name, shared);
        made
    }

    /// Returns the names of the values of a type.
    pub(super) fn of_type<T: 'static>(&self) -> Vec<String> {
        let mut names = lock(&self.0);
        prune(&mut names);
        let of_type = names.iter().filter(|((id, _), _)| *id == TypeId::of::<T>());
        of_type.map(|((_, name), _)| name.to_string()).collect()
    }

    /// The number of names for which memory is allocated.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        lock(&self.0).capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_lasts_as_long_as_its_value() {
        let names = Names::default();
        let first = names.get("a", || Arc::new(1));
        assert!(Arc::ptr_eq(&first, &names.get("a", || Arc::new(2))));
        assert_eq!(
            *names.get("a", || Arc::new("of another type")),
            "of another type"
        );
        assert_eq!(names.of_type::<i32>(), ["a"]);
        for number in 0..1000 {
            drop(names.get(&number.to_string(), || Arc::new(number)));
        }
        assert!(
            names.capacity() < 100,
            "the names of values that are gone are forgotten"
        );
        drop(first);
        assert!(names.of_type::<i32>().is_empty());
        assert_eq!(*names.get("a", || Arc::new(3)), 3);
    }
}
