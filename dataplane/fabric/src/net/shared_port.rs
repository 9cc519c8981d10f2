//! The adapters at the ports of a net. Several can share a port, each with its own shared-port
//! context.
//!
//! The destination QPN of a frame contains the number of the context. Management is delivered to
//! context 0. Multicast is delivered to every context; each adapter filters by its own attachments.

use super::Net;
use crate::node::NodeDrop;
use crate::topology::End;
use pollux_hca::{Frame, LeaseTable, PORT_CONTEXTS_MAX, context_of};
use pollux_wire::address::Qpn;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Arrived frames that may wait for an adapter. Further frames are dropped, as by an adapter that
/// is too slow for its link.
pub const ARRIVED_FRAMES_MAX: usize = 1 << 16;
/// Bytes of the frames that wait for an adapter, at most; a single frame may be larger. The limit
/// bounds the memory that a stopped process costs.
pub const ARRIVED_BYTES_MAX: usize = 32 << 20;

/// The location of an adapter: a port, and its shared-port context there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortContext {
    pub end: End,
    /// The vHCA index, below [`PORT_CONTEXTS_MAX`]. Context 0 gets management datagrams.
    pub vhca_index: u8,
}

impl From<End> for PortContext {
    /// Context 0.
    fn from(end: End) -> Self {
        Self { end, vhca_index: 0 }
    }
}

pub(super) type SharedPort = BTreeMap<u8, AttachedAdapter>;

#[derive(Default)]
pub(super) struct AttachedAdapter {
    /// Frames that have arrived, each with the context that sent it.
    arrived: VecDeque<(PortContext, Frame)>,
    /// Their total length.
    bytes: usize,
    arrivals: u64,
    leases: Option<Arc<LeaseTable>>,
}

impl Net {
    pub fn attach(&mut self, at: impl Into<PortContext>, leases: &Arc<LeaseTable>) {
        self.attach_slot(at.into()).leases = Some(leases.clone());
    }

    /// Attaches an adapter whose leases are in another process.
    pub fn claim(&mut self, at: impl Into<PortContext>) {
        self.attach_slot(at.into());
    }

    fn attach_slot(&mut self, at: PortContext) -> &mut AttachedAdapter {
        self.adapters.entry(at.end).or_default().entry(at.vhca_index).or_default()
    }

    /// Removes the adapter of a context. Frames that it has not taken are lost.
    pub fn detach(&mut self, at: impl Into<PortContext>) {
        let at = at.into();
        let Some(contexts) = self.adapters.get_mut(&at.end) else { return };
        let lost = contexts.remove(&at.vhca_index).map_or(0, |adapter| adapter.arrived.len());
        self.waiting -= lost;
        if contexts.is_empty() {
            self.adapters.remove(&at.end);
        }
    }

    /// A free context of a port, other than context 0; `None` if all are taken.
    pub fn free_context(&self, end: End) -> Option<PortContext> {
        let is_taken =
            |number: &u8| self.adapters.get(&end).is_some_and(|at| at.contains_key(number));
        (1..PORT_CONTEXTS_MAX)
            .find(|number| !is_taken(number))
            .map(|vhca_index| PortContext { end, vhca_index })
    }

    pub fn leases(&self, at: impl Into<PortContext>) -> Option<Arc<LeaseTable>> {
        let at = at.into();
        self.adapters.get(&at.end)?.get(&at.vhca_index)?.leases.clone()
    }

    pub fn take(&mut self, at: impl Into<PortContext>) -> Option<(PortContext, Frame)> {
        let at = at.into();
        let adapter = self.adapters.get_mut(&at.end)?.get_mut(&at.vhca_index)?;
        let (from, frame) = adapter.arrived.pop_front()?;
        adapter.bytes -= frame.stored_bytes();
        self.waiting -= 1;
        Some((from, frame))
    }

    /// The number of frames that have arrived since the adapter attached, taken or not.
    pub fn arrivals(&self, at: impl Into<PortContext>) -> u64 {
        let at = at.into();
        let adapter = self.adapters.get(&at.end).and_then(|contexts| contexts.get(&at.vhca_index));
        adapter.map_or(0, |adapter| adapter.arrivals)
    }

