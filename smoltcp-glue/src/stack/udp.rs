//! UDP (RFC 768, RFC 8200 8.1): sockets by address and port, and a queue of datagrams for each.
//!
//! A socket is bound to a local address and a port, or to a port at all addresses of a family. Two
//! sockets have the same address and port only if all sockets there share them, so at most two
//! lookups find the socket of a datagram. Of sockets that share an address, the one bound last gets
//! the datagram, as on Linux. A datagram to a group goes to every socket of that port that joined
//! the group, except to sockets that are connected to another peer.

mod groups;
mod options;

pub use options::UdpOptions;

use super::lookup::find_bound;
use super::outbox::PacketSink;
use super::packet::{IpPacket, header_len, write_header};
use super::recent::Recent;
use super::slab::{Key, Slab};
use super::{BindError, Events, Lookup, SocketId, Stack, StackCounts, plain};
use groups::GroupSources;
use pollux_verbs::time::Time;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::udp::{UdpDatagram, UdpHeader, fill_checksum};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

/// Identifies a UDP socket of a stack; invalid after the socket is closed.
pub type UdpId = Key<UdpState>;

/// The queue space of a datagram in addition to its payload.
const OVERHEAD_BYTES: usize = 64;
/// Maximum number of datagram buffers kept for reuse.
const SPARE_MAX: usize = 256;

/// A bound socket with its receive queue.
pub struct UdpState {
    local: SocketAddr,
    peer: Option<SocketAddr>,
    options: UdpOptions,
    groups: BTreeMap<IpAddr, GroupSources>,
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

impl Datagram {
    fn copy_to(&self, buffer: &mut [u8]) -> Option<UdpReceived> {
        let payload_len = self.payload.len();
        let len = payload_len.min(buffer.len());
        buffer[..len].copy_from_slice(&self.payload[..len]);
        let (from, to) = self.from.zip(self.to)?;
        Some(UdpReceived { len, payload_len, from, to })
    }
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
    /// The datagram is too long for a packet; the maximum payload in bytes.
    #[error("the payload is longer than a packet; send at most {0} bytes")]
    TooBig(usize),
    /// The address has the wrong family, has port 0, is unspecified, or is not a group or source as
    /// the call needs; or there is no source address for the destination.
    #[error("invalid address for this socket; check address family, port and source")]
    BadAddress,
    /// The send queue is full.
    #[error("the send queue is full")]
    Full,
}

pub(super) struct Udp {
    pub(super) sockets: Slab<UdpState>,
    /// For sockets that share an address, the one bound last.
    bound: Lookup<SocketAddr, UdpId>,
    sharing: BTreeMap<SocketAddr, Vec<UdpId>>,
    joined: Lookup<SocketAddr, Vec<UdpId>>,
    spare: Vec<Datagram>,
    recent: Recent,
    queue_bytes_max: usize,
    pub(super) events: Events,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UdpInput {
    /// The datagram was delivered, or dropped without an ICMP error. A datagram to a group without
    /// a member is dropped uncounted.
    Done,
    NoSocket,
}

impl Udp {
    pub(super) fn new(sockets_max: usize, queue_bytes_max: usize) -> Self {
        Self {
            sockets: Slab::new(sockets_max),
            bound: Lookup::default(),
            sharing: BTreeMap::new(),
            joined: Lookup::default(),
            spare: Vec::new(),
            recent: Recent::default(),
            queue_bytes_max,
            events: Events::default(),
        }
    }

    pub(super) fn bind(&mut self, local: SocketAddr, shares: bool) -> Result<UdpId, BindError> {
        let is_shared = shares && self.sharing.contains_key(&local);
        if self.bound.contains_key(&local) && !is_shared {
            return Err(BindError::InUse);
        }
        let socket = UdpState {
            local,
            peer: None,
            options: UdpOptions::default(),
            groups: BTreeMap::new(),
            received: VecDeque::new(),
            bytes: 0,
            pending_error: None,
        };
        let id = self.sockets.insert(socket).ok_or(BindError::Full)?;
        self.bound.insert(local, id);
        if shares {
            self.sharing.entry(local).or_default().push(id);
        }
        Ok(id)
    }

