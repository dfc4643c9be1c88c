//! What a fleet setting can be.

use crate::Error;

/// The types of a [`FleetSetting`](super::FleetSetting). Sealed: implemented for [`Quotas`](crate::Quotas), for
/// [`QuotaTable`](crate::QuotaTable), and for `u32`, which is the limit of a [`WaitGroup`](crate::WaitGroup).
pub trait SettingValue: Sealed {}

impl<T: Sealed> SettingValue for T {}

/// How a value is stored.
pub trait Sealed: Clone + Send + Sync + 'static {
    /// What it is called in errors and events.
    const NAME: &'static str;
    /// The last part of the name of its key, alone.
    const PARTS: &'static [&'static str];

    /// Reads the stored text.
    fn parse(text: &str) -> Result<Self, Error>;

    /// Writes the text that is stored. An error if the value has none.
    fn text(&self) -> Result<String, Error>;
}
