//! UDP (RFC 768, RFC 8200 8.1): sockets by address and port, and a queue of datagrams for each.
//!
//! A socket is bound to a local address and a port, or to a port at all addresses of a family. No
//! two sockets have the same pair, so a datagram finds its socket by two lookups at most. A
//! datagram to a group goes to every socket of that port that joined the group, unless it is
//! connected to another peer.

use super::lookup::find_bound;
use super::outbox::PacketSink;
use super::packet::{IpPacket, header_len, write_header};
use super::recent::Recent;
use super::slab::{Key, Slab};
use super::{BindError, Events, Lookup, SocketId, Stack, StackCounts, plain};
use pollux_verbs::time::Time;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::ipv6::Ipv6Header;
use pollux_wire::ip::udp::{UdpDatagram, UdpHeader, fill_checksum};
use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

/// Identifies a UDP socket of a stack; stale after the socket is closed.
pub type UdpId = Key<UdpState>;

/// The queue space of a datagram in addition to its payload.
const OVERHEAD_BYTES: usize = 64;
/// Datagram buffers kept for reuse.
const SPARE_MAX: usize = 256;

/// A bound socket with its receive queue.
pub struct UdpState {
    local: SocketAddr,
    peer: Option<SocketAddr>,
    groups: BTreeSet<IpAddr>,
    received: VecDeque<Datagram>,
    /// Bytes in the queue, with overhead.
    bytes: usize,
    pending_error: Option<UdpError>,
}

#[derive(Default)]
struct Datagram {
    from: Option<SocketAddr>,
    to: Option<IpAddr>,
    payload: Vec<u8>,
}

/// A datagram that [`super::Stack::udp_recv`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpReceived {
    /// Bytes in the buffer.
    pub len: usize,
    /// Bytes of the payload. Bytes beyond the buffer are lost.
    pub payload_len: usize,
    /// The sender; port 0 if it expects no reply (RFC 768).
    pub from: SocketAddr,
    /// The destination: a local address or a group.
    pub to: IpAddr,
}

/// Why a call of a UDP socket failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UdpError {
    /// The socket is closed.
    #[error("the socket is closed")]
    Closed,
    /// The peer has no socket at that port.
    #[error("connection refused: the peer has no socket at that port")]
    Refused,
    /// The destination is unreachable.
    #[error("the peer is unreachable")]
    Unreachable,
    /// The datagram is too long for the path; the maximum payload in bytes.
    #[error("the payload is longer than the path allows; send at most {0} bytes")]
    TooBig(usize),
    /// The other address family, port 0, an unspecified destination, a join of what is no group, or
    /// no source address.
    #[error("invalid address for this socket; check address family, port and source")]
    BadAddress,
    /// The send queue is full.
    #[error("the send queue is full")]
    Full,
}

pub(super) struct Udp {
    sockets: Slab<UdpState>,
    bound: Lookup<SocketAddr, UdpId>,
    joined: Lookup<SocketAddr, Vec<UdpId>>,
    spare: Vec<Datagram>,
    recent: Recent,
    queue_bytes_max: usize,
    pub(super) events: Events,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UdpInput {
    /// Delivered, or dropped without an ICMP error. To a group without a receiver: not counted.
    Done,
    NoSocket,
}

impl Udp {
    pub(super) fn new(sockets_max: usize, queue_bytes_max: usize) -> Self {
        Self {
            sockets: Slab::new(sockets_max),
            bound: Lookup::default(),
            joined: Lookup::default(),
            spare: Vec::new(),
            recent: Recent::default(),
            queue_bytes_max,
            events: Events::default(),
        }
    }

    pub(super) fn bind(&mut self, local: SocketAddr) -> Result<UdpId, BindError> {
        if self.bound.contains_key(&local) {
            return Err(BindError::InUse);
        }
        let socket = UdpState {
            local,
            peer: None,
            groups: BTreeSet::new(),
            received: VecDeque::new(),
            bytes: 0,
            pending_error: None,
        };
        let id = self.sockets.insert(socket).ok_or(BindError::Full)?;
        self.bound.insert(local, id);
        Ok(id)
    }

    pub(super) fn handle(
        &mut self,
        packet: &IpPacket<'_>,
        verify_checksums: bool,
        counts: &mut StackCounts,
    ) -> UdpInput {
        let is_intact =
            |one: &UdpDatagram<'_>| !verify_checksums || one.checksum_ok(&packet.pseudo);
        let Some(datagram) = UdpDatagram::parse(packet.payload).ok().filter(is_intact) else {
            counts.malformed += 1;
            return UdpInput::Done;
        };
        let header = datagram.header();
        let from = SocketAddr::new(packet.source, header.source_port);
        let to = SocketAddr::new(packet.destination, header.destination_port);
        if to.ip().is_multicast() {
            for index in 0..self.joined.get(&to).map_or(0, Vec::len) {
                self.deliver(self.joined[&to][index], from, to.ip(), datagram.payload(), counts);
            }
            return UdpInput::Done;
        }
        let Some(id) = find_bound(&self.bound, to) else { return UdpInput::NoSocket };
        self.deliver(id, from, to.ip(), datagram.payload(), counts)
    }

