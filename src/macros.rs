//! Macros for most types: `debug!` and `setters!`, and the check that a setting is in its range.

use std::fmt::{Debug, Display};
use std::ops::RangeBounds;

use crate::error::Error;

/// Implements `Debug` for a struct: `debug!(Layer<S: Debug, Req>, inner, config.settings)` shows two of its fields, and
/// that there are more.
macro_rules! debug {
    ($name:ident $(<$($parameter:ident $(: $bound:path)?),+>)? $(, $($field:tt).+)*) => {
        impl $(<$($parameter $(: $bound)?),+>)? std::fmt::Debug for $name $(<$($parameter),+>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))
                    $(.field(stringify!($($field).+), &self.$($field).+))*
                    .finish_non_exhaustive()
            }
        }
    };
}

/// Implements the setters of a builder or a layer: `fn name(value: Type) => field = value;`.
macro_rules! builder_setters {
    ($builder:ident $(<$($parameter:ident),+>)?: $(
        $(#[$doc:meta])*
        fn $name:ident($($value:ident: $type:ty),*) => $($field:ident).+ = $set:expr;
    )+) => {
        impl $(<$($parameter),+>)? $builder $(<$($parameter),+>)? {
            $(
                $(#[$doc])*
                pub fn $name(mut self $(, $value: $type)*) -> Self {
                    self.$($field).+ = $set;
                    self
                }
            )+
        }
    };
}
// Exported under another name, because a macro's own name would be in scope everywhere without an import, like
// `debug!`.
pub(crate) use builder_setters as setters;

/// Returns an error if a setting is out of its range, which `must` names. `value` is `None` if it is not set.
pub(crate) fn in_range<T: PartialOrd + Debug>(
    setting: &str,
    range: impl RangeBounds<T>,
    must: impl Display,
    value: impl Into<Option<T>>,
) -> Result<(), Error> {
    match value.into() {
        Some(value) if !range.contains(&value) => Err(Error::invalid(format!(
            "{setting} must be {must}, is {value:?}"
        ))),
        _ => Ok(()),
    }
}
