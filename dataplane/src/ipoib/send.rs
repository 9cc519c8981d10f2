//! Sending: four bytes in front of each packet, and one doorbell for each run to one queue pair.
//!
//! Packets of a batch keep their order, so those of one flow do. A run ends where the next packet
//! goes by another queue pair; all datagrams go by one.

use super::{HEADER, Netdev, Request, State};
use crate::neighbor::{Connected, Datagram, Route};
use crate::packet_memory::{BATCH, Stock};
use crate::reason::Refusal;
use pollux_mem::Buf;
use pollux_verbs::*;
use pollux_wire::ip::ipoib::{EtherType, IpoibHeader};
use pollux_wire::keys::QKey;
use std::cell::Cell;
use std::sync::atomic::{Ordering, fence};
use std::vec::Drain;

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

/// By which queue pair a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Datagrams,
    Connection(u32),
}

/// Names no memory.
pub(super) const NO_SGE: Sge = Sge { address: 0, bytes: 0, lkey: LKey(0) };
const NO_REQUEST: SendRequest<'_> =
    SendRequest { id: 0, op: SendOp::Send, flags: SendFlags::NONE, data: Data::EMPTY };

impl Netdev {
    /// Sends packets. Those that are not taken come to `refused`, as they were; `batch` is empty
    /// then.
    pub fn send<D: Device + ?Sized>(
        &mut self,
        device: &mut D,
        batch: &mut Vec<Outgoing>,
        refused: &mut Vec<Refused>,
    ) {
        self.admit_all(batch, refused);
        // What was written to buffers is there before the adapter looks.
        fence(Ordering::Release);
        let mut left = batch.drain(..);
        while let Some(first) = left.as_slice().first() {
            let same = |one: &&Outgoing| is_same_way(&one.route, &first.route);
            let run = left.as_slice().iter().take(BATCH).take_while(same).count();
            let lane = self.lane(&first.route);
            let (accepted, why) = match run {
                1 => self.post::<D, 1>(device, lane, run, &mut left),
                _ => self.post::<D, BATCH>(device, lane, run, &mut left),
            };
            if let Some(why) = why {
                // A way that is no more is one packet's; the others may go.
                let count = if why == Refusal::Stale { 1 } else { run - accepted };
                self.give_back(why, left.by_ref().take(count), refused);
            }
        }
    }

    /// Encapsulates what can be sent, and takes out what cannot.
    #[inline]
    fn admit_all(&mut self, batch: &mut Vec<Outgoing>, refused: &mut Vec<Refused>) {
        let reason = Cell::new((Refusal::Down, None));
        let unfit = batch.extract_if(.., |outgoing| {
            let admitted = self.admit(outgoing);
            admitted.is_err_and(|why| {
                reason.set(why);
                true
            })
        });
        let before = refused.len();
        for outgoing in unfit {
            let (why, mtu) = reason.get();
            refused.push(Refused { why, outgoing, mtu });
        }
        refused[before..].iter().for_each(|one| self.refusals.count(one.why));
    }

    /// Puts the header in front of a packet that can be sent; says why one cannot, and how long it
    /// might have been.
    #[inline]
    fn admit(&self, outgoing: &mut Outgoing) -> Result<(), (Refusal, Option<u32>)> {
        let bytes = outgoing.packet.len() as u32;
        let mtu = match &outgoing.route {
            Route::Connected(way) if self.connections.is_open(way.connection) => way.mtu,
            route => {
                let way = datagram(route, bytes).map_err(|why| (why, None))?;
                if self.datagrams.state != State::Started {
                    return Err((Refusal::Down, None));
                }
                way.mtu
            }
        };
        if bytes > mtu {
            return Err((Refusal::TooBig, Some(mtu)));
        }
        // What is copied may lie anywhere.
        let is_inline = bytes as usize + HEADER <= self.config.inline_bytes_max as usize;
        if !is_inline && !self.knows(&outgoing.packet) {
            return Err((Refusal::Foreign, None));
        }
        let header = IpoibHeader { ether_type: outgoing.ether_type };
        let front = outgoing.packet.push_front(HEADER).ok_or((Refusal::NoHeadroom, None))?;
        front.copy_from_slice(&header.emit());
        Ok(())
    }

    #[inline]
    fn knows(&self, buf: &Buf) -> bool {
        self.small.holds(buf) || self.large.holds(buf)
    }

    /// By which queue pair a packet goes that was admitted.
    #[inline]
    fn lane(&self, route: &Route) -> Lane {
        match route {
            Route::Connected(way) if self.connections.is_open(way.connection) => {
                Lane::Connection(way.connection.slot)
            }
            _ => Lane::Datagrams,
        }
    }

