//! The number of processes that share a limit while the store is unavailable.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use crate::store::Store;
use crate::store::failure::Sharing;
use crate::store::processes::Members;

/// The number of processes that share a limit while the store is unavailable: the larger of the number that layers were
/// given, and the counted one.
#[derive(Clone, Debug)]
pub(crate) struct Replicas(Arc<Most>);

#[derive(Debug)]
struct Most {
    named: AtomicU32,
    members: OnceLock<Arc<Members>>,
}

impl Replicas {
    /// `kind` and `name` are those of a primitive of this store.
    pub(crate) fn of(store: &Store, kind: &str, name: &str, sharing: Sharing) -> Self {
        let new = || {
            Arc::new(Most {
                named: AtomicU32::new(0),
                members: OnceLock::new(),
            })
        };
        let most = store.local_share().shared(&format!("{kind} {name}"), new);
        let named = match sharing {
            Sharing::Named(replicas) => replicas,
            Sharing::Counted { first, at_least } => {
                // In memory there are no outages and no other processes.
                if !store.is_in_memory() {
                    most.members
                        .get_or_init(|| Members::join(store, name))
                        .start(first);
                }
                at_least
            }
        };
        most.named.fetch_max(named.get(), Ordering::Relaxed);
        Self(most)
    }

    pub(crate) fn most(&self) -> NonZeroU32 {
        let counted = self.0.members.get().map_or(0, |members| members.count());
        let most = self.0.named.load(Ordering::Relaxed).max(counted);
        NonZeroU32::new(most).unwrap_or(NonZeroU32::MIN)
    }
}
