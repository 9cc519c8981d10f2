//! The counters of a port (IBA 16.1.3.5, 16.1.4.11).
//!
//! Why one counter for two attributes: [`PortCounters`] has short counters that stop at their
//! maximum, and [`PortCountersExtended`] has long counters. A Set of one does not change the other.
//! A [`Counter`] has the long value and the offset of the short value, so that a packet costs one
//! addition.

use pollux_wire::mad::perf::{
    CounterSelect, CounterSelect2, CounterSelectExtended, PortCounters, PortCountersExtended,
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    value: u64,
    /// The value at which the short counter was 0.
    base: u64,
}

impl Counter {
    #[inline]
    pub fn add(&mut self, count: u64) {
        self.value = self.value.wrapping_add(count);
    }

    pub fn long(self) -> u64 {
        self.value
    }

    /// The short counter, which stops at `max`.
    fn short<T: Copy + Ord + TryFrom<u64>>(self, max: T) -> T {
        T::try_from(self.value.wrapping_sub(self.base)).map_or(max, |value| value.min(max))
    }

    fn set_short(&mut self, value: u64) {
        self.base = self.value.wrapping_sub(value);
    }

    fn set_long(&mut self, value: u64) {
        let short = self.value.wrapping_sub(self.base);
        self.value = value;
        self.base = value.wrapping_sub(short);
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub symbol_errors: Counter,
    pub link_error_recoveries: Counter,
    pub link_downed: Counter,
    pub rcv_errors: Counter,
    pub rcv_remote_physical_errors: Counter,
    pub rcv_switch_relay_errors: Counter,
    pub xmit_discards: Counter,
    pub xmit_constraint_errors: Counter,
    pub rcv_constraint_errors: Counter,
    pub local_link_integrity_errors: Counter,
    pub excessive_buffer_overruns: Counter,
    pub vl15_dropped: Counter,
    /// Dropped management packets to queue pair 1. A Set cannot select this counter.
    pub qp1_dropped: Counter,
    /// Data sent, in units of four bytes.
    pub xmit_data: Counter,
    /// Data received, in units of four bytes.
    pub rcv_data: Counter,
    pub xmit_packets: Counter,
    pub rcv_packets: Counter,
    /// Ticks in which a packet waited for credits.
    pub xmit_wait: Counter,
    pub unicast_xmit_packets: Counter,
    pub unicast_rcv_packets: Counter,
    pub multicast_xmit_packets: Counter,
    pub multicast_rcv_packets: Counter,
}

impl Counters {
    /// Counts sent packets and their words of four bytes, LRH to ICRC.
    #[inline]
    pub fn sent_many(&mut self, packets: u64, words: u64, is_multicast: bool) {
        self.xmit_packets.add(packets);
        self.xmit_data.add(words);
        let kind = if is_multicast {
            &mut self.multicast_xmit_packets
        } else {
            &mut self.unicast_xmit_packets
        };
        kind.add(packets);
    }

    /// Counts received packets and their words of four bytes, LRH to ICRC.
    #[inline]
    pub fn received_many(&mut self, packets: u64, words: u64, is_multicast: bool) {
        self.rcv_packets.add(packets);
        self.rcv_data.add(words);
        let kind = if is_multicast {
            &mut self.multicast_rcv_packets
        } else {
            &mut self.unicast_rcv_packets
        };
        kind.add(packets);
    }

