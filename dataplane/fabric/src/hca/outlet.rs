//! Where what queue pairs send leaves the adapter: by its link, or back to itself.

use super::memory::Pieces;
use super::qpn::seat_of;
use super::{Adapter, Member, has_member};
use crate::frame::{Frame, Outgoing};
use crate::head::Head;
use crate::link::Link;
use pollux_wire::address::{Gid, Lid};
use pollux_wire::mad::smp::PortState;
use std::collections::VecDeque;

/// What queue pairs send by.
pub(crate) trait Outlet {
    /// Sends something; says whether there was room.
    fn send(&mut self, outgoing: &Outgoing<'_>) -> bool;

    /// Whether the receiver of what has this head can take a message from where its pieces are;
    /// else it goes by copy.
    fn lends(&mut self, head: &Head, pieces: &Pieces<'_>) -> bool;
}

/// The way out of an adapter, while one of its queue pairs sends.
pub(super) struct Exit<'a, L> {
    pub(super) link: &'a mut L,
    pub(super) looped: &'a mut VecDeque<Frame>,
    pub(super) groups: &'a [Member],
    /// For the packet that is being sent.
    pub(super) room: &'a mut Vec<u8>,
    pub(super) own: Own,
    /// What was sent by a port that carries no traffic.
    pub(super) lost: u32,
}

/// What says that something is for the adapter itself.
pub(super) struct Own {
    is_up: bool,
    lid: Lid,
    lmc: u8,
    /// On Ethernet the port's names say what comes back to it.
    gids: Option<Vec<Gid>>,
    seat: u8,
    has_agents: bool,
}

impl Own {
    pub(super) fn of(adapter: &Adapter, has_agents: bool) -> Self {
        let port = &adapter.shared.port;
        Self {
            is_up: port.state == PortState::ACTIVE,
            lid: port.lid,
            lmc: port.lmc,
            gids: port.is_ethernet().then(|| port.gids.clone()),
            seat: adapter.seat,
            has_agents,
        }
    }

    fn is(&self, outgoing: &Outgoing<'_>) -> bool {
        let is_own = match &self.gids {
            None => self.lid.covers(self.lmc, outgoing.dlid()),
            Some(gids) => outgoing.dgid().is_some_and(|dgid| gids.contains(&dgid)),
        };
        let is_here = seat_of(outgoing.head.dest_qp) == self.seat;
        is_own && is_here && !(self.has_agents && outgoing.is_management())
    }
}

impl<L: Link> Outlet for Exit<'_, L> {
    #[inline(always)]
    fn send(&mut self, outgoing: &Outgoing<'_>) -> bool {
        // A port that carries no traffic throws away what it is given, as hardware does (IBA 7.2):
        // requests have been sent, to no avail, and their time runs.
        if !self.own.is_up {
            self.lost += 1;
            return true;
        }
        if self.own.is(outgoing) {
            self.looped.push_back(outgoing.to_frame());
            return true;
        }
        let went = outgoing.send(self.link, self.room);
        let to_members = |mgid| has_member(self.groups, mgid, outgoing.dlid());
        if went && outgoing.mgid().is_some_and(to_members) {
            self.looped.push_back(outgoing.to_frame());
        }
        went
    }

    fn lends(&mut self, head: &Head, pieces: &Pieces<'_>) -> bool {
        let mut keys = pieces.sges().map(|sge| sge.lkey);
        // An adapter always borrows from itself.
        let is_own = self.own.gids.is_none() && self.own.lid.covers(self.own.lmc, head.dlid);
        is_own && seat_of(head.dest_qp) == self.own.seat
            || self.link.lends(head.route_words(), &mut keys)
    }
}
