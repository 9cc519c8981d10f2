//! UDP and TCP sockets without I/O: the caller passes in packets and the time, and polls packets to
//! send.
//!
//! ```text
//!   handle_packet --> UDP: sockets by address and port  --> udp_recv
//!                 --> TCP: connections by both addresses --> tcp_recv, tcp_accept
//!                 --> ICMP errors about sent packets
//!   poll_transmit <-- datagrams, resets, then connections that are ready
//! ```
//!
//! The stack demultiplexes packets by table lookup, and gives smoltcp one connection at a time,
//! because smoltcp would try every socket. So an idle socket costs only memory. A datagram longer
//! than the path MTU is sent in fragments.
//!
//! The caller passes in packets for the host's addresses and groups, then drains
//! [`Stack::poll_transmit`], and calls [`Stack::handle_timeout`] at [`Stack::poll_timeout`].

mod config;
mod fragments;
mod icmp;
mod lookup;
mod mtu;
mod outbox;
mod packet;
mod recent;
mod shard;
pub(crate) mod slab;
mod tcp;
mod udp;

pub use config::{KEEPALIVE_MIN, StackConfig, StackCounts, TcpConfig};
pub use outbox::PacketSink;
pub use shard::FlowShard;
pub use smoltcp::socket::tcp::State as TcpState;
pub use tcp::{ListenerId, TcpError, TcpId, TcpInfo};
pub use udp::{UdpError, UdpId, UdpOptions, UdpReceived};
pub(crate) use udp::{has_no_source, packet_len as udp_packet_len};

use fragments::{Reassembly, write_fragments};
use icmp::IcmpError;
use lookup::Lookup;
use mtu::Mtus;
use outbox::{Outbox, Packet};
use packet::{IpPacket, PacketError, Quoted};
use pollux_control::bounded::BoundedQueue;
use pollux_dataplane::headers::{Form, PacketHeaders};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::ip::IpProtocol;
use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use tcp::Tcp;
use udp::{Udp, UdpInput};

/// Maximum number of packets for closed ports that wait for an ICMP port unreachable.
const PORT_UNREACHABLE_MAX: usize = 64;

/// The sockets of a host.
pub struct Stack {
    addresses: BTreeSet<IpAddr>,
    rng: SeededRng,
    mtus: Mtus,
    udp: Udp,
    tcp: Tcp,
    out: Outbox,
    current: Packet,
    reassembly: Reassembly,
    /// The IP identification of the next packet that is sent in fragments.
    identification: u32,
    port_unreachable: BoundedQueue<Vec<u8>>,
    counts: StackCounts,
    verify_checksums: bool,
    shard: FlowShard,
}

/// Why a socket cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Another socket is bound to the address and port.
    #[error("another socket is bound to that address and port")]
    InUse,
    /// The address is not local, or not usable.
    #[error(
        "the address is not usable here; bind to an address of the interface, and connect to a \
         unicast address and a port other than 0"
    )]
    AddressNotAvailable,
    /// Too many sockets, or no free port.
    #[error("too many sockets, or no free port; close some sockets")]
    Full,
}

/// A socket of any kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SocketId {
    /// A UDP socket.
    Udp(UdpId),
    /// A TCP connection.
    Tcp(TcpId),
    /// A TCP listener.
    Listener(ListenerId),
}

/// The queue of events since the last poll, if enabled. A socket may be in it more than once; it
/// has at most one entry per packet and timeout.
#[derive(Default)]
struct Events {
    is_enabled: bool,
    list: VecDeque<SocketId>,
}

impl Events {
    fn push(&mut self, socket: SocketId) {
        if self.is_enabled && self.list.back() != Some(&socket) {
            self.list.push_back(socket);
        }
    }

    fn pop(&mut self) -> Option<SocketId> {
        self.list.pop_front()
    }
}

impl Stack {
    /// A stack without sockets. The seed must be secret.
    pub fn new(config: StackConfig, seed: u64) -> Self {
        // Peers see sequence numbers and ports that derive from it.
        let mut rng = SeededRng::secret(seed);
        Self {
            addresses: BTreeSet::new(),
            mtus: Mtus::new(config.mtu),
            udp: Udp::new(config.udp_sockets_max, config.udp_queue_bytes_max),
            tcp: Tcp::new(config.tcp, config.verify_checksums, rng.split()),
            out: Outbox::new(config.packets_max),
            current: Packet::default(),
            reassembly: Reassembly::default(),
            identification: rng.below(1 << 32) as u32,
            port_unreachable: BoundedQueue::new(PORT_UNREACHABLE_MAX),
            counts: StackCounts::default(),
            verify_checksums: config.verify_checksums,
            shard: FlowShard::ALL,
            rng,
        }
    }

