//! Performance management: the counters of a port (IBA 16.1).
//!
//! Counters stop at their maximum. A Set writes the selected counters. The data counters are in
//! units of four bytes, and count packets from the LRH to the ICRC.

use super::attributes;
use super::class_port_info::ClassCapabilities;

layout! {
    /// Traffic and error counters of a port (IBA 16.1.3.5).
    pub struct PortCounters: 44 bytes {
        /// The port; 255 for the sum of all ports.
        1:0    8  port_select: u8,
        2:0   16  counter_select: CounterSelect,
        4:0   16  symbol_error_counter: u16,
        6:0    8  link_error_recovery_counter: u8,
        7:0    8  link_downed_counter: u8,
        8:0   16  port_rcv_errors: u16,
        /// Received packets that another port marked as bad.
        10:0  16  port_rcv_remote_physical_errors: u16,
        12:0  16  port_rcv_switch_relay_errors: u16,
        14:0  16  port_xmit_discards: u16,
        /// Packets not sent because of partition enforcement or the raw packet filter.
        16:0   8  port_xmit_constraint_errors: u8,
        /// Packets dropped on receipt because of partition enforcement or the raw packet filter.
        17:0   8  port_rcv_constraint_errors: u8,
        18:0   8  counter_select2: CounterSelect2,
        19:0   4  local_link_integrity_errors: u8,
        19:4   4  excessive_buffer_overrun_errors: u8,
        20:0  16  qp1_dropped: u16,
        22:0  16  vl15_dropped: u16,
        24:0  32  port_xmit_data: u32,
        28:0  32  port_rcv_data: u32,
        32:0  32  port_xmit_pkts: u32,
        36:0  32  port_rcv_pkts: u32,
        /// Ticks during which a packet waited for credits or for arbitration.
        40:0  32  port_xmit_wait: u32,
    }
}

layout! {
    /// Traffic counters of a port, with 64 bits (IBA 16.1.4.11).
    pub struct PortCountersExtended: 72 bytes {
        /// The port; 255 for the sum of all ports.
        1:0    8  port_select: u8,
        2:0   16  counter_select: CounterSelectExtended,
        8:0   64  port_xmit_data: u64,
        16:0  64  port_rcv_data: u64,
        24:0  64  port_xmit_pkts: u64,
        32:0  64  port_rcv_pkts: u64,
        40:0  64  port_unicast_xmit_pkts: u64,
        48:0  64  port_unicast_rcv_pkts: u64,
        56:0  64  port_multicast_xmit_pkts: u64,
        64:0  64  port_multicast_rcv_pkts: u64,
    }
}

flags! {
    /// Selects counters of [`PortCounters`], in their order; `qp1_dropped` has no bit.
    pub struct CounterSelect(u16) {
        SYMBOL_ERROR_COUNTER = 1 << 0,
        LINK_ERROR_RECOVERY_COUNTER = 1 << 1,
        LINK_DOWNED_COUNTER = 1 << 2,
        PORT_RCV_ERRORS = 1 << 3,
        PORT_RCV_REMOTE_PHYSICAL_ERRORS = 1 << 4,
        PORT_RCV_SWITCH_RELAY_ERRORS = 1 << 5,
        PORT_XMIT_DISCARDS = 1 << 6,
        PORT_XMIT_CONSTRAINT_ERRORS = 1 << 7,
        PORT_RCV_CONSTRAINT_ERRORS = 1 << 8,
        LOCAL_LINK_INTEGRITY_ERRORS = 1 << 9,
        EXCESSIVE_BUFFER_OVERRUN_ERRORS = 1 << 10,
        VL15_DROPPED = 1 << 11,
        PORT_XMIT_DATA = 1 << 12,
        PORT_RCV_DATA = 1 << 13,
        PORT_XMIT_PKTS = 1 << 14,
        PORT_RCV_PKTS = 1 << 15,
    }
}

flags! {
    /// Selects the counters of [`PortCounters`] for which [`CounterSelect`] has no bit left.
    pub struct CounterSelect2(u8) {
        PORT_XMIT_WAIT = 1 << 0,
    }
}

flags! {
    /// Selects counters of [`PortCountersExtended`], in their order.
    pub struct CounterSelectExtended(u16) {
        PORT_XMIT_DATA = 1 << 0,
        PORT_RCV_DATA = 1 << 1,
        PORT_XMIT_PKTS = 1 << 2,
        PORT_RCV_PKTS = 1 << 3,
        PORT_UNICAST_XMIT_PKTS = 1 << 4,
        PORT_UNICAST_RCV_PKTS = 1 << 5,
        PORT_MULTICAST_XMIT_PKTS = 1 << 6,
        PORT_MULTICAST_RCV_PKTS = 1 << 7,
    }
}

/// Class-specific capabilities of performance management (IBA 16.1.3.1).
impl ClassCapabilities {
    pub const PERF_EXTENDED_WIDTH: Self = Self(1 << 9);
    pub const PERF_PORT_XMIT_WAIT: Self = Self(1 << 12);
}

attributes!(PortCounters = 0x0012, PortCountersExtended = 0x001d);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_where_the_tools_read_them() {
        let counters = PortCounters {
            port_select: 1,
            counter_select: CounterSelect(0x0203),
            symbol_error_counter: 0x0405,
            link_error_recovery_counter: 6,
            link_downed_counter: 7,
            port_rcv_errors: 0x0809,
            port_rcv_remote_physical_errors: 0x0a0b,
            port_rcv_switch_relay_errors: 0x0c0d,
            port_xmit_discards: 0x0e0f,
            port_xmit_constraint_errors: 0x10,
            port_rcv_constraint_errors: 0x11,
            counter_select2: CounterSelect2(0x12),
            local_link_integrity_errors: 1,
            excessive_buffer_overrun_errors: 3,
            qp1_dropped: 0x1415,
            vl15_dropped: 0x1617,
            port_xmit_data: 0x1819_1a1b,
            port_rcv_data: 0x1c1d_1e1f,
            port_xmit_pkts: 0x2021_2223,
            port_rcv_pkts: 0x2425_2627,
            port_xmit_wait: 0x2829_2a2b,
        };
        let bytes = core::array::from_fn(|i| i as u8);
        assert_eq!(PortCounters::parse(&bytes), counters);
        assert_eq!(counters.emit(), bytes);
    }

    #[test]
    fn extended_counters_are_consecutive() {
        let counters = PortCountersExtended::parse(&core::array::from_fn(|i| i as u8));
        assert_eq!(counters.port_select, 1);
        assert_eq!(counters.counter_select, CounterSelectExtended(0x0203));
        assert_eq!(counters.port_xmit_data, 0x0809_0a0b_0c0d_0e0f);
        assert_eq!(counters.port_rcv_pkts, 0x2021_2223_2425_2627);
        assert_eq!(counters.port_unicast_xmit_pkts, 0x2829_2a2b_2c2d_2e2f);
        assert_eq!(counters.port_multicast_rcv_pkts, 0x4041_4243_4445_4647);
    }
}
