//! Claims without false positives. The digest of each handled item is stored until it expires.

mod bucket;
mod builder;
pub(crate) mod claims;
mod items;
mod layout;
mod open;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

pub(crate) use self::bucket::Bucket;
pub use self::builder::ExactBuilder;
pub(crate) use self::claims::{ExactClaims, Records};
pub(crate) use self::items::{forget, look, stored};
pub(crate) use self::layout::{Digest, Layout};
pub(crate) use self::open::Stored;

use self::claims::Found;
use self::open::Open;
use super::{Asked, Found as Answer, Known};
use crate::primitive::lease::{Admission, Got, LeaseOptions, LeaseState, Leases};
use crate::store::{Client, Namespace};
use crate::{Error, Key, Store, telemetry};

/// Claims without false positives.
pub(crate) struct Exact {
    store: Store,
    name: String,
    layout: Arc<Layout>,
    leases: Leases<ExactClaims>,
    open: Client<Open>,
    began: Instant,
    /// When the stored layout was last checked, ms since `began`, plus one; 0: never.
    opened: AtomicU64,
}

impl Exact {
    /// Opens a namespace whose name was already checked.
    fn open(store: &Store, name: &str, layout: Arc<Layout>, options: LeaseOptions) -> Self {
        let records = Records { layout: Arc::clone(&layout), buckets: Namespace::open(store, name) };
        let admission = Admission::new(store, &Namespace::beside(store, name), records);
        Self {
            store: store.clone(),
            name: name.to_owned(),
            layout,
            leases: Leases::new(admission, options, telemetry::Leases::new("claim", name)),
            open: Namespace::open(store, name).client(),
            began: Instant::now(),
            opened: AtomicU64::new(0),
        }
    }

    pub(super) fn local_share(&self) -> Self {
        let (layout, options) = (Arc::clone(&self.layout), self.leases.options().clone());
        Self::open(self.store.local_share(), &self.name, layout, options)
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Claims an item, or answers that it was handled.
    pub(super) async fn claim(&self, item: &[u8], asked: Asked) -> Result<Answer<Digest>, Error> {
        let digest = self.layout.digest(item);
        self.opened().await?;
        match self.leases.acquire_or_find(claims::key(&digest), asked.about(digest.clone())).await? {
            Got::Lease(lease, _) => Ok(Answer::New(lease, digest)),
            Got::Done(Found::Handled) => Ok(Answer::Known(Known::Exactly)),
            Got::Done(Found::Full) => Err(super::no_room()),
        }
    }

    /// Records that a claimed item was handled. Returns whether the claim was still held. `again`: this
    /// was sent before, and the answer is not known.
    pub(super) async fn confirm(
        &self,
        state: &LeaseState,
        digest: Digest,
        again: bool,
    ) -> Result<bool, Error> {
        match self.leases.admission.complete(state, digest, again).await? {
            Ok((was_held, _)) => Ok(was_held),
            Err(Found::Full) => Err(super::no_room()),
            Err(Found::Handled) => Err(super::unasked()),
        }
    }

    /// Removes a handled item. Returns whether it was stored.
    pub(super) async fn forget(&self, item: &[u8]) -> Result<bool, Error> {
        self.opened().await?;
        forget(&self.store, &self.name, self.layout.digest(item)).await
    }

    /// Makes sure that the stored layout is the same, at the first call and again before it expires. With another
    /// number of buckets, handled items would not be found.
    async fn opened(&self) -> Result<(), Error> {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        let (last, half) = (self.opened.load(Ordering::Relaxed), self.layout.remember_for() / 2);
        if last > 0 && u128::from(now - (last - 1).min(now)) < half.as_millis() {
            return Ok(());
        }
        let open = self.open.run(Key::from("layout"), Open(Arc::clone(&self.layout))).await?;
        open.map_err(|stored| {
            let (name, layout) = (&self.name, &self.layout);
            let text = format!("the Dedupe {name:?} is stored with {stored}, but this process uses {layout}");
            Error::invalid(text)
        })?;
        self.opened.store(now + 1, Ordering::Relaxed);
        Ok(())
    }
}
