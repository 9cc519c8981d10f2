//! Reception: polls completions, returns received packets, and completes sends.
//!
//! Unicast packets are accepted as datagrams and on connections, with a GRH or without (RFC 4755 7,
//! RFC 4391 6). An invalid packet is dropped and counted, and its buffer is used for the next
//! receive.

use super::queue::Receives;
use super::send::{NO_SGE, free};
use super::{ConnectionId, GRH, HEADER, LinkAttributes, Netdev, NetdevEvent, Request, State};
use crate::headers::PacketHeaders;
use crate::packet_memory::{BATCH, PACKET_OFFSET, Stock};
use crate::reason::PacketDrop;
use crate::verdict::{Destinations, Verdict};
use pollux_mem::Buf;
use pollux_verbs::*;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::ipoib::IpoibHeader;
use pollux_wire::mad::MAD_LEN;
use pollux_wire::packet::Grh;
use std::array::from_fn;
use std::sync::atomic::{Ordering, fence};

#[derive(Debug)]
pub struct Received {
    /// The IP or ARP packet, with [`PACKET_OFFSET`] bytes of headroom.
    pub packet: Buf,
    pub headers: PacketHeaders,
    pub verdict: Verdict,
    pub from: RxSource,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxSource {
    Datagram {
        qpn: Qpn,
        lid: Lid,
        /// The sending port's GID, if there was a GRH.
        gid: Option<Gid>,
        /// The multicast group to which the packet was sent.
        group: Option<Gid>,
    },
    Connection(ConnectionId),
}

impl Netdev {
    /// Polls at most [`POLL_MAX`](super::POLL_MAX) completions, appends the received packets to
    /// `received` and posts new receives. Returns the number of completions. The local addresses in
    /// `own` decide the verdicts.
    pub fn poll<D: Device + ?Sized>(
        &mut self,
        device: &mut D,
        own: &Destinations,
        received: &mut Vec<Received>,
    ) -> Result<usize, VerbsError> {
        let mut completions = std::mem::take(&mut self.completions);
        let polled = device.poll(self.cq, &mut completions);
        // Orders the reads of buffers after the completions that report them.
        fence(Ordering::Acquire);
        let count = *polled.as_ref().unwrap_or(&0);
        for completion in &completions[..count] {
            self.complete(completion, own, received);
        }
        let is_empty = count < completions.len();
        self.completions = completions;
        polled?;
        if self.datagrams.state != State::Started {
            self.finish_transition(device);
        }
        if is_empty && !self.connections.ending.is_empty() {
            self.reap(device);
        }
        self.replenish(device);
        Ok(count)
    }

    /// Allocates a buffer for `bytes` bytes. `None` if no buffer is free or long enough.
    #[inline]
    pub fn buffer(&mut self, bytes: usize) -> Option<Buf> {
        let stocks = [&mut self.small, &mut self.large];
        let mut fitting = stocks.into_iter().filter(|stock| bytes <= stock.packet_bytes_max);
        fitting.find_map(|stock| stock.cache.alloc())
    }

    /// A packet in memory that this netdev has registered: the packet itself, or a copy. `None` if
    /// no buffer is free or long enough.
    #[inline]
    pub fn adopt(&mut self, packet: Buf) -> Option<Buf> {
        if self.small.holds(&packet) || self.large.holds(&packet) {
            return Some(packet);
        }
        self.copy(&packet)
    }

    /// A copy of a packet, in memory that this netdev has registered. `None` if no buffer is free
    /// or long enough.
    #[inline]
    pub fn copy(&mut self, packet: &Buf) -> Option<Buf> {
        let mut copy = self.buffer(packet.len())?;
        copy.push_back(packet.len())?.copy_from_slice(packet.bytes());
        Some(copy)
    }

    #[inline]
    pub fn recycle(&mut self, buf: Buf) {
        free(&mut self.small, &mut self.large, buf);
    }

