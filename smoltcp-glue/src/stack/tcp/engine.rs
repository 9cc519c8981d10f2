//! smoltcp at work for one connection at a time.
//!
//! Its interface polls every socket of a set, so each connection is a set of its own, and a packet
//! costs one connection's poll however many there are. The interface itself is shared: it is told
//! before each poll which address is ours here. It takes its MTU when it is made, so there is one
//! for each MTU in use. Checksums are none of its business: segments that come were looked at, and
//! those that go are sealed here.

use crate::stack::outbox::{Exit, Packet};
use crate::stack::packet::IpPacket;
use pollux_verbs::dice::Dice;
use pollux_verbs::time::Time;
use pollux_wire::ip::tcp::{TcpSegment, fill_checksum};
use smoltcp::iface::{Config, Interface, PollResult, SocketSet};
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
use std::net::IpAddr;

/// What smoltcp takes for a microsecond. It sends again after a second at the least (RFC 6298 2.4),
/// thousands of round trips of this link; five times as fast it is what other hosts here do, a
/// fifth of a second, still more than any of them delays an acknowledgment (RFC 9293 3.8.6.3 allows
/// half a second). Its own acknowledgments wait for 2 ms then, and what has ended for 2 s.
const MICROSECOND_NANOS: u64 = 200;
/// MTUs in use at a time; beyond that interfaces are made anew.
const INTERFACES_MAX: usize = 16;

/// smoltcp, without sockets.
pub(super) struct Engine {
    /// By MTU.
    interfaces: Vec<(u32, Interface)>,
    /// Which was used last.
    last: usize,
    dice: Dice,
}

/// When and where a connection is polled.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) now: Time,
    pub(super) local: IpAddr,
    pub(super) mtu: u32,
}

/// A segment that smoltcp has written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub(super) sequence_number: u32,
    /// What it takes of the sequence numbers.
    pub(super) octets: u32,
    pub(super) acknowledgment_number: u32,
    pub(super) window: u16,
    pub(super) syn: bool,
    pub(super) rst: bool,
}

impl Written {
    /// The sequence number after it.
    pub(super) const fn end(&self) -> u32 {
        self.sequence_number.wrapping_add(self.octets)
    }
}

impl Engine {
    pub(super) const fn new(dice: Dice) -> Self {
        Self { interfaces: Vec::new(), last: 0, dice }
    }

    /// The interface for an address of ours and an MTU, for whoever opens a connection.
    pub(super) fn interface(&mut self, at: At) -> &mut Interface {
        let is_last = self.interfaces.get(self.last).is_some_and(|(mtu, _)| *mtu == at.mtu);
        if !is_last {
            self.last = self.find_or_make(at);
        }
        let interface = &mut self.interfaces[self.last].1;
        let own = whole(at.local);
        if interface.ip_addrs() != [own] {
            interface.update_ip_addrs(|addresses| {
                addresses.clear();
                // There is room for one in an empty list.
                let _ = addresses.push(own);
            });
        }
        interface
    }

    #[cold]
    fn find_or_make(&mut self, at: At) -> usize {
        if let Some(found) = self.interfaces.iter().position(|(mtu, _)| *mtu == at.mtu) {
            return found;
        }
        if self.interfaces.len() == INTERFACES_MAX {
            self.interfaces.clear();
        }
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = self.dice.roll();
        let mut nothing = Packet::default();
        let mut pipe = Pipe::new(at.mtu, None, &mut nothing);
        self.interfaces.push((at.mtu, Interface::new(config, &mut pipe, instant(at.now))));
        self.interfaces.len() - 1
    }

    /// Lets a connection see a packet. An answer at once, which few packets have, is written into
    /// `answer`; says whether there is one.
    pub(super) fn receive(
        &mut self,
        at: At,
        sockets: &mut SocketSet<'static>,
        packet: &[u8],
        answer: &mut Packet,
    ) -> bool {
        let interface = self.interface(at);
        let mut pipe = Pipe::new(at.mtu, Some(packet), answer);
        interface.poll_ingress_single(instant(at.now), &mut pipe, sockets);
        pipe.written.is_some()
    }

    /// Writes what a connection sends next, if there is anything.
    pub(super) fn transmit(
        &mut self,
        at: At,
        sockets: &mut SocketSet<'static>,
        exit: &mut dyn Exit,
    ) -> Option<Written> {
        self.egress(at, sockets, Pipe::new(at.mtu, None, exit))
    }

