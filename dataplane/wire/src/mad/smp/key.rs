//! The keys that protect management (IBA 14.2.4, 14.4.7).
//!
//! Keys are secrets, so `Debug` does not print their values.

use core::fmt;

/// A management key: required to change a port's settings and, depending on the protection level,
/// to read them (IBA 14.2.4). 0 means no protection.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct MKey(pub u64);

/// A subnet manager's key, which trusted subnet managers and clients present (IBA 14.4.7).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SmKey(pub u64);

impl fmt::Debug for MKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MKey({})", hidden(self.0))
    }
}

impl fmt::Debug for SmKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SmKey({})", hidden(self.0))
    }
}

fn hidden(key: u64) -> &'static str {
    if key == 0 { "none" } else { "hidden" }
}

number_field!(MKey(u64));
number_field!(SmKey(u64));

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn keys_are_not_printed() {
        assert_eq!(format!("{:?} {:?}", MKey(0), SmKey(0x1234)), "MKey(none) SmKey(hidden)");
    }
}
