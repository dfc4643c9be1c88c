//! What a fleet setting can be.

use crate::error::Error;
use crate::store::Store;

/// The types of a [`FleetSetting`](super::FleetSetting). Sealed: implemented for [`Quotas`](crate::Quotas), for
/// [`QuotaTable`](crate::QuotaTable), and for `u32`, which is the limit of a [`WaitGroup`](crate::WaitGroup).
pub trait SettingValue: Sealed {}

impl<T: Sealed> SettingValue for T {}

/// Hears when a version was set (µs; later ones are higher), and its value; `None`: the default of each handle applies. At
/// 0, the last handle was dropped.
pub(crate) type Hook<T> = Box<dyn Fn(u64, Option<T>) + Send + Sync>;

/// How a value is stored.
pub trait Sealed: Clone + Send + Sync + 'static {
    /// What it is called in errors and events.
    const NAME: &'static str;
    /// The last part of the name of its key, alone.
    const PARTS: &'static [&'static str];

    /// Returns what hears of each version that is set for a name.
    fn hook(_store: &Store, _name: &str) -> Option<Hook<Self>> {
        None
    }

    /// Reads the stored text.
    fn parse(text: &str) -> Result<Self, Error>;

    /// Writes the text that is stored. An error if the value has none.
    fn text(&self) -> Result<String, Error>;
}
