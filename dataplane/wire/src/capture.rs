//! Capture files that Wireshark reads.
//!
//! Wireshark does not read link type 247, which is assigned to InfiniBand. It reads InfiniBand
//! packets, from LRH to VCRC, as records of type 21 of Endace's ERF format, which a pcap file can
//! contain (link type 197). So a capture is a [`FileHeader`] and, for each packet, a
//! [`RecordHeader`], an [`ErfHeader`] and the packet. [`record`] makes the two headers of a packet.
//! Captures of Ethernet have no ERF header ([`ethernet_record`]).

use crate::WireError;
use core::time::Duration;

/// The longest packet of a capture: the limit of the ERF length fields.
pub const PACKET_LEN_MAX: usize = u16::MAX as usize - ErfHeader::LEN;

pub const RECORD_HEADERS_LEN: usize = RecordHeader::LEN + ErfHeader::LEN;

layout! {
    /// The pcap file header, written in big-endian order; readers detect the order by the magic
    /// number.
    pub struct FileHeader: 24 bytes {
        0:0   32  magic: u32,
        4:0   16  version_major: u16,
        6:0   16  version_minor: u16,
        16:0  32  snap_len: u32,
        20:0  32  link_type: u32,
    }
}

impl FileHeader {
    pub const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
    pub const LINKTYPE_ERF: u32 = 197;
    /// Ethernet frames without the frame check sequence.
    pub const LINKTYPE_ETHERNET: u32 = 1;
    pub const INFINIBAND: Self = Self {
        magic: Self::MAGIC_NANOSECONDS,
        version_major: 2,
        version_minor: 4,
        snap_len: u16::MAX as u32,
        link_type: Self::LINKTYPE_ERF,
    };
    pub const ETHERNET: Self = Self { link_type: Self::LINKTYPE_ETHERNET, ..Self::INFINIBAND };
}

layout! {
    /// The pcap packet header.
    pub struct RecordHeader: 16 bytes {
        /// Seconds since 1970.
        0:0   32  seconds: u32,
        4:0   32  nanoseconds: u32,
        8:0   32  kept_len: u32,
        12:0  32  full_len: u32,
    }
}

layout! {
    pub struct ErfHeader: 16 bytes {
        /// 32 bits of seconds and 32 bits of fraction. Unlike all other fields, little-endian.
        0:0   64  timestamp_le: [u8; 8],
        8:0    8  record_type: u8,
        9:0    8  flags: u8,
        /// Length of this header and the packet, in bytes.
        10:0  16  record_len: u16,
        14:0  16  wire_len: u16,
    }
}

impl ErfHeader {
    pub const TYPE_INFINIBAND: u8 = 21;
    pub const VARYING_LENGTH: u8 = 0x04;
}

/// Makes the headers of a packet of `len` bytes, captured at `time` since 1970.
pub fn record(time: Duration, len: usize) -> Result<[u8; RECORD_HEADERS_LEN], WireError> {
    if len > PACKET_LEN_MAX {
        return Err(WireError::BadLength { format: "ErfHeader" });
    }
    let record_len = (ErfHeader::LEN + len) as u16;
    let fraction = (u64::from(time.subsec_nanos()) << 32) / 1_000_000_000;
    let pcap = ethernet_record(time, record_len);
    let erf = ErfHeader {
        timestamp_le: (time.as_secs() << 32 | fraction).to_le_bytes(),
        record_type: ErfHeader::TYPE_INFINIBAND,
        flags: ErfHeader::VARYING_LENGTH,
        record_len,
        wire_len: len as u16,
    };
    let mut headers = [0; RECORD_HEADERS_LEN];
    erf.write(pcap.write(&mut headers)?)?;
    Ok(headers)
}

/// Makes the header of an Ethernet frame of `len` bytes, captured at `time` since 1970.
pub fn ethernet_record(time: Duration, len: u16) -> RecordHeader {
    RecordHeader {
        seconds: time.as_secs() as u32,
        nanoseconds: time.subsec_nanos(),
        kept_len: len.into(),
        full_len: len.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_as_wiretap_expects_it() {
        let headers = record(Duration::new(2, 500_000_000), 30).unwrap();
        let pcap = [0, 0, 0, 2, 0x1d, 0xcd, 0x65, 0, 0, 0, 0, 46, 0, 0, 0, 46];
        let erf = [0, 0, 0, 0x80, 2, 0, 0, 0, 21, 4, 0, 46, 0, 0, 0, 30];
        assert_eq!((&headers[..16], &headers[16..]), (&pcap[..], &erf[..]));
    }

    #[test]
    fn packets_beyond_the_length_fields_are_refused() {
        assert!(record(Duration::ZERO, PACKET_LEN_MAX).is_ok());
        assert!(record(Duration::ZERO, PACKET_LEN_MAX + 1).is_err());
    }
}
