//! A field whose values have names; other values are valid too.
//!
//! A peer may send a code that we do not know; it must survive parsing, printing and emitting. So
//! this is a number with named constants, which match as patterns, and not an enum.

/// Makes a type of a list of values.
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

            /// The specification's name of this value, if it has one.
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
