//! Sending: four octets in front of each packet, and one doorbell for each run to one queue pair.
//!
//! Packets of a batch keep their order, so those of one flow do. A run ends where the next packet
//! goes by another queue pair; all datagrams go by one.

use super::{HEADER, Request, State, Station};
use crate::neighbour::{Connected, Datagram, Route};
use crate::packet_memory::{BATCH, Stock};
use crate::reason::Refusal;
use pollux_mem::Buf;
use pollux_verbs::*;
use pollux_wire::ip::ipoib::{EtherType, IpoibHeader};
use std::array::from_fn;
use std::sync::atomic::{Ordering, fence};

/// A packet to be sent.
#[derive(Debug)]
pub struct Outgoing {
    /// The IP packet, or what else the type says, with room for the header in front.
    pub packet: Buf,
    /// What it is.
    pub ether_type: EtherType,
    /// How it is to be sent.
    pub route: Route,
}

/// A packet that was not taken, as it was.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub why: Refusal,
    /// The packet.
    pub outgoing: Outgoing,
    /// The longest packet that would have been taken, where that is why.
    pub mtu: Option<u32>,
}

/// Where a run goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Datagrams,
    Connection(u32),
}

/// A packet of the present run, encapsulated.
#[derive(Debug)]
pub(super) struct Staged {
    outgoing: Outgoing,
    op: SendOp,
    sge: Sge,
}

impl Station {
    /// Sends packets. Those that are not taken come to `refused`, as they were; `batch` is empty
    /// then.
    pub fn send<D: Device + ?Sized>(
        &mut self,
        device: &mut D,
        batch: &mut Vec<Outgoing>,
        refused: &mut Vec<Refused>,
    ) {
        let mut run = Lane::Datagrams;
        for outgoing in batch.drain(..) {
            let (lane, op) = match self.lane(&outgoing) {
                Ok(way) => way,
                Err((why, mtu)) => {
                    self.refuse(refused, outgoing, why, mtu);
                    continue;
                }
            };
            if (lane != run || self.staged.len() == BATCH) && !self.staged.is_empty() {
                self.post_run(device, run, refused);
            }
            run = lane;
            match self.encapsulate(outgoing, op) {
                Ok(staged) => self.staged.push(staged),
                Err((why, outgoing)) => self.refuse(refused, outgoing, why, None),
            }
        }
        if !self.staged.is_empty() {
            self.post_run(device, run, refused);
        }
    }

    /// By which queue pair a packet goes, and how; or why by none, and what would have been the
    /// longest.
    #[inline]
    fn lane(&self, outgoing: &Outgoing) -> Result<(Lane, SendOp), (Refusal, Option<u32>)> {
        let octets = outgoing.packet.len() as u32;
        let datagram = match outgoing.route {
            Route::Connected(Connected { connection, mtu, fallback }) => {
                if self.connections.is_open(connection) {
                    if octets > mtu {
                        return Err((Refusal::TooBig, Some(mtu)));
                    }
                    return Ok((Lane::Connection(connection.slot), SendOp::Send));
                }
                // What is too long for a datagram is not too long: the connection will be back.
                match fallback {
                    Some(datagram) if octets <= datagram.mtu => datagram,
                    _ => return Err((Refusal::Disconnected, None)),
                }
            }
            Route::Datagram(datagram) => datagram,
            Route::Unknown => return Err((Refusal::Unknown, None)),
            Route::Pending => return Err((Refusal::Pending, None)),
            Route::Unreachable => return Err((Refusal::Unreachable, None)),
        };
        let Datagram { ah, qpn, mtu } = datagram;
        if octets > mtu {
            return Err((Refusal::TooBig, Some(mtu)));
        }
        if self.datagrams.state != State::Started {
            return Err((Refusal::Down, None));
        }
        let to = Destination { ah, qpn, qkey: self.link.qkey };
        Ok((Lane::Datagrams, SendOp::Datagram(to)))
    }

    /// Puts the header in front.
    #[inline]
    fn encapsulate(
        &self,
        mut outgoing: Outgoing,
        op: SendOp,
    ) -> Result<Staged, (Refusal, Outgoing)> {
        let header = IpoibHeader { ether_type: outgoing.ether_type };
        match outgoing.packet.push_front(HEADER) {
            Some(front) => front.copy_from_slice(&header.emit()),
            None => return Err((Refusal::NoHeadroom, outgoing)),
        }
        match self.small.sge(&outgoing.packet).or_else(|| self.large.sge(&outgoing.packet)) {
            Some(sge) => Ok(Staged { outgoing, op, sge }),
            None => Err((Refusal::Foreign, decapsulated(outgoing))),
        }
    }