    fn deliver(
        &mut self,
        id: UdpId,
        from: SocketAddr,
        to: IpAddr,
        payload: &[u8],
        counts: &mut StackCounts,
    ) -> UdpInput {
        let Some(socket) = self.sockets.get_mut(id) else { return UdpInput::NoSocket };
        if socket.peer.is_some_and(|peer| peer != from) {
            return UdpInput::NoSocket;
        }
        let bytes = payload.len() + OVERHEAD_BYTES;
        if socket.bytes + bytes > self.queue_bytes_max {
            counts.udp_queue_full += 1;
            return UdpInput::Done;
        }
        socket.bytes += bytes;
        let mut datagram = self.spare.pop().unwrap_or_default();
        datagram.payload.clear();
        datagram.payload.extend_from_slice(payload);
        (datagram.from, datagram.to) = (Some(from), Some(to));
        socket.received.push_back(datagram);
        self.events.push(SocketId::Udp(id));
        UdpInput::Done
    }

    pub(super) fn has_sent(&self, from: SocketAddr, to: SocketAddr) -> bool {
        find_bound(&self.bound, from).is_some() && self.recent.contains((from, to))
    }

    /// Only a connected socket gets an ICMP error: any other could not know which peer it is about.
    pub(super) fn handle_icmp_error(&mut self, from: SocketAddr, to: SocketAddr, why: UdpError) {
        let Some(id) = find_bound(&self.bound, from) else { return };
        if let Some(socket) = self.sockets.get_mut(id)
            && socket.peer == Some(to)
        {
            socket.pending_error = Some(why);
            self.events.push(SocketId::Udp(id));
        }
    }
}

impl Stack {
    /// Binds a socket to a local address, or to all of a family; port 0 picks a free port.
    pub fn udp_bind(&mut self, local: SocketAddr) -> Result<UdpId, BindError> {
        let local = self.check_local(local)?;
        if local.port() == 0 { self.udp_bind_in_shard(local) } else { self.udp.bind(local) }
    }

    /// Closes a socket.
    pub fn udp_close(&mut self, id: UdpId) {
        for group in self.udp_groups(id) {
            self.udp_leave(id, group);
        }
        if let Some(socket) = self.udp.sockets.remove(id) {
            self.udp.bound.remove(&socket.local);
        }
    }

    /// Connects a socket: it receives from this peer only, and gets ICMP errors of its datagrams.
    pub fn udp_connect(&mut self, id: UdpId, peer: SocketAddr) -> Result<(), UdpError> {
        let socket = self.udp.sockets.get_mut(id).ok_or(UdpError::Closed)?;
        if peer.port() == 0 || peer.is_ipv4() != socket.local.is_ipv4() {
            return Err(UdpError::BadAddress);
        }
        socket.peer = Some(plain(peer));
        Ok(())
    }

    /// The bound address; `None` if the socket is closed.
    pub fn udp_local(&self, id: UdpId) -> Option<SocketAddr> {
        self.udp.sockets.get(id).map(|socket| socket.local)
    }

    /// The connected peer.
    pub fn udp_peer(&self, id: UdpId) -> Option<SocketAddr> {
        self.udp.sockets.get(id)?.peer
    }

    /// Joins a group; returns whether the socket was no member. The caller joins on the link.
    pub fn udp_join(&mut self, id: UdpId, group: IpAddr) -> Result<bool, UdpError> {
        let socket = self.udp.sockets.get_mut(id).ok_or(UdpError::Closed)?;
        if !group.is_multicast() || group.is_ipv4() != socket.local.is_ipv4() {
            return Err(UdpError::BadAddress);
        }
        let is_new = socket.groups.insert(group);
        if is_new {
            let address = SocketAddr::new(group, socket.local.port());
            self.udp.joined.entry(address).or_default().push(id);
        }
        Ok(is_new)
    }

    /// Leaves a group; returns whether the socket was a member.
    pub fn udp_leave(&mut self, id: UdpId, group: IpAddr) -> bool {
        let Some(socket) = self.udp.sockets.get_mut(id) else { return false };
        let was_member = socket.groups.remove(&group);
        let address = SocketAddr::new(group, socket.local.port());
        if let Some(members) = self.udp.joined.get_mut(&address) {
            members.retain(|member| *member != id);
            if members.is_empty() {
                self.udp.joined.remove(&address);
            }
        }
        was_member
    }

    /// The joined groups.
    pub fn udp_groups(&self, id: UdpId) -> Vec<IpAddr> {
        let socket = self.udp.sockets.get(id);
        socket.map_or(Vec::new(), |socket| socket.groups.iter().copied().collect())
    }

