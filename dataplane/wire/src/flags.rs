//! Types for fields with named bits, such as capabilities and link widths.
//!
//! [`mod@crate::codes`] names whole values; [`flags!`](crate::flags!) names single bits. Parsing,
//! printing and emitting keep bits without a name.

/// Makes a type from a list of named bits.
///
/// ```
/// pollux_wire::flags! {
///     /// What a port can do.
///     pub struct Abilities(u8) { TALK = 1 << 0, LISTEN = 1 << 1 }
/// }
/// let both = Abilities::TALK.with(Abilities::LISTEN);
/// assert!(both.contains(Abilities::TALK) && !Abilities::TALK.contains(both));
/// assert_eq!(format!("{both}, {}", Abilities(0x82)), "TALK|LISTEN, LISTEN|0x80");
/// assert_eq!(format!("{:?}", Abilities::NONE), "Abilities(0)");
/// ```
#[macro_export]
macro_rules! flags {
    (
        $(#[$meta:meta])*
        pub struct $name:ident($repr:ty) {
            $( $(#[$flag_meta:meta])* $flag:ident = $value:expr ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub $repr);

        impl $name {
            pub const NONE: Self = Self(0);
            $(
                #[doc = concat!("`", stringify!($flag), "`")]
                $(#[$flag_meta])*
                pub const $flag: Self = Self($value);
            )*
            pub const NAMES: &'static [(Self, &'static str)] =
                &[$( (Self::$flag, stringify!($flag)) ),*];

            /// Whether all bits of `other` are set in `self`.
            #[inline]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            #[inline]
            #[must_use]
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            #[inline]
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            #[inline]
            #[must_use]
            pub const fn common(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                $crate::flags::print(
                    f,
                    u64::from(self.0),
                    Self::NAMES.iter().map(|&(flag, name)| (u64::from(flag.0), name)),
                )
            }
        }

        $crate::debug_by_display!($name);
        $crate::number_field!($name($repr));
    };
}

/// Implements `Display` of these types: prints the named bits by name, and all others as one
/// number.
#[doc(hidden)]
pub fn print(
    f: &mut core::fmt::Formatter<'_>,
    bits: u64,
    names: impl Iterator<Item = (u64, &'static str)>,
) -> core::fmt::Result {
    let mut nameless = bits;
    let mut separator = "";
    for (flag, name) in names.filter(|(flag, _)| bits & flag == *flag) {
        write!(f, "{separator}{name}")?;
        nameless &= !flag;
        separator = "|";
    }
    match (nameless, separator) {
        (0, "|") => Ok(()),
        (0, _) => f.write_str("0"),
        _ => write!(f, "{separator}{nameless:#x}"),
    }
}