    #[inline]
    fn post_run<D: Device + ?Sized>(
        &mut self,
        device: &mut D,
        lane: Lane,
        refused: &mut Vec<Refused>,
    ) {
        // What was written to buffers is there before the adapter looks.
        fence(Ordering::Release);
        while !self.staged.is_empty() {
            let posted = match self.staged.len() {
                1 => self.post::<D, 1>(device, lane),
                _ => self.post::<D, BATCH>(device, lane),
            };
            if posted.is_err() || !self.staged.is_empty() {
                self.give_back(lane, posted.err(), refused);
            }
        }
    }

    /// Posts what of the run fits, at most `N`; the rest stays staged.
    #[inline]
    fn post<D: Device + ?Sized, const N: usize>(
        &mut self,
        device: &mut D,
        lane: Lane,
    ) -> Result<(), PostRefusal> {
        let Self { staged, connections, datagrams, traffic, small, large, config, .. } = self;
        let mut own = 0;
        let (qp, sends, name, sent, own_sent) = match lane {
            Lane::Datagrams => {
                let sent = &mut traffic.datagrams_sent;
                (datagrams.qp, &mut datagrams.sends, Request::Datagram(0), sent, &mut own)
            }
            Lane::Connection(slot) => {
                let one = connections.at(slot).ok_or(PostRefusal::NoSuchQueue)?;
                let name = one.request(slot);
                (
                    one.peering.qp,
                    &mut one.sends,
                    name,
                    &mut traffic.connected_sent,
                    &mut one.counts.sent,
                )
            }
        };
        let count = staged.len().min(sends.room());
        let is_inline = |one: &Staged| one.sge.octets <= config.inline_octets_max;
        let flags: [SendFlags; N] = from_fn(|nth| match staged.get(nth) {
            Some(one) if nth < count => sends.flags(!is_inline(one), nth + 1 == count),
            _ => SendFlags::NONE,
        });
        let requests: [SendRequest<'_>; N] = from_fn(|nth| {
            let id = name.id() | u64::from(sends.number(nth));
            let (op, data) = match staged.get(nth) {
                Some(one) if is_inline(one) => (one.op, Data::Inline(one.outgoing.packet.octets())),
                Some(one) => (one.op, Data::Sges(std::slice::from_ref(&one.sge))),
                None => (SendOp::Send, Data::EMPTY),
            };
            SendRequest { id, op, flags: flags[nth], data }
        });
        let posted = device.post_send(qp, &requests[..count]);
        let accepted = posted.as_ref().map_or_else(|error| error.accepted, |()| count);
        if accepted < count {
            sends.cut_short();
        }
        *sent += accepted as u64;
        *own_sent += accepted as u64;
        for (one, flags) in staged.drain(..accepted).zip(flags) {
            if is_inline(&one) {
                sends.push(None, flags);
                free(small, large, one.outgoing.packet);
            } else {
                sends.push(Some(one.outgoing.packet), flags);
            }
        }
        posted.map_err(|error| error.refusal)
    }

    /// Gives back what of a run was not posted: all of it, or the first if the others may go.
    #[cold]
    fn give_back(&mut self, lane: Lane, why: Option<PostRefusal>, refused: &mut Vec<Refused>) {
        let (why, count) = match (lane, why) {
            (_, None | Some(PostRefusal::Full)) => (Refusal::Full, BATCH),
            (Lane::Datagrams, Some(PostRefusal::BadOperation)) => (Refusal::Stale, 1),
            (Lane::Datagrams, Some(_)) => (Refusal::Down, BATCH),
            (Lane::Connection(slot), Some(refusal)) => {
                if refusal == PostRefusal::State(QpState::Err) {
                    self.fail(slot, None);
                }
                (Refusal::Disconnected, BATCH)
            }
        };
        let mut staged = std::mem::take(&mut self.staged);
        for one in staged.drain(..count.min(staged.len())) {
            self.refuse(refused, decapsulated(one.outgoing), why, None);
        }
        self.staged = staged;
    }

    #[cold]
    fn refuse(
        &mut self,
        refused: &mut Vec<Refused>,
        outgoing: Outgoing,
        why: Refusal,
        mtu: Option<u32>,
    ) {
        self.refusals.count(why);
        refused.push(Refused { why, outgoing, mtu });
    }
}

/// Gives a buffer back to the stock that it is of.
#[inline]
pub(super) fn free(small: &mut Stock, large: &mut Stock, buf: Buf) {
    if small.holds(&buf) {
        small.cache.free(buf);
    } else {
        large.cache.free(buf);
    }
}

fn decapsulated(mut outgoing: Outgoing) -> Outgoing {
    let stripped = outgoing.packet.pull_front(HEADER);
    debug_assert!(stripped.is_some(), "it was put there");
    outgoing
}
