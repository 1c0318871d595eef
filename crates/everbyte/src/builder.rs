//! The methods of builders. Each method sets one option.

/// Defines builder methods: each takes a builder, sets one of its fields and returns the builder.
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
