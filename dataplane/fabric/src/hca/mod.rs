//! A channel adapter in software, without I/O: packets and moments in, packets out (IBA 17).
//!
//! Read in this order: [`qp`](self) holds what a queue pair is, `requester` and `responder` its two
//! halves on a connection, `datagram` the other service; `memory` and `queue` what they work on;
//! [`port`] what the subnet manager sets. [`Adapter`] finds the queue pair that a packet is for and
//! remembers which ones have something to send and when.

mod datagram;
pub(crate) mod memory;
pub mod port;
mod qp;
mod queue;
mod requester;
mod responder;
mod verbs;

use crate::frame::{Arrival, Frame};
use crate::table::Table;
use crate::time::Time;
use memory::MemoryTable;
use pollux_verbs::device::Limits;
use pollux_verbs::{AddressVector, AsyncEvent, Cq, Pd, Qp, QpInit, QpState, QpType};
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::mad::smp::PortState;
use pollux_wire::packet::Packet;
use port::{Drop, Port};
use qp::QueuePair;
pub(crate) use queue::INLINE_OCTETS_MAX;
use queue::{CompletionQueue, SharedQueue};
use std::collections::{BTreeSet, VecDeque};

/// Limits of the adapter; none of them is reserved ahead.
pub const LIMITS: Limits = Limits {
    pds_max: 65_536,
    regions_max: 65_536,
    windows_max: 65_536,
    cqs_max: 65_536,
    completions_max: 1 << 20,
    srqs_max: 65_536,
    srq_requests_max: 1 << 16,
    qps_max: 65_000,
    requests_max: 1 << 16,
    sges_max: 32,
    inline_octets_max: INLINE_OCTETS_MAX as u32,
    ahs_max: 1 << 20,
    multicast_attachments_max: 4096,
    responder_resources_max: 16,
    initiator_depth_max: 16,
};

/// Numbers below are not given out: 0 and 1 are those of management.
const QPN_FIRST: u32 = 0x40;

/// A channel adapter.
#[derive(Debug)]
pub struct Adapter {
    qps: Table<QueuePair>,
    shared: Shared,
    /// Queue pairs that may have something to send.
    active: VecDeque<u32>,
    timers: BTreeSet<(Time, u32)>,
    /// What goes to this very port.
    looped: VecDeque<Frame>,
}

/// What queue pairs share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) memory: MemoryTable,
    pub(crate) pds: Table<()>,
    pub(crate) cqs: Table<CompletionQueue>,
    pub(crate) srqs: Table<SharedQueue>,
    pub(crate) ahs: Table<(Pd, AddressVector)>,
    pub(crate) groups: Vec<Member>,
    pub(crate) port: Port,
    pub(crate) events: VecDeque<AsyncEvent>,
    /// Completion queues that overran, whose queue pairs are still to fail.
    pub(crate) lost_cqs: Vec<Cq>,
}

/// A queue pair in a multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) mgid: Gid,
    pub(crate) mlid: Lid,
    pub(crate) qp: Qp,
}

impl Member {
    fn is_of(&self, mgid: Gid, mlid: Lid) -> bool {
        self.mgid == mgid && self.mlid == mlid
    }
}

impl Adapter {
    /// An adapter with this port.
    pub fn new(port: Port) -> Self {
        Self {
            qps: Table::new(LIMITS.qps_max),
            shared: Shared {
                memory: MemoryTable::new(LIMITS.regions_max, LIMITS.windows_max),
                pds: Table::new(LIMITS.pds_max),
                cqs: Table::new(LIMITS.cqs_max),
                srqs: Table::new(LIMITS.srqs_max),
                ahs: Table::new(LIMITS.ahs_max),
                groups: Vec::new(),
                port,
                events: VecDeque::new(),
                lost_cqs: Vec::new(),
            },
            active: VecDeque::new(),
            timers: BTreeSet::new(),
            looped: VecDeque::new(),
        }
    }

    /// The port.
    pub fn port(&self) -> &Port {
        &self.shared.port
    }

    /// The port, for whoever manages it.
    pub fn port_mut(&mut self) -> &mut Port {
        &mut self.shared.port
    }

    /// Something has come by the link. Bad packets are counted drops.
    pub fn handle(&mut self, now: Time, frame: &Frame) {
        let outcome = match frame {
            Frame::Packet(octets) => self.handle_packet(now, octets),
            Frame::Message(message) => self.handle_arrival(now, &Arrival::of_message(message)),
        };
        if let Err(reason) = outcome {
            self.shared.port.drops.count(reason);
        }
    }

