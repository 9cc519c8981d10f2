//! The counters of a port (IBA 16.1.3.5, 16.1.4.11).
//!
//! Why one counter for two attributes: [`PortCounters`] has short counters that stop at their
//! highest value, [`PortCountersExtended`] long ones, and each is set by itself. Here is one long
//! counter for both, and beside it where the short one began, so that a packet costs one addition.

use pollux_wire::mad::perf::{
    CounterSelect, CounterSelect2, CounterSelectExtended, PortCounters, PortCountersExtended,
};

/// A counter under two attributes.
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
    pub fn short(self, max: u64) -> u64 {
        self.value.wrapping_sub(self.base).min(max)
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
    /// Management packets to queue pair 1 that were dropped. No Set selects it.
    pub qp1_dropped: Counter,
    /// Sent, in units of four bytes.
    pub xmit_data: Counter,
    /// Received, in units of four bytes.
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
    /// A packet was sent: its words of four bytes, LRH to ICRC.
    #[inline]
    pub fn sent(&mut self, words: u64, is_multicast: bool) {
        self.sent_many(1, words, is_multicast);
    }

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

    #[inline]
    pub fn received(&mut self, words: u64, is_multicast: bool) {
        self.received_many(1, words, is_multicast);
    }

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

    /// The short counters, without `port_select`.
    pub fn port_counters(&self) -> PortCounters {
        let four = |counter: Counter| counter.short(0xf) as u8;
        let eight = |counter: Counter| counter.short(u8::MAX.into()) as u8;
        let sixteen = |counter: Counter| counter.short(u16::MAX.into()) as u16;
        let all = |counter: Counter| counter.short(u32::MAX.into()) as u32;
        PortCounters {
            symbol_error_counter: sixteen(self.symbol_errors),
            link_error_recovery_counter: eight(self.link_error_recoveries),
            link_downed_counter: eight(self.link_downed),
            port_rcv_errors: sixteen(self.rcv_errors),
            port_rcv_remote_physical_errors: sixteen(self.rcv_remote_physical_errors),
            port_rcv_switch_relay_errors: sixteen(self.rcv_switch_relay_errors),
            port_xmit_discards: sixteen(self.xmit_discards),
            port_xmit_constraint_errors: eight(self.xmit_constraint_errors),
            port_rcv_constraint_errors: eight(self.rcv_constraint_errors),
            local_link_integrity_errors: four(self.local_link_integrity_errors),
            excessive_buffer_overrun_errors: four(self.excessive_buffer_overruns),
            qp1_dropped: sixteen(self.qp1_dropped),
            vl15_dropped: sixteen(self.vl15_dropped),
            port_xmit_data: all(self.xmit_data),
            port_rcv_data: all(self.rcv_data),
            port_xmit_pkts: all(self.xmit_packets),
            port_rcv_pkts: all(self.rcv_packets),
            port_xmit_wait: all(self.xmit_wait),
            ..PortCounters::default()
        }
    }

    /// Sets the short counters that `new` selects.
    pub fn set_port_counters(&mut self, new: &PortCounters) {
        use CounterSelect as Select;
        let rows: [(Select, &mut Counter, u32); 16] = [
            (
                Select::SYMBOL_ERROR_COUNTER,
                &mut self.symbol_errors,
                new.symbol_error_counter.into(),
            ),
            (
                Select::LINK_ERROR_RECOVERY_COUNTER,
                &mut self.link_error_recoveries,
                new.link_error_recovery_counter.into(),
            ),
            (Select::LINK_DOWNED_COUNTER, &mut self.link_downed, new.link_downed_counter.into()),
            (Select::PORT_RCV_ERRORS, &mut self.rcv_errors, new.port_rcv_errors.into()),
            (
                Select::PORT_RCV_REMOTE_PHYSICAL_ERRORS,
                &mut self.rcv_remote_physical_errors,
                new.port_rcv_remote_physical_errors.into(),
            ),
            (
                Select::PORT_RCV_SWITCH_RELAY_ERRORS,
                &mut self.rcv_switch_relay_errors,
                new.port_rcv_switch_relay_errors.into(),
            ),
            (Select::PORT_XMIT_DISCARDS, &mut self.xmit_discards, new.port_xmit_discards.into()),
            (
                Select::PORT_XMIT_CONSTRAINT_ERRORS,
                &mut self.xmit_constraint_errors,
                new.port_xmit_constraint_errors.into(),
            ),
            (
                Select::PORT_RCV_CONSTRAINT_ERRORS,
                &mut self.rcv_constraint_errors,
                new.port_rcv_constraint_errors.into(),
            ),
            (
                Select::LOCAL_LINK_INTEGRITY_ERRORS,
                &mut self.local_link_integrity_errors,
                new.local_link_integrity_errors.into(),
            ),
            (
                Select::EXCESSIVE_BUFFER_OVERRUN_ERRORS,
                &mut self.excessive_buffer_overruns,
                new.excessive_buffer_overrun_errors.into(),
            ),
            (Select::VL15_DROPPED, &mut self.vl15_dropped, new.vl15_dropped.into()),
            (Select::PORT_XMIT_DATA, &mut self.xmit_data, new.port_xmit_data),
            (Select::PORT_RCV_DATA, &mut self.rcv_data, new.port_rcv_data),
            (Select::PORT_XMIT_PKTS, &mut self.xmit_packets, new.port_xmit_pkts),
            (Select::PORT_RCV_PKTS, &mut self.rcv_packets, new.port_rcv_pkts),
        ];
        for (select, counter, value) in rows {
            if new.counter_select.contains(select) {
                counter.set_short(value.into());
            }
        }
        if new.counter_select2.contains(CounterSelect2::PORT_XMIT_WAIT) {
            self.xmit_wait.set_short(new.port_xmit_wait.into());
        }
    }

    pub fn port_counters_extended(&self) -> PortCountersExtended {
        PortCountersExtended {
            port_xmit_data: self.xmit_data.long(),
            port_rcv_data: self.rcv_data.long(),
            port_xmit_pkts: self.xmit_packets.long(),
            port_rcv_pkts: self.rcv_packets.long(),
            port_unicast_xmit_pkts: self.unicast_xmit_packets.long(),
            port_unicast_rcv_pkts: self.unicast_rcv_packets.long(),
            port_multicast_xmit_pkts: self.multicast_xmit_packets.long(),
            port_multicast_rcv_pkts: self.multicast_rcv_packets.long(),
            ..PortCountersExtended::default()
        }
    }

    pub fn set_port_counters_extended(&mut self, new: &PortCountersExtended) {
        use CounterSelectExtended as Select;
        for (select, counter, value) in [
            (Select::PORT_XMIT_DATA, &mut self.xmit_data, new.port_xmit_data),
            (Select::PORT_RCV_DATA, &mut self.rcv_data, new.port_rcv_data),
            (Select::PORT_XMIT_PKTS, &mut self.xmit_packets, new.port_xmit_pkts),
            (Select::PORT_RCV_PKTS, &mut self.rcv_packets, new.port_rcv_pkts),
            (
                Select::PORT_UNICAST_XMIT_PKTS,
                &mut self.unicast_xmit_packets,
                new.port_unicast_xmit_pkts,
            ),
            (
                Select::PORT_UNICAST_RCV_PKTS,
                &mut self.unicast_rcv_packets,
                new.port_unicast_rcv_pkts,
            ),
            (
                Select::PORT_MULTICAST_XMIT_PKTS,
                &mut self.multicast_xmit_packets,
                new.port_multicast_xmit_pkts,
            ),
            (
                Select::PORT_MULTICAST_RCV_PKTS,
                &mut self.multicast_rcv_packets,
                new.port_multicast_rcv_pkts,
            ),
        ] {
            if new.counter_select.contains(select) {
                counter.set_long(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_counters_stop_where_they_are_full() {
        let mut counters = Counters::default();
        counters.sent(u64::from(u32::MAX) + 1, false);
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
    fn the_views_are_set_apart() {
        let mut counters = Counters::default();
        counters.received(100, true);
        let select = CounterSelect::PORT_RCV_DATA;
        let new =
            PortCounters { counter_select: select, port_rcv_data: 7, ..PortCounters::default() };
        counters.set_port_counters(&new);
        counters.received(1, false);
        assert_eq!(counters.port_counters().port_rcv_data, 8);
        assert_eq!(counters.port_counters().port_rcv_pkts, 2, "not selected");
        let long = counters.port_counters_extended();
        assert_eq!((long.port_rcv_data, long.port_multicast_rcv_pkts), (101, 1));
        counters.set_port_counters_extended(&PortCountersExtended {
            counter_select: CounterSelectExtended(0xff),
            ..PortCountersExtended::default()
        });
        counters.received(2, false);
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
