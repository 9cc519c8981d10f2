//! What travels on a link of the fabric: packets, or messages that take a shortcut.
//!
//! A message may go from one adapter to another without CRCs, and in one piece, as long as nothing
//! on its way asks for packets. It is the same message: same opcodes (those of a message in one
//! packet), same sequence numbers (as many as it would have packets), same answers. So an adapter
//! handles both by one code, and a connection may go from one to the other between two messages.
//!
//! A short message carries its bytes, a long one of a reliable connection says where they are
//! ([`Lender`](crate::Lender)). [`Outgoing`] is what an adapter hands to its link, which writes it
//! where it belongs; [`Arrival`] what the adapter at the other end decides by. [`Frame`] is one
//! that has to wait in between.

use crate::hca::LIMITS;
use crate::hca::memory::Pieces;
use crate::head::{Head, WORDS_MAX};
use crate::lend::{Leave, Lends};
use crate::link::Link;
use pollux_mem::shared_ring::{Entry, FIRST_WORDS};
use pollux_verbs::{LKey, Sge};
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::packet::{Extended, Grh, Lrh, PACKET_LEN_MAX, Packet};

/// Bytes that a message carries itself; a longer one of a reliable connection lends them.
pub(crate) const COPY_BYTES_MAX: usize = 512;

/// Something to be sent.
pub struct Outgoing<'a> {
    pub(crate) head: Head,
    pub(crate) grh: Option<Grh>,
    pub(crate) extended: Extended,
    pub(crate) payload: Payload<'a>,
    /// As a packet, with its CRCs.
    pub(crate) as_packet: bool,
}

/// What something to be sent carries.
#[derive(Clone, Copy)]
pub(crate) enum Payload<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// So many bytes of the sender's memory, by copy.
    Copied { pieces: Pieces<'a>, skip: usize, bytes: usize },
    /// All of these pieces of the sender's memory, lent.
    Lent { pieces: Pieces<'a>, leave: Leave },
}

impl Payload<'_> {
    pub(crate) const NONE: Self = Self::Bytes(&[]);

    /// Bytes that travel.
    #[inline(always)]
    fn bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Copied { bytes, .. } => *bytes,
            Self::Lent { pieces, .. } => (1 + 2 * pieces.sges().count()) * 8,
        }
    }

    /// Writes the bytes from `done` on that travel.
    #[inline(always)]
    fn fill(&self, done: usize, out: &mut [u8]) {
        match self {
            Self::Bytes(bytes) => out.copy_from_slice(&bytes[done..done + out.len()]),
            Self::Copied { pieces, skip, .. } => pieces.read(skip + done, out),
            Self::Lent { pieces, leave } => {
                let sges = pieces.sges().flat_map(|sge| {
                    [sge.address, u64::from(sge.lkey.0) | u64::from(sge.bytes) << 32]
                });
                let first = u64::from(leave.qpn.0) | u64::from(leave.epoch) << 32;
                let words = std::iter::once(first).chain(sges).skip(done / 8);
                for (bytes, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                    *bytes = word.to_le_bytes();
                }
            }
        }
    }
}

