//! A software channel adapter without I/O: packets and time in, packets out (IBA 17).
//!
//! An [`Adapter`] opens no socket, reads no clock and starts no thread. Its caller passes the time
//! and the received frames, and the adapter sends through a [`FrameSink`].
//!
//! Read in this order:
//!
//! 1. this file: [`Adapter`] finds the queue pair of each received packet, and keeps the list of
//!    queue pairs that may have something to send and their timers;
//! 2. `qp` is a queue pair: its states, and which packets it admits. `common` is the state that its
//!    two halves share; `requester` and `responder` are the halves of a connection (RC or UC), each
//!    with its fast path; `migration` is automatic path migration (APM), `datagram` the UD service;
//! 3. `memory`, `queue` and `qpn`: memory regions, work and completion queues, and QPNs; `verbs`:
//!    the verbs that make and change objects, `posting`: those that post and poll;
//!    [`recv_source`]: receives that a consumer posts without a call;
//! 4. [`port`] has the attributes that the subnet manager sets, [`violation`] the reports of P_Key
//!    and Q_Key violations;
//! 5. [`message_bypass`] defines the delivery of messages without packets, [`frame`] the frames on
//!    a link (packets or messages), [`head`] the header fields that all frames have, [`lease`] the
//!    memory that peers may read for zero-copy send;
//! 6. `outlet` and [`sink`]: the transmission of frames to the link, or in loopback to the same
//!    port;
//! 7. [`link`] and [`device`]: an adapter with its link, as a `pollux-verbs` device.
#![forbid(unsafe_code)]

mod common;
mod datagram;
pub mod device;
pub mod frame;
pub mod head;
pub mod lease;
pub mod link;
mod memory;
pub mod message_bypass;
mod migration;
mod outlet;
pub mod port;
mod posting;
mod qp;
mod qpn;
mod queue;
pub mod recv_source;
mod requester;
mod responder;
pub mod sink;
mod verbs;
pub mod violation;

pub use device::SoftDevice;
pub use frame::Frame;
pub use lease::LeaseTable;
pub use link::Link;
pub use memory::{MemoryRange, RegionChange, region_of};
pub use port::{DropReason, Port};
pub use qpn::{PORT_CONTEXTS_MAX, context_of};
pub use sink::FrameSink;

use crate::frame::Arrival;
use common::Sent;
use memory::MemoryTable;
use outlet::{Outlet, OwnPort};
use pollux_verbs::device::Limits;
use pollux_verbs::table::Table;
use pollux_verbs::time::Time;
use pollux_verbs::{AddressVector, AsyncEvent, Cq, Pd, Qp, QpInit, QpState};
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::mad::smp::PortState;
use pollux_wire::packet::Packet;
use qp::QueuePair;
use qpn::{GENERATION_BITS, QPS_MAX, number_of};
pub(crate) use queue::INLINE_BYTES_MAX;
use queue::{CompletionQueue, SharedQueue};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// The limits of an adapter. The adapter allocates no memory for them in advance.
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

/// The maximum number of loopback frames that wait. At this limit, the adapter handles them before
/// it sends more.
const LOOPED_MAX: usize = 256;