    pub(super) fn is_free(&self, local: SocketAddr) -> bool {
        !self.bound.contains_key(&local)
    }

    fn unbind(&mut self, local: SocketAddr, id: UdpId) {
        let Some(sharing) = self.sharing.get_mut(&local) else {
            self.bound.remove(&local);
            return;
        };
        sharing.retain(|other| *other != id);
        match sharing.last() {
            Some(last) => drop(self.bound.insert(local, *last)),
            None => {
                self.sharing.remove(&local);
                self.bound.remove(&local);
            }
        }
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
            self.deliver_to_group(from, to, datagram.payload(), counts);
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

    /// Reports an ICMP error to a connected socket. An unconnected one would not know which peer
    /// the error is about.
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
    /// Binds a socket to a local address, to all addresses of a family, or to a group. Port 0 picks
    /// a free port.
    pub fn udp_bind(&mut self, local: SocketAddr) -> Result<UdpId, BindError> {
        self.udp_bind_as(local, false)
    }

    /// Like [`Stack::udp_bind`], but several sockets can bind the same address if all of them use
    /// this call.
    pub fn udp_bind_shared(&mut self, local: SocketAddr) -> Result<UdpId, BindError> {
        self.udp_bind_as(local, true)
    }

    fn udp_bind_as(&mut self, local: SocketAddr, shares: bool) -> Result<UdpId, BindError> {
        let local = match local.ip().is_multicast() {
            true => plain(local),
            false => self.check_local(local)?,
        };
        match local.port() {
            0 => self.udp_bind_in_shard(local, shares),
            _ => self.udp.bind(local, shares),
        }
    }

    /// Closes a socket.
    pub fn udp_close(&mut self, id: UdpId) {
        for group in self.udp_groups(id) {
            self.udp_leave(id, group);
        }
        if let Some(socket) = self.udp.sockets.remove(id) {
            self.udp.unbind(socket.local, id);
        }
    }

    /// Connects a socket: it receives only from this peer, and gets ICMP errors about datagrams to
    /// it.
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

    /// Queues a datagram. `ends` are the source address and the destination. A socket that is bound
    /// to all addresses or to a group needs a source; other sockets ignore it.
    pub fn udp_send(
        &mut self,
        now: Time,
        id: UdpId,
        ends: (Option<IpAddr>, SocketAddr),
        payload: &[u8],
    ) -> Result<(), UdpError> {
        let (mtu, hop_limit, ends) = self.udp_path(now, id, ends)?;
        let len = packet_len(ends.1.ip(), payload)?;
        if len > mtu as usize {
            return self.udp_send_fragments(mtu, hop_limit, ends, payload);
        }
        let buffer = self.out.push(len).ok_or(UdpError::Full)?;
        self.udp.recent.note(ends);
        write(buffer, ends, hop_limit, payload).ok_or(UdpError::BadAddress)
    }

    #[cold]
    fn udp_send_fragments(
        &mut self,
        mtu: u32,
        hop_limit: u8,
        ends: (SocketAddr, SocketAddr),
        payload: &[u8],
    ) -> Result<(), UdpError> {
        if self.has_fragments() || !self.out.has_space() {
            return Err(UdpError::Full);
        }
        let mut packet = vec![0; packet_len(ends.1.ip(), payload)?];
        write(&mut packet, ends, hop_limit, payload).ok_or(UdpError::BadAddress)?;
        self.udp.recent.note(ends);
        self.fragment(&packet, mtu);
        Ok(())
    }

    /// Like [`Stack::udp_send`], but writes the packet into `sink` at once. Returns the path MTU;
    /// the caller sends a longer packet in fragments.
    pub fn udp_send_to(
        &mut self,
        now: Time,
        id: UdpId,
        ends: (Option<IpAddr>, SocketAddr),
        payload: &[u8],
        sink: &mut dyn PacketSink,
    ) -> Result<u32, UdpError> {
        let (mtu, hop_limit, ends) = self.udp_path(now, id, ends)?;
        let len = packet_len(ends.1.ip(), payload)?;
        self.udp.recent.note(ends);
        write(sink.buffer(len), ends, hop_limit, payload).ok_or(UdpError::BadAddress)?;
        Ok(mtu)
    }

    fn udp_path(
        &self,
        now: Time,
        id: UdpId,
        (from, to): (Option<IpAddr>, SocketAddr),
    ) -> Result<(u32, u8, (SocketAddr, SocketAddr)), UdpError> {
        let &UdpState { local, options, .. } = self.udp.sockets.get(id).ok_or(UdpError::Closed)?;
        let from = match has_no_source(local) {
            true => SocketAddr::new(from.ok_or(UdpError::BadAddress)?, local.port()),
            false => local,
        };
        if to.port() == 0 || to.ip().is_unspecified() || to.is_ipv4() != from.is_ipv4() {
            return Err(UdpError::BadAddress);
        }
        Ok((self.mtus.of(now, to.ip()), options.hop_limit(to.ip()), (from, to)))
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
        socket.bytes -= datagram.payload.len() + OVERHEAD_BYTES;
        let received = datagram.copy_to(buffer);
        if self.udp.spare.len() < SPARE_MAX {
            self.udp.spare.push(datagram);
        }
        Ok(received)
    }

    /// Like [`Stack::udp_recv`], but the datagram stays in the queue.
    pub fn udp_peek(
        &mut self,
        id: UdpId,
        buffer: &mut [u8],
    ) -> Result<Option<UdpReceived>, UdpError> {
        let socket = self.udp.sockets.get_mut(id).ok_or(UdpError::Closed)?;
        if let Some(pending_error) = socket.pending_error.take() {
            return Err(pending_error);
        }
        Ok(socket.received.front().and_then(|datagram| datagram.copy_to(buffer)))
    }

    /// Takes the error that the next [`Stack::udp_recv`] would return.
    pub fn udp_take_error(&mut self, id: UdpId) -> Option<UdpError> {
        self.udp.sockets.get_mut(id)?.pending_error.take()
    }

    /// The number of sockets.
    pub const fn udp_len(&self) -> usize {
        self.udp.sockets.len()
    }

    /// The payload bytes of all queued datagrams.
    pub fn udp_unread(&self, id: UdpId) -> usize {
        let unread = |socket: &UdpState| socket.bytes - OVERHEAD_BYTES * socket.received.len();
        self.udp.sockets.get(id).map_or(0, unread)
    }

    /// The payload bytes of the oldest queued datagram.
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

/// The length of the IP packet of a datagram, before it is fragmented.
pub(crate) fn packet_len(to: IpAddr, payload: &[u8]) -> Result<usize, UdpError> {
    let headers = header_len(to) + UdpHeader::LEN;
    let payload_max = usize::from(u16::MAX) - headers;
    match payload.len() <= payload_max {
        true => Ok(headers + payload.len()),
        false => Err(UdpError::TooBig(payload_max)),
    }
}

/// Whether a socket with this local address needs another source address for its packets.
pub(crate) const fn has_no_source(local: SocketAddr) -> bool {
    local.ip().is_unspecified() || local.ip().is_multicast()
}

fn write(
    buffer: &mut [u8],
    (from, to): (SocketAddr, SocketAddr),
    hop_limit: u8,
    payload: &[u8],
) -> Option<()> {
    let (protocol, len) = (IpProtocol::UDP, UdpHeader::LEN + payload.len());
    let ends = (from.ip(), to.ip());
    let (datagram, pseudo) = write_header(protocol, ends, hop_limit, len, buffer)?;
    let header =
        UdpHeader { source_port: from.port(), destination_port: to.port(), ..UdpHeader::default() };
    header.write_datagram(payload.len(), datagram).ok()?.copy_from_slice(payload);
    fill_checksum(datagram, &pseudo).ok()
}
