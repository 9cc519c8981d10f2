//! Encoded quantities: MTUs, link rates and durations.
//!
//! Subnet management, subnet administration, connection management and queue pairs share these
//! codes (IBA 14.2.5.6, 15.2.5.16, 9.7.6.1.3).

use core::cmp::Ordering;
use core::fmt;

codes! {
    /// Largest payload of a packet (IBA 14.2.5.6). Larger codes are larger sizes.
    pub struct Mtu(u8) {
        BYTES_256 = 1,
        BYTES_512 = 2,
        BYTES_1024 = 3,
        BYTES_2048 = 4,
        BYTES_4096 = 5,
    }
}

impl Mtu {
    /// The size in bytes; `None` for an undefined code.
    #[inline]
    pub const fn bytes(self) -> Option<usize> {
        match self.0 {
            1..=5 => Some(128 << self.0),
            _ => None,
        }
    }

    /// The largest MTU of at most `bytes` bytes; `None` below 256 bytes.
    pub fn within(bytes: usize) -> Option<Self> {
        Self::ALL.iter().copied().rfind(|mtu| mtu.bytes().is_some_and(|own| own <= bytes))
    }
}

/// The rate of a link, or of a path across several links (IBA 15.2.5.16).
///
/// The codes are not in order of speed. `Ord` compares the speeds; an undefined code sorts before
/// all rates.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Rate(pub u8);

macro_rules! rates {
    ($( $name:ident = $code:literal, $megabits:literal; )*) => {
        impl Rate {
            $(
                #[doc = concat!("`", stringify!($name), "`")]
                pub const $name: Self = Self($code);
            )*
            pub const ALL: &'static [Self] = &[$( Self::$name ),*];

            /// The nominal rate in Mb/s; `None` for an undefined code.
            pub const fn megabits(self) -> Option<u32> {
                match self.0 {
                    $( $code => Some($megabits), )*
                    _ => None,
                }
            }
        }
    };
}

rates! {
    GBPS_2_5 = 2, 2_500;
    GBPS_5 = 5, 5_000;
    GBPS_10 = 3, 10_000;
    GBPS_14 = 11, 14_000;
    GBPS_20 = 6, 20_000;
    GBPS_25 = 15, 25_000;
    GBPS_28 = 19, 28_000;
    GBPS_30 = 4, 30_000;
    GBPS_40 = 7, 40_000;
    GBPS_50 = 20, 50_000;
    GBPS_56 = 12, 56_000;
    GBPS_60 = 8, 60_000;
    GBPS_80 = 9, 80_000;
    GBPS_100 = 16, 100_000;
    GBPS_112 = 13, 112_000;
    GBPS_120 = 10, 120_000;
    GBPS_168 = 14, 168_000;
    GBPS_200 = 17, 200_000;
    GBPS_300 = 18, 300_000;
    GBPS_400 = 21, 400_000;
    GBPS_600 = 22, 600_000;
    GBPS_800 = 23, 800_000;
}

impl Rate {
    /// The rate of exactly `megabits` nominal Mb/s, if there is one.
    pub fn of_megabits(megabits: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|rate| rate.megabits() == Some(megabits))
    }
}

impl Ord for Rate {
    fn cmp(&self, other: &Self) -> Ordering {
        // Undefined codes compare by code, so that only equal codes are `Equal`.
        (self.megabits(), self.0).cmp(&(other.megabits(), other.0))
    }
}

impl PartialOrd for Rate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.megabits() {
            Some(megabits) => write!(f, "{} Gb/s", megabits as f32 / 1000.0),
            None => write!(f, "rate {}", self.0),
        }
    }
}

/// A duration of 4.096 us * 2^code: response times, packet lifetimes, ACK timeouts.
///
/// Packet lifetimes have six bits, all other fields five.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeCode(pub u8);

impl TimeCode {
    /// The longest duration that fits every field: about two and a half hours.
    pub const MAX: Self = Self(31);

    const UNIT_NS: u64 = 4096;
    /// The largest code whose duration in nanoseconds fits in 64 bits.
    const EXACT_LAST: u8 = 51;

    /// The duration in nanoseconds; `u64::MAX` if it does not fit in 64 bits.
    #[inline]
    pub const fn nanoseconds(self) -> u64 {
        if self.0 <= Self::EXACT_LAST { Self::UNIT_NS << self.0 } else { u64::MAX }
    }
}

impl fmt::Display for TimeCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} us", self.nanoseconds() as f64 / 1000.0)
    }
}

impl fmt::Debug for TimeCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TimeCode({}: {self})", self.0)
    }
}

debug_by_display!(Rate);
number_field!(Rate(u8));
number_field!(TimeCode(u8));

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::format;

    #[test]
    fn mtu_codes_are_powers_of_two() {
        let bytes = [256, 512, 1024, 2048, 4096];
        assert!(Mtu::ALL.iter().map(|mtu| mtu.bytes().unwrap()).eq(bytes));
        assert_eq!((Mtu(0).bytes(), Mtu(6).bytes()), (None, None));
        assert_eq!(Mtu::within(255), None);
        assert_eq!(Mtu::within(2047), Some(Mtu::BYTES_1024));
        assert_eq!(Mtu::within(65536), Some(Mtu::BYTES_4096));
    }

    #[test]
    fn rates_compare_by_speed_and_not_by_code() {
        assert!(Rate::ALL.is_sorted());
        assert!(Rate(5) < Rate(3), "5 Gb/s is less than 10");
        assert!(Rate(63) < Rate::GBPS_2_5, "no rate is less than any");
        assert!(Rate(19) < Rate(4) && Rate(21) < Rate(22));
        assert_eq!(Rate::of_megabits(56_000), Some(Rate(12)));
        assert_eq!(Rate::of_megabits(57_000), None);
    }

    #[test]
    fn rates_print_as_people_call_them() {
        assert_eq!(format!("{} {:?}", Rate(2), Rate(16)), "2.5 Gb/s Rate(100 Gb/s)");
        assert_eq!(format!("{}", Rate(1)), "rate 1");
    }

    #[test]
    fn time_doubles_with_each_code() {
        assert_eq!(TimeCode(0).nanoseconds(), 4096);
        assert_eq!(TimeCode(18).nanoseconds(), 1_073_741_824);
        assert_eq!(TimeCode(63).nanoseconds(), u64::MAX);
        assert_eq!(format!("{:?}", TimeCode(14)), "TimeCode(14: 67108.864 us)");
    }

    proptest! {
        #[test]
        fn rate_order_is_total(a: u8, b: u8) {
            prop_assert_eq!(Rate(a).cmp(&Rate(b)), Rate(b).cmp(&Rate(a)).reverse());
            prop_assert_eq!(Rate(a).cmp(&Rate(b)) == Ordering::Equal, a == b);
        }
    }
}
