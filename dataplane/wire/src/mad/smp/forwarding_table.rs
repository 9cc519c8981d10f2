//! Forwarding tables of a switch: linear (LFT), random, and multicast (MFT) (IBA 14.2.5.10 to
//! 14.2.5.12).

use crate::address::Lid;

layout! {
    /// A block of an LFT: the output ports of 64 LIDs (IBA 14.2.5.10). The attribute modifier is
    /// the block number.
    pub struct LinearForwardingTable: 64 bytes {
        /// Port 0 is the switch itself; [`Self::UNREACHABLE`] drops the packet.
        0:0  512  ports: [u8; 64],
    }
}

impl LinearForwardingTable {
    pub const UNREACHABLE: u8 = 0xff;

    /// The block number of a LID, and its index in the block.
    pub const fn locate(lid: Lid) -> (u32, usize) {
        ((lid.0 / 64) as u32, (lid.0 % 64) as usize)
    }
}

layout! {
    /// A block of 16 entries of a random forwarding table (IBA 14.2.5.11). The attribute modifier
    /// is the block number.
    pub struct RandomForwardingTable: 64 bytes {
        0:0  512  entries: [RandomForwardingEntry; 16],
    }
}

layout! {
    /// The output port for the LIDs of one port.
    pub struct RandomForwardingEntry: 4 bytes {
        0:0  16  lid: Lid,
        2:0   1  is_valid: bool,
        /// The entry is for 2^lmc LIDs.
        2:1   3  lmc: u8,
        3:0   8  port: u8,
    }
}

layout! {
    /// A block of an MFT: the output ports of 32 multicast groups, among 16 ports of the switch
    /// (IBA 14.2.5.12).
    pub struct MulticastForwardingTable: 64 bytes {
        /// One mask per group; the lowest bit is the first of the 16 ports.
        0:0  512  port_masks: [u16; 32],
    }
}

layout! {
    /// The attribute modifier of [`MulticastForwardingTable`]: the ports and groups of a block.
    pub struct MulticastForwardingTableModifier: 4 bytes {
        /// The port block; position n begins at port 16 * n.
        0:0  4  position: u8,
        /// The block number; block n begins at the LID [`Lid::MULTICAST_FIRST`] + 32 * n.
        2:7  9  block: u16,
    }
}

impl MulticastForwardingTable {
    /// The block number of a multicast LID, and its index in the block; `None` for other LIDs.
    pub fn locate(mlid: Lid) -> Option<(u16, usize)> {
        if !mlid.is_multicast() {
            return None;
        }
        let index = mlid.0 - Lid::MULTICAST_FIRST.0;
        Some((index / 32, usize::from(index % 32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_entries_are_bytes_by_lid() {
        let table = LinearForwardingTable { ports: core::array::from_fn(|i| i as u8) };
        assert_eq!(table.emit(), table.ports);
        assert_eq!(LinearForwardingTable::locate(Lid(0x0141)), (5, 1));
        assert_eq!(LinearForwardingTable::locate(Lid::UNICAST_LAST), (767, 63));
    }

    #[test]
    fn random_entries_name_their_lids() {
        let mut table = RandomForwardingTable::default();
        let entry = RandomForwardingEntry { lid: Lid(0x0102), is_valid: true, lmc: 5, port: 3 };
        table.entries[15] = entry;
        assert_eq!(table.emit()[60..], [1, 2, 0xd0, 3]);
        assert_eq!(RandomForwardingTable::parse(&table.emit()), table);
    }

    #[test]
    fn multicast_entries_are_masks_of_ports() {
        let mut table = MulticastForwardingTable::default();
        table.port_masks[1] = 1 << 3 | 1 << 8;
        assert_eq!(table.emit()[..4], [0, 0, 0x01, 0x08]);
        assert_eq!(MulticastForwardingTable::locate(Lid(0xc021)), Some((1, 1)));
        assert_eq!(MulticastForwardingTable::locate(Lid::MULTICAST_LAST), Some((511, 30)));
        assert_eq!(MulticastForwardingTable::locate(Lid::PERMISSIVE), None);
        assert_eq!(MulticastForwardingTable::locate(Lid::UNICAST_LAST), None);
    }

    #[test]
    fn multicast_modifier_has_nine_bits_of_block() {
        let modifier = MulticastForwardingTableModifier { position: 2, block: 0x1fe };
        assert_eq!(modifier.emit(), [0x20, 0, 0x01, 0xfe]);
    }
}
