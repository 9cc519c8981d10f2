//! What travels on a link of the fabric: packets, or whole messages that take a shortcut.
//!
//! A message may go from one adapter to another in one piece, without segmentation and without
//! CRCs, as long as nothing on its way asks for packets. It is the same message: same opcodes
//! (those of a message in one packet), same sequence numbers (as many as it would have packets),
//! same answers. So an adapter handles both by one code, and a connection may go from one to the
//! other between two messages.

use crate::hca::INLINE_OCTETS_MAX;
use crate::hca::memory::Piece;
use pollux_wire::address::Lid;
use pollux_wire::packet::{Bth, Extended, Grh, Headers, Lrh, Packet};

/// What a link carries.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "messages are the usual case; a box costs more")]
pub enum Frame {
    /// LRH to VCRC.
    Packet(Vec<u8>),
    /// A message in one piece.
    Message(Message),
}

impl Frame {
    /// Where it goes.
    pub fn dlid(&self) -> Lid {
        match self {
            Self::Packet(octets) => Lrh::read(octets).map_or(Lid::NONE, |(lrh, _)| lrh.dlid),
            Self::Message(message) => message.headers.lrh.dlid,
        }
    }

    /// The same once more, for a second receiver.
    pub fn duplicate(&self) -> Self {
        match self {
            Self::Packet(octets) => Self::Packet(octets.clone()),
            Self::Message(message) => Self::Message(message.clone()),
        }
    }
}

/// A message in one piece.
#[derive(Clone, Debug)]
pub struct Message {
    pub(crate) headers: Headers,
    /// How many sequence numbers it takes: the packets that it would be.
    pub(crate) packets: u32,
    pub(crate) payload: Payload,
}

/// What a message carries.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    /// A few octets of its own, which travel with it: the usual case, and no allocation.
    Small(Small),
    /// More of them.
    Octets(Box<[u8]>),
    /// Memory of the sender, which copies nothing: the receiver takes it from there.
    Pieces(Vec<Piece>),
}

/// A few octets.
#[derive(Clone, Debug)]
pub(crate) struct Small {
    octets: u8,
    data: [u8; SMALL_OCTETS_MAX],
}

/// What travels with a message itself. More than that costs more to copy than to share.
pub(crate) const SMALL_OCTETS_MAX: usize = INLINE_OCTETS_MAX;

impl Small {
    /// So many octets, which `fill` writes.
    #[inline]
    fn with(octets: usize, fill: impl FnOnce(&mut [u8])) -> Self {
        let mut data = [0; SMALL_OCTETS_MAX];
        fill(&mut data[..octets]);
        Self { octets: octets as u8, data }
    }

    #[inline]
    fn as_slice(&self) -> &[u8] {
        &self.data[..usize::from(self.octets)]
    }
}

impl Payload {
    /// None.
    #[inline]
    pub(crate) fn empty() -> Self {
        Self::small(&[])
    }

    /// A copy of a few octets.
    #[inline]
    pub(crate) fn small(octets: &[u8]) -> Self {
        Self::Small(Small::with(octets.len(), |room| room.copy_from_slice(octets)))
    }

    /// All of `pieces`, `octets` in all: by copy if they are few.
    #[inline]
    pub(crate) fn of(pieces: &[Piece], octets: usize) -> Self {
        if octets > SMALL_OCTETS_MAX {
            Self::Pieces(pieces.to_vec())
        } else {
            Self::copy(pieces, octets)
        }
    }

    /// A copy of all of `pieces`, `octets` in all.
    #[inline]
    pub(crate) fn copy(pieces: &[Piece], octets: usize) -> Self {
        if octets <= SMALL_OCTETS_MAX {
            return Self::Small(Small::with(octets, |room| gather(pieces, 0, room)));
        }
        let mut copied = vec![0; octets];
        gather(pieces, 0, &mut copied);
        Self::Octets(copied.into())
    }
}