impl Outgoing<'_> {
    /// Where it goes.
    #[inline(always)]
    pub fn dlid(&self) -> Lid {
        self.head.dlid
    }

    /// What its GRH says of that, if it has one.
    #[inline(always)]
    pub(crate) fn dgid(&self) -> Option<Gid> {
        self.grh.as_ref().map(|grh| grh.dgid)
    }

    /// Whether it is for one of the queue pairs of management.
    #[inline]
    pub(crate) fn is_management(&self) -> bool {
        self.head.dest_qp <= Qpn::GSI
    }

    /// The group that it goes to, if it does.
    #[inline(always)]
    pub(crate) fn mgid(&self) -> Option<Gid> {
        self.dgid().filter(|dgid| dgid.is_multicast())
    }

    /// Writes the packet, LRH to VCRC, in place of what `out` had.
    fn write_packet(&self, out: &mut Vec<u8>) {
        let bytes = self.payload.bytes();
        out.clear();
        out.resize(bytes + (PACKET_LEN_MAX - 4096), 0);
        let headers = self.head.headers(self.grh, self.extended);
        let len = headers.emit_with(bytes, out, |room| self.payload.fill(0, room));
        out.truncate(len.expect("a payload of at most an MTU fits"));
    }

    /// Sends it on a link, which says whether there was room; `room` is for a packet.
    #[inline(always)]
    pub(crate) fn send<L: Link>(&self, link: &mut L, room: &mut Vec<u8>) -> bool {
        if self.as_packet {
            self.write_packet(room);
            return link.send_packet(room);
        }
        let mut words = [0; WORDS_MAX];
        let count = self.head.write(self.grh.as_ref(), &self.extended, &mut words);
        let mut done = 0;
        link.send_message(&words[..count], self.payload.bytes(), |part| {
            self.payload.fill(done, part);
            done += part.len();
        })
    }

    /// The same, to be kept.
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

/// Something on its way.
#[derive(Clone, Debug)]
pub enum Frame {
    /// LRH to VCRC.
    Packet(Vec<u8>),
    /// A message by the shortcut.
    Message(Message),
}

/// A message by the shortcut, kept.
#[derive(Clone, Debug)]
pub struct Message {
    head: [u64; WORDS_MAX],
    words: usize,
    payload: Vec<u8>,
}

impl Message {
    /// What its head says; nothing much if its words make no sense, which the receiver will find.
    pub(crate) fn head_words(&self) -> Head {
        Head::of_words(self.head[0], self.head[1], self.head[2])
    }

    /// The lane that it is on.
    pub(crate) fn lane(&self) -> u8 {
        (self.head[1] >> 24) as u8 & 0xf
    }

    /// Puts it on a lane.
    pub(crate) fn set_lane(&mut self, vl: u8) {
        self.head[1] = self.head[1] & !(0xff << 24) | u64::from(vl & 0xf) << 24;
    }

    /// Bytes that it carries, itself or lent.
    pub(crate) fn bytes(&self) -> u64 {
        match self.head_words().lent {
            false => self.payload.len() as u64,
            true => sges_of(&self.payload).map(|sge| u64::from(sge.bytes)).sum(),
        }
    }

    /// The `index`-th word of its head; 0 if it has no such word.
    pub(crate) fn word(&self, index: usize) -> u64 {
        self.head.get(index).copied().unwrap_or(0)
    }

    /// The first words of its head.
    pub(crate) fn first_words(&self) -> [u64; FIRST_WORDS] {
        std::array::from_fn(|index| self.head[index])
    }

    /// Words of its head.
    pub(crate) fn words(&self) -> usize {
        self.words
    }

    /// The words of its head.
    pub(crate) fn head(&self) -> &[u64] {
        &self.head[..self.words]
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload
    }
}

impl Frame {
    /// That of a message: the words of its head, and so many bytes, which `fill` writes.
    pub(crate) fn message(words: &[u64], bytes: usize, mut fill: impl FnMut(&mut [u8])) -> Self {
        let mut head = [0; WORDS_MAX];
        head[..words.len()].copy_from_slice(words);
        let mut payload = vec![0; bytes];
        fill(&mut payload);
        Self::Message(Message { head, words: words.len(), payload })
    }

    /// Where it goes.
    pub fn dlid(&self) -> Lid {
        match self {
            Self::Packet(bytes) => Lrh::read(bytes).map_or(Lid::NONE, |(lrh, _)| lrh.dlid),
            Self::Message(message) => Lid((message.head[1] >> 32) as u16),
        }
    }

    /// Where it says that it comes from.
    pub(crate) fn slid(&self) -> Lid {
        match self {
            Self::Packet(bytes) => Lrh::read(bytes).map_or(Lid::NONE, |(lrh, _)| lrh.slid),
            Self::Message(message) => message.head_words().slid,
        }
    }
}

