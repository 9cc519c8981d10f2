//! GUIDInfo: the GUIDs of a port (IBA 14.2.5.5).

use crate::address::Guid;

layout! {
    /// A block of eight GUIDs of a port (IBA 14.2.5.5). The attribute modifier is the block number.
    /// The first GUID of block 0 is the port GUID, which cannot be set.
    pub struct GuidInfo: 64 bytes {
        /// The GUIDs; 0 in unused entries.
        0:0  512  guids: [Guid; 8],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_are_consecutive() {
        let bytes = core::array::from_fn(|i| i as u8);
        let info = GuidInfo::parse(&bytes);
        assert_eq!(info.guids[0], Guid(0x0001_0203_0405_0607));
        assert_eq!(info.guids[7], Guid(0x3839_3a3b_3c3d_3e3f));
        assert_eq!(info.emit(), bytes);
    }
}
