//! The adapters at the ends of a net: several may share a port, each at a seat of its own.
//!
//! What comes for a port is for the adapter that the destination's queue pair is of. Management,
//! and numbers that nobody at the port gave out, are the first one's; what goes to a group comes to
//! all, as each knows its members.

use super::Net;
use crate::frame::Frame;
use crate::hca::SEATS_MAX;
use crate::hca::qpn::seat_of;
use crate::lend::Lender;
use crate::node::NodeDrop;
use crate::topology::End;
use pollux_wire::address::Qpn;
use pollux_wire::packet::Packet;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Frames that have come for an adapter and that it has not taken. More are dropped, as by an
/// adapter that is too slow for its link.
pub const ARRIVED_FRAMES_MAX: usize = 1 << 16;
/// And their bytes; one frame may have more. A process that is stopped costs the fabric so much.
pub const ARRIVED_BYTES_MAX: usize = 32 << 20;

/// Where an adapter is: at a port, and which one of those that share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seat {
    /// The port.
    pub end: End,
    /// 0 is the first, which management comes to; below [`SEATS_MAX`].
    pub number: u8,
}

impl From<End> for Seat {
    /// The first one's.
    fn from(end: End) -> Self {
        Self { end, number: 0 }
    }
}

/// The adapters at a port, by seat.
pub(super) type Seats = BTreeMap<u8, Attached>;

/// An adapter at its seat.
#[derive(Default)]
pub(super) struct Attached {
    /// What has come, each with the seat that it comes from.
    arrived: VecDeque<(Seat, Frame)>,
    /// Bytes of those.
    bytes: usize,
    /// How many there have been in all.
    came: u64,
    lender: Option<Arc<Lender>>,
}

impl Net {
    /// Puts an adapter to a port.
    pub fn attach(&mut self, at: impl Into<Seat>, lender: &Arc<Lender>) {
        self.seated(at.into()).lender = Some(lender.clone());
    }

    /// Puts an adapter to a port that lends nothing in this process.
    pub fn claim(&mut self, at: impl Into<Seat>) {
        self.seated(at.into());
    }

    fn seated(&mut self, at: Seat) -> &mut Attached {
        self.adapters.entry(at.end).or_default().entry(at.number).or_default()
    }

    /// The adapter at a seat is no more, and what had come for it is lost.
    pub fn detach(&mut self, at: impl Into<Seat>) {
        let at = at.into();
        let Some(seats) = self.adapters.get_mut(&at.end) else { return };
        let lost = seats.remove(&at.number).map_or(0, |adapter| adapter.arrived.len());
        self.waiting -= lost;
        if seats.is_empty() {
            self.adapters.remove(&at.end);
        }
    }

    /// Whether an adapter is at an end, here or in a process of its own.
    pub fn has_adapter(&self, end: End) -> bool {
        self.adapters.contains_key(&end)
    }

    /// A seat beside the first of a port; none if all are taken.
    pub fn free_seat(&self, end: End) -> Option<Seat> {
        let is_taken =
            |number: &u8| self.adapters.get(&end).is_some_and(|at| at.contains_key(number));
        (1..SEATS_MAX).find(|number| !is_taken(number)).map(|number| Seat { end, number })
    }

    /// What the adapter at a seat lends.
    pub fn lender(&self, at: impl Into<Seat>) -> Option<Arc<Lender>> {
        let at = at.into();
        self.adapters.get(&at.end)?.get(&at.number)?.lender.clone()
    }

    /// The next thing that has come for an adapter, and where from.
    pub fn take(&mut self, at: impl Into<Seat>) -> Option<(Seat, Frame)> {
        let at = at.into();
        let adapter = self.adapters.get_mut(&at.end)?.get_mut(&at.number)?;
        let (from, frame) = adapter.arrived.pop_front()?;
        adapter.bytes -= frame.kept_bytes();
        self.waiting -= 1;
        Some((from, frame))
    }

    /// How many frames have come for the adapter at a seat since it is there, taken or not.
    pub fn came(&self, at: impl Into<Seat>) -> u64 {
        let at = at.into();
        let adapter = self.adapters.get(&at.end).and_then(|seats| seats.get(&at.number));
        adapter.map_or(0, |adapter| adapter.came)
    }

    /// How many frames have arrived that no adapter has taken yet.
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many of them the adapters at a port have not taken.
    pub fn waiting_at(&self, end: End) -> usize {
        let seats = self.adapters.get(&end).into_iter().flat_map(BTreeMap::values);
        seats.map(|adapter| adapter.arrived.len()).sum()
    }

    /// To the adapter at an end that it is for.
    pub(super) fn hand_over(&mut self, to: End, origin: Seat, frame: Frame) {
        let has_others = |seats: &BTreeMap<u8, _>| seats.keys().any(|number| *number > 0);
        if !self.adapters.get(&to).is_some_and(has_others) {
            return self.put_at(to.into(), origin, frame);
        }
        let dest_qp = frame.dest_qp();
        if dest_qp == Qpn::MULTICAST {
            return self.hand_round(to, origin, &frame);
        }
        self.put_at(Seat { end: to, number: seat_of(dest_qp) }, origin, frame);
    }