    #[inline]
    fn complete(
        &mut self,
        completion: &Completion,
        own: &Destinations,
        received: &mut Vec<Received>,
    ) {
        match Request::of(completion.id) {
            Some(Request::Datagram(number)) => self.datagram_sent(completion, number),
            Some(Request::Connected { slot, generation, number }) => {
                self.connected_sent(completion, slot, generation, number);
            }
            Some(Request::DatagramReceive(index)) => {
                let Some(mut buf) = self.small.take(index) else { return self.unexpected() };
                self.datagrams.receives.posted -= 1;
                match self.read_datagram(completion, &mut buf) {
                    Ok(read) => received.push(read.of(buf, own)),
                    Err(why) => self.drop_packet(buf, why),
                }
            }
            Some(Request::SharedReceive(index)) => {
                let Some(buf) = self.large.take(index) else { return self.unexpected() };
                self.connections.shared.posted -= 1;
                self.connected_received(completion, buf, own, received);
            }
            Some(Request::OwnReceive { slot, buffer }) => {
                let Some(buf) = self.large.take(buffer) else { return self.unexpected() };
                self.connections.own_taken(slot);
                self.connected_received(completion, buf, own, received);
            }
            None => self.unexpected(),
        }
    }

    #[inline]
    fn connected_received(
        &mut self,
        completion: &Completion,
        mut buf: Buf,
        own: &Destinations,
        received: &mut Vec<Received>,
    ) {
        match self.read_message(completion, &mut buf) {
            Ok(read) => received.push(read.of(buf, own)),
            Err(why) => self.drop_packet(buf, why),
        }
    }

    #[cold]
    fn unexpected(&mut self) {
        self.drops.count(PacketDrop::Stray);
    }

    #[cold]
    fn drop_packet(&mut self, buf: Buf, why: Option<PacketDrop>) {
        self.recycle(buf);
        why.into_iter().for_each(|why| self.drops.count(why));
    }

    #[inline]
    fn datagram_sent(&mut self, completion: &Completion, number: u32) {
        let Self { datagrams, small, large, .. } = self;
        if !datagrams.sends.retire(number, |buf| free(small, large, buf)) {
            return self.unexpected();
        }
        if completion.status != CompletionStatus::Success {
            self.drops.count(PacketDrop::DatagramFailed);
            if datagrams.state == State::Started {
                datagrams.state = State::Stalled;
            }
        }
    }

    #[inline]
    fn connected_sent(&mut self, completion: &Completion, slot: u32, generation: u32, number: u32) {
        let Self { connections, small, large, .. } = self;
        let connection = connections.at(slot).filter(|one| one.is_of(generation));
        let is_ours =
            connection.is_some_and(|one| one.sends.retire(number, |buf| free(small, large, buf)));
        if !is_ours {
            self.unexpected();
        } else if completion.status != CompletionStatus::Success {
            self.drops.count(PacketDrop::ConnectionLost);
            self.fail(slot, Some(completion.status));
        }
    }

    /// Parses a datagram and sets the buffer's window to the packet. An error is the reason of the
    /// drop, or `None` if there was no packet.
    #[inline]
    fn read_datagram(
        &mut self,
        completion: &Completion,
        buf: &mut Buf,
    ) -> Result<Read, Option<PacketDrop>> {
        if completion.status != CompletionStatus::Success {
            return Err(self.datagrams_failed(completion.status));
        }
        let source = completion.from.as_ref().ok_or(PacketDrop::ReceiveFailed)?;
        let grh = read_grh(source, self.is_subnet, buf)?;
        let is_own_qpn =
            source.src_qp == self.datagrams.qpn || self.siblings.contains(&source.src_qp);
        if is_own_qpn && self.link.is_own_port(source, grh.as_ref(), self.is_subnet) {
            return Err(Some(PacketDrop::Echo));
        }
        let bytes = (completion.bytes as usize).checked_sub(GRH);
        bytes.and_then(|bytes| buf.set_window(DATA, bytes)).ok_or(PacketDrop::Runt)?;
        let headers = decapsulate(buf, !self.is_subnet)?;
        self.traffic.datagrams_received += 1;
        self.traffic.bytes_received += buf.len() as u64;
        let from = RxSource::Datagram {
            qpn: source.src_qp,
            lid: source.slid,
            gid: grh.map(|grh| grh.sgid),
            group: grh.map(|grh| grh.dgid).filter(|gid| gid.is_multicast()),
        };
        Ok(Read { headers, from })
    }

