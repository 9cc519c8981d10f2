//! Transmission of frames: to the link, or in loopback to the adapter itself.

use super::memory::Pieces;
use super::qpn::context_of;
use super::{Adapter, Member, has_member};
use crate::frame::{Frame, FrameToSend};
use crate::head::Head;
use crate::lease::{LeaseTable, LeasedMemory};
use crate::sink::FrameSink;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::mad::smp::PortState;
use std::collections::VecDeque;

/// The transmission state of an adapter while one of its queue pairs sends.
pub(crate) struct Outlet<'a, L> {
    pub(super) link: &'a mut L,
    pub(super) looped: &'a mut VecDeque<Frame>,
    pub(super) groups: &'a [Member],
    /// A scratch buffer for the packet that is being sent.
    pub(super) buffer: &'a mut Vec<u8>,
    pub(super) own: OwnPort,
    /// The number of frames dropped because the port is down.
    pub(super) lost: u32,
}

/// The adapter's own addresses, which decide loopback.
pub(super) struct OwnPort {
    is_up: bool,
    lid: Lid,
    lmc: u8,
    /// On Ethernet, the GIDs of the port.
    gids: Option<Vec<Gid>>,
    context: u8,
    has_agents: bool,
}

impl OwnPort {
    pub(super) fn of(adapter: &Adapter, has_agents: bool) -> Self {
        let port = &adapter.shared.port;
        Self {
            is_up: port.state == PortState::ACTIVE,
            lid: port.lid,
            lmc: port.lmc,
            gids: port.is_ethernet().then(|| port.gids.clone()),
            context: adapter.context,
            has_agents,
        }
    }

    fn is_destination(&self, outgoing: &FrameToSend<'_>) -> bool {
        let is_own = match &self.gids {
            None => self.lid.covers(self.lmc, outgoing.head.dlid),
            Some(gids) => outgoing.dgid().is_some_and(|dgid| gids.contains(&dgid)),
        };
        let dest_qp = outgoing.head.dest_qp;
        let is_for_agent = self.has_agents && dest_qp <= Qpn::GSI;
        is_own && context_of(dest_qp) == self.context && !is_for_agent
    }
}

impl<L: FrameSink> Outlet<'_, L> {
    /// Sends a frame. Returns whether the link had space.
    #[inline(always)]
    pub(crate) fn send(&mut self, outgoing: &FrameToSend<'_>) -> bool {
        // A port that is down drops frames, as hardware does (IBA 7.2). The requests count as sent,
        // and their timers run.
        if !self.own.is_up {
            self.lost += 1;
            return true;
        }
        if self.own.is_destination(outgoing) {
            self.looped.push_back(outgoing.to_frame());
            return true;
        }
        let sent = outgoing.send(self.link, self.buffer);
        let to_members = |mgid| has_member(self.groups, mgid, outgoing.head.dlid);
        if sent && outgoing.mgid().is_some_and(to_members) {
            self.looped.push_back(outgoing.to_frame());
        }
        sent
    }

    /// Whether the receiver of a frame with this head can read the pieces of a message in the
    /// sender's memory. If not, the message is sent by copy.
    pub(crate) fn can_lease(
        &mut self,
        head: &Head,
        pieces: &Pieces<'_>,
        leases: &LeaseTable,
    ) -> bool {
        let mut keys = pieces.sges().map(|sge| sge.lkey);
        let is_own = self.own.gids.is_none()
            && self.own.lid.covers(self.own.lmc, head.dlid)
            && context_of(head.dest_qp) == self.own.context;
        // A region that covers only part of its memory has no lease.
        if is_own {
            keys.all(|key| leases.region(key).is_some())
        } else {
            self.link.can_lease(head.route_words(), &mut keys)
        }
    }
}
