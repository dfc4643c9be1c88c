//! The leases that replace those of a store while it is unavailable.

use std::sync::Arc;

use super::admission::{Admission, Leases};
use super::key_state::KeyState;
use super::kind::Kind;
use crate::Store;
use crate::store::Namespace;

impl<K: Kind<Outcome = ()>> Leases<K> {
    /// Returns the leases of this name in the [local share](Store::local_share). All users of the store and the name
    /// share them. They have the options of these leases, and are closed with them.
    pub(crate) fn local_share(
        &self,
        name: &str,
        open: impl FnOnce(&Store) -> Namespace<KeyState<K::Holders>>,
    ) -> Self {
        let store = self.admission.store.local_share();
        let admission = store.shared(name, || Admission::new(store, &open(store), ()));
        Self { admission, holding: Arc::clone(&self.holding) }
    }
}
