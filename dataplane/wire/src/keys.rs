//! Keys that packets carry and receivers check: P_Keys (IBA 10.9) and Q_Keys (IBA 10.2.4).

/// A partition key: a membership bit and a 15-bit partition number.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PKey(pub u16);

impl PKey {
    /// Full membership in the default partition. Every port is at least a limited member of it.
    pub const DEFAULT: Self = Self(0xffff);
    /// An unused entry of a P_Key table.
    pub const INVALID: Self = Self(0);

    const FULL: u16 = 0x8000;

    /// Whether this is a valid key: partition 0 does not exist.
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

    /// Whether ports with these keys may communicate: both keys are of the same partition, and at
    /// least one is a full member (IBA 10.9.3).
    #[inline]
    pub const fn matches(self, other: Self) -> bool {
        self.partition() == other.partition()
            && self.is_valid()
            && (self.0 | other.0) & Self::FULL != 0
    }
}

/// A queue key. A queue pair drops datagrams that do not carry its Q_Key.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QKey(pub u32);

impl QKey {
    pub const GSI: Self = Self(0x8001_0000);
    /// The Q_Key that OpenSM gives to IPoIB multicast groups.
    pub const IPOIB_OPENSM: Self = Self(0x0b1b);

    /// Whether only a privileged consumer may use this key. If a work request has a privileged key,
    /// the adapter sends the queue pair's own Q_Key instead (IBA 10.2.4.2).
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