/// Something that has come, whichever way.
pub(crate) struct Arrival<'a> {
    pub(crate) lrh: Lrh,
    pub(crate) grh: Option<Grh>,
    pub(crate) bth: Bth,
    pub(crate) extended: Extended,
    /// How many sequence numbers it takes.
    pub(crate) packets: u32,
    /// Whether it is a whole message, which may be longer than the path MTU.
    pub(crate) is_message: bool,
    pub(crate) payload: Source<'a>,
}

/// Where the payload of an arrival is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    Octets(&'a [u8]),
    Pieces(&'a [Piece]),
}

impl<'a> Arrival<'a> {
    pub(crate) fn of_packet(packet: &Packet<'a>) -> Self {
        Self {
            lrh: packet.lrh(),
            grh: packet.grh(),
            bth: packet.bth(),
            extended: packet.extended(),
            packets: 1,
            is_message: false,
            payload: Source::Octets(packet.payload()),
        }
    }

    pub(crate) fn of_message(message: &'a Message) -> Self {
        let Headers { lrh, grh, bth, extended, .. } = message.headers;
        let payload = match &message.payload {
            Payload::Small(small) => Source::Octets(small.as_slice()),
            Payload::Octets(octets) => Source::Octets(octets),
            Payload::Pieces(pieces) => Source::Pieces(pieces),
        };
        Self { lrh, grh, bth, extended, packets: message.packets, is_message: true, payload }
    }
}

impl Source<'_> {
    pub(crate) fn octets(&self) -> usize {
        match self {
            Self::Octets(octets) => octets.len(),
            Self::Pieces(pieces) => pieces.iter().map(|piece| piece.octets).sum(),
        }
    }

    /// Copies all of it into `targets`, from their `skip`-th octet on. The targets are long enough,
    /// and their reach was checked when they were made.
    pub(crate) fn copy_to(&self, targets: &[Piece], skip: usize) {
        let mut targets = Cursor::new(targets, skip);
        match self {
            Self::Octets(octets) => {
                let mut rest = *octets;
                while !rest.is_empty() {
                    let Some((piece, at, room)) = targets.next(rest.len()) else { return };
                    let (part, later) = rest.split_at(room);
                    let reached = piece.memory.write(at, part);
                    debug_assert!(reached, "a piece was checked when it was made");
                    rest = later;
                }
            }
            Self::Pieces(pieces) => {
                for source in *pieces {
                    let mut done = 0;
                    while done < source.octets {
                        let Some((piece, at, room)) = targets.next(source.octets - done) else {
                            return;
                        };
                        let reached = piece.memory.copy(at, &source.memory, source.at + done, room);
                        debug_assert!(reached, "a piece was checked when it was made");
                        done += room;
                    }
                }
            }
        }
    }
}

/// A place in a list of pieces.
struct Cursor<'a> {
    pieces: &'a [Piece],
    skip: usize,
}

impl<'a> Cursor<'a> {
    fn new(pieces: &'a [Piece], skip: usize) -> Self {
        Self { pieces, skip }
    }

    /// The next stretch of at most `octets`: its piece, its place there, and its length.
    fn next(&mut self, octets: usize) -> Option<(&'a Piece, usize, usize)> {
        loop {
            let piece = self.pieces.first()?;
            if self.skip < piece.octets {
                let length = octets.min(piece.octets - self.skip);
                let at = piece.at + self.skip;
                self.skip += length;
                return Some((piece, at, length));
            }
            self.skip -= piece.octets;
            self.pieces = &self.pieces[1..];
        }
    }
}

/// Copies `out.len()` octets out of `sources`, from their `skip`-th octet on.
pub(crate) fn gather(sources: &[Piece], skip: usize, out: &mut [u8]) {
    let mut cursor = Cursor::new(sources, skip);
    let mut done = 0;
    while done < out.len() {
        let Some((piece, at, length)) = cursor.next(out.len() - done) else { return };
        let reached = piece.memory.read(at, &mut out[done..done + length]);
        debug_assert!(reached, "a piece was checked when it was made");
        done += length;
    }
}
