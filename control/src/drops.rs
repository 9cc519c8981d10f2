//! What was not done, and why: every machine counts what it drops under a named reason, and logs
//! nothing packet by packet.

use std::collections::BTreeMap;

/// A machine's reasons to drop something.
pub trait Reason: Copy + Ord + 'static {
    /// All of them.
    const ALL: &'static [Self];
    /// The name under which it is counted.
    fn name(self) -> &'static str;
}

/// How often each reason was met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drops<R>(BTreeMap<R, u64>);

impl<R> Default for Drops<R> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<R: Reason> Drops<R> {
    /// One more.
    pub fn count(&mut self, reason: R) {
        *self.0.entry(reason).or_default() += 1;
    }

    /// How often it was this.
    pub fn of(&self, reason: R) -> u64 {
        self.0.get(&reason).copied().unwrap_or(0)
    }

    /// Every reason by name, those never met included.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        R::ALL.iter().map(|&reason| (reason.name(), self.of(reason)))
    }
}

/// Makes the reasons of a machine of their list.
macro_rules! reasons {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $( $(#[$reason_meta:meta])* $reason:ident = $text:literal ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $( $(#[$reason_meta])* $reason, )*
        }

        impl $crate::drops::Reason for $name {
            const ALL: &'static [Self] = &[$( Self::$reason ),*];
            fn name(self) -> &'static str {
                match self {
                    $( Self::$reason => $text, )*
                }
            }
        }
    };
}
pub(crate) use reasons;
