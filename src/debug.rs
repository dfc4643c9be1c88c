//! `Debug` for types with parts that have none.

/// Implements `Debug` of a struct: `debug!(Layer<S: Debug, Req>, inner, config.settings)` shows two of its fields, and that
/// it has others.
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