    /// The number of arrived frames that no adapter has taken.
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    pub fn waiting_at(&self, end: End) -> usize {
        let contexts = self.adapters.get(&end).into_iter().flat_map(BTreeMap::values);
        contexts.map(|adapter| adapter.arrived.len()).sum()
    }

    pub(super) fn deliver(&mut self, to: End, origin: PortContext, frame: Frame) {
        let has_others = |contexts: &BTreeMap<u8, _>| contexts.keys().any(|number| *number > 0);
        if !self.adapters.get(&to).is_some_and(has_others) {
            return self.enqueue(to.into(), origin, frame);
        }
        let dest_qp = frame.dest_qp();
        if dest_qp == Qpn::MULTICAST {
            return self.deliver_to_all(to, origin, &frame);
        }
        self.enqueue(PortContext { end: to, vhca_index: context_of(dest_qp) }, origin, frame);
    }

    /// Delivers a frame to all adapters at an end except its sender.
    fn deliver_to_all(&mut self, to: End, origin: PortContext, frame: &Frame) {
        let contexts = self.adapters.get(&to).into_iter().flat_map(BTreeMap::keys);
        let contexts: Vec<PortContext> =
            contexts.map(|number| PortContext { end: to, vhca_index: *number }).collect();
        for context in contexts.into_iter().filter(|context| *context != origin) {
            self.enqueue(context, origin, frame.clone());
        }
    }

    fn enqueue(&mut self, context: PortContext, origin: PortContext, frame: Frame) {
        let contexts = self.adapters.get_mut(&context.end);
        let reason = match contexts.and_then(|contexts| contexts.get_mut(&context.vhca_index)) {
            Some(adapter) if adapter.has_space(&frame) => {
                adapter.bytes += frame.stored_bytes();
                adapter.arrivals += 1;
                adapter.arrived.push_back((origin, frame));
                self.waiting += 1;
                return;
            }
            Some(_) => NodeDrop::Full,
            None => NodeDrop::Unclaimed,
        };
        self.count_drop(context.end, reason);
    }

    /// Delivers a frame to contexts of its own port, if it is for them. Returns whether
    /// no other port needs it.
    pub(super) fn loop_back(&mut self, from: PortContext, frame: &Frame) -> bool {
        if self.adapters.get(&from.end).is_none_or(|contexts| contexts.len() == 1) {
            return false;
        }
        let dlid = frame.dlid();
        if dlid.is_multicast() && frame.dest_qp() == Qpn::MULTICAST {
            self.deliver_to_all(from.end, from, frame);
            return false;
        }
        let is_own = self.subnet.nodes()[from.end.node as usize].has_lid(from.end.port, dlid);
        if is_own {
            self.deliver(from.end, from, frame.clone());
        }
        is_own
    }
}

impl AttachedAdapter {
    fn has_space(&self, frame: &Frame) -> bool {
        let has_bytes = self.bytes + frame.stored_bytes() <= ARRIVED_BYTES_MAX;
        self.arrived.len() < ARRIVED_FRAMES_MAX && (has_bytes || self.arrived.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Wire;
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
    fn untaken_frames_have_a_limit_in_bytes() {
        let (mut net, bytes) = (net(), 4096);
        let room = ARRIVED_BYTES_MAX / bytes;
        (0..room + 3).for_each(|_| net.enqueue(END.into(), END.into(), message(bytes)));
        assert_eq!((full(&net), net.arrivals(END)), (3, room as u64));
        assert!(net.take(END).is_some(), "then there is room again, for one");
        (0..2).for_each(|_| net.enqueue(END.into(), END.into(), message(bytes)));
        assert_eq!((full(&net), net.arrivals(END)), (4, room as u64 + 1));
        while net.take(END).is_some() {}
        net.enqueue(END.into(), END.into(), message(2 * ARRIVED_BYTES_MAX));
        assert_eq!(full(&net), 4, "one frame may have more");
        net.enqueue(END.into(), END.into(), message(1));
        assert_eq!(full(&net), 5);
    }

    #[test]
    fn untaken_frames_have_a_limit_in_number() {
        let mut net = net();
        (0..ARRIVED_FRAMES_MAX + 3).for_each(|_| net.enqueue(END.into(), END.into(), message(0)));
        assert_eq!((full(&net), net.arrivals(END)), (3, ARRIVED_FRAMES_MAX as u64));
        net.detach(END);
        assert_eq!(net.waiting(), 0);
    }
}
