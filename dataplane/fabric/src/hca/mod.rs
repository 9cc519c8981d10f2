//! A channel adapter in software, without I/O: packets and moments in, packets out (IBA 17).
//!
//! Read in this order: [`qp`](self) holds what a queue pair is, `requester` and `responder` its two
//! halves on a connection, `migration` how that takes another path, `datagram` the other service;
//! `memory` and `queue` what they work on; [`port`] what the subnet manager sets, [`violation`]
//! what it hears of keys. [`Adapter`] finds the queue pair that a packet is for and remembers which
//! ones have something to send and when.

mod datagram;
pub(crate) mod memory;
mod migration;
mod outlet;
pub mod port;
mod posting;
mod qp;
pub(crate) mod qpn;
mod queue;
mod requester;
mod responder;
mod usual;
mod verbs;
pub mod violation;

use crate::frame::{Arrival, Frame};
use crate::lend::Lender;
use crate::link::Link;
use crate::time::Time;
use memory::MemoryTable;
use outlet::{Exit, Own};
use pollux_verbs::device::Limits;
use pollux_verbs::table::Table;
use pollux_verbs::{AddressVector, AsyncEvent, Cq, Pd, Qp, QpInit, QpState, QpType};
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::mad::smp::PortState;
use pollux_wire::packet::Packet;
use port::{Drop, Port};
use qp::{QueuePair, Sent};
pub use qpn::SEATS_MAX;
use qpn::{GENERATION_BITS, QPS_MAX, number_of, seat_of};
pub(crate) use queue::INLINE_BYTES_MAX;
use queue::{CompletionQueue, SharedQueue};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Limits of the adapter; none of them is reserved ahead.
pub const LIMITS: Limits = Limits {
    pds_max: 65_536,
    regions_max: 65_536,
    windows_max: 65_536,
    cqs_max: 65_536,
    completions_max: 1 << 20,
    srqs_max: 65_536,
    srq_requests_max: 1 << 16,
    qps_max: QPS_MAX,
    requests_max: 1 << 16,
    sges_max: 32,
    inline_bytes_max: INLINE_BYTES_MAX as u32,
    ahs_max: 1 << 20,
    multicast_attachments_max: 4096,
    responder_resources_max: 16,
    initiator_depth_max: 16,
};

/// Frames for this very port that may wait: beyond that, they are handled before more is sent.
const LOOPED_MAX: usize = 256;

/// A channel adapter.
#[derive(Debug)]
pub struct Adapter {
    /// Which one it is of those that share the port.
    seat: u8,
    qps: Table<QueuePair>,
    /// The queue pair of general services, if there is one.
    gsi: Option<u32>,
    shared: Shared,
    groups: Vec<Member>,
    /// Queue pairs that may have something to send.
    active: VecDeque<u32>,
    timers: BTreeSet<(Time, u32)>,
    /// What goes to this very port.
    looped: VecDeque<Frame>,
    /// For the packet that is being sent.
    room: Vec<u8>,
}

