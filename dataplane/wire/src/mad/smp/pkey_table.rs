//! The P_Key table of a port (IBA 14.2.5.7).

use crate::keys::PKey;

layout! {
    /// A block of 32 entries of a port's P_Key table (IBA 14.2.5.7).
    pub struct PKeyTable: 64 bytes {
        /// The keys; [`PKey::INVALID`] in unused entries.
        0:0  512  p_keys: [PKey; 32],
    }
}

layout! {
    /// The attribute modifier of [`PKeyTable`]: port and block.
    pub struct PKeyTableModifier: 4 bytes {
        /// The port of a switch. Other nodes ignore it and use the port that received the request.
        0:0  16  port: u16,
        /// The block number; block n begins at entry 32 * n.
        2:0  16  block: u16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_consecutive() {
        let bytes = core::array::from_fn(|i| i as u8);
        let table = PKeyTable::parse(&bytes);
        assert_eq!((table.p_keys[0], table.p_keys[31]), (PKey(0x0001), PKey(0x3e3f)));
        assert_eq!(table.emit(), bytes);
    }

    #[test]
    fn modifier_has_the_port_above_the_block() {
        let modifier = PKeyTableModifier { port: 0x0102, block: 0x0304 };
        assert_eq!(modifier.emit(), [1, 2, 3, 4]);
    }
}