    fn handle_packet(&mut self, now: Time, octets: &[u8]) -> Result<(), Drop> {
        let packet = Packet::parse(octets)?;
        if !packet.vcrc_ok() || !packet.icrc_ok() {
            return Err(Drop::Crc);
        }
        if packet.rd().is_some() {
            return Err(Drop::Transport);
        }
        self.handle_arrival(now, &Arrival::of_packet(&packet))
    }

    fn handle_arrival(&mut self, now: Time, arrival: &Arrival<'_>) -> Result<(), Drop> {
        let port = &self.shared.port;
        if port.state != PortState::ACTIVE {
            return Err(Drop::PortDown);
        }
        let dlid = arrival.lrh.dlid;
        if dlid.is_multicast() {
            return self.handle_multicast(arrival);
        }
        if !port.lid.covers(port.lmc, dlid) {
            return Err(Drop::Dlid);
        }
        if arrival.grh.is_some_and(|grh| !port.has_gid(grh.dgid)) {
            return Err(Drop::Grh);
        }
        let number = number_of(arrival.bth.dest_qp).ok_or(Drop::NoQp)?;
        let qp = self.qps.get_mut(number).ok_or(Drop::NoQp)?;
        qp.admit(&self.shared, arrival)?;
        let outcome = qp.handle(&mut self.shared, now, arrival);
        self.touch(number);
        outcome
    }

    fn handle_multicast(&mut self, arrival: &Arrival<'_>) -> Result<(), Drop> {
        let mgid = arrival.grh.ok_or(Drop::Grh)?.dgid;
        if arrival.bth.dest_qp != Qpn::MULTICAST || !self.has_member(mgid, arrival.lrh.dlid) {
            return Err(Drop::NoMember);
        }
        // By place, since a member that receives needs all else that queue pairs share.
        for place in 0..self.shared.groups.len() {
            let member = self.shared.groups[place];
            if !member.is_of(mgid, arrival.lrh.dlid) {
                continue;
            }
            let Some(qp) = self.qps.get_mut(member.qp.0) else { continue };
            let admitted = qp.admit(&self.shared, arrival);
            if let Err(reason) = admitted.and_then(|()| qp.receive(&mut self.shared, arrival)) {
                self.shared.port.drops.count(reason);
            }
        }
        Ok(())
    }

    /// Something is due, by the clock.
    pub fn handle_timeouts(&mut self, now: Time) {
        while let Some(&(due, number)) = self.timers.first()
            && due <= now
        {
            self.timers.pop_first();
            if let Some(qp) = self.qps.get_mut(number) {
                qp.timer = None;
                qp.handle_timeout(&mut self.shared, now);
                self.touch(number);
            }
        }
    }

    /// The next thing to send. With `shortcut`, a message goes in one piece.
    pub fn poll_transmit(&mut self, now: Time, shortcut: bool) -> Option<Frame> {
        loop {
            while let Some(cq) = self.shared.lost_cqs.pop() {
                self.fail_users(cq);
            }
            if let Some(frame) = self.looped.pop_front() {
                self.handle(now, &frame);
                continue;
            }
            let number = self.active.pop_front()?;
            let Some(qp) = self.qps.get_mut(number) else { continue };
            qp.is_active = false;
            let frame = qp.poll_transmit(&mut self.shared, now, shortcut);
            match frame {
                None => self.watch(number),
                Some(frame) => {
                    self.touch(number);
                    let (port, dlid) = (&mut self.shared.port, frame.dlid());
                    // A port that carries no traffic throws away what it is given, as hardware
                    // does (IBA 7.2): requests have been sent, to no avail, and their time runs.
                    if port.state != PortState::ACTIVE {
                        port.drops.count(Drop::PortDown);
                        continue;
                    }
                    if port.lid.covers(port.lmc, dlid) {
                        self.looped.push_back(frame);
                        continue;
                    }
                    self.loop_to_group(&frame, dlid);
                    return Some(frame);
                }
            }
        }
    }

    /// When something will be due; never, if nothing is.
    pub fn deadline(&self) -> Option<Time> {
        self.timers.first().map(|&(due, _)| due)
    }

