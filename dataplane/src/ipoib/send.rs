//! Transmission: prepends the encapsulation header, and rings one doorbell for each run of packets
//! to the same queue pair.
//!
//! The packets of a batch are posted in order, so the packets of a flow stay in order. A run ends
//! where the next packet uses another queue pair. All datagrams use the UD queue pair.

use super::{HEADER, Netdev, Request, State};
use crate::neighbor::{Connected, DatagramRoute, Route};
use crate::packet_memory::{BATCH, Stock};
use crate::reason::Refusal;
use pollux_mem::Buf;
use pollux_verbs::*;
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::ipoib::IpoibHeader;
use pollux_wire::keys::QKey;
use std::cell::Cell;
use std::sync::atomic::{Ordering, fence};
use std::vec::Drain;

#[derive(Debug)]
pub struct Outgoing {
    /// The IP or ARP packet, with headroom for the encapsulation header.
    pub packet: Buf,
    pub ether_type: EtherType,
    pub route: Route,
}

/// A packet that was not sent. The packet is unchanged.
#[derive(Debug)]
pub struct Refused {
    pub why: Refusal,
    pub outgoing: Outgoing,
    /// The MTU of the route, if the packet is too big.
    pub mtu: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendQp {
    Datagrams,
    Connection(u32),
}

pub(super) const NO_SGE: Sge = Sge { address: 0, bytes: 0, lkey: LKey(0) };
const NO_REQUEST: SendRequest<'_> =
    SendRequest { id: 0, op: SendOp::Send, flags: SendFlags::NONE, data: Data::EMPTY };

impl Netdev {
    /// Sends all packets of `batch` and empties it. Refused packets are appended to `refused`,
    /// unchanged.
    pub fn send<D: Device + ?Sized>(
        &mut self,
        device: &mut D,
        batch: &mut Vec<Outgoing>,
        refused: &mut Vec<Refused>,
    ) {
        self.admit_all(batch, refused);
        // Makes the contents of the buffers visible before the adapter reads them.
        fence(Ordering::Release);
        let mut left = batch.drain(..);
        while let Some(first) = left.as_slice().first() {
            let same = |one: &&Outgoing| uses_same_qp(&one.route, &first.route);
            let run = left.as_slice().iter().take(BATCH).take_while(same).count();
            let target = self.target(&first.route);
            let (accepted, why) = match run {
                1 => self.post::<D, 1>(device, target, run, &mut left),
                _ => self.post::<D, BATCH>(device, target, run, &mut left),
            };
            if let Some(why) = why {
                // A stale address handle affects only one packet; the others may be sent.
                let count = if why == Refusal::Stale { 1 } else { run - accepted };
                self.refuse_all(why, left.by_ref().take(count), refused);
            }
        }
    }

    /// Encapsulates packets that can be sent, and removes the others.
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

    /// Prepends the header to a packet that can be sent. Otherwise returns the reason and, for a
    /// packet that is too big, the MTU.
    #[inline]
    fn admit(&self, outgoing: &mut Outgoing) -> Result<(), (Refusal, Option<u32>)> {
        let bytes = outgoing.packet.len() as u32;
        let mtu = match &outgoing.route {
            Route::Connected(path) if self.connections.is_open(path.connection) => path.mtu,
            route => {
                let path = datagram(route, bytes).map_err(|why| (why, None))?;
                if self.datagrams.state != State::Started {
                    return Err((Refusal::Down, None));
                }
                path.mtu
            }
        };
        if bytes > mtu {
            return Err((Refusal::TooBig, Some(mtu)));
        }
        // An inline packet is copied, so its buffer need not be registered.
        let is_inline = bytes as usize + HEADER <= self.config.inline_bytes_max as usize;
        if !is_inline && !self.is_registered(&outgoing.packet) {
            return Err((Refusal::Foreign, None));
        }
        let header = IpoibHeader { ether_type: outgoing.ether_type };
        let front = outgoing.packet.push_front(HEADER).ok_or((Refusal::NoHeadroom, None))?;
        front.copy_from_slice(&header.emit());
        Ok(())
    }

    #[inline]
    fn is_registered(&self, buf: &Buf) -> bool {
        self.small.holds(buf) || self.large.holds(buf)
    }

    /// Whether the queue pair of a route takes a packet now.
    #[inline]
    pub fn has_space(&self, route: &Route) -> bool {
        match self.target(route) {
            SendQp::Datagrams => self.datagrams.sends.free_slots() > 0,
            SendQp::Connection(slot) => self.connections.has_space(slot),
        }
    }

    #[inline]
    fn target(&self, route: &Route) -> SendQp {
        match route {
            Route::Connected(path) if self.connections.is_open(path.connection) => {
                SendQp::Connection(path.connection.slot)
            }
            _ => SendQp::Datagrams,
        }
    }

