//! Runs smoltcp for one connection at a time.
//!
//! A smoltcp interface polls every socket of a set. So each connection has its own set, and a
//! packet costs the poll of only one connection. Connections share an interface, whose address is
//! set before each poll. An interface has a fixed MTU, so there is one for each MTU in use.
//! Checksums are verified and filled outside of smoltcp.

use crate::stack::outbox::{Packet, PacketSink};
use crate::stack::packet::IpPacket;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::ip::tcp::{TcpSegment, fill_checksum};
use smoltcp::iface::{Config, Interface, PollResult, SocketSet};
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
use std::net::IpAddr;
use std::sync::OnceLock;

/// The length of one microsecond of smoltcp's clock, which runs five times fast.
///
/// Why: smoltcp's minimum retransmission timeout is one second (RFC 6298 2.4), thousands of round
/// trips of this link. On the fast clock it is 200 ms, as on Linux, and still longer than the
/// acknowledgment delay of the hosts here (RFC 9293 3.8.6.3 allows half a second). smoltcp's own
/// delayed acknowledgments then take 2 ms, and its TIME-WAIT 2 s.
const MICROSECOND_NANOS: u64 = 200;
/// The constants of smoltcp's random number generator.
const FACTOR: u64 = 0xbb2e_fcec_3c39_611d;
const INCREMENT: u64 = 0x7590_ef39;
/// Maximum number of interfaces, one for each MTU. Beyond it, all of them are created anew.
const INTERFACES_MAX: usize = 16;

pub(super) struct Engine {
    interfaces: Vec<(u32, Interface)>,
    /// The index of the last used interface.
    last: usize,
    rng: SeededRng,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) now: Time,
    pub(super) local: IpAddr,
    pub(super) mtu: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub(super) sequence_number: u32,
    /// The number of sequence numbers that the segment uses, those of SYN and FIN included.
    pub(super) bytes: u32,
    pub(super) acknowledgment_number: u32,
    pub(super) window: u16,
    pub(super) syn: bool,
    pub(super) rst: bool,
}

impl Written {
    pub(super) const fn end(&self) -> u32 {
        self.sequence_number.wrapping_add(self.bytes)
    }
}

impl Engine {
    pub(super) const fn new(rng: SeededRng) -> Self {
        Self { interfaces: Vec::new(), last: 0, rng }
    }

    fn interface(&mut self, at: At) -> &mut Interface {
        let is_last = self.interfaces.get(self.last).is_some_and(|(mtu, _)| *mtu == at.mtu);
        if !is_last {
            self.last = self.find_or_make(at);
        }
        let interface = &mut self.interfaces[self.last].1;
        set_address(interface, at.local);
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
        self.interfaces.push((at.mtu, make(at, self.rng.next_u64())));
        self.interfaces.len() - 1
    }

    /// Passes a SYN to a listening connection, which answers with the initial sequence number
    /// `isn`.
    pub(super) fn receive_syn(
        &mut self,
        at: At,
        isn: u32,
        sockets: &mut SocketSet<'static>,
        packet: &[u8],
    ) {
        let (mut interface, mut nothing) = (beginning(at, isn), Packet::default());
        let mut pipe = Pipe::new(at.mtu, Some(packet), &mut nothing);
        interface.poll_ingress_single(instant(at.now), &mut pipe, sockets);
    }

    /// Passes a packet to a connection. An immediate answer, which is rare, is written into
    /// `answer`; returns whether there is one.
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

    pub(super) fn transmit(
        &mut self,
        at: At,
        sockets: &mut SocketSet<'static>,
        sink: &mut dyn PacketSink,
    ) -> Option<Written> {
        self.egress(at, sockets, Pipe::new(at.mtu, None, sink))
    }

    /// Like `transmit`, but without the checksum: the caller may discard the segment.
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

    pub(super) fn due(&mut self, at: At, sockets: &SocketSet<'static>) -> Option<Time> {
        self.interface(at).poll_at(instant(at.now), sockets).map(time_of)
    }
}

fn make(at: At, seed: u64) -> Interface {
    let mut config = Config::new(HardwareAddress::Ip);
    config.random_seed = seed;
    let mut nothing = Packet::default();
    let mut pipe = Pipe::new(at.mtu, None, &mut nothing);
    Interface::new(config, &mut pipe, instant(at.now))
}

/// An interface at which the next connection has this initial sequence number.
///
/// Why: smoltcp takes initial sequence numbers only from the random number generator of its
/// interface, and three of them reveal the next. So each connection starts at its own interface,
/// seeded such that the generator returns the number that RFC 6528 requires. The generator is a
/// linear congruential one modulo 2^64, which this function runs backward. An output is 32 bits of
/// the state, at an offset given by the upper three bits. An interface first draws some other
/// numbers ([`draws`]), and draws one again if it is 0. The remaining bits of the state are chosen
/// such that none of them is 0.
pub(super) fn beginning(at: At, isn: u32) -> Interface {
    beginning_after(draws(), at, isn)
}

fn beginning_after(draws: usize, at: At, isn: u32) -> Interface {
    let states = (0..).map(|hidden| u64::from(isn) << 29 | hidden);
    let mut seeds = states.filter_map(|mut state| {
        for _ in 0..draws {
            state = state_before(state);
            let shown = (state >> (29 - (state >> 61))) as u32;
            // Some draws use 16 bits of the output, folded, and some 8.
            if (shown ^ shown >> 16) as u16 == 0 || shown as u8 == 0 {
                return None;
            }
        }
        Some(state_before(state))
    });
    let mut interface = make(at, seeds.next().unwrap_or_default());
    set_address(&mut interface, at.local);
    interface
}