    /// Queues a datagram, from a source, which a socket bound to all addresses needs and others
    /// ignore, to a destination.
    pub fn udp_send(
        &mut self,
        now: Time,
        id: UdpId,
        ends: (Option<IpAddr>, SocketAddr),
        payload: &[u8],
    ) -> Result<(), UdpError> {
        let (mtu, ends) = self.udp_path(now, id, ends)?;
        let len = packet_len(mtu, ends.1.ip(), payload)?;
        let buffer = self.out.push(len).ok_or(UdpError::Full)?;
        self.udp.recent.note(ends);
        write(buffer, ends, payload).ok_or(UdpError::BadAddress)
    }

    /// As [`Stack::udp_send`], but writes the packet into `sink` at once.
    pub fn udp_send_to(
        &mut self,
        now: Time,
        id: UdpId,
        ends: (Option<IpAddr>, SocketAddr),
        payload: &[u8],
        sink: &mut dyn PacketSink,
    ) -> Result<(), UdpError> {
        let (mtu, ends) = self.udp_path(now, id, ends)?;
        let len = packet_len(mtu, ends.1.ip(), payload)?;
        self.udp.recent.note(ends);
        write(sink.buffer(len), ends, payload).ok_or(UdpError::BadAddress)
    }

    fn udp_path(
        &self,
        now: Time,
        id: UdpId,
        (from, to): (Option<IpAddr>, SocketAddr),
    ) -> Result<(u32, (SocketAddr, SocketAddr)), UdpError> {
        let local = self.udp.sockets.get(id).ok_or(UdpError::Closed)?.local;
        let from = match local.ip().is_unspecified() {
            true => SocketAddr::new(from.ok_or(UdpError::BadAddress)?, local.port()),
            false => local,
        };
        if to.port() == 0 || to.ip().is_unspecified() || to.is_ipv4() != from.is_ipv4() {
            return Err(UdpError::BadAddress);
        }
        Ok((self.mtus.of(now, to.ip()), (from, to)))
    }

    /// Receives the oldest datagram, if there is one.
    pub fn udp_recv(
        &mut self,
        id: UdpId,
        buffer: &mut [u8],
    ) -> Result<Option<UdpReceived>, UdpError> {
        let socket = self.udp.sockets.get_mut(id).ok_or(UdpError::Closed)?;
        if let Some(pending_error) = socket.pending_error.take() {
            return Err(pending_error);
        }
        let Some(datagram) = socket.received.pop_front() else { return Ok(None) };
        let payload_len = datagram.payload.len();
        socket.bytes -= payload_len + OVERHEAD_BYTES;
        let len = payload_len.min(buffer.len());
        buffer[..len].copy_from_slice(&datagram.payload[..len]);
        let addresses = datagram.from.zip(datagram.to);
        if self.udp.spare.len() < SPARE_MAX {
            self.udp.spare.push(datagram);
        }
        Ok(addresses.map(|(from, to)| UdpReceived { len, payload_len, from, to }))
    }

    /// Takes the error that the next [`Stack::udp_recv`] would return.
    pub fn udp_take_error(&mut self, id: UdpId) -> Option<UdpError> {
        self.udp.sockets.get_mut(id)?.pending_error.take()
    }

    /// The bytes of the oldest datagram that waits.
    pub fn udp_next_bytes(&self, id: UdpId) -> Option<usize> {
        self.udp.sockets.get(id)?.received.front().map(|datagram| datagram.payload.len())
    }

    /// Whether [`Stack::udp_recv`] would return a datagram or an error.
    pub fn udp_is_readable(&self, id: UdpId) -> bool {
        self.udp
            .sockets
            .get(id)
            .is_none_or(|socket| !socket.received.is_empty() || socket.pending_error.is_some())
    }
}

/// The longest packet that the IP header can describe.
const fn packet_len_max(to: IpAddr) -> usize {
    match to {
        IpAddr::V4(_) => u16::MAX as usize,
        IpAddr::V6(_) => u16::MAX as usize + Ipv6Header::LEN,
    }
}

pub(crate) fn packet_len(mtu: u32, to: IpAddr, payload: &[u8]) -> Result<usize, UdpError> {
    let headers = header_len(to) + UdpHeader::LEN;
    let payload_max = (mtu as usize).min(packet_len_max(to)).saturating_sub(headers);
    match payload.len() <= payload_max {
        true => Ok(headers + payload.len()),
        false => Err(UdpError::TooBig(payload_max)),
    }
}

fn write(buffer: &mut [u8], (from, to): (SocketAddr, SocketAddr), payload: &[u8]) -> Option<()> {
    let len = UdpHeader::LEN + payload.len();
    let (datagram, pseudo) = write_header(IpProtocol::UDP, (from.ip(), to.ip()), len, buffer)?;
    let header =
        UdpHeader { source_port: from.port(), destination_port: to.port(), ..UdpHeader::default() };
    header.write_datagram(payload.len(), datagram).ok()?.copy_from_slice(payload);
    fill_checksum(datagram, &pseudo).ok()
}
