//! The values of the user's that locks hold in this process: whoever has the same value is the same holder, to the store
//! and to other libraries. So one value is in use once at a time, until the store is known to have the lock back: a release
//! that is sent again would free what was locked anew.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::primitive::lease::Pledge;
use crate::store::lock;
use crate::{Error, Key, Store};

/// Those of one namespace.
#[derive(Debug, Default)]
pub(super) struct Values {
    in_use: Mutex<HashMap<Name, Arc<AtomicBool>>>,
    free: Notify,
}

type Name = (Key, Box<str>);

/// A value in use, until this is dropped.
struct InUse {
    values: Arc<Values>,
    name: Name,
    /// Whether the lock is being given back.
    releasing: Arc<AtomicBool>,
}

impl Values {
    /// Those of all mutexes of a name.
    pub(super) fn shared(store: &Store, name: &str) -> Arc<Self> {
        store.shared(name, Arc::default)
    }

    /// Takes a value for a key into use; waits where the lock that held it is being given back.
    pub(super) async fn take(self: &Arc<Self>, key: &Key, value: &str) -> Result<Arc<dyn Pledge>, Error> {
        loop {
            let free = self.free.notified();
            tokio::pin!(free);
            free.as_mut().enable();
            {
                let mut in_use = lock(&self.in_use);
                let name = (key.clone(), value.into());
                match in_use.get(&name) {
                    None => {
                        let releasing = Arc::new(AtomicBool::new(false));
                        in_use.insert(name.clone(), Arc::clone(&releasing));
                        return Ok(Arc::new(InUse { values: Arc::clone(self), name, releasing }));
                    }
                    Some(releasing) if releasing.load(Ordering::Acquire) => {}
                    Some(_) => {
                        return Err(Error::invalid(format!(
                            "the value {value:?} is in use for this key in this process: it must differ from holder to \
                             holder, and is free again when its lock was given back"
                        )));
                    }
                }
            }
            free.await;
        }
    }
}

impl Pledge for InUse {
    fn releasing(&self) {
        self.releasing.store(true, Ordering::Release);
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        lock(&self.values.in_use).remove(&self.name);
        self.values.free.notify_waiters();
    }
}
