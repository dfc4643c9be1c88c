//! The setters of builders.

/// Implements the setters of a builder: `fn name(value: Type) => field = value;`.
macro_rules! setters {
    ($builder:ident: $(
        $(#[$doc:meta])*
        fn $name:ident($($value:ident: $type:ty)?) => $($field:ident).+ = $set:expr;
    )+) => {
        impl $builder {
            $(
                $(#[$doc])*
                pub fn $name(mut self $(, $value: $type)?) -> Self {
                    self.$($field).+ = $set;
                    self
                }
            )+
        }
    };
}
pub(crate) use setters;