    /// The long counters, by the names of the files in `/sys/class/infiniband/*/ports/*/counters`.
    pub fn by_linux_name(&self) -> [(&'static str, u64); 21] {
        [
            ("symbol_error", self.symbol_errors),
            ("link_error_recovery", self.link_error_recoveries),
            ("link_downed", self.link_downed),
            ("port_rcv_errors", self.rcv_errors),
            ("port_rcv_remote_physical_errors", self.rcv_remote_physical_errors),
            ("port_rcv_switch_relay_errors", self.rcv_switch_relay_errors),
            ("port_xmit_discards", self.xmit_discards),
            ("port_xmit_constraint_errors", self.xmit_constraint_errors),
            ("port_rcv_constraint_errors", self.rcv_constraint_errors),
            ("local_link_integrity_errors", self.local_link_integrity_errors),
            ("excessive_buffer_overrun_errors", self.excessive_buffer_overruns),
            ("VL15_dropped", self.vl15_dropped),
            ("port_xmit_data", self.xmit_data),
            ("port_rcv_data", self.rcv_data),
            ("port_xmit_packets", self.xmit_packets),
            ("port_rcv_packets", self.rcv_packets),
            ("port_xmit_wait", self.xmit_wait),
            ("unicast_xmit_packets", self.unicast_xmit_packets),
            ("unicast_rcv_packets", self.unicast_rcv_packets),
            ("multicast_xmit_packets", self.multicast_xmit_packets),
            ("multicast_rcv_packets", self.multicast_rcv_packets),
        ]
        .map(|(name, counter)| (name, counter.long()))
    }
}

/// Converts between an attribute and its counters. Each row has a counter, its field in the
/// attribute, the bit that selects it in a Set, and the maximum of a short counter.
macro_rules! attribute {
    (
        $vis:vis $attribute:ident by $select:ident:
            $get:ident, $read:ident, $set:ident, $write:ident;
        $( $counter:ident: $field:ident, $bit:ident $(, $max:expr)?; )*
    ) => {
        /// The attribute without its selectors.
        $vis fn $get(&self) -> $attribute {
            $attribute {
                $( $field: self.$counter.$read($($max)?), )*
                ..$attribute::default()
            }
        }

        /// Sets the counters that `new` selects.
        $vis fn $set(&mut self, new: &$attribute) {
            $(
                if new.counter_select.contains($select::$bit) {
                    self.$counter.$write(new.$field.into());
                }
            )*
        }
    };
}

impl Counters {
    attribute! {
        PortCounters by CounterSelect: selected, short, set_selected, set_short;
        symbol_errors: symbol_error_counter, SYMBOL_ERROR_COUNTER, u16::MAX;
        link_error_recoveries: link_error_recovery_counter, LINK_ERROR_RECOVERY_COUNTER, u8::MAX;
        link_downed: link_downed_counter, LINK_DOWNED_COUNTER, u8::MAX;
        rcv_errors: port_rcv_errors, PORT_RCV_ERRORS, u16::MAX;
        rcv_remote_physical_errors:
            port_rcv_remote_physical_errors, PORT_RCV_REMOTE_PHYSICAL_ERRORS, u16::MAX;
        rcv_switch_relay_errors:
            port_rcv_switch_relay_errors, PORT_RCV_SWITCH_RELAY_ERRORS, u16::MAX;
        xmit_discards: port_xmit_discards, PORT_XMIT_DISCARDS, u16::MAX;
        xmit_constraint_errors: port_xmit_constraint_errors, PORT_XMIT_CONSTRAINT_ERRORS, u8::MAX;
        rcv_constraint_errors: port_rcv_constraint_errors, PORT_RCV_CONSTRAINT_ERRORS, u8::MAX;
        local_link_integrity_errors:
            local_link_integrity_errors, LOCAL_LINK_INTEGRITY_ERRORS, 0xf;
        excessive_buffer_overruns:
            excessive_buffer_overrun_errors, EXCESSIVE_BUFFER_OVERRUN_ERRORS, 0xf;
        vl15_dropped: vl15_dropped, VL15_DROPPED, u16::MAX;
        xmit_data: port_xmit_data, PORT_XMIT_DATA, u32::MAX;
        rcv_data: port_rcv_data, PORT_RCV_DATA, u32::MAX;
        xmit_packets: port_xmit_pkts, PORT_XMIT_PKTS, u32::MAX;
        rcv_packets: port_rcv_pkts, PORT_RCV_PKTS, u32::MAX;
    }