/// How many numbers an interface draws before the first sequence number.
///
/// Why it is measured: features of smoltcp add draws, and a program that also uses smoltcp itself
/// may enable features that this crate does not.
fn draws() -> usize {
    const DRAWS_MAX: usize = 8;
    const PROBE: u32 = 0x1234_5678;
    static DRAWS: OnceLock<usize> = OnceLock::new();
    *DRAWS.get_or_init(|| {
        let local = IpAddr::from([10, 0, 0, 1]);
        let at = At { now: Time::START, local, mtu: 1500 };
        let is_right = |draws: &usize| {
            first_sequence_number(at, beginning_after(*draws, at, PROBE)) == Some(PROBE)
        };
        (0..=DRAWS_MAX).find(is_right).expect("a sequence number follows from the seed")
    })
}

/// The sequence number of the first connection at an interface.
fn first_sequence_number(at: At, mut interface: Interface) -> Option<u32> {
    let mut socket = Socket::new(SocketBuffer::new(vec![]), SocketBuffer::new(vec![]));
    let remote = (IpAddr::from([10, 0, 0, 2]), 80);
    socket.connect(interface.context(), remote, 5000).ok()?;
    let mut sockets = SocketSet::new(vec![]);
    sockets.add(socket);
    let mut syn = Packet::default();
    let mut pipe = Pipe::new(at.mtu, None, &mut syn);
    interface.poll_egress(instant(at.now), &mut pipe, &mut sockets);
    pipe.written.map(|syn| syn.sequence_number)
}

/// The generator's previous state.
const fn state_before(state: u64) -> u64 {
    state.wrapping_sub(INCREMENT).wrapping_mul(inverse(FACTOR))
}

/// The inverse of an odd number modulo 2^64. Three bits are correct at first, and each step doubles
/// the number of correct bits.
const fn inverse(odd: u64) -> u64 {
    let (mut result, mut bits) = (odd, 3);
    while bits < u64::BITS {
        result = result.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(result)));
        bits *= 2;
    }
    result
}

fn set_address(interface: &mut Interface, local: IpAddr) {
    let own = host_cidr(local);
    if interface.ip_addrs() != [own] {
        interface.update_ip_addrs(|addresses| {
            addresses.clear();
            // An empty list has space for an address.
            let _ = addresses.push(own);
        });
    }
}

/// Converts a time to smoltcp's fast clock.
fn instant(now: Time) -> Instant {
    Instant::from_micros((now.nanos() / MICROSECOND_NANOS) as i64)
}

fn time_of(instant: Instant) -> Time {
    Time::from_nanos(instant.total_micros().max(0) as u64 * MICROSECOND_NANOS)
}

fn host_cidr(ip: IpAddr) -> IpCidr {
    let bits = if ip.is_ipv4() { 32 } else { 128 };
    IpCidr::new(IpAddress::from(ip), bits)
}

/// A device that receives and sends one packet.
struct Pipe<'p> {
    mtu: u32,
    incoming: Option<&'p [u8]>,
    outgoing: &'p mut dyn PacketSink,
    seals: bool,
    written: Option<Written>,
}

impl<'p> Pipe<'p> {
    fn new(mtu: u32, incoming: Option<&'p [u8]>, outgoing: &'p mut dyn PacketSink) -> Self {
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
        Some(Outgoing { sink: &mut **outgoing, seals: *seals, written })
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
    sink: &'a mut dyn PacketSink,
    seals: bool,
    written: &'a mut Option<Written>,
}

impl TxToken for Outgoing<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let buffer = self.sink.buffer(len);
        let result = f(buffer);
        *self.written = parse_written(buffer, self.seals);
        result
    }
}

/// Parses a segment that smoltcp has written. If `seals`, fills the checksum, faster than smoltcp
/// does.
fn parse_written(bytes: &mut [u8], seals: bool) -> Option<Written> {
    let IpPacket { pseudo, payload, .. } = IpPacket::parse(bytes).ok()?;
    let at = bytes.len() - payload.len();
    let segment = TcpSegment::parse(payload).ok()?;
    let header = segment.header();
    let marks = u32::from(header.syn) + u32::from(header.fin);
    let written = Written {
        sequence_number: header.sequence_number,
        bytes: segment.payload().len() as u32 + marks,
        acknowledgment_number: header.acknowledgment_number,
        window: header.window,
        syn: header.syn,
        rst: header.rst,
    };
    if seals {
        let is_sealed = fill_checksum(&mut bytes[at..], &pseudo);
        debug_assert!(is_sealed.is_ok(), "it has the header of a segment");
    }
    Some(written)
}

/// Parses a segment and fills its checksum.
pub(super) fn seal(bytes: &mut [u8]) -> Option<Written> {
    parse_written(bytes, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also for the few numbers that need other hidden bits, because an earlier draw would be 0.
    #[test]
    fn a_connection_starts_with_the_requested_number() {
        let local = IpAddr::from([10, 0, 0, 1]);
        let at = At { now: Time::START, local, mtu: 2044 };
        for nth in 0..200_000_u32 {
            let isn = nth.wrapping_mul(0x9e37_79b9);
            assert_eq!(first_sequence_number(at, beginning(at, isn)), Some(isn));
        }
    }
}
