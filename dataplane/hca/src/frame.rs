//! Frames on a link of the fabric: packets, or messages of the bypass.
//!
//! [`message_bypass`](crate::message_bypass) defines messages without packets.
//!
//! A message carries its bytes. A long message of a reliable connection may carry the location of
//! its bytes instead ([`LeaseTable`](crate::LeaseTable)). [`FrameToSend`] is a frame that an
//! adapter writes to its link, [`Arrival`] the receiving adapter's view of it, and [`Frame`] a
//! stored frame.

use crate::LIMITS;
use crate::head::{Head, WORDS_MAX};
use crate::lease::{LeasedMemory, QpLease};
use crate::memory::Pieces;
use crate::sink::FrameSink;
use pollux_mem::shared_ring::{Entry, FIRST_WORDS};
use pollux_verbs::{LKey, Sge};
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::mad::Method;
use pollux_wire::packet::{Extended, Grh, Lrh, PACKET_LEN_MAX, Packet, seal_hop};

pub struct FrameToSend<'a> {
    pub(crate) head: Head,
    pub(crate) grh: Option<Grh>,
    pub(crate) extended: Extended,
    pub(crate) payload: Payload<'a>,
    /// Whether to send the frame as a packet with CRCs, not as a bypass message.
    pub(crate) as_packet: bool,
}

#[derive(Clone, Copy)]
pub(crate) enum Payload<'a> {
    Bytes(&'a [u8]),
    /// `bytes` bytes of the sender's memory from offset `skip` on, sent by copy.
    Copied {
        pieces: Pieces<'a>,
        skip: usize,
        bytes: usize,
    },
    /// All bytes of these pieces of the sender's memory, leased to the receiver.
    Leased {
        pieces: Pieces<'a>,
        qp_lease: QpLease,
    },
}

impl Payload<'_> {
    pub(crate) const NONE: Self = Self::Bytes(&[]);

    #[inline(always)]
    fn bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Copied { bytes, .. } => *bytes,
            Self::Leased { pieces, .. } => (1 + 2 * pieces.sges().count()) * 8,
        }
    }

    /// Fills `out` with the payload from offset `done` on.
    #[inline(always)]
    fn fill(&self, done: usize, out: &mut [u8]) {
        match self {
            Self::Bytes(bytes) => out.copy_from_slice(&bytes[done..done + out.len()]),
            Self::Copied { pieces, skip, .. } => pieces.read(skip + done, out),
            Self::Leased { pieces, qp_lease } => {
                let sges = pieces.sges().flat_map(|sge| {
                    [sge.address, u64::from(sge.lkey.0) | u64::from(sge.bytes) << 32]
                });
                let first = u64::from(qp_lease.qpn.0) | u64::from(qp_lease.epoch) << 32;
                let words = std::iter::once(first).chain(sges).skip(done / 8);
                for (bytes, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                    *bytes = word.to_le_bytes();
                }
            }
        }
    }
}

impl FrameToSend<'_> {
    #[inline(always)]
    pub(crate) fn dgid(&self) -> Option<Gid> {
        self.grh.as_ref().map(|grh| grh.dgid)
    }

    #[inline(always)]
    pub(crate) fn mgid(&self) -> Option<Gid> {
        self.dgid().filter(|dgid| dgid.is_multicast())
    }

    /// Replaces the content of `out` with the packet, LRH to VCRC.
    fn write_packet(&self, out: &mut Vec<u8>) {
        let bytes = self.payload.bytes();
        out.clear();
        out.resize(bytes + (PACKET_LEN_MAX - 4096), 0);
        let headers = self.head.headers(self.grh, self.extended);
        let len = headers.emit_with(bytes, out, |buffer| self.payload.fill(0, buffer));
        out.truncate(len.expect("a payload of at most an MTU fits"));
    }

    /// Sends the frame on a link. Returns whether the link had space. `buffer` is scratch space for
    /// a packet.
    #[inline(always)]
    pub(crate) fn send<L: FrameSink>(&self, link: &mut L, buffer: &mut Vec<u8>) -> bool {
        if self.as_packet {
            self.write_packet(buffer);
            return link.send_packet(buffer);
        }
        let mut words = [0; WORDS_MAX];
        let count = self.head.write(self.grh.as_ref(), &self.extended, &mut words);
        let mut done = 0;
        link.send_message(&words[..count], self.payload.bytes(), |part| {
            self.payload.fill(done, part);
            done += part.len();
        })
    }

    pub(crate) fn to_frame(&self) -> Frame {
        if self.as_packet {
            let mut bytes = Vec::new();
            self.write_packet(&mut bytes);
            return Frame::Packet(bytes);
        }
        let mut words = [0; WORDS_MAX];
        let count = self.head.write(self.grh.as_ref(), &self.extended, &mut words);
        Frame::message(&words[..count], self.payload.bytes(), |all| self.payload.fill(0, all))
    }
}

