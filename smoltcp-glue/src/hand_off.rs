//! Hand-off of packets between the workers of an interface: a byte ring for each ordered pair of
//! workers.
//!
//! A peer with as many workers as this host sends every connected-mode packet to the worker of its
//! flow. A peer with fewer workers, such as Linux with one connection, does not. All UD packets
//! arrive at the primary worker. A worker copies a packet of another worker's flow into the ring to
//! that worker, which handles the packet as if it had received it. A record in a ring is four bytes
//! of length, then the packet. A packet that does not fit is dropped, as on a link, and counted.

use crate::stack::FlowShard;
use pollux_dataplane::flow::FlowSteering;
use pollux_dataplane::headers::PacketHeaders;
use pollux_mem::byte_ring::{self, Reader, Writer};

/// Bytes of a ring: several TCP windows.
const RING_BYTES: usize = 2 << 20;
const LEN_BYTES: usize = 4;
/// Packets received from one worker before the next.
const BURST_MAX: usize = 64;

/// Counters of the hand-offs of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandOffCounts {
    /// Packets handed off to other workers.
    pub sent: u64,
    /// Packets received from other workers.
    pub received: u64,
    /// Packets of other workers that did not fit in the ring.
    pub dropped: u64,
}

pub(crate) struct HandOff {
    pub(crate) shard: FlowShard,
    /// Indexed by worker. The ring of a worker to itself is never written.
    to: Vec<Writer>,
    from: Vec<Reader>,
    /// Workers with hand-offs since the last [`HandOff::take_to_wake`], one bit each.
    to_wake: u32,
    scratch: Vec<u8>,
    pub(crate) counts: HandOffCounts,
}

/// The hand-offs of all workers, in order; empty if there is only one worker.
pub(crate) fn among(steering: FlowSteering) -> Vec<HandOff> {
    let of = |worker| HandOff {
        shard: FlowShard { steering, worker },
        to: Vec::new(),
        from: Vec::new(),
        to_wake: 0,
        scratch: Vec::new(),
        counts: HandOffCounts::default(),
    };
    let mut all: Vec<_> = match steering {
        FlowSteering::SINGLE => Vec::new(),
        _ => (0..steering.workers()).map(of).collect(),
    };
    for from in 0..all.len() {
        for to in 0..all.len() {
            let (writer, reader) = byte_ring::ring(RING_BYTES).expect("it is a power of two");
            all[from].to.push(writer);
            all[to].from.push(reader);
        }
    }
    all
}

impl HandOff {
    /// Hands a received packet off if its flow belongs to another worker; returns whether it does.
    #[inline]
    pub(crate) fn steer(&mut self, headers: &PacketHeaders, packet: &[u8]) -> bool {
        let target = self.shard.steering.received(headers, packet);
        let is_others = target != self.shard.worker;
        if is_others {
            self.send(target, packet);
        }
        is_others
    }

    fn send(&mut self, target: u8, packet: &[u8]) {
        let len = (packet.len() as u32).to_ne_bytes();
        if self.to[usize::from(target)].write_whole(&[&len, packet]) {
            self.counts.sent += 1;
            self.to_wake |= 1 << target;
        } else {
            self.counts.dropped += 1;
        }
    }

    /// Passes packets from other workers to `show`; returns whether there were any.
    pub(crate) fn receive(&mut self, mut show: impl FnMut(&[u8])) -> bool {
        let before = self.counts.received;
        for ring in &mut self.from {
            let mut len = [0; LEN_BYTES];
            for _ in 0..BURST_MAX {
                if !ring.peek(0, &mut len) {
                    break;
                }
                let len = u32::from_ne_bytes(len) as usize;
                self.scratch.resize(len.max(self.scratch.len()), 0);
                let is_there = ring.peek(LEN_BYTES, &mut self.scratch[..len]);
                debug_assert!(is_there, "a packet is written at once");
                ring.skip(LEN_BYTES + len);
                self.counts.received += 1;
                show(&self.scratch[..len]);
            }
        }
        self.counts.received > before
    }

    /// Takes the set of workers with new hand-offs, one bit each. The caller wakes them.
    pub(crate) const fn take_to_wake(&mut self) -> u32 {
        std::mem::replace(&mut self.to_wake, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::ip::IpProtocol;
    use pollux_wire::ip::ipv4::Ipv4Header;

    fn three() -> Vec<HandOff> {
        among(FlowSteering::among(3))
    }

    fn taken(one: &mut HandOff) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while one.receive(|packet| all.push(packet.to_vec())) {}
        all
    }

    #[test]
    fn packets_reach_the_worker_they_are_sent_to() {
        let mut all = three();
        assert!(taken(&mut all[2]).is_empty());
        for round in 0..1000_u32 {
            let packet = vec![round as u8; (round as usize * 131) % 65_521];
            all[0].send(2, &packet);
            all[1].send(2, &[9]);
            assert_eq!(all[0].take_to_wake(), 0b100);
            assert_eq!(all[0].take_to_wake(), 0);
            assert_eq!(taken(&mut all[2]), [packet, vec![9]]);
        }
        assert!(taken(&mut all[0]).is_empty() && taken(&mut all[1]).is_empty());
        assert_eq!(all[0].counts, HandOffCounts { sent: 1000, ..HandOffCounts::default() });
        assert_eq!(all[2].counts, HandOffCounts { received: 2000, ..HandOffCounts::default() });
    }

    #[test]
    fn a_packet_that_does_not_fit_is_dropped_and_counted() {
        let mut all = three();
        let packet = vec![7; 65_520];
        for _ in 0..100 {
            all[0].send(1, &packet);
        }
        let counts = all[0].counts;
        assert_eq!(counts.sent, (RING_BYTES / (packet.len() + LEN_BYTES)) as u64);
        assert_eq!(counts.sent + counts.dropped, 100);
        // Another worker has its own ring.
        all[2].send(1, &packet);
        assert_eq!(taken(&mut all[1]).len() as u64, counts.sent + 1);
        all[0].send(1, &packet);
        assert_eq!(taken(&mut all[1]), [packet]);
    }

    #[test]
    fn only_packets_of_other_workers_are_handed_off() {
        let mut all = three();
        let mut datagram = vec![0; 28];
        let protocol = IpProtocol::UDP;
        Ipv4Header { protocol, ..Default::default() }.write_packet(&[], 8, &mut datagram).unwrap();
        let headers = PacketHeaders::parse_ip(&datagram).unwrap();
        for port in 0..100_u16 {
            datagram[22..24].copy_from_slice(&port.to_be_bytes());
            let target = all[0].shard.steering.port(port);
            for giver in 0..3 {
                assert_eq!(all[usize::from(giver)].steer(&headers, &datagram), giver != target);
            }
            assert_eq!(taken(&mut all[usize::from(target)]), vec![datagram.clone(); 2]);
        }
        // A packet without a flow belongs to the primary worker.
        let mut other = headers;
        other.protocol = IpProtocol::ICMPV4;
        assert!(!all[0].steer(&other, &datagram) && all[1].steer(&other, &datagram));
    }
}
