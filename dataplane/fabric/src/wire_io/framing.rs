//! Packets in a stream of bytes. Each is in an Ethernet frame with EtherType 0x88B5, and the length
//! of the frame precedes it.
//!
//! ```text
//!  0   4  length of the frame in bytes, big-endian
//!  4  12  Ethernet addresses: ignored; sent as broadcast and a locally administered address
//! 16   2  EtherType: 0x88b5 (local experiments); frames with another one are ignored
//! 18   -  LRH to VCRC; a trailer behind it is ignored
//! ```

use pollux_wire::packet::PACKET_LEN_MAX;

pub const HEADER_LEN: usize = LENGTH_LEN + ETHERNET_LEN;
/// The longest frame, with the longest packet and a trailer.
pub const FRAME_LEN_MAX: usize = ETHERNET_LEN + PACKET_LEN_MAX.next_multiple_of(1024);

const LENGTH_LEN: usize = 4;
const ETHERNET_LEN: usize = 14;
const ETHER_TYPE: [u8; 2] = [0x88, 0xb5];
const SOURCE: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];

pub fn write(packet: &[u8], out: &mut Vec<u8>) {
    let len = (ETHERNET_LEN + packet.len()) as u32;
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(&[0xff; 6]);
    out.extend_from_slice(&SOURCE);
    out.extend_from_slice(&ETHER_TYPE);
    out.extend_from_slice(packet);
}

#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    taken: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// The bytes of a packet, unchecked, with a trailer if the frame has one.
    Packet(&'a [u8]),
    /// A frame with another EtherType.
    Other,
    Nothing,
    /// An invalid length: the start of the next frame is unknown.
    Broken,
}

impl Frames {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.taken));
        self.bytes.extend_from_slice(bytes);
    }

    pub fn take(&mut self) -> Next<'_> {
        let rest = &self.bytes[self.taken..];
        let Some((length, rest)) = rest.split_first_chunk::<LENGTH_LEN>() else {
            return Next::Nothing;
        };
        let len = u32::from_be_bytes(*length) as usize;
        if !(ETHERNET_LEN..=FRAME_LEN_MAX).contains(&len) {
            return Next::Broken;
        }
        let Some(frame) = rest.get(..len) else { return Next::Nothing };
        self.taken += LENGTH_LEN + len;
        let (header, packet) = frame.split_at(ETHERNET_LEN);
        if header[ETHERNET_LEN - 2..] == ETHER_TYPE { Next::Packet(packet) } else { Next::Other }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_frame_is_what_the_peer_expects() {
        let mut out = Vec::new();
        write(&[0xaa, 0xbb], &mut out);
        let header = [0, 0, 0, 16, 255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
        assert_eq!(out, [&header[..], &[0xaa, 0xbb]].concat());
        assert_eq!(header.len(), HEADER_LEN);
    }

    #[test]
    fn other_frames_are_told_from_packets_and_bad_lengths_end_the_stream() {
        let mut stream = Vec::new();
        write(&[1], &mut stream);
        stream[17] = 0xb6;
        write(&[2], &mut stream);
        stream.extend_from_slice(&[0, 0, 0, 13]);
        let mut frames = Frames::default();
        frames.push(&stream);
        assert_eq!(frames.take(), Next::Other);
        assert_eq!(frames.take(), Next::Packet(&[2]));
        assert_eq!(frames.take(), Next::Broken);
        let mut frames = Frames::default();
        frames.push(&(FRAME_LEN_MAX as u32 + 1).to_be_bytes());
        assert_eq!(frames.take(), Next::Broken);
    }

    proptest! {
        #[test]
        fn packets_come_out_however_the_stream_is_cut(
            packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 1..8),
            cut in 1usize..40,
        ) {
            let mut stream = Vec::new();
            packets.iter().for_each(|packet| write(packet, &mut stream));
            let (mut frames, mut found) = (Frames::default(), Vec::new());
            for part in stream.chunks(cut) {
                frames.push(part);
                while let Next::Packet(packet) = frames.take() {
                    found.push(packet.to_vec());
                }
            }
            prop_assert_eq!(found, packets);
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut frames = Frames::default();
            frames.push(&bytes);
            while matches!(frames.take(), Next::Packet(_) | Next::Other) {}
        }
    }
}
