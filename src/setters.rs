//! The setters of builders.

use std::fmt::{Debug, Display};
use std::ops::RangeBounds;

use crate::Error;

/// Implements the setters of a builder or a layer: `fn name(value: Type) => field = value;`.
macro_rules! setters {
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
pub(crate) use setters;

/// Returns an error if a setting is out of its range, which `must` names. `None`: it is not set.
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
