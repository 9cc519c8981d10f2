//! Drop counters: each component has an enum of reasons and one counter per reason. Components do
//! not log individual drops.
//!
//! The module is in this crate because all components that count drops depend on it: subnet, engine
//! and control plane.

use std::fmt::{self, Debug, Formatter};

/// The enum of a component's drop reasons; [`reasons!`](crate::reasons) defines one.
pub trait Reason: Copy + 'static {
    type Counters: AsRef<[u64]> + AsMut<[u64]> + Clone;
    const ZERO: Self::Counters;
    const ALL: &'static [Self];
    /// The name of the counter in reports and metrics.
    fn name(self) -> &'static str;
    /// The index in [`Reason::ALL`].
    fn index(self) -> usize;
}

/// Counts by reason.
#[derive(Clone)]
pub struct Drops<R: Reason>(R::Counters);

impl<R: Reason> Default for Drops<R> {
    fn default() -> Self {
        Self(R::ZERO)
    }
}

impl<R: Reason> Drops<R> {
    #[inline]
    pub fn count(&mut self, reason: R) {
        self.0.as_mut()[reason.index()] += 1;
    }

    #[inline]
    pub fn add(&mut self, reason: R, times: u64) {
        self.0.as_mut()[reason.index()] += times;
    }

    pub fn of(&self, reason: R) -> u64 {
        self.0.as_ref()[reason.index()]
    }

    pub fn total(&self) -> u64 {
        self.0.as_ref().iter().sum()
    }

    /// The count of every reason by name, including zeros.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        R::ALL.iter().map(|&reason| (reason.name(), self.of(reason)))
    }
}

impl<R: Reason> PartialEq for Drops<R> {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_ref() == other.0.as_ref()
    }
}

impl<R: Reason> Eq for Drops<R> {}

impl<R: Reason> Debug for Drops<R> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().filter(|(_, count)| *count > 0)).finish()
    }
}

/// Defines an enum with the list of its variants, `ALL`, and the `name` of each.
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$meta:meta])*
        pub enum $enum:ident {
            $( $(#[$variant_meta:meta])* $variant:ident = $text:literal ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $enum {
            $( $(#[$variant_meta])* $variant, )*
        }

        impl $enum {
            pub const ALL: &'static [Self] = &[$( Self::$variant ),*];

            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => $text, )*
                }
            }
        }
    };
}

/// Defines the enum of a component's drop reasons, which implements
/// [`Reason`].
#[macro_export]
macro_rules! reasons {
    ($(#[$meta:meta])* pub enum $name:ident { $($reasons:tt)* }) => {
        $crate::named_enum! { $(#[$meta])* pub enum $name { $($reasons)* } }

        impl $crate::drops::Reason for $name {
            type Counters = [u64; Self::ALL.len()];
            const ZERO: Self::Counters = [0; Self::ALL.len()];
            const ALL: &'static [Self] = Self::ALL;

            fn name(self) -> &'static str {
                self.name()
            }

            #[inline]
            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    reasons! {
        /// Reasons of this test.
        pub enum TestDrop {
            /// The first.
            Short = "short",
            /// The second.
            Long = "long",
        }
    }

    #[test]
    fn every_reason_has_its_count_and_name() {
        let mut drops = Drops::default();
        for (times, &reason) in TestDrop::ALL.iter().enumerate() {
            (0..=times).for_each(|_| drops.count(reason));
        }
        assert_eq!((drops.of(TestDrop::Short), drops.of(TestDrop::Long), drops.total()), (1, 2, 3));
        assert_eq!(drops.iter().collect::<Vec<_>>(), [("short", 1), ("long", 2)]);
        assert_eq!(format!("{drops:?}"), r#"{"short": 1, "long": 2}"#);
        assert_ne!(drops, Drops::default());
    }
}
