//! Packets on a link: LRH, optional GRH, BTH, extended headers, payload, and two CRCs (IBA 5.2).
//!
//! [`Packet`] is the checked view of a received packet, and [`Headers`] are the headers of a packet
//! to send. The [`opcode`] determines the [`Extended`] headers, and [`crc`] computes the CRCs.
//! [`raw`] packets have no InfiniBand transport.

pub mod aeth;
pub mod atomic_eth;
pub mod bth;
pub mod crc;
mod extended;
pub mod grh;
mod headers;
pub mod lrh;
pub mod opcode;
pub mod raw;
mod view;

pub use aeth::{Aeth, Credits, NakCode, RnrTimer, Syndrome};
pub use atomic_eth::{AtomicAckEth, AtomicEth};
pub use bth::Bth;
pub use extended::{Deth, Extended, ExtendedKind, Ieth, ImmDt, RdHeaders, Rdeth, Reth};
pub use grh::Grh;
pub use headers::{Headers, seal, seal_hop};
pub use lrh::{Lnh, Lrh};
pub use opcode::{Opcode, Operation, PayloadRule, Transport};
pub use raw::{RawHeader, RawPacket, Rwh};
pub use view::Packet;

/// Length of the two CRCs behind every payload, in bytes.
pub const TRAILER_LEN: usize = crc::ICRC_LEN + crc::VCRC_LEN;

/// The maximum length of the headers, in bytes: an atomic request of RD with a GRH.
pub const HEADERS_LEN_MAX: usize =
    Lrh::LEN + Grh::LEN + Bth::LEN + Rdeth::LEN + Deth::LEN + AtomicEth::LEN;

/// The maximum length of a packet, in bytes: the headers, a payload of 4096 bytes, and the CRCs.
pub const PACKET_LEN_MAX: usize = HEADERS_LEN_MAX + 4096 + TRAILER_LEN;