/// What queue pairs share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) memory: MemoryTable,
    pub(crate) pds: Table<()>,
    pub(crate) cqs: Table<CompletionQueue>,
    pub(crate) srqs: Table<SharedQueue>,
    pub(crate) ahs: Table<(Pd, AddressVector)>,
    pub(crate) port: Port,
    /// Counts changes of the port.
    pub(crate) epoch: u64,
    pub(crate) events: VecDeque<AsyncEvent>,
    /// What the port's agent is to be told.
    pub(crate) violations: VecDeque<violation::KeyViolation>,
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
        Self::seated(port, 0)
    }

    /// One of several that share a port, each at a seat below [`SEATS_MAX`]. Management is the
    /// first's.
    pub fn seated(port: Port, seat: u8) -> Self {
        Self {
            seat,
            qps: Table::with_generations(LIMITS.qps_max, GENERATION_BITS),
            gsi: None,
            shared: Shared {
                memory: MemoryTable::new(LIMITS.regions_max, LIMITS.windows_max),
                pds: Table::new(LIMITS.pds_max),
                cqs: Table::new(LIMITS.cqs_max),
                srqs: Table::new(LIMITS.srqs_max),
                ahs: Table::new(LIMITS.ahs_max),
                port,
                epoch: 1,
                events: VecDeque::new(),
                violations: VecDeque::new(),
                lost_cqs: Vec::new(),
            },
            groups: Vec::new(),
            active: VecDeque::new(),
            timers: BTreeSet::new(),
            looped: VecDeque::new(),
            room: Vec::new(),
        }
    }

    /// The port.
    pub fn port(&self) -> &Port {
        &self.shared.port
    }

    /// The port, for whoever manages it.
    pub fn port_mut(&mut self) -> &mut Port {
        self.shared.epoch += 1;
        &mut self.shared.port
    }

    /// The port is so from now on: whoever manages it has changed it. Its owner is told of all that
    /// differs (IBA 11.6.3).
    pub fn take_port(&mut self, port: Port) {
        let before = std::mem::replace(self.port_mut(), port);
        let port = &mut self.shared.port;
        let is_up = port.state == PortState::ACTIVE;
        let events = [
            (is_up && before.state != PortState::ACTIVE, AsyncEvent::PortActive(1)),
            (!is_up && before.state == PortState::ACTIVE, AsyncEvent::PortError(1)),
            ((port.lid, port.lmc) != (before.lid, before.lmc), AsyncEvent::LidChange(1)),
            (port.pkeys != before.pkeys, AsyncEvent::PkeyChange(1)),
            (port.gids != before.gids, AsyncEvent::GidChange(1)),
            ((port.sm_lid, port.sm_sl) != (before.sm_lid, before.sm_sl), AsyncEvent::SmChange(1)),
            (port.reregistrations != before.reregistrations, AsyncEvent::ClientReregister(1)),
        ];
        port.drops = before.drops;
        let told = events.into_iter().filter(|(differs, _)| *differs).map(|(_, event)| event);
        self.shared.events.extend(told);
    }

    /// A packet has come by the link, LRH to VCRC. Bad ones are counted drops.
    pub fn handle_packet(&mut self, now: Time, bytes: &[u8]) {
        let outcome = self
            .check_packet(bytes)
            .and_then(|packet| self.handle_arrival(now, &Arrival::of_packet(&packet)));
        self.count(outcome);
    }

    /// A message has come by the link, or what should have been one.
    #[inline]
    pub fn handle_message(&mut self, now: Time, arrival: Option<&Arrival<'_>>) {
        let outcome = match arrival {
            Some(arrival) => self.handle_arrival(now, arrival),
            None => Err(Drop::Malformed("message")),
        };
        self.count(outcome);
    }

    /// Either has waited, and comes now.
    pub fn handle(&mut self, now: Time, frame: &Frame, lender: Option<&Lender>) {
        match frame {
            Frame::Packet(bytes) => self.handle_packet(now, bytes),
            Frame::Message(message) if self.take_usual(now, message) => {}
            Frame::Message(message) => {
                self.handle_message(
                    now,
                    Arrival::of_message(message, lender.map(|lender| lender as _)).as_ref(),
                );
            }
        }
    }

    #[inline]
    fn count(&mut self, outcome: Result<(), Drop>) {
        if let Err(reason) = outcome {
            self.shared.port.drops.count(reason);
        }
    }

    fn check_packet<'a>(&self, bytes: &'a [u8]) -> Result<Packet<'a>, Drop> {
        let packet = Packet::parse(bytes)?;
        if !packet.vcrc_ok() || !packet.icrc_ok() {
            return Err(Drop::Crc);
        }
        if packet.rd().is_some() {
            return Err(Drop::Transport);
        }
        Ok(packet)
    }

    fn handle_arrival(&mut self, now: Time, arrival: &Arrival<'_>) -> Result<(), Drop> {
        let port = &self.shared.port;
        if port.state != PortState::ACTIVE {
            return Err(Drop::PortDown);
        }
        let (dlid, is_ethernet) = (arrival.head.dlid, port.is_ethernet());
        if dlid.is_multicast() || is_ethernet && arrival.is_to_group() {
            return self.handle_multicast(arrival);
        }
        if !port.lid.covers(port.lmc, dlid) {
            return Err(Drop::Dlid);
        }
        if is_ethernet && arrival.grh.is_none() {
            return Err(Drop::Grh);
        }
        if arrival.grh.is_some_and(|grh| !port.has_gid(grh.dgid)) {
            return Err(Drop::Grh);
        }
        let number = match arrival.head.dest_qp {
            Qpn::GSI => self.gsi,
            qpn => number_of(qpn).filter(|_| seat_of(qpn) == self.seat),
        };
        let number = number.ok_or(Drop::NoQp)?;
        let qp = self.qps.get_mut(number).ok_or(Drop::NoQp)?;
        let admitted = qp.admit(&mut self.shared, arrival);
        let outcome = admitted.and_then(|()| qp.handle(&mut self.shared, now, arrival));
        if let Err(reason) = outcome {
            self.shared.refuse(reason, qp.common.qpn, arrival);
        }
        self.touch(number);
        outcome
    }

    fn handle_multicast(&mut self, arrival: &Arrival<'_>) -> Result<(), Drop> {
        let (mgid, mlid) = (arrival.grh.ok_or(Drop::Grh)?.dgid, arrival.head.dlid);
        if arrival.head.dest_qp != Qpn::MULTICAST || !has_member(&self.groups, mgid, mlid) {
            // It comes to all seats, and one counts it.
            return if self.seat == 0 { Err(Drop::NoMember) } else { Ok(()) };
        }
        // By place, since a member that receives needs all else that queue pairs share.
        for place in 0..self.groups.len() {
            let member = self.groups[place];
            if !member.is_of(mgid, mlid) {
                continue;
            }
            let Some(qp) = self.qps.get_mut(member.qp.0) else { continue };
            let admitted = qp.admit(&mut self.shared, arrival);
            if let Err(reason) = admitted.and_then(|()| qp.receive(&mut self.shared, arrival)) {
                self.shared.port.drops.count(reason);
                self.shared.refuse(reason, qp.common.qpn, arrival);
            }
        }
        Ok(())
    }

    /// Something is due, by the clock, which was read `before` as well: what began since then began
    /// at nobody knows what time.
    pub fn handle_timeouts(&mut self, before: Time, now: Time) {
        while let Some(&(due, number)) = self.timers.first()
            && due <= now
        {
            self.timers.pop_first();
            if let Some(qp) = self.qps.get_mut(number) {
                qp.timer = None;
                qp.handle_timeout(&mut self.shared, before, now);
                self.touch(number);
            }
        }
    }

    /// Sends on a link what may be sent now and what it has room for. With `shortcut`, messages go
    /// as such.
    #[inline]
    pub fn transmit<L: Link>(&mut self, now: Time, shortcut: bool, link: &mut L) {
        loop {
            while let Some(cq) = self.shared.lost_cqs.pop() {
                self.fail_users(cq);
            }
            while self.looped.len() < LOOPED_MAX
                && let Some(number) = self.active.pop_front()
            {
                let Some(qp) = self.qps.get_mut(number) else { continue };
                if shortcut && qp.answer_usual(&self.shared, link) && !qp.requester.has_more() {
                    qp.is_active = false;
                    continue;
                }
                match self.transmit_of(now, number, shortcut, link) {
                    Sent::All => self.watch(number),
                    Sent::More => self.touch(number),
                    Sent::Stalled => {
                        self.touch(number);
                        return;
                    }
                }
            }
            if let Some(frame) = self.looped.pop_front() {
                let lender = self.shared.memory.lender().clone();
                self.handle(now, &frame, Some(&lender));
            } else if !self.is_active() {
                return;
            }
        }
    }

    /// Whether anything waits to be sent, or to fail.
    #[inline]
    pub fn is_active(&self) -> bool {
        !self.active.is_empty() || !self.shared.lost_cqs.is_empty()
    }

    /// What peers may take long messages from.
    pub fn lender(&self) -> &Arc<Lender> {
        self.shared.memory.lender()
    }

    /// When something will be due; never, if nothing is.
    pub fn deadline(&self) -> Option<Time> {
        self.timers.first().map(|&(due, _)| due)
    }

    /// Sends what one queue pair may send in its turn.
    fn transmit_of<L: Link>(
        &mut self,
        now: Time,
        number: u32,
        shortcut: bool,
        link: &mut L,
    ) -> Sent {
        let own = Own::of(self, link.has_agents());
        let Some(qp) = self.qps.get_mut(number) else { return Sent::All };
        qp.is_active = false;
        let (looped, room, groups) = (&mut self.looped, &mut self.room, &self.groups);
        let mut exit = Exit { link, looped, groups, room, own, lost: 0 };
        let sent = qp.transmit(&mut self.shared, now, shortcut, &mut exit);
        let lost = exit.lost;
        for _ in 0..lost {
            self.shared.port.drops.count(Drop::PortDown);
        }
        sent
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
        if !qp.is_unwatched() {
            return;
        }
        let Some(wanted) = qp.deadline() else { return };
        if let Some(later) = qp.timer.replace(wanted) {
            self.timers.remove(&(later, number));
        }
        self.timers.insert((wanted, number));
    }
}

