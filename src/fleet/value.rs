//! The types of values that a fleet setting can have.

use crate::error::Error;
use crate::store::Store;

/// The types of a [`FleetSetting`](super::FleetSetting). Sealed: implemented for [`Quotas`](crate::Quotas), for
/// [`QuotaTable`](crate::QuotaTable), and for `u32`, which is the limit of a [`WaitGroup`](crate::WaitGroup).
pub trait SettingValue: Sealed {}

impl<T: Sealed> SettingValue for T {}

/// Called for each version that is set, with its time (µs; later versions have higher times) and its value; `None`: the
/// default of each handle applies. The time 0 means that the last handle was dropped.
pub(crate) type Hook<T> = Box<dyn Fn(u64, Option<T>) + Send + Sync>;

/// The stored form of a value.
pub trait Sealed: Clone + Send + Sync + 'static {
    /// Its name in errors and events.
    const NAME: &'static str;
    /// The last part of the name of its key, alone.
    const PARTS: &'static [&'static str];

    /// Returns the hook for the versions that are set for a name.
    fn hook(_store: &Store, _name: &str) -> Option<Hook<Self>> {
        None
    }

    /// Parses the stored text.
    fn parse(text: &str) -> Result<Self, Error>;

    /// Returns the text to store, or an error if the value has none.
    fn text(&self) -> Result<String, Error>;
}