    /// As [`Self::read_datagram`], for a message of a connection.
    #[inline]
    fn read_message(
        &mut self,
        completion: &Completion,
        buf: &mut Buf,
    ) -> Result<Read, Option<PacketDrop>> {
        let slot = self.connections.of_qpn(completion.qpn).ok_or(PacketDrop::Stray)?;
        if completion.status != CompletionStatus::Success {
            self.fail(slot, Some(completion.status));
            return Err(receive_failed(completion.status));
        }
        if completion.kind != CompletionKind::Recv {
            return Err(Some(PacketDrop::NotAMessage));
        }
        let bytes = completion.bytes as usize;
        buf.set_window(DATA, bytes).ok_or(PacketDrop::ReceiveFailed)?;
        let headers = decapsulate(buf, false)?;
        let id = self.connections.received(slot).ok_or(PacketDrop::Stray)?;
        self.traffic.connected_received += 1;
        self.traffic.bytes_received += buf.len() as u64;
        Ok(Read { headers, from: RxSource::Connection(id) })
    }

    /// Handles a failed receive of the UD queue pair: the queue pair is in the error state, because
    /// of `stop` or of a failure.
    #[cold]
    fn datagrams_failed(&mut self, status: CompletionStatus) -> Option<PacketDrop> {
        if matches!(self.datagrams.state, State::Started | State::Stalled) {
            self.datagrams.state = State::Stopping;
            self.events.push_back(NetdevEvent::DatagramsFailed { status });
        }
        receive_failed(status)
    }

