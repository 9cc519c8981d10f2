//! States, width and speed of a port's link (IBA 14.2.5.6, 7.2.7).

use crate::units::Rate;

codes! {
    /// Logical state of a link (IBA 7.2.7).
    pub struct PortState(u8) {
        /// In a Set only: leaves the state unchanged.
        NO_CHANGE = 0,
        DOWN = 1,
        INITIALIZE = 2,
        ARMED = 3,
        ACTIVE = 4,
        /// Reported by verbs only; never in PortInfo.
        ACTIVE_DEFER = 5,
    }
}

codes! {
    /// Physical state of a link (IBA 14.2.5.6).
    pub struct PortPhysState(u8) {
        /// In a Set only: leaves the state unchanged.
        NO_CHANGE = 0,
        SLEEP = 1,
        POLLING = 2,
        DISABLED = 3,
        CONFIGURATION_TRAINING = 4,
        LINK_UP = 5,
        ERROR_RECOVERY = 6,
        PHY_TEST = 7,
    }
}

flags! {
    /// Widths of a link: supported, enabled or active (IBA 14.2.5.6).
    pub struct LinkWidth(u8) {
        X1 = 1 << 0,
        X4 = 1 << 1,
        X8 = 1 << 2,
        X12 = 1 << 3,
        X2 = 1 << 4,
    }
}

impl LinkWidth {
    /// In a Set: enables all supported widths.
    pub const ALL_SUPPORTED: Self = Self(0xff);

    /// Number of lanes; `None` unless exactly one width is set.
    pub const fn lanes(self) -> Option<u32> {
        match self {
            Self::X1 => Some(1),
            Self::X2 => Some(2),
            Self::X4 => Some(4),
            Self::X8 => Some(8),
            Self::X12 => Some(12),
            _ => None,
        }
    }
}

flags! {
    /// Speeds of a lane up to 10 Gb/s: supported, enabled or active (IBA 14.2.5.6).
    pub struct LinkSpeed(u8) {
        SDR = 1 << 0,
        DDR = 1 << 1,
        QDR = 1 << 2,
    }
}

impl LinkSpeed {
    /// In a Set: enables all supported speeds.
    pub const ALL_SUPPORTED: Self = Self(0xf);

    /// Nominal Mb/s per lane; `None` unless exactly one speed is set.
    pub const fn lane_megabits(self) -> Option<u32> {
        match self {
            Self::SDR => Some(2_500),
            Self::DDR => Some(5_000),
            Self::QDR => Some(10_000),
            _ => None,
        }
    }
}

flags! {
    /// Speeds of a lane above 10 Gb/s: supported, enabled or active (IBA 14.2.5.6).
    pub struct LinkSpeedExt(u8) {
        FDR = 1 << 0,
        EDR = 1 << 1,
        HDR = 1 << 2,
        NDR = 1 << 3,
    }
}

impl LinkSpeedExt {
    /// Nominal Mb/s per lane; `None` unless exactly one speed is set.
    pub const fn lane_megabits(self) -> Option<u32> {
        match self {
            Self::FDR => Some(14_000),
            Self::EDR => Some(25_000),
            Self::HDR => Some(50_000),
            Self::NDR => Some(100_000),
            _ => None,
        }
    }
}

/// The rate of a link with this width and speed. `speed_ext` takes precedence over `speed` if it is
/// not zero. `None` unless exactly one width and one speed are set and their product is a [`Rate`];
/// the product of 12x NDR is not.
pub(super) fn rate(width: LinkWidth, speed: LinkSpeed, speed_ext: LinkSpeedExt) -> Option<Rate> {
    let lane_megabits = if speed_ext == LinkSpeedExt::NONE {
        speed.lane_megabits()?
    } else {
        speed_ext.lane_megabits()?
    };
    Rate::of_megabits(width.lanes()? * lane_megabits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn codes_and_flags_print() {
        assert_eq!(format!("{:?} {}", PortState::ACTIVE, PortState(9)), "PortState(ACTIVE) 9");
        assert_eq!(format!("{}", PortPhysState(5)), "LINK_UP");
        assert_eq!(format!("{:?}", LinkWidth(0x13)), "LinkWidth(X1|X4|X2)");
        assert_eq!(format!("{} {}", LinkSpeed(7), LinkSpeedExt(0x12)), "SDR|DDR|QDR EDR|0x10");
    }

    #[test]
    fn every_width_and_speed_up_to_8x_has_a_rate() {
        for width in [LinkWidth::X1, LinkWidth::X2, LinkWidth::X4, LinkWidth::X8] {
            for (speed, _) in LinkSpeed::NAMES {
                assert!(rate(width, *speed, LinkSpeedExt::NONE).is_some(), "{width} {speed}");
            }
            for (speed, _) in LinkSpeedExt::NAMES {
                assert!(rate(width, LinkSpeed::QDR, *speed).is_some(), "{width} {speed}");
            }
        }
    }

    #[test]
    fn extended_speed_hides_the_old_one() {
        let x4 = LinkWidth::X4;
        assert_eq!(rate(x4, LinkSpeed::QDR, LinkSpeedExt::EDR), Some(Rate::GBPS_100));
        assert_eq!(rate(x4, LinkSpeed::QDR, LinkSpeedExt::NONE), Some(Rate::GBPS_40));
        assert_eq!(rate(x4.with(LinkWidth::X1), LinkSpeed::QDR, LinkSpeedExt::NONE), None);
    }
}
