//! The GUIDs of a port (IBA 14.2.5.5).

use crate::address::Guid;

layout! {
    /// Eight GUIDs of a port (IBA 14.2.5.5); the modifier is the number of the block. The very
    /// first is the port's own and cannot be set.
    pub struct GuidInfo: 64 bytes {
        /// 0 in an entry that is not in use.
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
