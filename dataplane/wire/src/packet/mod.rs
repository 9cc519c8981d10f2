//! What is on a link: LRH, perhaps GRH, BTH, extended headers, payload, and two CRCs (IBA 5.2).
//!
//! Each header has a file of its own. [`Headers`] is how they stand together, in the order and company
//! that the opcode demands; [`Packet`] is a whole one, checked; [`crc`] makes and verifies its CRCs.
//! [`raw`] packets have no InfiniBand transport.

pub mod aeth;
pub mod atomic_eth;
pub mod bth;
pub mod crc;
pub mod deth;
pub mod grh;
mod headers;
pub mod ieth;
pub mod immdt;
pub mod lrh;
pub mod opcode;
pub mod raw;
pub mod rdeth;
pub mod reth;

pub use aeth::{Aeth, Credits, NakCode, RnrTimer, Syndrome};
pub use atomic_eth::{AtomicAckEth, AtomicEth};
pub use bth::Bth;
pub use deth::Deth;
pub use grh::Grh;
pub use headers::{
    Extended, HEADERS_LEN_MAX, Headers, PACKET_LEN_MAX, Packet, RdHeaders, TRAILER_LEN, seal,
    seal_hop,
};
pub use ieth::Ieth;
pub use immdt::ImmDt;
pub use lrh::{Lnh, Lrh};
pub use opcode::{ExtendedKind, Opcode, Operation, PayloadRule, Transport};
pub use raw::{RawHeader, RawPacket, Rwh};
pub use rdeth::Rdeth;
pub use reth::Reth;