    /// Posts receives to every queue where enough are missing.
    #[inline]
    pub(super) fn replenish<D: Device + ?Sized>(&mut self, device: &mut D) {
        if self.datagrams.state == State::Started {
            self.replenish_datagrams(device);
        }
        let (connections, large) = (&mut self.connections, &mut self.large);
        let bytes = self.config.receive_mtu as usize;
        if let Some(srq) = connections.srq.filter(|_| !connections.is_empty()) {
            let post = |batch: &[RecvRequest<'_>]| device.post_srq_recv(srq, batch);
            let window = (DATA, bytes);
            let shared = &mut connections.shared;
            let full = post_receives(large, shared, window, Request::SharedReceive, post);
            self.traffic.starved += u64::from(!full);
        }
        if !self.config.uc_shares {
            self.replenish_own(device);
        }
    }

    #[inline]
    pub(super) fn replenish_datagrams<D: Device + ?Sized>(&mut self, device: &mut D) {
        let Self { datagrams, small, .. } = self;
        let qp = datagrams.qp;
        let window = (DATA - GRH, GRH + self.datagram_bytes);
        let post = |batch: &[RecvRequest<'_>]| device.post_recv(qp, batch);
        let receives = &mut datagrams.receives;
        let full = post_receives(small, receives, window, Request::DatagramReceive, post);
        self.traffic.starved += u64::from(!full);
    }

    /// Posts receives to connections with their own receives. These are the connections in
    /// `wanting`: a receive has completed since the last post, or there were no buffers.
    fn replenish_own<D: Device + ?Sized>(&mut self, device: &mut D) {
        let window = (DATA, self.config.receive_mtu as usize);
        for slot in std::mem::take(&mut self.connections.wanting) {
            let Some((qp, receives)) = self.connections.no_longer_wanting(slot) else { continue };
            let request = |buffer| Request::OwnReceive { slot, buffer };
            let post = |batch: &[RecvRequest<'_>]| device.post_recv(qp, batch);
            let full = post_receives(&mut self.large, receives, window, request, post);
            if !full {
                self.traffic.starved += 1;
                self.connections.want(slot);
            }
        }
    }
}

struct Read {
    headers: PacketHeaders,
    from: RxSource,
}

impl Read {
    #[inline]
    fn of(self, packet: Buf, own: &Destinations) -> Received {
        let Self { headers, from } = self;
        let verdict = own.verdict(&headers, packet.bytes());
        Received { packet, headers, verdict, from }
    }
}

/// The drop reason of a failed receive. `None` for a flushed receive, which had no packet.
fn receive_failed(status: CompletionStatus) -> Option<PacketDrop> {
    (status != CompletionStatus::Flushed).then_some(PacketDrop::ReceiveFailed)
}

/// The offset of the encapsulation header in a buffer.
const DATA: usize = PACKET_OFFSET - HEADER;

/// The GRH before a datagram, if there is one. On Ethernet there may be an IPv4 header in its place
/// (IBA A17.4.5), which is ignored.
#[inline]
fn read_grh(source: &Source, is_subnet: bool, buf: &mut Buf) -> Result<Option<Grh>, PacketDrop> {
    if !source.has_grh {
        return Ok(None);
    }
    let bytes = buf.set_window(DATA - GRH, GRH).and_then(|bytes| bytes.first_chunk());
    let grh = Grh::parse(bytes.ok_or(PacketDrop::Grh)?);
    match (grh.ip_ver, is_subnet) {
        (Grh::IP_VER, true) if grh.nxt_hdr == Grh::NXT_HDR_IBA => Ok(Some(grh)),
        (_, true) => Err(PacketDrop::Grh),
        (version, false) => Ok((version == Grh::IP_VER).then_some(grh)),
    }
}

impl LinkAttributes {
    /// Whether a datagram comes from the local port. Queue pairs of two ports may have the same
    /// QPN, so the source GID decides, or without a GRH the source LID without its path bits.
    #[inline]
    fn is_own_port(&self, source: &Source, grh: Option<&Grh>, is_subnet: bool) -> bool {
        match grh {
            Some(grh) => grh.sgid.guid() == self.gid.guid(),
            None => is_subnet && source.slid.0 >> self.lmc == self.lid.0 >> self.lmc,
        }
    }
}

/// Strips the encapsulation header and parses the packet. MADs are accepted only with `takes_mads`,
/// on links where they are sent in band.
#[inline]
fn decapsulate(buf: &mut Buf, takes_mads: bool) -> Result<PacketHeaders, PacketDrop> {
    let (header, packet) = IpoibHeader::read(buf.bytes()).map_err(|_| PacketDrop::Runt)?;
    let ether_type = header.ether_type;
    let headers = match ether_type {
        EtherType::IPV4 | EtherType::IPV6 | EtherType::ARP | EtherType::RARP => {
            PacketHeaders::parse(ether_type, packet)?
        }
        EtherType::IN_BAND_MAD if takes_mads && packet.len() >= MAD_LEN => {
            PacketHeaders::parse(ether_type, packet)?
        }
        EtherType::IN_BAND_MAD if takes_mads => return Err(PacketDrop::Truncated),
        _ => return Err(PacketDrop::EtherType),
    };
    buf.pull_front(HEADER).ok_or(PacketDrop::Runt)?;
    Ok(headers)
}

/// Posts the missing receives, if they are worth a doorbell. Returns `false` if buffers ran out.
#[inline]
fn post_receives(
    stock: &mut Stock,
    receives: &mut Receives,
    (offset, bytes): (usize, usize),
    request: impl Fn(u32) -> Request,
    mut post: impl FnMut(&[RecvRequest<'_>]) -> Result<(), PostError>,
) -> bool {
    let mut missing = receives.wanted(BATCH as u32);
    while missing > 0 {
        let wanted = missing.min(BATCH as u32) as usize;
        let (mut sges, mut buffers) = ([NO_SGE; BATCH], [0; BATCH]);
        let mut count = 0;
        while count < wanted
            && let Some(mut buf) = stock.cache.alloc()
        {
            let fits = buf.set_window(offset, bytes).is_some();
            debug_assert!(fits, "Netdev::new checks the capacity");
            sges[count] = stock.sge(&buf).unwrap_or(NO_SGE);
            buffers[count] = buf.index();
            stock.post(buf);
            count += 1;
        }
        if count == 0 {
            return false;
        }
        let requests: [RecvRequest<'_>; BATCH] = from_fn(|nth| RecvRequest {
            id: request(buffers[nth]).id(),
            sges: std::slice::from_ref(&sges[nth]),
        });
        let posted = post(&requests[..count]);
        let accepted = posted.map_or_else(|error| error.accepted, |()| count);
        for index in &buffers[accepted..count] {
            stock.take(*index).into_iter().for_each(|buf| stock.cache.free(buf));
        }
        receives.posted += accepted as u32;
        missing -= accepted as u32;
        if accepted < wanted {
            return count == wanted;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet_memory::PacketMemory;

    fn source(slid: u16, has_grh: bool) -> Source {
        let (src_qp, slid) = (Qpn(0x48), Lid(slid));
        Source { src_qp, slid, sl: 0, dlid_path_bits: 0, pkey_index: 0, has_grh }
    }

    #[test]
    fn a_datagram_with_an_invalid_grh_is_dropped() {
        let memory = PacketMemory::new(1, 256).unwrap();
        let mut buf = memory.pool().alloc().unwrap();
        let good = Grh { ip_ver: 6, nxt_hdr: Grh::NXT_HDR_IBA, ..Grh::default() };
        let mut read = |grh: Grh, has_grh, is_subnet| {
            buf.set_window(DATA - GRH, GRH).unwrap().copy_from_slice(&grh.emit());
            read_grh(&source(1, has_grh), is_subnet, &mut buf)
        };
        let (version_4, udp) = (Grh { ip_ver: 4, ..good }, Grh { nxt_hdr: 17, ..good });
        assert_eq!(read(good, true, true), Ok(Some(good)));
        assert_eq!(
            read(version_4, false, true),
            Ok(None),
            "without a GRH these bytes are not read"
        );
        assert_eq!(read(version_4, true, true), Err(PacketDrop::Grh));
        assert_eq!(read(udp, true, true), Err(PacketDrop::Grh));
        // On Ethernet there may be an IPv4 header instead, or an IPv6 header followed by UDP.
        assert_eq!(read(version_4, true, false), Ok(None));
        assert_eq!(read(udp, true, false), Ok(Some(udp)));
    }

    #[test]
    fn a_port_is_ours_by_its_guid_or_by_its_lid() {
        let gid = |guid| Gid::new(Gid::DEFAULT_PREFIX, pollux_wire::address::Guid(guid));
        let link = LinkAttributes { lid: Lid(8), lmc: 1, gid: gid(5), ..LinkAttributes::default() };
        let own = |slid, grh: Option<Grh>, is_subnet| {
            link.is_own_port(&source(slid, grh.is_some()), grh.as_ref(), is_subnet)
        };
        let from = |guid| Some(Grh { sgid: gid(guid), ..Grh::default() });
        assert!(own(8, None, true) && own(9, None, true), "two LIDs are ours");
        assert!(!own(10, None, true) && !own(7, None, true));
        assert!(own(8, from(5), true) && own(0, from(5), false));
        assert!(!own(8, from(6), true), "it shares our LID");
        assert!(!own(0, None, false), "Ethernet has no LIDs");
    }
}
