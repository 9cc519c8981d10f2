//! Vendors' own management classes, 0x30 to 0x4f (IBA 16.5).
//!
//! The vendor is named by its OUI, so two of them can use one class number. OpenIB's class 0x32 is
//! the one that `ibping` speaks.

use super::rmpp::RmppHeader;
use super::{MadHeader, MgmtClass};

layout! {
    /// A whole datagram of a vendor's class.
    pub struct VendorMad: 256 bytes {
        /// Common header.
        0:0     192  header: MadHeader,
        /// Segmentation.
        24:0     96  rmpp: RmppHeader,
        /// Whose class this is: an IEEE OUI.
        37:0     24  oui: u32,
        /// The vendor's.
        40:0   1728  data: [u8; 216],
    }
}

impl VendorMad {
    /// The OUI of OpenIB.
    pub const OUI_OPENIB: u32 = 0x00_1405;
    /// The class of OpenIB's that `ibping` speaks.
    pub const CLASS_OPENIB_PING: MgmtClass = MgmtClass(0x32);

    /// Whether datagrams of the class have the format of [`VendorMad`].
    pub const fn has_class(class: MgmtClass) -> bool {
        matches!(class.0, 0x30..=0x4f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oui_and_data_follow_the_segmentation_header() {
        let mut mad = VendorMad { oui: VendorMad::OUI_OPENIB, ..VendorMad::default() };
        mad.header.mgmt_class = VendorMad::CLASS_OPENIB_PING;
        mad.rmpp.payload_length_or_window = 0x0102_0304;
        mad.data[0] = 0x61;
        mad.data[215] = 0x7a;
        let bytes = mad.emit();
        assert_eq!(bytes[1], 0x32);
        assert_eq!(bytes[32..41], [1, 2, 3, 4, 0, 0, 0x14, 5, 0x61]);
        assert_eq!(bytes[255], 0x7a);
        assert_eq!(VendorMad::parse(&bytes), mad);
    }

    #[test]
    fn classes_before_and_after_have_no_oui() {
        assert!(!VendorMad::has_class(MgmtClass(0x2f)) && VendorMad::has_class(MgmtClass(0x30)));
        assert!(VendorMad::has_class(MgmtClass(0x4f)) && !VendorMad::has_class(MgmtClass(0x50)));
    }
}