    /// Posts the next `run` packets, at most `N`, to one queue pair. Says how many it took, and why
    /// not all.
    #[inline]
    fn post<D: Device + ?Sized, const N: usize>(
        &mut self,
        device: &mut D,
        lane: Lane,
        run: usize,
        left: &mut Drain<'_, Outgoing>,
    ) -> (usize, Option<Refusal>) {
        let Self { connections, datagrams, traffic, small, large, config, link, .. } = self;
        let mut own = 0;
        let (qp, sends, name, sent, own_sent) = match lane {
            Lane::Datagrams => {
                let sent = &mut traffic.datagrams_sent;
                (datagrams.qp, &mut datagrams.sends, Request::Datagram(0), sent, &mut own)
            }
            Lane::Connection(slot) => {
                let Some(one) = connections.at(slot) else {
                    return (0, Some(Refusal::Disconnected));
                };
                let (name, sent) = (one.request(slot), &mut traffic.connected_sent);
                (one.peering.qp, &mut one.sends, name, sent, &mut one.counts.sent)
            }
        };
        let count = run.min(sends.room());
        let packets = &left.as_slice()[..count];
        let inline_bytes_max = config.inline_bytes_max as usize;
        let is_inline = |buf: &Buf| buf.len() <= inline_bytes_max;
        let mut sges = [NO_SGE; N];
        for (sge, one) in sges.iter_mut().zip(packets) {
            if !is_inline(&one.packet) {
                let buf = &one.packet;
                *sge = small.sge(buf).or_else(|| large.sge(buf)).unwrap_or(NO_SGE);
            }
        }
        let (mut flags, mut requests) = ([SendFlags::NONE; N], [NO_REQUEST; N]);
        let places = flags.iter_mut().zip(&mut requests).zip(&sges);
        for (nth, (((flags, request), sge), one)) in places.zip(packets).enumerate() {
            let is_inline = is_inline(&one.packet);
            *flags = sends.flags(!is_inline, nth + 1 == count);
            let data = match is_inline {
                true => Data::Inline(one.packet.bytes()),
                false => Data::Sges(std::slice::from_ref(sge)),
            };
            let id = name.id() | u64::from(sends.number(nth));
            let op = operation(lane, &one.route, link.qkey);
            *request = SendRequest { id, op, flags: *flags, data };
        }
        let posted = device.post_send(qp, &requests[..count]);
        let accepted = posted.as_ref().map_or_else(|error| error.accepted, |()| count);
        *sent += accepted as u64;
        *own_sent += accepted as u64;
        for (flags, Outgoing { packet, .. }) in flags[..accepted].iter().zip(left) {
            if is_inline(&packet) {
                sends.push_inline(*flags);
                free(small, large, packet);
            } else {
                sends.push(packet, *flags);
            }
        }
        if accepted == run {
            return (accepted, None);
        }
        sends.cut_short();
        let why = match (lane, posted.map_err(|error| error.refusal)) {
            (_, Ok(()) | Err(PostRefusal::Full)) => Refusal::Full,
            (Lane::Datagrams, Err(PostRefusal::BadOperation)) => Refusal::Stale,
            (Lane::Datagrams, Err(_)) => Refusal::Down,
            (Lane::Connection(_), Err(_)) => Refusal::Disconnected,
        };
        (accepted, Some(why))
    }

    #[cold]
    fn give_back(
        &mut self,
        why: Refusal,
        packets: impl Iterator<Item = Outgoing>,
        refused: &mut Vec<Refused>,
    ) {
        for mut outgoing in packets {
            let stripped = outgoing.packet.pull_front(HEADER);
            debug_assert!(stripped.is_some(), "it was put there");
            self.refusals.count(why);
            refused.push(Refused { why, outgoing, mtu: None });
        }
    }
}

/// Whether packets of two routes go by one queue pair, whichever that is now.
#[inline]
fn is_same_way(one: &Route, other: &Route) -> bool {
    match (one, other) {
        (Route::Connected(one), Route::Connected(other)) => one.connection == other.connection,
        (Route::Datagram(_), Route::Datagram(_)) => true,
        _ => false,
    }
}

/// The way of a datagram of so many bytes: the only one, or that of what no connection takes. What
/// is too long for the latter is not too long: the connection will be back.
#[inline]
fn datagram(route: &Route, bytes: u32) -> Result<&Datagram, Refusal> {
    match route {
        Route::Datagram(way) => Ok(way),
        Route::Connected(Connected { fallback: Some(way), .. }) if bytes <= way.mtu => Ok(way),
        Route::Connected(_) => Err(Refusal::Disconnected),
        Route::Unknown => Err(Refusal::Unknown),
        Route::Pending => Err(Refusal::Pending),
        Route::Unreachable => Err(Refusal::Unreachable),
    }
}

/// What is asked of the queue pair.
#[inline]
fn operation(lane: Lane, route: &Route, qkey: QKey) -> SendOp {
    if let Lane::Datagrams = lane
        && let Ok(way) = datagram(route, 0)
    {
        SendOp::Datagram(Destination { ah: way.ah, qpn: way.qpn, qkey })
    } else {
        SendOp::Send
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