#[derive(Clone, Debug)]
pub enum Frame {
    /// LRH to VCRC.
    Packet(Vec<u8>),
    Message(Message),
}

#[derive(Clone, Debug)]
pub struct Message {
    head: [u64; WORDS_MAX],
    words: usize,
    payload: Vec<u8>,
}

impl Message {
    /// The fields of the head, without validation: the receiver validates the words.
    pub fn head_words(&self) -> Head {
        Head::of_words(self.head[0], self.head[1], self.head[2])
    }

    pub fn lane(&self) -> u8 {
        (self.head[1] >> 24) as u8 & 0xf
    }

    pub fn set_lane(&mut self, vl: u8) {
        self.head[1] = self.head[1] & !(0xff << 24) | u64::from(vl & 0xf) << 24;
    }

    /// The length of the payload in bytes, carried or leased.
    pub fn bytes(&self) -> u64 {
        match self.head_words().leased {
            false => self.payload.len() as u64,
            true => sges_of(&self.payload).map(|sge| u64::from(sge.bytes)).sum(),
        }
    }

    pub fn first_words(&self) -> [u64; FIRST_WORDS] {
        std::array::from_fn(|index| self.head[index])
    }

    pub fn head(&self) -> &[u64] {
        &self.head[..self.words]
    }

    pub fn payload(&self) -> &[u8] {
        &self.payload
    }
}

impl Frame {
    /// A message frame with these head words and a payload of `bytes` bytes, which `fill` writes.
    pub fn message(words: &[u64], bytes: usize, mut fill: impl FnMut(&mut [u8])) -> Self {
        let mut head = [0; WORDS_MAX];
        head[..words.len()].copy_from_slice(words);
        let mut payload = vec![0; bytes];
        fill(&mut payload);
        Self::Message(Message { head, words: words.len(), payload })
    }

    pub fn dlid(&self) -> Lid {
        match self {
            Self::Packet(bytes) => Lrh::read(bytes).map_or(Lid::NONE, |(lrh, _)| lrh.dlid),
            Self::Message(message) => Lid((message.head[1] >> 32) as u16),
        }
    }

    pub fn slid(&self) -> Lid {
        match self {
            Self::Packet(bytes) => Lrh::read(bytes).map_or(Lid::NONE, |(lrh, _)| lrh.slid),
            Self::Message(message) => message.head_words().slid,
        }
    }

    /// The number of packets that the frame is or replaces, and their total length in 4-byte words,
    /// LRH to ICRC.
    pub fn size(&self) -> (u64, u64) {
        match self {
            Self::Packet(bytes) => (1, bytes.len() as u64 / 4),
            Self::Message(message) => {
                size_of_message(message.head_words().packets, message.bytes())
            }
        }
    }

    pub fn lane(&self) -> u8 {
        match self {
            Self::Message(message) => message.lane(),
            Self::Packet(bytes) => bytes.first().map_or(0, |byte| byte >> 4),
        }
    }

    pub fn set_lane(&mut self, vl: u8) {
        match self {
            Self::Message(message) => message.set_lane(vl),
            Self::Packet(bytes) => {
                let lane = bytes[0] & 0x0f | vl << 4;
                if bytes[0] != lane {
                    bytes[0] = lane;
                    seal_hop(bytes);
                }
            }
        }
    }

    /// The bytes of payload or packet that a stored frame takes. Leased bytes do not count, as they
    /// stay at the sender.
    pub fn stored_bytes(&self) -> usize {
        match self {
            Self::Message(message) => message.payload().len(),
            Self::Packet(bytes) => bytes.len(),
        }
    }

    /// The destination QPN; 0 if the packet cannot be parsed.
    pub fn dest_qp(&self) -> Qpn {
        match self {
            Self::Message(message) => message.head_words().dest_qp,
            Self::Packet(bytes) => {
                Packet::parse(bytes).map_or(Qpn::SMI, |packet| packet.bth().dest_qp)
            }
        }
    }

    pub fn is_management(&self) -> bool {
        match self {
            Self::Message(message) => message.head_words().dest_qp <= Qpn::GSI,
            Self::Packet(bytes) => {
                Packet::parse(bytes).is_ok_and(|packet| packet.bth().dest_qp <= Qpn::GSI)
            }
        }
    }

    /// The method of the frame if it is an SMP. An SMP is always a packet: agents ignore messages
    /// to QP0.
    pub fn smp_method(&self) -> Option<Method> {
        let Self::Packet(bytes) = self else { return None };
        let packet = Packet::parse(bytes).ok()?;
        let is_smp = packet.bth().dest_qp == Qpn::SMI;
        is_smp.then(|| Method(packet.payload().get(3).copied().unwrap_or(0)))
    }
}

