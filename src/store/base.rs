//! The common parts of a store in memory and a store on Redis: the prefix, the notifier, the scheduler, and the values
//! that all users of a name share in this process.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use crate::store::background::Background;
use crate::store::detached::DetachedWork;
use crate::store::notifier::{Link, Notifier};
use crate::store::scheduler::Scheduler;
use crate::sync::lock;

/// The default prefix of keys.
pub(crate) const PREFIX: &str = "td";

/// The common parts of every store.
pub(crate) struct Base {
    pub(crate) prefix: String,
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) background: Background,
    pub(crate) names: Names,
    pub(crate) detached: Arc<DetachedWork>,
}

impl Base {
    pub(crate) fn new(
        prefix: String,
        link: Link,
        background: Background,
        follows_paused: bool,
    ) -> Self {
        let notifier = Arc::new(Notifier::new(link));
        let scheduler = Scheduler::new(notifier.link(), background.clone(), follows_paused);
        Self {
            prefix,
            notifier,
            scheduler,
            background,
            names: Names::default(),
            detached: Arc::default(),
        }
    }
}

/// Wakes the scheduler, because the periodic tasks of the store were dropped.
impl Drop for Base {
    fn drop(&mut self) {
        self.scheduler.look_again();
    }
}

/// Shared values by name and type. A value lives as long as one of its users.
#[derive(Debug, Default)]
pub(crate) struct Names(Mutex<HashMap<Name, Weak<dyn Any + Send + Sync>>>);

type Name = (TypeId, Box<str>);

/// Drops the names of values without users.
fn prune(names: &mut HashMap<Name, Weak<dyn Any + Send + Sync>>) {
    names.retain(|_, known| known.strong_count() > 0);
    let few = 2 * names.len();
    names.shrink_to(few);
}

impl Names {
    pub(crate) fn get<T: Send + Sync + 'static>(
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
    pub(crate) fn of_type<T: 'static>(&self) -> Vec<String> {
        let mut names = lock(&self.0);
        prune(&mut names);
        let of_type = names.iter().filter(|((id, _), _)| *id == TypeId::of::<T>());
        of_type.map(|((_, name), _)| name.to_string()).collect()
    }

    /// The number of names for which memory is allocated.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
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
