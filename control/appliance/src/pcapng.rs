//! The blocks of a pcapng file, from packets that a node captures.
//!
//! Wireshark reads files with several interfaces. libpcap, and so tcpdump, refuses a second
//! interface with this link type, because it has two numbers for the type and compares one with the
//! other. For tcpdump, capture at one interface.

use pollux_wire::pcapng::{
    BlockHeader, InterfaceBody, OptionHeader, PacketBody, SectionBody, StatisticsBody,
};

/// `if_tsresol`: times are in units of 10^-9 s.
const NANOSECONDS: u8 = 9;
/// Directions of a packet: values of bits 0 and 1 of `epb_flags`.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// The first block of a file.
pub fn section() -> Vec<u8> {
    block(BlockHeader::SECTION, &SectionBody::OPEN.emit(), &[], &[])
}

/// An interface; the first has the number 0.
pub fn interface(name: &str, snap_bytes: u32) -> Vec<u8> {
    let body = InterfaceBody { link_type: InterfaceBody::LINKTYPE_RAW, snap_len: snap_bytes };
    let options = [
        (OptionHeader::INTERFACE_NAME, name.as_bytes()),
        (OptionHeader::TIME_UNIT, &[NANOSECONDS]),
    ];
    block(BlockHeader::INTERFACE, &body.emit(), &[], &options)
}

/// A packet at an interface. `full_len` is its length in bytes; `kept` are its first bytes, which
/// were captured.
pub fn packet(
    interface: u32,
    nanos: u64,
    full_len: u32,
    kept: &[u8],
    is_sent: bool,
    comment: Option<&str>,
) -> Vec<u8> {
    let body = PacketBody {
        interface,
        time_high: (nanos >> 32) as u32,
        time_low: nanos as u32,
        kept_len: kept.len() as u32,
        full_len,
    };
    let flags = if is_sent { OUTBOUND } else { INBOUND }.to_be_bytes();
    let comment = comment.map(|text| (OptionHeader::COMMENT, text.as_bytes()));
    let flags = (OptionHeader::PACKET_FLAGS, &flags[..]);
    let options: Vec<_> = comment.into_iter().chain([flags]).collect();
    block(BlockHeader::PACKET, &body.emit(), kept, &options)
}

/// The number of packets that a capture missed. The caller counts those of all interfaces at
/// interface 0.
pub fn statistics(interface: u32, nanos: u64, missed: u64) -> Vec<u8> {
    let (time_high, time_low) = ((nanos >> 32) as u32, nanos as u32);
    let body = StatisticsBody { interface, time_high, time_low };
    let options = [(OptionHeader::INTERFACE_DROPS, &missed.to_be_bytes()[..])];
    block(BlockHeader::STATISTICS, &body.emit(), &[], &options)
}

fn block(block_type: u32, body: &[u8], data: &[u8], options: &[(u16, &[u8])]) -> Vec<u8> {
    let mut rest = body.to_vec();
    rest.extend(data);
    pad(&mut rest);
    for (code, value) in options {
        rest.extend(OptionHeader { code: *code, value_len: value.len() as u16 }.emit());
        rest.extend(*value);
        pad(&mut rest);
    }
    if !options.is_empty() {
        rest.extend(OptionHeader { code: OptionHeader::END, value_len: 0 }.emit());
    }
    let block_len = (BlockHeader::LEN + rest.len() + 4) as u32;
    let mut block = BlockHeader { block_type, block_len }.emit().to_vec();
    block.extend(rest);
    block.extend(block_len.to_be_bytes());
    block
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_as_the_draft_draws_it() {
        let first = [0x0a, 0x0d, 0x0d, 0x0a, 0, 0, 0, 28, 0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0];
        assert_eq!(section()[..16], first);
        assert_eq!(section()[24..], [0, 0, 0, 28]);
        let block = packet(1, 2 << 32 | 3, 9, &[7; 5], true, None);
        let head = [0, 0, 0, 6, 0, 0, 0, 52, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 5];
        assert_eq!(block[..24], head);
        let tail = [0, 0, 0, 9, 7, 7, 7, 7, 7, 0, 0, 0, 0, 2, 0, 4, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0];
        assert_eq!(block[24..50], tail);
    }
}
