//! Packet and message sequence numbers: 24 bits that wrap (IBA 9.7.2).

use core::fmt;

/// A packet sequence number. Numbers wrap, so there is no total order and no `Ord`: compare two
/// numbers less than half the number space apart with [`Psn::since`] or [`Psn::is_before`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    pub const COUNT: u32 = 1 << 24;

    /// Keeps the low 24 bits of `value`.
    #[inline(always)]
    pub const fn new(value: u32) -> Self {
        Self(value & (Self::COUNT - 1))
    }

    #[inline(always)]
    pub const fn get(self) -> u32 {
        self.0
    }

    #[inline(always)]
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    #[inline(always)]
    #[must_use]
    pub const fn minus(self, count: u32) -> Self {
        Self::new(self.0.wrapping_sub(count))
    }

    /// The distance from `other` to `self`, from -2^23 to 2^23 - 1; negative if `self` is behind.
    #[inline(always)]
    pub const fn since(self, other: Self) -> i32 {
        (self.0.wrapping_sub(other.0) << 8) as i32 >> 8
    }

    #[inline(always)]
    pub const fn is_before(self, other: Self) -> bool {
        self.since(other) < 0
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl crate::layout::Field for Psn {
    const WIDTH_MAX: usize = 24;
    #[inline(always)]
    fn load(bytes: &[u8], bit: usize, width: usize) -> Self {
        Self(u32::load(bytes, bit, width))
    }
    #[inline(always)]
    fn store(self, bytes: &mut [u8], bit: usize, width: usize) {
        self.0.store(bytes, bit, width);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wraps_at_24_bits() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).minus(1), last);
        assert_eq!(last.plus(3).since(last), 3);
        assert_eq!(last.since(last.plus(3)), -3);
        assert!(last.is_before(Psn::new(0)));
    }

    #[test]
    fn the_far_half_counts_as_behind() {
        let zero = Psn::new(0);
        assert_eq!(Psn::new((1 << 23) - 1).since(zero), (1 << 23) - 1);
        assert_eq!(Psn::new(1 << 23).since(zero), -(1 << 23));
    }

    proptest! {
        #[test]
        fn since_undoes_plus(start: u32, count in 0u32..1 << 23) {
            let start = Psn::new(start);
            prop_assert_eq!(start.plus(count).since(start), count as i32);
            prop_assert_eq!(start.plus(count).minus(count), start);
        }
    }
}
