//! Types for fields with named values.
//!
//! A peer may send an unknown value, which must survive parsing, printing and emitting. So such a
//! type is a number with named constants, which can be used as patterns, and not an enum.

/// Makes a type from a list of named values.
///
/// ```
/// pollux_wire::codes! {
///     /// State of a port's link (IBA 14.2.5.6).
///     pub struct State(u8) { DOWN = 1, ACTIVE = 4 }
/// }
/// assert_eq!(format!("{} {}", State::ACTIVE, State(9)), "ACTIVE 9");
/// ```
#[macro_export]
macro_rules! codes {
    (
        $(#[$meta:meta])*
        pub struct $name:ident($repr:ty) {
            $( $(#[$code_meta:meta])* $code:ident = $value:expr ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $repr);

        impl $name {
            $(
                #[doc = concat!("`", stringify!($code), "`")]
                $(#[$code_meta])*
                pub const $code: Self = Self($value);
            )*
            pub const ALL: &'static [Self] = &[$( Self::$code ),*];

            /// The name of this value in the specification, if it has one.
            pub const fn name(self) -> Option<&'static str> {
                $( if self.0 == Self::$code.0 { return Some(stringify!($code)); } )*
                None
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.pad(name),
                    None => core::fmt::Display::fmt(&self.0, f),
                }
            }
        }

        $crate::debug_by_display!($name);
        $crate::number_field!($name($repr));
    };
}