    /// Sets the local addresses. Connections of removed addresses stay until they time out.
    pub fn set_addresses(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.addresses = addresses.into_iter().collect();
    }

    /// Sets the MTU of the link.
    pub fn set_mtu(&mut self, mtu: u32) {
        self.mtus.set_link(mtu);
    }

    /// Sets the MTU of packets to groups. They are sent as UD datagrams, also in connected mode.
    pub fn set_group_mtu(&mut self, mtu: u32) {
        self.mtus.set_groups(mtu);
    }

    /// Sets the path MTU of a destination; `None` for the MTU of the link.
    pub fn set_path_mtu(&mut self, now: Time, to: IpAddr, mtu: Option<u32>) {
        self.mtus.set_or_clear(now, to, mtu);
    }

    /// The path MTU of a destination.
    pub fn path_mtu(&self, now: Time, to: IpAddr) -> u32 {
        self.mtus.of(now, to)
    }

    /// The destinations with a path MTU of their own.
    pub fn path_mtus(&self) -> Vec<IpAddr> {
        self.mtus.destinations().collect()
    }

    /// The counters.
    pub const fn counts(&self) -> &StackCounts {
        &self.counts
    }

    /// Whether a packet is for [`Stack::handle`]: UDP or TCP to a local unicast address, UDP to a
    /// group, or a fragment of such a packet.
    #[inline]
    pub fn wants(&self, headers: &PacketHeaders, bytes: &[u8]) -> bool {
        let is_transport = headers.is_plain_transport() || is_fragment_of_transport(headers);
        let to = headers.destination(bytes).filter(|_| is_transport);
        to.is_some_and(|to| {
            self.addresses.contains(&to) || to.is_multicast() && headers.protocol == IpProtocol::UDP
        })
    }

    /// Adds a fragment to its packet; returns the packet that it completes.
    pub(crate) fn reassemble(&mut self, now: Time, bytes: &[u8]) -> Option<Vec<u8>> {
        let whole = self.reassembly.add(now, bytes);
        self.counts.reassemblies_failed = self.reassembly.given_up;
        whole
    }

    /// Queues the fragments of a UDP datagram for this MTU; drops packets of other protocols.
    pub(crate) fn fragment(&mut self, packet: &[u8], mtu: u32) {
        let is_udp = PacketHeaders::parse_ip(packet).is_ok_and(|it| it.protocol == IpProtocol::UDP);
        if is_udp {
            let identification = self.shard.own_number(self.identification);
            self.identification = self.identification.wrapping_add(1);
            let _ = write_fragments(packet, mtu, identification, &mut self.out);
        }
    }

    /// Whether fragments wait to be sent.
    pub(crate) fn has_fragments(&self) -> bool {
        self.out.has_fragments()
    }

    /// Handles a received packet for a local address or group.
    pub fn handle_packet(&mut self, now: Time, bytes: &[u8]) {
        match PacketHeaders::parse_ip(bytes) {
            Ok(headers) => self.handle(now, &headers, bytes),
            Err(_) => self.counts.malformed += 1,
        }
    }

    /// Like [`Stack::handle_packet`], but with parsed headers.
    pub fn handle(&mut self, now: Time, headers: &PacketHeaders, bytes: &[u8]) {
        let packet = match IpPacket::of(headers, bytes) {
            Ok(packet) => packet,
            Err(PacketError::Malformed) => return self.counts.malformed += 1,
            Err(PacketError::Fragment) => {
                if let Some(whole) = self.reassemble(now, bytes) {
                    self.handle_packet(now, &whole);
                }
                return;
            }
        };
        match packet.protocol {
            IpProtocol::UDP => {
                let verify_checksums = self.verify_checksums;
                if self.udp.handle(&packet, verify_checksums, &mut self.counts)
                    == UdpInput::NoSocket
                {
                    self.counts.udp_refused += 1;
                    self.port_unreachable.push(bytes.to_vec());
                }
            }
            IpProtocol::TCP if !packet.is_plain => self.counts.unknown_protocol += 1,
            IpProtocol::TCP if !self.is_one_to_one(&packet) => self.counts.not_one_to_one += 1,
            IpProtocol::TCP => {
                let back = (&mut self.out, &mut self.counts);
                self.tcp.handle(now, (&packet, bytes), &self.mtus, back);
            }
            IpProtocol::ICMPV4 | IpProtocol::ICMPV6 => {
                if let Some((error, quoted)) = icmp::icmp_error(&packet) {
                    self.handle_icmp_error(now, error, quoted);
                }
            }
            _ => self.counts.unknown_protocol += 1,
        }
    }

