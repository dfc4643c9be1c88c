//! Interns sets of quotas: equal sets share one value, so calls under them are sent to the store in one batch.

use std::hash::{BuildHasher as _, Hash as _, Hasher as _, RandomState};
use std::sync::{Arc, LazyLock, Mutex, Weak};

use hashbrown::HashTable;
use smallvec::SmallVec;

use super::Limit;
use super::quotas::Set;
use crate::sync::lock;

#[derive(Default)]
struct Known {
    sets: HashTable<(u64, Weak<Set>)>,
    /// The number of sets at which the next insertion first removes dropped sets.
    sweep_at: usize,
}

static KNOWN: LazyLock<(RandomState, Mutex<Known>)> = LazyLock::new(Default::default);

const SWEEP_AT: usize = 64;

/// Returns the shared set of these limits.
pub(super) fn set(limits: SmallVec<[Limit; 1]>) -> Arc<Set> {
    let (hasher, known) = &*KNOWN;
    let mut hash = hasher.build_hasher();
    for limit in &limits {
        (
            &limit.name,
            limit.burst,
            limit.num,
            limit.den,
            limit.is_closed,
        )
            .hash(&mut hash);
    }
    let hash = hash.finish();
    let mut known = lock(known);
    let mut found = None;
    known.sets.find(hash, |(_, set)| {
        found = set.upgrade().filter(|set| set.limits == limits);
        found.is_some()
    });
    if let Some(found) = found {
        return found;
    }
    if known.sets.len() >= known.sweep_at.max(SWEEP_AT) {
        known.sets.retain(|(_, set)| set.strong_count() > 0);
        known.sweep_at = 2 * known.sets.len();
        let room = known.sweep_at;
        known.sets.shrink_to(room, |(hash, _)| *hash);
    }
    let set = Arc::new(Set::of(limits));
    known
        .sets
        .insert_unique(hash, (hash, Arc::downgrade(&set)), |(hash, _)| *hash);
    set
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Quota, Quotas};

    #[test]
    fn sets_that_are_gone_make_room() {
        let kept = Quotas::new([Quota::per_minute(77)]).unwrap();
        for burst in 1..=20_000 {
            drop(Quotas::new([Quota::per_minute(77).burst(1000 + burst)]).unwrap());
        }
        assert_eq!(
            Quotas::new([Quota::per_minute(77)]).unwrap().id(),
            kept.id()
        );
        assert!(lock(&KNOWN.1).sets.len() < 10_000);
    }
}
