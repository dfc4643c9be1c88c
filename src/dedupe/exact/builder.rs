//! The builder of a `Dedupe` in exact mode.

use std::time::Duration;

use super::layout::Layout;
use crate::bloom_filter::stored_layout::check_remember_for;
use crate::dedupe::Dedupe;
use crate::dedupe::builder::{claim_setters, options};
use crate::lease::LeaseOptions;
use crate::setters::in_range;
use crate::store::check_name;
use crate::{Error, Store};

/// Builds a [`Dedupe`] in exact mode.
///
/// ```
/// use std::time::Duration;
/// use tower_distributed::{Dedupe, Store};
///
/// let payments = Dedupe::exact(&Store::in_memory(), "payments")
///     .remember_for(Duration::from_secs(7 * 86_400)) // must be set
///     .capacity(1_000_000)                           // items within these 7 days
///     .ttl(Duration::from_secs(60))                  // a claim of a crashed process expires after 60 s
///     .watchdog(false)                               // and so does a claim whose handler takes longer
///     .build()?;
/// # Ok::<(), tower_distributed::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct ExactBuilder {
    store: Store,
    name: String,
    capacity: u64,
    remember_for: Option<Duration>,
    options: LeaseOptions,
}

const MOST: u64 = 100_000_000_000;

claim_setters! { ExactBuilder:
    /// Sets how long an item is remembered at least after it was confirmed, 1 second to 10 years in whole
    /// milliseconds. There is no default: it must be set.
    ///
    /// An item is forgotten after 1.5 times as long at the latest. The server's clock counts.
    fn remember_for(span: Duration) => remember_for = Some(span);

    /// Sets how many items are expected within `remember_for`, 1 to 10¹¹. Default: one million.
    ///
    /// The capacity determines over how many keys the items are spread. With many more or far fewer items, an item
    /// takes more memory. The answers stay exact.
    fn capacity(items: u64) => capacity = items;
}

impl ExactBuilder {
    pub(crate) fn new(store: &Store, name: &str) -> Self {
        let (store, name) = (store.clone(), name.to_owned());
        Self {
            store,
            name,
            capacity: 1_000_000,
            remember_for: None,
            options: options(),
        }
    }

    /// Builds the `Dedupe`.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if `remember_for` is missing, a setting is out of range, or the name is
    /// not 1 to 64 of `A-Z a-z 0-9 - _ . /`. If other settings are stored under the name, the first call returns
    /// the error.
    pub fn build(self) -> Result<Dedupe, Error> {
        self.options.check()?;
        let missing = || {
            let name = &self.name;
            Error::invalid(format!(
                "remember_for must be set for {name:?}: 1 s to 10 years, in whole milliseconds"
            ))
        };
        let span = check_remember_for(self.remember_for.ok_or_else(missing)?)?;
        in_range(
            "capacity",
            1..=MOST,
            format_args!("1 to {MOST}"),
            self.capacity,
        )?;
        check_name("the name of a namespace", &self.name)?;
        let layout = Layout::new(self.capacity, span);
        Ok(Dedupe::exactly(
            &self.store,
            &self.name,
            layout.into(),
            self.options,
        ))
    }
}