    fn is_one_to_one(&self, packet: &IpPacket<'_>) -> bool {
        let is_broadcast = matches!(packet.source, IpAddr::V4(ip) if ip.is_broadcast());
        let is_group = packet.source.is_multicast() || packet.source.is_unspecified();
        self.addresses.contains(&packet.destination) && !is_group && !is_broadcast
    }

    fn handle_icmp_error(&mut self, now: Time, error: IcmpError, quoted: Quoted) {
        let Quoted { protocol, source, destination, sequence_number, len } = quoted;
        let was_sent = match protocol {
            IpProtocol::TCP => self.tcp.is_in_flight(source, destination, sequence_number),
            IpProtocol::UDP => self.udp.has_sent(source, destination),
            _ => false,
        };
        // A packet that fits in the reported MTU was not too big (RFC 5927 7.2).
        let fits = matches!(error, IcmpError::TooBig(mtu) if len <= mtu);
        if !was_sent || fits {
            self.counts.icmp_errors_unmatched += 1;
            return;
        }
        let (tcp_error, udp_error) = match error {
            IcmpError::TooBig(mtu) => return self.mtus.lower(now, destination.ip(), mtu),
            IcmpError::Refused => (TcpError::Refused, UdpError::Refused),
            IcmpError::Unreachable => (TcpError::Unreachable, UdpError::Unreachable),
        };
        match protocol {
            IpProtocol::TCP => self.tcp.handle_icmp_error((source, destination), tcp_error),
            _ => self.udp.handle_icmp_error(source, destination, udp_error),
        }
    }

    /// Lowers the path MTU after a packet was too big to send.
    pub fn handle_too_big(&mut self, now: Time, to: IpAddr, mtu: u32) {
        self.mtus.lower(now, to, mtu);
    }

    /// The next packet to send.
    pub fn poll_transmit(&mut self, now: Time) -> Option<&[u8]> {
        let Self { out, tcp, current, mtus, counts, .. } = self;
        let is_there = out.pop(current) || tcp.transmit(now, current, mtus, counts);
        is_there.then(|| self.current.bytes())
    }

    /// Writes the next packet to send into `sink`; returns whether there is one.
    pub fn transmit_to(&mut self, now: Time, sink: &mut dyn PacketSink) -> bool {
        self.out.pop(sink) || self.tcp.transmit(now, sink, &self.mtus, &mut self.counts)
    }

    /// The next packet that arrived for a closed port, for an ICMP port unreachable.
    pub fn poll_port_unreachable(&mut self) -> Option<Vec<u8>> {
        self.port_unreachable.pop()
    }

    /// The next peer with a connection that made progress, which shows that the peer is reachable
    /// (RFC 4861 7.3.1).
    pub fn poll_progress(&mut self) -> Option<IpAddr> {
        self.tcp.progress.pop()
    }

    /// Enables readiness events ([`Stack::poll_event`]).
    pub const fn enable_events(&mut self) {
        self.udp.events.is_enabled = true;
        self.tcp.events.is_enabled = true;
    }

    /// The next socket that may have become readable or writable, or may have closed. Drain it
    /// after each step.
    pub fn poll_event(&mut self) -> Option<SocketId> {
        self.udp.events.pop().or_else(|| self.tcp.events.pop())
    }

    /// The next sockets after this one, in order, at most `count_max`.
    pub fn sockets_after(&self, after: Option<SocketId>, count_max: usize) -> Vec<SocketId> {
        let tcp = self.tcp.connections.keys().map(SocketId::Tcp);
        let all = self.udp.sockets.keys().map(SocketId::Udp).chain(tcp);
        let all = all.chain(self.tcp.listeners.keys().map(SocketId::Listener));
        let rest = all.skip_while(|socket| after.is_some_and(|after| *socket <= after));
        rest.take(count_max).collect()
    }

    /// Handles the timers that are due.
    pub fn handle_timeout(&mut self, now: Time) {
        self.tcp.handle_timeout(now, &self.mtus, (&mut self.out, &mut self.counts));
    }

    /// The next deadline; `Time::START` if there is something to send.
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.out.is_empty() { self.tcp.poll_timeout() } else { Some(Time::START) }
    }

    fn check_local(&self, local: SocketAddr) -> Result<SocketAddr, BindError> {
        let is_local = local.ip().is_unspecified() || self.addresses.contains(&local.ip());
        if is_local { Ok(plain(local)) } else { Err(BindError::AddressNotAvailable) }
    }
}

#[cold]
const fn is_fragment_of_transport(headers: &PacketHeaders) -> bool {
    matches!(headers.form, Form::Fragment)
        && matches!(headers.protocol, IpProtocol::UDP | IpProtocol::TCP)
}

/// An address without flow label and scope ID.
const fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}