    attribute! {
        pub PortCountersExtended by CounterSelectExtended:
            port_counters_extended, long, set_port_counters_extended, set_long;
        xmit_data: port_xmit_data, PORT_XMIT_DATA;
        rcv_data: port_rcv_data, PORT_RCV_DATA;
        xmit_packets: port_xmit_pkts, PORT_XMIT_PKTS;
        rcv_packets: port_rcv_pkts, PORT_RCV_PKTS;
        unicast_xmit_packets: port_unicast_xmit_pkts, PORT_UNICAST_XMIT_PKTS;
        unicast_rcv_packets: port_unicast_rcv_pkts, PORT_UNICAST_RCV_PKTS;
        multicast_xmit_packets: port_multicast_xmit_pkts, PORT_MULTICAST_XMIT_PKTS;
        multicast_rcv_packets: port_multicast_rcv_pkts, PORT_MULTICAST_RCV_PKTS;
    }

    /// The short counters, without their selectors.
    pub fn port_counters(&self) -> PortCounters {
        PortCounters {
            qp1_dropped: self.qp1_dropped.short(u16::MAX),
            port_xmit_wait: self.xmit_wait.short(u32::MAX),
            ..self.selected()
        }
    }

    pub fn set_port_counters(&mut self, new: &PortCounters) {
        self.set_selected(new);
        if new.counter_select2.contains(CounterSelect2::PORT_XMIT_WAIT) {
            self.xmit_wait.set_short(new.port_xmit_wait.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_counters_stop_where_they_are_full() {
        let mut counters = Counters::default();
        counters.sent_many(1, u64::from(u32::MAX) + 1, false);
        counters.local_link_integrity_errors.add(16);
        counters.link_downed.add(255);
        counters.rcv_errors.add(70_000);
        let short = counters.port_counters();
        assert_eq!((short.port_xmit_data, short.port_xmit_pkts), (u32::MAX, 1));
        assert_eq!(short.local_link_integrity_errors, 15);
        assert_eq!((short.link_downed_counter, short.port_rcv_errors), (255, u16::MAX));
        assert_eq!(counters.port_counters_extended().port_xmit_data, 1 << 32);
    }

    #[test]
    fn short_and_long_counters_are_set_apart() {
        let mut counters = Counters::default();
        counters.received_many(1, 100, true);
        let select = CounterSelect::PORT_RCV_DATA;
        let new =
            PortCounters { counter_select: select, port_rcv_data: 7, ..PortCounters::default() };
        counters.set_port_counters(&new);
        counters.received_many(1, 1, false);
        assert_eq!(counters.port_counters().port_rcv_data, 8);
        assert_eq!(counters.port_counters().port_rcv_pkts, 2, "not selected");
        let long = counters.port_counters_extended();
        assert_eq!((long.port_rcv_data, long.port_multicast_rcv_pkts), (101, 1));
        counters.set_port_counters_extended(&PortCountersExtended {
            counter_select: CounterSelectExtended(0xff),
            ..PortCountersExtended::default()
        });
        counters.received_many(1, 2, false);
        assert_eq!(counters.port_counters_extended().port_rcv_data, 2);
        assert_eq!(counters.port_counters().port_rcv_data, 10);
    }

    #[test]
    fn every_counter_can_be_selected() {
        let mut counters = Counters::default();
        let full = PortCounters {
            counter_select: CounterSelect(0xffff),
            counter_select2: CounterSelect2(1),
            ..PortCounters::parse(&[0xff; 44])
        };
        counters.set_port_counters(&full);
        let kept = PortCounters { port_select: full.port_select, ..counters.port_counters() };
        let selects = (full.counter_select, full.counter_select2);
        let expected = PortCounters { qp1_dropped: 0, ..full };
        assert_eq!(
            PortCounters { counter_select: selects.0, counter_select2: selects.1, ..kept },
            expected
        );
    }
}
