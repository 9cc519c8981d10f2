//! The SL to VL mapping table (IBA 14.2.5.8).

layout! {
    pub struct SlToVlMappingTable: 8 bytes {
        /// The VL of each service level; VL 15 drops the packet.
        0:0  64  lanes: [u8; 16],
    }
}

layout! {
    /// The attribute modifier of [`SlToVlMappingTable`]: input and output port of a switch; 0 for
    /// other nodes.
    pub struct SlToVlModifier: 4 bytes {
        /// Sets the table for all input ports, if the switch supports that.
        1:6  1  all_input_ports: bool,
        /// Sets the table for all output ports, if the switch supports that.
        1:7  1  all_output_ports: bool,
        2:0  8  input_port: u8,
        3:0  8  output_port: u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_level_0_is_the_upper_half_of_the_first_byte() {
        let table = SlToVlMappingTable { lanes: core::array::from_fn(|sl| 15 - sl as u8) };
        let bytes = [0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32, 0x10];
        assert_eq!(table.emit(), bytes);
        assert_eq!(SlToVlMappingTable::parse(&bytes), table);
    }

    #[test]
    fn modifier_names_ports_or_all() {
        let between = SlToVlModifier { input_port: 3, output_port: 4, ..SlToVlModifier::default() };
        assert_eq!(between.emit(), [0, 0, 3, 4]);
        assert!(SlToVlModifier::parse(&[0, 1, 0, 0]).all_output_ports);
        assert!(SlToVlModifier::parse(&[0, 2, 0, 0]).all_input_ports);
    }
}