/// The length of LRH, BTH and ICRC, which every packet has, in bytes.
const HEADERS: u64 = 8 + 12 + 4;

/// The number of packets that a message replaces, and their total length in 4-byte words, LRH to
/// ICRC.
#[inline(always)]
pub fn size_of_message(packets: u32, bytes: u64) -> (u64, u64) {
    let packets = u64::from(packets.max(1));
    (packets, (packets * HEADERS + bytes).div_ceil(4))
}

pub struct Arrival<'a> {
    pub head: Head,
    pub grh: Option<Grh>,
    pub extended: Extended,
    pub payload: PayloadSource<'a>,
}

#[derive(Clone, Copy)]
pub enum PayloadSource<'a> {
    Bytes(&'a [u8]),
    Entry(&'a Entry<'a>),
    /// The bytes are in the sender's memory.
    Leased {
        /// The location of the bytes: the lease of the queue pair, and the scatter/gather list.
        descriptor: &'a [u8],
        /// The total length of the scatter/gather list.
        bytes: usize,
        leases: &'a dyn LeasedMemory,
    },
}

impl<'a> Arrival<'a> {
    #[inline]
    pub(crate) fn is_to_group(&self) -> bool {
        self.grh.is_some_and(|grh| grh.dgid.is_multicast())
    }

    pub fn of_packet(packet: &Packet<'a>) -> Self {
        Self {
            head: Head::of_packet(packet),
            grh: packet.grh(),
            extended: packet.extended(),
            payload: PayloadSource::Bytes(packet.payload()),
        }
    }

    /// The arrival of a stored message. `None` if the message is invalid, or if it is leased and
    /// there are no `leases`.
    pub fn of_message(message: &'a Message, leases: Option<&'a dyn LeasedMemory>) -> Option<Self> {
        let (head, grh, extended) = Head::read(message.words, |index| message.head[index])?;
        let payload = match head.leased {
            false => PayloadSource::Bytes(&message.payload),
            true => PayloadSource::leased(&message.payload, leases?)?,
        };
        Some(Self { head, grh, extended, payload })
    }

    /// The arrival of a ring entry, as in [`Arrival::of_message`]. The descriptor of a leased
    /// message is copied to `buffer`.
    #[inline(always)]
    pub fn of_entry(
        entry: &'a Entry<'a>,
        leases: Option<&'a dyn LeasedMemory>,
        buffer: &'a mut Vec<u8>,
    ) -> Option<Self> {
        let words = entry.head();
        let (head, grh, extended) = Head::read(entry.head_words(), |index| words[index])?;
        let payload = match head.leased {
            false => PayloadSource::Entry(entry),
            true => {
                buffer.clear();
                entry.read(|part| buffer.extend_from_slice(part));
                PayloadSource::leased(buffer, leases?)?
            }
        };
        Some(Self { head, grh, extended, payload })
    }
}

impl<'a> PayloadSource<'a> {
    /// The payload of a leased message. `None` if it has more scatter/gather entries than an
    /// adapter sends.
    fn leased(descriptor: &'a [u8], leases: &'a dyn LeasedMemory) -> Option<Self> {
        if sges_of(descriptor).count() > LIMITS.sges_max as usize {
            return None;
        }
        let bytes = sges_of(descriptor).map(|sge| sge.bytes as usize).sum();
        Some(Self::Leased { descriptor, bytes, leases })
    }

    #[inline(always)]
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Entry(entry) => entry.bytes(),
            Self::Leased { bytes, .. } => *bytes,
        }
    }

    /// Copies the payload to `targets`, from offset `skip` on. The caller has checked that it fits.
    /// Returns `false` if the lease was revoked.
    #[inline(always)]
    #[must_use]
    pub(crate) fn copy_to(&self, targets: &Pieces<'_>, skip: usize) -> bool {
        match self {
            Self::Bytes(bytes) => targets.write(skip, bytes),
            Self::Entry(entry) => entry.copy_by(
                |bytes| targets.write(skip, bytes),
                |done, from, at, bytes| targets.copy_from(skip + done, from, at, bytes),
            ),
            Self::Leased { descriptor, leases, .. } => {
                let word = descriptor.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
                let qp_lease = QpLease { qpn: Qpn(word as u32), epoch: (word >> 32) as u32 };
                leases.copy(qp_lease, &mut sges_of(descriptor), targets, skip)
            }
        }
    }
}

/// The scatter/gather list in the descriptor of a leased payload.
pub fn sges_of(descriptor: &[u8]) -> impl Iterator<Item = Sge> {
    descriptor.get(8..).unwrap_or_default().as_chunks::<16>().0.iter().map(|sge| {
        let word = |at: usize| sge[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let rest = word(8);
        Sge { address: word(0), bytes: (rest >> 32) as u32, lkey: LKey(rest as u32) }
    })
}
