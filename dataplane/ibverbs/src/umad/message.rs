//! A datagram behind the kernel's header of 64 bytes.
//!
//! | bytes | order | field |
//! |---|---|---|
//! | 0..4 | host | agent |
//! | 4..8 | host | status: 0, or the errno of a returned request |
//! | 8..20 | host | timeout and length, which the library writes |
//! | 20..24 | network | QPN of the peer |
//! | 24..28 | network | Q_Key |
//! | 28..30 | network | LID of the peer |
//! | 30, 31 | | service level; path bits of the port's own LID |
//! | 32 | | whether there is a GRH; if so, the next fields are valid |
//! | 33, 34, 35 | | index of the port's own GID; hop limit; traffic class |
//! | 36..52 | network | GID of the peer |
//! | 52..56 | network | flow label |
//! | 56..58 | host | index of the P_Key |
//!
//! Parsing accepts any bytes: the kernel writes the header, but peers determine its contents.

use crate::management::MadPeer;
use pollux_verbs::GlobalRoute;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::QKey;
use zerocopy::IntoBytes;

/// Bytes of the kernel's header. In kernels before 2.6.24 it is eight bytes shorter.
pub(super) const HEADER_BYTES: usize = 64;

/// The buffer of one message, with the library's alignment.
pub(super) struct Message {
    blocks: Vec<[u64; HEADER_BYTES / 8]>,
}

impl Message {
    pub fn new(bytes_max: usize) -> Self {
        Self { blocks: vec![[0; _]; 1 + bytes_max.div_ceil(HEADER_BYTES)] }
    }

    pub fn bytes_max(&self) -> usize {
        (self.blocks.len() - 1) * HEADER_BYTES
    }

    /// The pointer to header and datagram, which the library reads and writes.
    pub fn as_mut_ptr(&mut self) -> *mut std::ffi::c_void {
        self.blocks.as_mut_ptr().cast()
    }

    fn header(&self) -> &[u8; HEADER_BYTES] {
        self.blocks[0].as_bytes().try_into().expect("a block is as long as the header")
    }

    pub fn datagram(&self, bytes: usize) -> &[u8] {
        let datagram = self.blocks[1..].as_bytes();
        &datagram[..bytes.min(datagram.len())]
    }

    /// Writes a datagram and its destination.
    ///
    /// # Panics
    /// If the datagram is longer than the buffer.
    pub fn write(&mut self, to: &MadPeer, datagram: &[u8]) {
        self.blocks[0] = [0; _];
        let header = self.blocks[0].as_mut_bytes();
        let qkey = if to.qpn == Qpn::SMI { QKey(0) } else { QKey::GSI };
        header[20..24].copy_from_slice(&to.qpn.0.to_be_bytes());
        header[24..28].copy_from_slice(&qkey.0.to_be_bytes());
        header[28..30].copy_from_slice(&to.lid.0.to_be_bytes());
        header[30..32].copy_from_slice(&[to.sl, to.path_bits]);
        if let Some(grh) = to.grh {
            header[32..36].copy_from_slice(&[1, grh.sgid_index, grh.hop_limit, grh.traffic_class]);
            header[36..52].copy_from_slice(&grh.dgid.0);
            header[52..56].copy_from_slice(&grh.flow_label.to_be_bytes());
        }
        header[56..58].copy_from_slice(&to.pkey_index.to_ne_bytes());
        self.blocks[1..].as_mut_bytes()[..datagram.len()].copy_from_slice(datagram);
    }

    /// The errno of a returned request; 0 for a datagram from the network.
    pub fn status(&self) -> u32 {
        u32::from_ne_bytes(part(self.header(), 4))
    }

    /// The source of a datagram, or the destination of a returned request.
    pub fn peer(&self) -> MadPeer {
        let header = self.header();
        let grh = GlobalRoute {
            dgid: Gid(part(header, 36)),
            sgid_index: header[33],
            flow_label: u32::from_be_bytes(part(header, 52)),
            hop_limit: header[34],
            traffic_class: header[35],
        };
        MadPeer {
            lid: Lid(u16::from_be_bytes(part(header, 28))),
            qpn: Qpn(u32::from_be_bytes(part(header, 20))),
            sl: header[30],
            path_bits: header[31],
            grh: (header[32] != 0).then_some(grh),
            pkey_index: u16::from_ne_bytes(part(header, 56)),
        }
    }
}

fn part<const N: usize>(header: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|nth| header[at + nth])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> MadPeer {
        let grh = GlobalRoute {
            dgid: Gid(std::array::from_fn(|nth| 0x40 + nth as u8)),
            sgid_index: 2,
            flow_label: 0x0a_bcde,
            hop_limit: 63,
            traffic_class: 4,
        };
        MadPeer {
            lid: Lid(0x1234),
            qpn: Qpn(1),
            sl: 5,
            path_bits: 6,
            grh: Some(grh),
            pkey_index: 0x0708,
        }
    }

    #[test]
    fn fields_are_where_the_kernel_has_them() {
        let mut message = Message::new(256);
        message.write(&peer(), &[0xee; 256]);
        let header = message.header();
        assert_eq!(header[..20], [0; 20]);
        assert_eq!(header[20..28], [0, 0, 0, 1, 0x80, 1, 0, 0]);
        assert_eq!(header[28..36], [0x12, 0x34, 5, 6, 1, 2, 63, 4]);
        assert_eq!(header[36..52], peer().grh.unwrap().dgid.0);
        assert_eq!(header[52..56], [0, 0x0a, 0xbc, 0xde]);
        assert_eq!(header[56..58], 0x0708_u16.to_ne_bytes());
        assert_eq!(header[58..], [0; 6]);
        assert_eq!(message.datagram(256), [0xee; 256]);
    }

    #[test]
    fn a_received_datagram_can_be_answered() {
        let mut message = Message::new(300);
        assert_eq!(message.bytes_max(), 320);
        let without_grh = MadPeer { grh: None, qpn: Qpn(0), ..peer() };
        for peer in [peer(), without_grh] {
            message.write(&peer, &[1, 2, 3]);
            assert_eq!((message.peer(), message.status()), (peer, 0));
            assert_eq!(message.datagram(3), [1, 2, 3]);
        }
        assert_eq!(message.header()[24..28], [0; 4], "queue pair 0 has no key");
        assert_eq!(message.datagram(usize::MAX).len(), 320, "no more than there is");
    }
}
