//! The blocks of pcapng (draft-ietf-opsawg-pcapng): captures with several interfaces, directions
//! and comments. Blocks are written in big-endian order; readers detect the byte order by the magic
//! number.
//!
//! A block is a [`BlockHeader`], a body, data and options (each padded to 4 bytes), and the block
//! length again.

layout! {
    pub struct BlockHeader: 8 bytes {
        0:0  32  block_type: u32,
        4:0  32  block_len: u32,
    }
}

impl BlockHeader {
    /// The section header (4.1), the first block of a file.
    pub const SECTION: u32 = 0x0a0d_0d0a;
    /// An interface description (4.2).
    pub const INTERFACE: u32 = 1;
    /// Interface statistics (4.5).
    pub const STATISTICS: u32 = 5;
    /// An enhanced packet (4.3).
    pub const PACKET: u32 = 6;
}

layout! {
    /// The byte order and version of a file.
    pub struct SectionBody: 16 bytes {
        0:0  32  magic: u32,
        4:0  16  version_major: u16,
        6:0  16  version_minor: u16,
        /// Length of the section in bytes; all ones if unknown.
        8:0  64  section_len: u64,
    }
}

impl SectionBody {
    pub const MAGIC: u32 = 0x1a2b_3c4d;
    /// A section that extends to the end of the file.
    pub const OPEN: Self =
        Self { magic: Self::MAGIC, version_major: 1, version_minor: 0, section_len: u64::MAX };
}

layout! {
    pub struct InterfaceBody: 8 bytes {
        0:0  16  link_type: u16,
        4:0  32  snap_len: u32,
    }
}

impl InterfaceBody {
    /// Packets that begin with an IPv4 or IPv6 header.
    pub const LINKTYPE_RAW: u16 = 101;
}

layout! {
    /// The body of an enhanced packet, before the packet.
    pub struct PacketBody: 20 bytes {
        0:0   32  interface: u32,
        /// The upper half of the time since 1970.
        4:0   32  time_high: u32,
        8:0   32  time_low: u32,
        12:0  32  kept_len: u32,
        16:0  32  full_len: u32,
    }
}

layout! {
    pub struct StatisticsBody: 12 bytes {
        0:0  32  interface: u32,
        /// The upper half of the time since 1970.
        4:0  32  time_high: u32,
        8:0  32  time_low: u32,
    }
}

layout! {
    pub struct OptionHeader: 4 bytes {
        0:0   16  code: u16,
        /// Length of the value in bytes, without padding.
        2:0   16  value_len: u16,
    }
}

impl OptionHeader {
    pub const END: u16 = 0;
    pub const COMMENT: u16 = 1;
    /// The name of an interface (`if_name`).
    pub const INTERFACE_NAME: u16 = 2;
    /// The direction of a packet (`epb_flags`).
    pub const PACKET_FLAGS: u16 = 2;
    /// Number of packets that the capture of an interface dropped (`isb_ifdrop`).
    pub const INTERFACE_DROPS: u16 = 5;
    /// The unit of time (`if_tsresol`): the value n stands for 10^-n seconds.
    pub const TIME_UNIT: u16 = 9;
}