    /// Ends the queue pairs that complete where nothing can be told any more (IBA 10.2.5.2).
    fn fail_users(&mut self, cq: Cq) {
        let uses = |init: &QpInit| init.send_cq == cq || init.recv_cq == cq;
        let users = self.qps.iter().filter(|(_, qp)| uses(&qp.common.init));
        let users: Vec<u32> = users.map(|(number, _)| number).collect();
        for number in users {
            if let Some(qp) = self.qps.get_mut(number)
                && !matches!(qp.common.state, QpState::Reset | QpState::Err)
            {
                qp.fail(&mut self.shared);
                self.touch(number);
            }
        }
    }

    /// Takes a copy of what goes to a group that somebody here is in too.
    fn loop_to_group(&mut self, frame: &Frame, dlid: Lid) {
        if !dlid.is_multicast() || self.shared.groups.is_empty() {
            return;
        }
        let grh = match frame {
            Frame::Packet(octets) => Packet::parse(octets).ok().and_then(|packet| packet.grh()),
            Frame::Message(message) => Arrival::of_message(message).grh,
        };
        if grh.is_some_and(|grh| self.has_member(grh.dgid, dlid)) {
            self.looped.push_back(frame.duplicate());
        }
    }

    /// Whether somebody here is in the group.
    fn has_member(&self, mgid: Gid, mlid: Lid) -> bool {
        self.shared.groups.iter().any(|member| member.is_of(mgid, mlid))
    }

    /// A queue pair may have something to send now, and other timers.
    fn touch(&mut self, number: u32) {
        if let Some(qp) = self.qps.get_mut(number)
            && !qp.is_active
        {
            qp.is_active = true;
            self.active.push_back(number);
        }
        self.watch(number);
    }

    /// Sees to it that the queue pair is looked at in time.
    ///
    /// A timer that fires too early does no harm: the queue pair is asked again then. So an entry
    /// stays when its queue pair wants a later one or none, and a connection that does well touches
    /// the set once a time-out and not twice a message.
    fn watch(&mut self, number: u32) {
        let Some(qp) = self.qps.get_mut(number) else { return };
        let Some(wanted) = qp.deadline() else { return };
        if qp.timer.is_some_and(|set| set <= wanted) {
            return;
        }
        if let Some(later) = qp.timer.replace(wanted) {
            self.timers.remove(&(later, number));
        }
        self.timers.insert((wanted, number));
    }
}

impl QueuePair {
    /// Whether a packet may enter the queue pair at all (IBA 9.6.1).
    fn admit(&self, shared: &Shared, arrival: &Arrival<'_>) -> Result<(), Drop> {
        let common = &self.common;
        if arrival.bth.opcode.transport() != common.transport() {
            return Err(Drop::Transport);
        }
        if !matches!(common.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) {
            return Err(Drop::QpState);
        }
        if !arrival.bth.pkey.matches(common.pkey(&shared.port)) {
            return Err(Drop::PKey);
        }
        if common.init.qp_type == QpType::Ud {
            return Ok(());
        }
        let path = common.attributes.path.unwrap_or_default();
        if arrival.lrh.slid != path.dlid {
            return Err(Drop::Slid);
        }
        match (arrival.grh, path.grh) {
            (None, None) => Ok(()),
            (Some(came), Some(ours)) if came.sgid == ours.dgid => Ok(()),
            _ => Err(Drop::Grh),
        }
    }

    fn handle(
        &mut self,
        shared: &mut Shared,
        now: Time,
        arrival: &Arrival<'_>,
    ) -> Result<(), Drop> {
        if self.common.init.qp_type == QpType::Ud {
            return self.receive(shared, arrival);
        }
        self.tell_established(shared);
        let outcome = if !arrival.bth.opcode.is_request() {
            self.requester.handle(&self.common, shared, now, arrival)
        } else if self.common.init.qp_type == QpType::Rc {
            self.responder.handle_reliable(&mut self.common, shared, arrival)
        } else {
            self.responder.handle_unreliable(&mut self.common, shared, arrival)
        };
        self.settle(shared);
        outcome
    }

    fn handle_timeout(&mut self, shared: &mut Shared, now: Time) {
        self.requester.handle_timeout(now);
        self.settle(shared);
    }
}

/// The network's name of a queue pair: its place, and how often the place was used before, so that
/// a number comes back only after 255 others.
fn qpn_of(number: u32) -> Qpn {
    let (generation, place) = (number >> 24, number & 0xffff);
    Qpn(generation << 16 | (place + QPN_FIRST) & 0xffff)
}

fn number_of(qpn: Qpn) -> Option<u32> {
    let place = (qpn.0 & 0xffff).checked_sub(QPN_FIRST)?;
    Some((qpn.0 >> 16) << 24 | place)
}