#[derive(Debug)]
pub struct Adapter {
    /// The index of this adapter among those that share its port (vHCA index).
    context: u8,
    qps: Table<QueuePair>,
    gsi: Option<u32>,
    shared: Shared,
    groups: Vec<Member>,
    /// Queue pairs that may have something to send.
    active: VecDeque<u32>,
    timers: BTreeSet<(Time, u32)>,
    /// Loopback frames: frames to the adapter's own port.
    looped: VecDeque<Frame>,
    /// A scratch buffer for the packet that is being sent.
    buffer: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) memory: MemoryTable,
    /// The memory that peers may read for long messages.
    pub(crate) leases: Arc<LeaseTable>,
    pub(crate) pds: Table<()>,
    pub(crate) cqs: Table<CompletionQueue>,
    pub(crate) srqs: Table<SharedQueue>,
    pub(crate) ahs: Table<(Pd, AddressVector)>,
    pub(crate) port: Port,
    /// Incremented with every change of the port, which invalidates the queue pairs' expected
    /// heads.
    pub(crate) epoch: u64,
    pub(crate) events: VecDeque<AsyncEvent>,
    pub(crate) violations: VecDeque<violation::KeyViolation>,
    /// Completion queues that have overrun. Their queue pairs are failed at the next transmission.
    pub(crate) lost_cqs: Vec<Cq>,
    /// The number of completions added so far to all queues.
    pub(crate) completed: u64,
}

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
    pub fn new(port: Port) -> Self {
        Self::in_context(port, 0)
    }

    /// One of several adapters that share a port. Each has its own context, which is below
    /// [`PORT_CONTEXTS_MAX`]. Only context 0 can have a queue pair for QP1 (the GSI).
    pub fn in_context(port: Port, context: u8) -> Self {
        Self {
            context,
            qps: Table::with_generations(LIMITS.qps_max, GENERATION_BITS),
            gsi: None,
            shared: Shared {
                memory: MemoryTable::new(LIMITS.regions_max, LIMITS.windows_max),
                leases: Arc::default(),
                pds: Table::new(LIMITS.pds_max),
                cqs: Table::new(LIMITS.cqs_max),
                srqs: Table::new(LIMITS.srqs_max),
                ahs: Table::new(LIMITS.ahs_max),
                port,
                epoch: 1,
                events: VecDeque::new(),
                violations: VecDeque::new(),
                lost_cqs: Vec::new(),
                completed: 0,
            },
            groups: Vec::new(),
            active: VecDeque::new(),
            timers: BTreeSet::new(),
            looped: VecDeque::new(),
            buffer: Vec::new(),
        }
    }

    pub fn port(&self) -> &Port {
        &self.shared.port
    }

    pub fn port_mut(&mut self) -> &mut Port {
        self.shared.epoch += 1;
        &mut self.shared.port
    }

    /// Replaces the port and queues an async event for each changed attribute (IBA 11.6.3). The
    /// drop counters are kept.
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
        let changes = events.into_iter().filter(|(differs, _)| *differs).map(|(_, event)| event);
        self.shared.events.extend(changes);
    }

    /// Handles a packet from the link. `bytes` is the packet from LRH to VCRC. An invalid packet is
    /// dropped and counted.
    pub fn handle_packet(&mut self, now: Time, bytes: &[u8]) {
        let outcome = self
            .check_packet(bytes)
            .and_then(|packet| self.handle_arrival(now, &Arrival::of_packet(&packet)));
        self.count(outcome);
    }

    /// Handles a bypass message from the link. `None` is an invalid message, which is counted as a
    /// drop.
    #[inline]
    pub fn handle_message(&mut self, now: Time, arrival: Option<&Arrival<'_>>) {
        let outcome = match arrival {
            Some(arrival) => self.handle_arrival(now, arrival),
            None => Err(DropReason::Malformed("message")),
        };
        self.count(outcome);
    }

    /// Handles a stored frame. `leases` has the leases of its sender.
    pub fn handle(&mut self, now: Time, frame: &Frame, leases: Option<&LeaseTable>) {
        match frame {
            Frame::Packet(bytes) => self.handle_packet(now, bytes),
            Frame::Message(message) if self.receive_fast(now, message) => {}
            Frame::Message(message) => {
                self.handle_message(
                    now,
                    Arrival::of_message(message, leases.map(|leases| leases as _)).as_ref(),
                );
            }
        }
    }

    #[inline]
    fn count(&mut self, outcome: Result<(), DropReason>) {
        if let Err(reason) = outcome {
            self.shared.port.drops.count(reason);
        }
    }

    fn check_packet<'a>(&self, bytes: &'a [u8]) -> Result<Packet<'a>, DropReason> {
        let packet = Packet::parse(bytes)?;
        if !packet.vcrc_ok() || !packet.icrc_ok() {
            return Err(DropReason::Crc);
        }
        if packet.rd().is_some() {
            return Err(DropReason::Transport);
        }
        Ok(packet)
    }

    fn handle_arrival(&mut self, now: Time, arrival: &Arrival<'_>) -> Result<(), DropReason> {
        let port = &self.shared.port;
        if port.state != PortState::ACTIVE {
            return Err(DropReason::PortDown);
        }
        let (dlid, is_ethernet) = (arrival.head.dlid, port.is_ethernet());
        if dlid.is_multicast() || is_ethernet && arrival.is_to_group() {
            return self.handle_multicast(arrival);
        }
        if !port.lid.covers(port.lmc, dlid) {
            return Err(DropReason::Dlid);
        }
        if arrival.grh.map_or(is_ethernet, |grh| !port.has_gid(grh.dgid)) {
            return Err(DropReason::Grh);
        }
        let number = match arrival.head.dest_qp {
            Qpn::GSI => self.gsi,
            qpn => number_of(qpn).filter(|_| context_of(qpn) == self.context),
        };
        let number = number.ok_or(DropReason::NoQp)?;
        let qp = self.qps.get_mut(number).ok_or(DropReason::NoQp)?;
        let admitted = qp.admit(&mut self.shared, arrival);
        let outcome = admitted.and_then(|()| qp.handle(&mut self.shared, now, arrival));
        if let Err(reason) = outcome {
            self.shared.report_violation(reason, qp.common.qpn, arrival);
        }
        self.activate(number);
        outcome
    }

    fn handle_multicast(&mut self, arrival: &Arrival<'_>) -> Result<(), DropReason> {
        let (mgid, mlid) = (arrival.grh.ok_or(DropReason::Grh)?.dgid, arrival.head.dlid);
        if arrival.head.dest_qp != Qpn::MULTICAST || !has_member(&self.groups, mgid, mlid) {
            // Every context of the port gets each multicast frame, so only context 0 counts a drop.
            return if self.context == 0 { Err(DropReason::NoMember) } else { Ok(()) };
        }
        for index in 0..self.groups.len() {
            let member = self.groups[index];
            if !member.is_of(mgid, mlid) {
                continue;
            }
            let Some(qp) = self.qps.get_mut(member.qp.0) else { continue };
            let admitted = qp.admit(&mut self.shared, arrival);
            if let Err(reason) = admitted.and_then(|()| qp.receive(&mut self.shared, arrival)) {
                self.shared.port.drops.count(reason);
                self.shared.report_violation(reason, qp.common.qpn, arrival);
            }
        }
        Ok(())
    }

    /// Handles expired timers. `before` is the previous clock reading. The start time of a request
    /// that was sent since then is not exact, so its ACK timer is restarted once instead.
    pub fn handle_timeouts(&mut self, before: Time, now: Time) {
        while let Some(&(due, number)) = self.timers.first()
            && due <= now
        {
            self.timers.pop_first();
            if let Some(qp) = self.qps.get_mut(number) {
                qp.timer = None;
                qp.handle_timeout(&mut self.shared, before, now);
                self.activate(number);
            }
        }
    }

    /// Sends all frames that may be sent now, until the link has no space. With `bypass`, it sends
    /// bypass messages instead of packets.
    #[inline]
    pub fn transmit<L: FrameSink>(&mut self, now: Time, bypass: bool, link: &mut L) {
        loop {
            while let Some(cq) = self.shared.lost_cqs.pop() {
                self.fail_users(cq);
            }
            while self.looped.len() < LOOPED_MAX
                && let Some(number) = self.active.pop_front()
            {
                let Some(qp) = self.qps.get_mut(number) else { continue };
                if bypass
                    && qp.responder.answer_fast(&mut qp.common, &self.shared, link)
                    && !qp.requester.has_more()
                {
                    qp.is_active = false;
                    continue;
                }
                match self.transmit_of(now, number, bypass, link) {
                    Sent::All => self.schedule_timer(number),
                    Sent::More => self.activate(number),
                    Sent::Stalled => {
                        self.activate(number);
                        return;
                    }
                }
            }
            if let Some(frame) = self.looped.pop_front() {
                let leases = self.shared.leases.clone();
                self.handle(now, &frame, Some(&leases));
            } else if !self.is_active() {
                return;
            }
        }
    }

    /// Whether a queue pair may have something to send, or is to be failed after a CQ overrun.
    #[inline]
    pub fn is_active(&self) -> bool {
        !self.active.is_empty() || !self.shared.lost_cqs.is_empty()
    }

    pub fn leases(&self) -> &Arc<LeaseTable> {
        &self.shared.leases
    }

    pub fn deadline(&self) -> Option<Time> {
        self.timers.first().map(|&(due, _)| due)
    }

    fn transmit_of<L: FrameSink>(
        &mut self,
        now: Time,
        number: u32,
        bypass: bool,
        link: &mut L,
    ) -> Sent {
        let own = OwnPort::of(self, link.has_agents());
        let Some(qp) = self.qps.get_mut(number) else { return Sent::All };
        qp.is_active = false;
        let (looped, buffer, groups) = (&mut self.looped, &mut self.buffer, &self.groups);
        let mut outlet = Outlet { link, looped, groups, buffer, own, lost: 0 };
        let sent = qp.transmit(&mut self.shared, now, bypass, &mut outlet);
        for _ in 0..outlet.lost {
            self.shared.port.drops.count(DropReason::PortDown);
        }
        sent
    }

    /// Fails the queue pairs that use a completion queue that has overrun (IBA 10.2.5.2).
    fn fail_users(&mut self, cq: Cq) {
        let uses = |init: &QpInit| init.send_cq == cq || init.recv_cq == cq;
        let users = self.qps.iter().filter(|(_, qp)| uses(&qp.common.init));
        let users: Vec<u32> = users.map(|(number, _)| number).collect();
        for number in users {
            if let Some(qp) = self.qps.get_mut(number)
                && !matches!(qp.common.state, QpState::Reset | QpState::Err)
            {
                qp.fail(&mut self.shared);
                self.activate(number);
            }
        }
    }

    /// Adds a queue pair to the active list, unless it is in the list already, and schedules its
    /// timer.
    fn activate(&mut self, number: u32) {
        if let Some(qp) = self.qps.get_mut(number)
            && !qp.is_active
        {
            qp.is_active = true;
            self.active.push_back(number);
        }
        self.schedule_timer(number);
    }

    /// Schedules the timer of a queue pair.
    ///
    /// A timer that fires too early does no harm, because the queue pair then schedules the next
    /// one. So the entry of a queue pair stays in the set when the deadline moves to a later time
    /// or goes away. A busy connection thus updates the set once per timeout instead of twice per
    /// message.
    fn schedule_timer(&mut self, number: u32) {
        let Some(qp) = self.qps.get_mut(number) else { return };
        if !qp.needs_timer() {
            return;
        }
        let Some(wanted) = qp.requester.deadline() else { return };
        if let Some(later) = qp.timer.replace(wanted) {
            self.timers.remove(&(later, number));
        }
        self.timers.insert((wanted, number));
    }
}

fn has_member(groups: &[Member], mgid: Gid, mlid: Lid) -> bool {
    groups.iter().any(|member| member.is_of(mgid, mlid))
}
