//! The width and speed of a link, as one word: `4xEDR`.

use pollux_wire::mad::smp::{LinkSpeed, LinkSpeedExt, LinkWidth};
use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRate {
    pub width: LinkWidth,
    /// The speed of a lane, up to 10 Gb/s.
    pub speed: LinkSpeed,
    /// The speed of a lane above 10 Gb/s; [`LinkSpeedExt::NONE`] for lower speeds.
    pub speed_ext: LinkSpeedExt,
}

const WIDTHS: [(&str, LinkWidth); 5] = [
    ("1", LinkWidth::X1),
    ("2", LinkWidth::X2),
    ("4", LinkWidth::X4),
    ("8", LinkWidth::X8),
    ("12", LinkWidth::X12),
];

/// A link with an extended speed reports QDR to managers that do not know extended speeds.
const SPEEDS: [(&str, LinkSpeed, LinkSpeedExt); 7] = [
    ("SDR", LinkSpeed::SDR, LinkSpeedExt::NONE),
    ("DDR", LinkSpeed::DDR, LinkSpeedExt::NONE),
    ("QDR", LinkSpeed::QDR, LinkSpeedExt::NONE),
    ("FDR", LinkSpeed::QDR, LinkSpeedExt::FDR),
    ("EDR", LinkSpeed::QDR, LinkSpeedExt::EDR),
    ("HDR", LinkSpeed::QDR, LinkSpeedExt::HDR),
    ("NDR", LinkSpeed::QDR, LinkSpeedExt::NDR),
];

impl LinkRate {
    /// The same speed with another width; `width` is the number of lanes, as text.
    pub(super) fn with_width(self, width: &str) -> Option<Self> {
        let (_, width) = WIDTHS.into_iter().find(|(name, _)| *name == width)?;
        Some(Self { width, ..self })
    }
}

impl Default for LinkRate {
    /// 4xEDR: 100 Gb/s.
    fn default() -> Self {
        Self { width: LinkWidth::X4, speed: LinkSpeed::QDR, speed_ext: LinkSpeedExt::EDR }
    }
}

impl FromStr for LinkRate {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        let (width, name) = word.split_once('x').ok_or(())?;
        let found = SPEEDS.into_iter().find(|(speed, ..)| *speed == name);
        let (_, speed, speed_ext) = found.ok_or(())?;
        Self { speed, speed_ext, ..Self::default() }.with_width(width).ok_or(())
    }
}

impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = WIDTHS.iter().find(|(_, width)| *width == self.width);
        let speed =
            SPEEDS.iter().find(|(_, speed, ext)| (*speed, *ext) == (self.speed, self.speed_ext));
        let (width, speed) =
            (width.map_or("?", |(name, _)| name), speed.map_or("?", |(name, ..)| name));
        write!(f, "{width}x{speed}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_survives_being_written() {
        for (width, _) in WIDTHS {
            for (speed, ..) in SPEEDS {
                let word = format!("{width}x{speed}");
                assert_eq!(word.parse::<LinkRate>().unwrap().to_string(), word);
            }
        }
        for wrong in ["", "4x", "xEDR", "3xEDR", "4xedr", "4EDR"] {
            assert_eq!(wrong.parse::<LinkRate>(), Err(()), "{wrong}");
        }
    }
}