/// Something that has come, whichever way.
pub struct Arrival<'a> {
    pub(crate) head: Head,
    pub(crate) grh: Option<Grh>,
    pub(crate) extended: Extended,
    pub(crate) payload: Source<'a>,
}

/// Where the payload of an arrival is.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    Bytes(&'a [u8]),
    /// In a lane.
    Entry(&'a Entry<'a>),
    /// In the sender's memory; these bytes say where.
    Lent {
        wheres: &'a [u8],
        bytes: usize,
        lender: &'a dyn Lends,
    },
}

impl<'a> Arrival<'a> {
    /// Whether its GRH names a group.
    #[inline]
    pub(crate) fn is_to_group(&self) -> bool {
        self.grh.is_some_and(|grh| grh.dgid.is_multicast())
    }

    pub(crate) fn of_packet(packet: &Packet<'a>) -> Self {
        Self {
            head: Head::of_packet(packet),
            grh: packet.grh(),
            extended: packet.extended(),
            payload: Source::Bytes(packet.payload()),
        }
    }

    /// That of words and bytes; none if they make no sense.
    pub(crate) fn of_message(message: &'a Message, lender: Option<&'a dyn Lends>) -> Option<Self> {
        let (head, grh, extended) = Head::read(message.words, |index| message.head[index])?;
        let payload = match head.lent {
            false => Source::Bytes(&message.payload),
            true => Source::lent(&message.payload, lender?)?,
        };
        Some(Self { head, grh, extended, payload })
    }

    /// That of an entry of a lane; `room` is for where a long message is.
    #[inline(always)]
    pub(crate) fn of_entry(
        entry: &'a Entry<'a>,
        lender: Option<&'a dyn Lends>,
        room: &'a mut Vec<u8>,
    ) -> Option<Self> {
        let words = entry.head();
        let (head, grh, extended) = Head::read(entry.head_words(), |index| words[index])?;
        let payload = match head.lent {
            false => Source::Entry(entry),
            true => {
                room.clear();
                entry.read(|part| room.extend_from_slice(part));
                Source::lent(room, lender?)?
            }
        };
        Some(Self { head, grh, extended, payload })
    }
}

impl<'a> Source<'a> {
    /// What a lent payload names; none if no adapter would send so many pieces.
    fn lent(wheres: &'a [u8], lender: &'a dyn Lends) -> Option<Self> {
        if sges_of(wheres).count() > LIMITS.sges_max as usize {
            return None;
        }
        let bytes = sges_of(wheres).map(|sge| sge.bytes as usize).sum();
        Some(Self::Lent { wheres, bytes, lender })
    }

    #[inline(always)]
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Entry(entry) => entry.bytes(),
            Self::Lent { bytes, .. } => *bytes,
        }
    }

    /// Copies all of it to `targets`, from their `skip`-th byte on; the targets are long enough.
    /// Says whether it was there to be copied: what was lent may have been taken back.
    #[inline(always)]
    #[must_use]
    pub(crate) fn copy_to(&self, targets: &Pieces<'_>, skip: usize) -> bool {
        match self {
            Self::Bytes(bytes) => targets.write(skip, bytes),
            Self::Entry(entry) => {
                let mut at = skip;
                entry.read(|part| {
                    targets.write(at, part);
                    at += part.len();
                });
            }
            Self::Lent { wheres, lender, .. } => {
                let word = wheres.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
                let leave = Leave { qpn: Qpn(word as u32), epoch: (word >> 32) as u32 };
                return lender.copy(leave, &mut sges_of(wheres), targets, skip);
            }
        }
        true
    }
}

/// What a lent payload names.
pub(crate) fn sges_of(wheres: &[u8]) -> impl Iterator<Item = Sge> {
    wheres.get(8..).unwrap_or_default().as_chunks::<16>().0.iter().map(|sge| {
        let word = |at: usize| sge[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let rest = word(8);
        Sge { address: word(0), bytes: (rest >> 32) as u32, lkey: LKey(rest as u32) }
    })
}