    /// Posts the next `run` packets, at most `N`, to one queue pair. Returns the number of accepted
    /// packets, and the reason if not all were accepted.
    #[inline]
    fn post<D: Device + ?Sized, const N: usize>(
        &mut self,
        device: &mut D,
        target: SendQp,
        run: usize,
        left: &mut Drain<'_, Outgoing>,
    ) -> (usize, Option<Refusal>) {
        let Self { connections, datagrams, traffic, small, large, config, link, .. } = self;
        let mut own = 0;
        let (qp, sends, name, sent, own_sent) = match target {
            SendQp::Datagrams => {
                let sent = &mut traffic.datagrams_sent;
                (datagrams.qp, &mut datagrams.sends, Request::Datagram(0), sent, &mut own)
            }
            SendQp::Connection(slot) => {
                let Some(one) = connections.at(slot) else {
                    return (0, Some(Refusal::Disconnected));
                };
                let (name, sent) = (one.request(slot), &mut traffic.connected_sent);
                (one.peering.qp, &mut one.sends, name, sent, &mut one.counts.sent)
            }
        };
        let count = run.min(sends.free_slots());
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
        let slots = flags.iter_mut().zip(&mut requests).zip(&sges);
        for (nth, (((flags, request), sge), one)) in slots.zip(packets).enumerate() {
            let is_inline = is_inline(&one.packet);
            *flags = sends.flags(!is_inline, nth + 1 == count);
            let data = match is_inline {
                true => Data::Inline(one.packet.bytes()),
                false => Data::Sges(std::slice::from_ref(sge)),
            };
            let id = name.id() | u64::from(sends.number(nth));
            let op = operation(target, &one.route, link.qkey);
            *request = SendRequest { id, op, flags: *flags, data };
        }
        let posted = device.post_send(qp, &requests[..count]);
        let accepted = posted.as_ref().map_or_else(|error| error.accepted, |()| count);
        *sent += accepted as u64;
        *own_sent += accepted as u64;
        for (flags, Outgoing { packet, .. }) in flags[..accepted].iter().zip(left) {
            traffic.bytes_sent += (packet.len() - HEADER) as u64;
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
        sends.signal_next();
        let why = match (target, posted.map_err(|error| error.refusal)) {
            (_, Ok(()) | Err(PostRefusal::Full)) => Refusal::Full,
            (SendQp::Datagrams, Err(PostRefusal::BadOperation)) => Refusal::Stale,
            (SendQp::Datagrams, Err(_)) => Refusal::Down,
            (SendQp::Connection(_), Err(_)) => Refusal::Disconnected,
        };
        (accepted, Some(why))
    }

    #[cold]
    fn refuse_all(
        &mut self,
        why: Refusal,
        packets: impl Iterator<Item = Outgoing>,
        refused: &mut Vec<Refused>,
    ) {
        for mut outgoing in packets {
            let stripped = outgoing.packet.pull_front(HEADER);
            debug_assert!(stripped.is_some(), "admit prepended it");
            self.refusals.count(why);
            refused.push(Refused { why, outgoing, mtu: None });
        }
    }
}

#[inline]
fn uses_same_qp(one: &Route, other: &Route) -> bool {
    match (one, other) {
        (Route::Connected(one), Route::Connected(other)) => one.connection == other.connection,
        (Route::Datagram(_), Route::Datagram(_)) => true,
        _ => false,
    }
}

/// The datagram adjacency for a packet of this length: the route itself, or the fallback of a
/// connection that is not open. A packet that is too long for the fallback is refused as
/// disconnected and not as too big, because control will restore the connection.
#[inline]
fn datagram(route: &Route, bytes: u32) -> Result<&DatagramRoute, Refusal> {
    match route {
        Route::Datagram(path) => Ok(path),
        Route::Connected(Connected { fallback: Some(path), .. }) if bytes <= path.mtu => Ok(path),
        Route::Connected(_) => Err(Refusal::Disconnected),
        Route::Unknown => Err(Refusal::Unknown),
        Route::Pending => Err(Refusal::Pending),
        Route::Unreachable => Err(Refusal::Unreachable),
    }
}

#[inline]
fn operation(target: SendQp, route: &Route, qkey: QKey) -> SendOp {
    if let SendQp::Datagrams = target
        && let Ok(path) = datagram(route, 0)
    {
        SendOp::Datagram(Destination { ah: path.ah, qpn: path.qpn, qkey })
    } else {
        SendOp::Send
    }
}

/// Returns a buffer to its stock.
#[inline]
pub(super) fn free(small: &mut Stock, large: &mut Stock, buf: Buf) {
    if small.holds(&buf) {
        small.cache.free(buf);
    } else {
        large.cache.free(buf);
    }
}
