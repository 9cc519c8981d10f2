//! Keys that packets carry and receivers check: P_Keys (IBA 10.9) and Q_Keys (IBA 10.2.4).

/// A partition key: 15 bits of partition and one of membership.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PKey(pub u16);

impl PKey {
    /// Full member of the default partition, of which every port is at least a limited one.
    pub const DEFAULT: Self = Self(0xffff);
    /// A table entry that is not in use.
    pub const INVALID: Self = Self(0);

    const FULL: u16 = 0x8000;

    /// Whether this is a key at all: partition 0 does not exist.
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.partition() != 0
    }

    #[inline]
    pub const fn is_full(self) -> bool {
        self.0 & Self::FULL != 0
    }

    #[inline]
    #[must_use]
    pub const fn full(self) -> Self {
        Self(self.0 | Self::FULL)
    }

    #[inline]
    pub const fn partition(self) -> u16 {
        self.0 & !Self::FULL
    }

    /// Whether holders of the two may communicate: one partition, and not both limited members
    /// (IBA 10.9.3).
    #[inline]
    pub const fn matches(self, other: Self) -> bool {
        self.partition() == other.partition()
            && self.is_valid()
            && (self.0 | other.0) & Self::FULL != 0
    }
}

/// A queue key: a datagram needs the Q_Key of its destination queue pair.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QKey(pub u32);

impl QKey {
    pub const GSI: Self = Self(0x8001_0000);
    /// The Q_Key of OpenSM for IPoIB groups.
    pub const IPOIB_OPENSM: Self = Self(0x0b1b);

    /// Whether only a privileged consumer may use it: asked for in a work request, it makes the
    /// adapter send the queue pair's own key instead (IBA 10.2.4.2).
    #[inline]
    pub const fn is_privileged(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

hex_number!(PKey(u16), 6);
hex_number!(QKey(u32), 10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_match_unless_both_limited() {
        let (full, limited) = (PKey(0x8123), PKey(0x0123));
        assert!(full.matches(full) && full.matches(limited) && limited.matches(full));
        assert!(!limited.matches(limited));
        assert!(!full.matches(PKey(0x8124)));
        assert!(!PKey(0x8000).matches(PKey(0x8000)), "partition 0 does not exist");
    }

    #[test]
    fn management_key_is_privileged_and_the_ip_one_is_not() {
        assert!(QKey::GSI.is_privileged());
        assert!(!QKey::IPOIB_OPENSM.is_privileged());
    }
}
