//! Connection management (IBA 12).
//!
//! [`Req`], [`Rep`] and [`Rtu`] establish a connection, [`Rej`] rejects it, [`Mra`] extends a
//! timeout, and [`Dreq`] and [`Drep`] end it. [`Lap`] and [`Apr`] change the alternate path.
//! [`SidrReq`] and [`SidrRep`] resolve a service ID to a datagram queue pair. [`ipoib`] has the
//! private data of IP over InfiniBand, and [`ip_service`] that of consumers with IP addresses.
//!
//! Each message is one datagram, with 232 bytes behind the common header. The bytes behind the
//! fixed fields of a message are private data of the consumer. [`CmMessage`] is an enum of all
//! messages.

/// Makes a message about one connection: the communication IDs of both ends, then other fields.
macro_rules! connection_message {
    ($(#[$meta:meta])* pub struct $name:ident: 232 bytes { $($fields:tt)* }) => {
        layout! {
            $(#[$meta])*
            pub struct $name: 232 bytes {
                /// The sender's communication ID; 0 if it has none.
                0:0 32 local_comm_id: CommId,
                /// The receiver's communication ID; 0 if the sender does not know it.
                4:0 32 remote_comm_id: CommId,
                $($fields)*
            }
        }
    };
}

mod dreq;
pub mod ip_service;
pub mod ipoib;
mod lap;
mod mra;
mod rej;
mod rep;
mod req;
mod sidr;

pub use dreq::{Drep, Dreq};
pub use lap::{ApStatus, Apr, Lap};
pub use mra::Mra;
pub use rej::{Rej, RejectReason};
pub use rep::{Rep, Rtu};
pub use req::{Req, ReqPath};
pub use sidr::{SidrRep, SidrReq, SidrStatus};

use super::{Attribute, AttributeId, MAD_LEN, MadHeader, Method, MgmtClass, attributes};
use crate::WireError;

/// Length of every message behind the common header, in bytes.
pub const MESSAGE_LEN: usize = MAD_LEN - MadHeader::LEN;

/// A communication ID: a number that one side chooses for a connection; 0 is none.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommId(pub u32);

hex_number!(CommId(u32), 10);

codes! {
    /// The transport service of a connection (IBA 12.6.5).
    pub struct TransportService(u8) {
        RC = 0,
        UC = 1,
        RD = 2,
        /// The field `extended_transport` has the service.
        EXTENDED = 3,
    }
}

codes! {
    /// The message that a REJ or an MRA answers (IBA 12.6.6, 12.6.7).
    pub struct AnsweredMessage(u8) { REQ = 0, REP = 1, OTHER = 2 }
}

macro_rules! messages {
    ($( $name:ident = $id:literal, )*) => {
        attributes!($($name = $id),*);

        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum CmMessage {
            $( $name($name), )*
        }

        impl CmMessage {
            pub const fn attribute_id(&self) -> AttributeId {
                match self {
                    $( Self::$name(_) => $name::ID, )*
                }
            }

            /// Parses the message behind a common header with this attribute ID.
            pub fn parse(
                attribute_id: AttributeId,
                bytes: &[u8; MESSAGE_LEN],
            ) -> Result<Self, WireError> {
                match attribute_id {
                    $( $name::ID => Ok(Self::$name($name::parse(bytes))), )*
                    _ => Err(bad("attribute_id")),
                }
            }

            pub fn emit(&self) -> [u8; MESSAGE_LEN] {
                match self {
                    $( Self::$name(message) => message.emit(), )*
                }
            }
        }
    };
}

messages! {
    Req = 0x0010,
    Mra = 0x0011,
    Rej = 0x0012,
    Rep = 0x0013,
    Rtu = 0x0014,
    Dreq = 0x0015,
    Drep = 0x0016,
    SidrReq = 0x0017,
    SidrRep = 0x0018,
    Lap = 0x0019,
    Apr = 0x001a,
}

impl CmMessage {
    /// Parses a datagram.
    ///
    /// An unsupported class version is a [`WireError::BadValue`] with field `class_version`. The
    /// caller should answer it with [`RejectReason::UNSUPPORTED_CLASS_VERSION`].
    pub fn parse_mad(bytes: &[u8; MAD_LEN]) -> Result<(MadHeader, Self), WireError> {
        let (header, rest) = MadHeader::read(bytes)?;
        if header.mgmt_class != MgmtClass::COMM_MGT {
            return Err(bad("mgmt_class"));
        }
        if header.class_version != MgmtClass::COMM_MGT.version() {
            return Err(bad("class_version"));
        }
        if header.method != Method::SEND {
            return Err(bad("method"));
        }
        let message = rest.first_chunk().ok_or(WireError::BadLength { format: "CmMessage" })?;
        Ok((header, Self::parse(header.attribute_id, message)?))
    }

    pub fn emit_mad(&self, transaction_id: u64) -> [u8; MAD_LEN] {
        let (class, method) = (MgmtClass::COMM_MGT, Method::SEND);
        let header = MadHeader::new(class, method, transaction_id, self.attribute_id());
        let mut bytes = [0; MAD_LEN];
        bytes[..MadHeader::LEN].copy_from_slice(&header.emit());
        bytes[MadHeader::LEN..].copy_from_slice(&self.emit());
        bytes
    }
}

const fn bad(field: &'static str) -> WireError {
    WireError::BadValue { format: "CmMessage", field }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KINDS: core::ops::RangeInclusive<u16> = 0x10..=0x1a;

    #[test]
    fn a_datagram_is_a_header_and_a_message() {
        let rtu = CmMessage::Rtu(Rtu { local_comm_id: CommId(0xa1a2_a3a4), ..Rtu::default() });
        let bytes = rtu.emit_mad(0x0102_0304_0506_0708);
        assert_eq!(bytes[..8], [1, 7, 2, 3, 0, 0, 0, 0]);
        assert_eq!(bytes[8..24], [1, 2, 3, 4, 5, 6, 7, 8, 0, 0x14, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[24..28], [0xa1, 0xa2, 0xa3, 0xa4]);
        let (header, parsed) = CmMessage::parse_mad(&bytes).unwrap();
        assert_eq!((header.transaction_id, parsed), (0x0102_0304_0506_0708, rtu));
    }

    #[test]
    fn other_classes_are_refused_by_field() {
        let good = CmMessage::Drep(Drep::default()).emit_mad(1);
        for (byte, value, field) in [
            (1, 4, "mgmt_class"),
            (2, 1, "class_version"),
            (3, 1, "method"),
            (17, 9, "attribute_id"),
        ] {
            let mut bytes = good;
            bytes[byte] = value;
            assert_eq!(CmMessage::parse_mad(&bytes), Err(bad(field)));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes: [u8; 256]) {
            let _ = CmMessage::parse_mad(&bytes);
        }

        #[test]
        fn emitting_keeps_all_that_parsing_found(
            kind in KINDS,
            bytes in proptest::array::uniform32(any::<[u8; 8]>()),
        ) {
            let mut bytes: [u8; 256] = core::array::from_fn(|i| bytes[i / 8][i % 8]);
            bytes[1..4].copy_from_slice(&[7, 2, 3]);
            bytes[16..18].copy_from_slice(&kind.to_be_bytes());
            let (header, message) = CmMessage::parse_mad(&bytes).unwrap();
            let emitted = message.emit_mad(header.transaction_id);
            let again = CmMessage::parse_mad(&emitted).unwrap();
            prop_assert_eq!((again.0.attribute_id, again.1), (AttributeId(kind), message));
            prop_assert_eq!(again.1.emit_mad(header.transaction_id), emitted);
        }
    }
}
