//! Frames over links: departure time, faults, and arrival time.
//!
//! If links have a rate, a frame waits at its port until VL arbitration selects its lane and the
//! other end of the link has credits ([`Egress`]). The frame holds these credits until it has left
//! the node at the other end, or is lost.

use super::egress::Egress;
use super::flight::{Flight, HeldCredits};
use super::{Event, HOPS_MAX, Net};
use crate::link::Wire;
use crate::node::NodeDrop;
use crate::time::Time;
use crate::topology::End;
use pollux_hca::Frame;
use pollux_wire::units::Rate;
use std::sync::Arc;
use std::time::Duration;

impl Net {
    /// Sends a frame from its current port. If links have a rate, the frame queues there first.
    pub(super) fn transmit(&mut self, now: Time, flight: Flight) {
        let from = flight.to;
        let is_up = self.subnet.port(from).is_linked();
        if !is_up || flight.hops >= HOPS_MAX {
            self.count_drop(from, if is_up { NodeDrop::NoRoute } else { NodeDrop::PortState });
            return self.release(now, flight.credits);
        }
        if !self.is_paced {
            return self.send_on_link(now, Duration::ZERO, flight);
        }
        let lane = flight.frame.lane();
        let egress = self.egress.entry(from).or_insert_with(|| {
            self.egresses_created += 1;
            Egress::new(self.egresses_created)
        });
        if !egress.has_space(lane) {
            self.subnet.port_mut(from).counters.vl15_dropped.add(1);
            self.count_drop(from, NodeDrop::Full);
            return self.release(now, flight.credits);
        }
        egress.push(lane, flight);
        self.pump(now, from);
    }

    /// Sends the next frame that waits at a port, if it may leave now.
    pub(super) fn pump(&mut self, now: Time, from: End) {
        let Some(egress) = self.egress.get_mut(&from) else { return };
        let port = self.subnet.port_mut(from);
        let (next, waited) = egress.pop(now, port.arbitration.as_deref(), port.info.vl_high_limit);
        let megabits = port.info.rate().and_then(Rate::megabits).unwrap_or(2_500).into();
        // A tick of PortXmitWait is the time of one word of 32 bits.
        port.counters.xmit_wait.add(waited.saturating_mul(megabits) / 32_000);
        let Some((lane, mut flight)) = next else { return };
        let bytes = flight.bytes();
        let serialization_time = Duration::from_nanos((bytes * 8_000).div_ceil(megabits));
        let number = egress.number;
        egress.free_at = now + serialization_time;
        self.schedule(now + serialization_time, Event::Pump(from));
        let held =
            flight.credits.replace(Arc::new(HeldCredits { from, egress: number, lane, bytes }));
        self.release(now, held);
        self.send_on_link(now, serialization_time, flight);
    }

    /// Returns the credits of a frame at its input port, once all its copies have released them.
    pub(super) fn release(&mut self, now: Time, credits: Option<Arc<HeldCredits>>) {
        let Some(credits) = credits.and_then(Arc::into_inner) else { return };
        if let Some(egress) = self.egress.get_mut(&credits.from)
            && egress.number == credits.egress
        {
            egress.return_credits(credits.lane, credits.bytes);
            self.pump(now, credits.from);
        }
    }

    /// Sends a frame over the link at its current port, and counts it there.
    fn send_on_link(&mut self, now: Time, serialization_time: Duration, mut flight: Flight) {
        let from = flight.to;
        let (packets, words) = flight.frame.size();
        let is_multicast = flight.frame.dlid().is_multicast();
        self.subnet.port_mut(from).counters.sent_many(packets, words, is_multicast);
        let peer = self.subnet.topology().peer(from).map(|(peer, _)| peer);
        flight.leaves_fabric = peer.is_none() && self.foreign.contains_key(&from);
        if peer.is_none() && !flight.leaves_fabric {
            return self.release(now, flight.credits);
        }
        let wire = *self.wire_at(from);
        flight.to = peer.unwrap_or(from);
        flight.hops += 1;
        self.apply_faults(now, from, serialization_time, &wire, flight);
    }

    /// Applies the tap and the faults of a link to a frame, and schedules the arrival of each copy.
    pub(super) fn apply_faults(
        &mut self,
        now: Time,
        from: End,
        serialization_time: Duration,
        wire: &Wire,
        mut flight: Flight,
    ) {
        let Frame::Packet(bytes) = &mut flight.frame else {
            return self.schedule_arrival(now + serialization_time, wire, Duration::ZERO, flight);
        };
        if let Some(tap) = &mut self.tap {
            tap(now, from, bytes);
        }
        let mut fate = wire.faults.decide(&mut self.rng, bytes.len());
        if let Some(bit) = fate.flipped_bit {
            bytes[bit / 8] ^= 0x80 >> (bit % 8);
        }
        // A frame that is lost on the link returns its credits at once. The last copy is the frame
        // itself.
        let Some(last) = fate.delays.pop() else { return self.release(now, flight.credits) };
        for delay in fate.delays {
            self.schedule_arrival(now + serialization_time, wire, delay, flight.clone());
        }
        self.schedule_arrival(now + serialization_time, wire, last, flight);
    }

    fn schedule_arrival(&mut self, sent: Time, wire: &Wire, delay: Duration, flight: Flight) {
        let jitter = self.rng.duration(wire.jitter);
        let latest = self.latest.entry(flight.to).or_insert(Time::START);
        *latest = (*latest).max(sent + wire.latency + jitter);
        let at = *latest + delay;
        self.schedule(at, Event::Arrive(flight));
    }

    fn schedule(&mut self, at: Time, event: Event) {
        self.scheduled += 1;
        self.events.insert((at, self.scheduled), event);
    }
}