impl QueuePair {
    /// Whether a packet may enter the queue pair at all (IBA 9.6.1).
    fn admit(&mut self, shared: &mut Shared, arrival: &Arrival<'_>) -> Result<(), Drop> {
        let common = &self.common;
        if arrival.head.opcode.transport() != common.transport() {
            return Err(Drop::Transport);
        }
        if !matches!(common.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) {
            return Err(Drop::QpState);
        }
        let pkey = arrival.head.pkey;
        let is_member = match common.init.qp_type {
            QpType::Gsi => shared.port.pkey_index(pkey).is_some(),
            _ => pkey.matches(common.pkey(&shared.port)),
        };
        if !is_member {
            return Err(Drop::PKey);
        }
        if common.init.qp_type.is_datagram() {
            return Ok(());
        }
        self.check_way(shared, arrival)
    }

    fn handle(
        &mut self,
        shared: &mut Shared,
        now: Time,
        arrival: &Arrival<'_>,
    ) -> Result<(), Drop> {
        if self.common.init.qp_type.is_datagram() {
            return self.receive(shared, arrival);
        }
        self.tell_established(shared);
        self.follow(shared, arrival.head.mig_req);
        let outcome = if !arrival.head.opcode.is_request() {
            self.requester.handle(&self.common, shared, now, arrival)
        } else if self.common.init.qp_type == QpType::Rc {
            self.responder.handle_reliable(&mut self.common, shared, arrival)
        } else {
            self.responder.handle_unreliable(&mut self.common, shared, arrival)
        };
        self.settle(shared);
        outcome
    }

    fn handle_timeout(&mut self, shared: &mut Shared, before: Time, now: Time) {
        self.requester.handle_timeout(&self.common, before, now);
        self.settle(shared);
    }
}

/// Whether somebody is in the group.
fn has_member(groups: &[Member], mgid: Gid, mlid: Lid) -> bool {
    groups.iter().any(|member| member.is_of(mgid, mlid))
}