    /// The same without its checksum, for whoever may not send it.
    pub(super) fn draft(
        &mut self,
        at: At,
        sockets: &mut SocketSet<'static>,
        draft: &mut Packet,
    ) -> Option<Written> {
        self.egress(at, sockets, Pipe { seals: false, ..Pipe::new(at.mtu, None, draft) })
    }

    fn egress(
        &mut self,
        at: At,
        sockets: &mut SocketSet<'static>,
        mut pipe: Pipe<'_>,
    ) -> Option<Written> {
        let interface = self.interface(at);
        let result = interface.poll_egress(instant(at.now), &mut pipe, sockets);
        pipe.written.filter(|_| result == PollResult::SocketStateChanged)
    }

    /// When a connection wants to be polled.
    pub(super) fn due(&mut self, at: At, sockets: &SocketSet<'static>) -> Option<Time> {
        self.interface(at).poll_at(instant(at.now), sockets).map(time_of)
    }
}

/// smoltcp counts microseconds, and its clock is fast.
fn instant(now: Time) -> Instant {
    Instant::from_micros((now.nanos() / MICROSECOND_NANOS) as i64)
}

/// When its clock will show that.
fn time_of(instant: Instant) -> Time {
    Time::from_nanos(instant.total_micros().max(0) as u64 * MICROSECOND_NANOS)
}

fn whole(ip: IpAddr) -> IpCidr {
    let bits = if ip.is_ipv4() { 32 } else { 128 };
    IpCidr::new(IpAddress::from(ip), bits)
}

/// One packet in, one packet out.
struct Pipe<'p> {
    mtu: u32,
    incoming: Option<&'p [u8]>,
    outgoing: &'p mut dyn Exit,
    seals: bool,
    written: Option<Written>,
}

impl<'p> Pipe<'p> {
    fn new(mtu: u32, incoming: Option<&'p [u8]>, outgoing: &'p mut dyn Exit) -> Self {
        Self { mtu, incoming, outgoing, seals: true, written: None }
    }
}

impl Device for Pipe<'_> {
    type RxToken<'a>
        = Incoming<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Outgoing<'a>
    where
        Self: 'a;

    fn receive(&mut self, now: Instant) -> Option<(Incoming<'_>, Outgoing<'_>)> {
        let incoming = self.incoming.take()?;
        Some((Incoming(incoming), self.transmit(now)?))
    }

    fn transmit(&mut self, _: Instant) -> Option<Outgoing<'_>> {
        if self.written.is_some() {
            return None;
        }
        let Self { outgoing, seals, written, .. } = self;
        Some(Outgoing { exit: &mut **outgoing, seals: *seals, written })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu as usize;
        capabilities.checksum.ipv4 = Checksum::Tx;
        capabilities.checksum.tcp = Checksum::None;
        capabilities
    }
}

struct Incoming<'a>(&'a [u8]);

impl RxToken for Incoming<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

struct Outgoing<'a> {
    exit: &'a mut dyn Exit,
    seals: bool,
    written: &'a mut Option<Written>,
}

impl TxToken for Outgoing<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let room = self.exit.room(len);
        let result = f(room);
        *self.written = look(room, self.seals);
        result
    }
}

/// Looks at what smoltcp has written, and puts the checksum into it, which is left to us: ours
/// takes a fraction of the time.
fn look(octets: &mut [u8], seals: bool) -> Option<Written> {
    let IpPacket { pseudo, payload, .. } = IpPacket::parse(octets).ok()?;
    let at = octets.len() - payload.len();
    let segment = TcpSegment::parse(payload).ok()?;
    let header = segment.header();
    let marks = u32::from(header.syn) + u32::from(header.fin);
    let written = Written {
        sequence_number: header.sequence_number,
        octets: segment.payload().len() as u32 + marks,
        acknowledgment_number: header.acknowledgment_number,
        window: header.window,
        syn: header.syn,
        rst: header.rst,
    };
    if seals {
        let is_sealed = fill_checksum(&mut octets[at..], &pseudo);
        debug_assert!(is_sealed.is_ok(), "it has the header of a segment");
    }
    Some(written)
}

/// Looks at a segment of ours and seals it.
pub(super) fn seal(octets: &mut [u8]) -> Option<Written> {
    look(octets, true)
}