    /// To all adapters at an end but the one that sent it.
    fn hand_round(&mut self, to: End, origin: Seat, frame: &Frame) {
        let seats = self.adapters.get(&to).into_iter().flat_map(BTreeMap::keys);
        let seats: Vec<Seat> = seats.map(|number| Seat { end: to, number: *number }).collect();
        for seat in seats.into_iter().filter(|seat| *seat != origin) {
            self.put_at(seat, origin, frame.clone());
        }
    }

    fn put_at(&mut self, seat: Seat, origin: Seat, frame: Frame) {
        let seats = self.adapters.get_mut(&seat.end);
        let reason = match seats.and_then(|seats| seats.get_mut(&seat.number)) {
            Some(adapter) if adapter.has_room(&frame) => {
                adapter.bytes += frame.kept_bytes();
                adapter.came += 1;
                adapter.arrived.push_back((origin, frame));
                self.waiting += 1;
                return;
            }
            Some(_) => NodeDrop::Full,
            None => NodeDrop::Unclaimed,
        };
        self.subnet.node_mut(seat.end.node).drops.count(reason);
    }

    /// What an adapter sends to others at its own port never leaves it. Says whether that was all.
    pub(super) fn turn_round(&mut self, from: Seat, frame: &Frame) -> bool {
        if self.adapters.get(&from.end).is_none_or(|seats| seats.len() == 1) {
            return false;
        }
        let dlid = frame.dlid();
        if dlid.is_multicast() && frame.dest_qp() == Qpn::MULTICAST {
            self.hand_round(from.end, from, frame);
            return false;
        }
        let is_own = self.subnet.nodes()[from.end.node as usize].has_lid(from.end.port, dlid);
        if is_own {
            self.hand_over(from.end, from, frame.clone());
        }
        is_own
    }
}

impl Attached {
    fn has_room(&self, frame: &Frame) -> bool {
        let has_bytes = self.bytes + frame.kept_bytes() <= ARRIVED_BYTES_MAX;
        self.arrived.len() < ARRIVED_FRAMES_MAX && (has_bytes || self.arrived.is_empty())
    }
}

impl Frame {
    /// Bytes that it takes up while it waits, those lent left out.
    fn kept_bytes(&self) -> usize {
        match self {
            Self::Message(message) => message.payload().len(),
            Self::Packet(bytes) => bytes.len(),
        }
    }

    /// The queue pair that it is for; what says none is for management.
    fn dest_qp(&self) -> Qpn {
        match self {
            Self::Message(message) => message.head_words().dest_qp,
            Self::Packet(bytes) => {
                Packet::parse(bytes).map_or(Qpn::SMI, |packet| packet.bth().dest_qp)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::world::Wire;
    use crate::subnet::Subnet;
    use crate::topology::Topology;

    const END: End = End { node: 1, port: 1 };

    fn net() -> Net {
        let mut net =
            Net::new(Subnet::new(Topology::generate("single:2", 1).unwrap()), 1, Wire::default());
        net.claim(END);
        net
    }

    fn message(bytes: usize) -> Frame {
        Frame::message(&[0; 3], bytes, |all| all.fill(0))
    }

    fn full(net: &Net) -> u64 {
        net.subnet().nodes()[END.node as usize].drops.of(NodeDrop::Full)
    }

    #[test]
    fn frames_that_nobody_takes_are_kept_up_to_so_many_bytes() {
        let (mut net, bytes) = (net(), 4096);
        let room = ARRIVED_BYTES_MAX / bytes;
        (0..room + 3).for_each(|_| net.put_at(END.into(), END.into(), message(bytes)));
        assert_eq!((full(&net), net.came(END)), (3, room as u64));
        assert!(net.take(END).is_some(), "then there is room again, for one");
        (0..2).for_each(|_| net.put_at(END.into(), END.into(), message(bytes)));
        assert_eq!((full(&net), net.came(END)), (4, room as u64 + 1));
        while net.take(END).is_some() {}
        net.put_at(END.into(), END.into(), message(2 * ARRIVED_BYTES_MAX));
        assert_eq!(full(&net), 4, "one frame may have more");
        net.put_at(END.into(), END.into(), message(1));
        assert_eq!(full(&net), 5);
    }

    #[test]
    fn frames_that_nobody_takes_are_kept_up_to_so_many() {
        let mut net = net();
        (0..ARRIVED_FRAMES_MAX + 3).for_each(|_| net.put_at(END.into(), END.into(), message(0)));
        assert_eq!((full(&net), net.came(END)), (3, ARRIVED_FRAMES_MAX as u64));
        net.detach(END);
        assert_eq!(net.waiting(), 0);
    }
}
