//! The VL arbitration tables of a port (IBA 14.2.5.9).

layout! {
    /// Half of a port's high-priority or low-priority arbitration table (IBA 14.2.5.9).
    pub struct VlArbitrationTable: 64 bytes {
        /// The entries in the order of service.
        0:0  512  entries: [VlWeight; 32],
    }
}

layout! {
    pub struct VlWeight: 2 bytes {
        0:4  4  lane: u8,
        /// How much the VL may send, in units of 64 bytes; 0 skips the entry.
        1:0  8  weight: u8,
    }
}

layout! {
    /// The attribute modifier of [`VlArbitrationTable`]: the table and half, and the port.
    pub struct VlArbitrationModifier: 4 bytes {
        0:0  16  part: VlPart,
        /// The output port of a switch.
        2:0  16  port: u16,
    }
}

codes! {
    /// A half of the low-priority or high-priority table.
    pub struct VlPart(u16) {
        LOW_FIRST = 1,
        LOW_LAST = 2,
        HIGH_FIRST = 3,
        HIGH_LAST = 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_lane_and_weight() {
        let entries =
            core::array::from_fn(|i| VlWeight { lane: i as u8 % 15, weight: 0x40 + i as u8 });
        let bytes = VlArbitrationTable { entries }.emit();
        assert_eq!(bytes[..4], [0, 0x40, 1, 0x41]);
        assert_eq!(bytes[62..], [1, 0x5f]);
        assert_eq!(VlArbitrationTable::parse(&bytes).entries, entries);
    }

    #[test]
    fn modifier_has_the_part_above_the_port() {
        let modifier = VlArbitrationModifier { part: VlPart::HIGH_FIRST, port: 7 };
        assert_eq!(modifier.emit(), [0, 3, 0, 7]);
    }
}
