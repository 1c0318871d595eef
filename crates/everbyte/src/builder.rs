//! The methods of builders, each of which sets one option.

/// Defines methods that take a builder, set one of its fields and return it.
macro_rules! setters {
    ($type:ident: $($(#[$doc:meta])* $name:ident($($arg:ident: $arg_type:ty),*)
        => $($field:ident).+ = $value:expr;)*) => {
        impl $type {
            $($(#[$doc])*
            pub fn $name(mut self, $($arg: $arg_type),*) -> Self {
                self.$($field).+ = $value;
                self
            })*
        }
    };
}

pub(crate) use setters;
