//! The private data of IP over InfiniBand in CM messages, and its service IDs (RFC 4755 3.5 and 6).
//!
//! The service ID on which Linux listens has a different first byte than that of the RFC, so there
//! are two dialects. A node that supports both listens on both service IDs and tries both.
//!
//! An interface with several workers has one connection per worker, and its REQ names the
//! requesting worker ([`AskingWorker`]). The RFC does not define the private data behind its own
//! fields, and Linux ignores this data in a REQ. So a node without the extension handles such a REQ
//! like any other.

use crate::address::Qpn;
use crate::mad::service_id::ServiceId;

layout! {
    /// The private data of REQ, REP and REJ (RFC 4755 6).
    pub struct IpoibPrivateData: 8 bytes {
        /// The sender's UD queue pair. Together with the sender's GID, it is the sender's link
        /// address.
        1:0  24  ud_qpn: Qpn,
        /// The longest message that the sender can receive, in bytes, including the encapsulation
        /// header.
        4:0  32  receive_mtu: u32,
    }
}

impl IpoibPrivateData {
    /// The private data of a message: these fields, followed by zeros.
    pub fn padded<const N: usize>(&self) -> [u8; N] {
        const { assert!(N >= Self::LEN, "the private data is too short") };
        let mut private_data = [0; N];
        private_data[..Self::LEN].copy_from_slice(&self.emit());
        private_data
    }

    /// Like [`IpoibPrivateData::padded`], with the extension for several workers.
    pub fn padded_with<const N: usize>(&self, asking: &AskingWorker) -> [u8; N] {
        const { assert!(N >= Self::LEN + AskingWorker::LEN, "the private data is too short") };
        let mut private_data = self.padded();
        private_data[Self::LEN..][..AskingWorker::LEN].copy_from_slice(&asking.emit());
        private_data
    }
}

layout! {
    /// The worker that requests a connection: an extension of Pollux, behind [`IpoibPrivateData`]
    /// in a REQ.
    pub struct AskingWorker: 8 bytes {
        /// [`AskingWorker::MARK`]; with any other value, the extension is absent.
        0:0  32  mark: u32,
        4:0   8  worker: u8,
        5:0   8  workers: u8,
    }
}

impl AskingWorker {
    pub const MARK: u32 = u32::from_be_bytes(*b"PlxW");

    pub const fn new(worker: u8, workers: u8) -> Self {
        Self { mark: Self::MARK, worker, workers }
    }

    /// Parses the extension in the private data of a REQ; `None` if it is absent or invalid.
    pub fn of(private_data: &[u8]) -> Option<Self> {
        let bytes = private_data.get(IpoibPrivateData::LEN..)?.first_chunk()?;
        let asking = Self::parse(bytes);
        (asking.mark == Self::MARK && asking.worker < asking.workers).then_some(asking)
    }
}

/// The convention for IPoIB service IDs, which determines their first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dialect {
    /// Type 0 of the block that IBA assigned to the IETF (RFC 4755 3.5).
    Rfc,
    Linux,
}

impl Dialect {
    pub const ALL: [Self; 2] = [Self::Rfc, Self::Linux];

    const fn prefix(self) -> u64 {
        match self {
            Self::Rfc => 0x01 << 56,
            Self::Linux => 0x10 << 56,
        }
    }

    /// The service ID on which the interface with this UD queue pair listens.
    pub const fn service_id(self, ud_qpn: Qpn) -> ServiceId {
        ServiceId(self.prefix() | (ud_qpn.0 & Qpn::MULTICAST.0) as u64)
    }

    /// The dialect and the listener's UD queue pair; `None` if this is not an IPoIB service ID.
    ///
    /// The 32 bits between the first byte and the QPN must be zero, because listeners match all 64
    /// bits.
    pub fn of(service_id: ServiceId) -> Option<(Self, Qpn)> {
        let ud_qpn = Qpn(service_id.0 as u32 & Qpn::MULTICAST.0);
        let dialect = Self::ALL.into_iter().find(|own| own.service_id(ud_qpn) == service_id)?;
        Some((dialect, ud_qpn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Gid;
    use crate::ip::link_address::LinkAddress;
    use crate::mad::cm::{CmMessage, Req};
    use proptest::prelude::*;

    const QPN: Qpn = Qpn(0x12_3456);

    // req: cm-service-id
    #[test]
    fn service_id_of_the_rfc() {
        assert_eq!(Dialect::Rfc.service_id(QPN), ServiceId(0x0100_0000_0012_3456));
        assert_eq!(Dialect::of(ServiceId(0x0100_0000_0012_3456)), Some((Dialect::Rfc, QPN)));
    }

    #[test]
    fn service_id_of_linux() {
        assert_eq!(Dialect::Linux.service_id(QPN), ServiceId(0x1000_0000_0012_3456));
        assert_eq!(Dialect::of(ServiceId(0x1000_0000_0012_3456)), Some((Dialect::Linux, QPN)));
    }

    #[test]
    fn no_other_service_id_is_ours() {
        for other in [
            0x0101_0000_0012_3456, // another type of the IETF
            0x0100_0000_0112_3456, // reserved bits
            0x0100_8000_0012_3456,
            0x1001_0000_0012_3456,
            0x1100_0000_0012_3456, // the first bytes of both dialects combined
            0x0000_0000_0012_3456,
        ] {
            assert_eq!(Dialect::of(ServiceId(other)), None, "{other:#x}");
        }
    }

    // req: cm-private-data-layout
    #[test]
    fn private_data_is_queue_pair_and_receive_mtu() {
        let ours = IpoibPrivateData { ud_qpn: QPN, receive_mtu: 0x0000_fff4 };
        assert_eq!(ours.emit(), [0, 0x12, 0x34, 0x56, 0, 0, 0xff, 0xf4]);
        let with_reserved = [0xff, 0x12, 0x34, 0x56, 0, 0, 0xff, 0xf4];
        assert_eq!(IpoibPrivateData::parse(&with_reserved), ours, "reserved is ignored");
        assert_eq!(ours.receive_mtu, 65_524);
    }

    #[test]
    fn the_worker_extension_follows_the_fields_of_the_rfc() {
        let fields = IpoibPrivateData { ud_qpn: QPN, receive_mtu: 65_524 };
        let asking = AskingWorker::new(2, 4);
        let private_data: [u8; 92] = fields.padded_with(&asking);
        assert_eq!(private_data[..8], fields.emit());
        assert_eq!(private_data[8..16], [b'P', b'l', b'x', b'W', 2, 4, 0, 0]);
        assert_eq!(private_data[16..], [0; 76]);
        assert_eq!(AskingWorker::of(&private_data), Some(asking));
    }

    #[test]
    fn invalid_worker_extensions_are_ignored() {
        let fields = IpoibPrivateData { ud_qpn: QPN, receive_mtu: 65_524 };
        let with = |asking: AskingWorker| fields.padded_with::<92>(&asking);
        assert_eq!(AskingWorker::of(&fields.padded::<92>()), None, "no extension");
        assert_eq!(AskingWorker::of(&with(AskingWorker::new(4, 4))), None, "worker 4 of 4");
        let other = AskingWorker { mark: AskingWorker::MARK + 1, worker: 1, workers: 2 };
        assert_eq!(AskingWorker::of(&with(other)), None);
        assert_eq!(AskingWorker::of(&with(AskingWorker::new(1, 2))[..15]), None, "too short");
        assert_eq!(AskingWorker::of(&[]), None);
    }

    // req: cm-reserved-zero
    #[test]
    fn reserved_bits_of_a_request_and_of_a_link_address_are_zero() {
        // A QPN is stored in a u32, so an invalid QPN could set reserved bits.
        let too_wide = Qpn(0xff12_3456);
        let private = IpoibPrivateData { ud_qpn: too_wide, receive_mtu: u32::MAX };
        let req = CmMessage::Req(Req {
            service_id: Dialect::Rfc.service_id(too_wide),
            private_data: private.padded(),
            ..Req::default()
        });
        let bytes = req.emit();
        assert_eq!(bytes[8..16], [0x01, 0, 0, 0, 0, 0x12, 0x34, 0x56]);
        assert_eq!(bytes[140..148], [0, 0x12, 0x34, 0x56, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(bytes[148..], [0; 84]);

        let address = LinkAddress { rc: true, uc: true, qpn: too_wide, gid: Gid([0xff; 16]) };
        assert_eq!(address.emit()[..4], [0xc0, 0x12, 0x34, 0x56]);
    }

    proptest! {
        #[test]
        fn service_ids_match_back(qpn in 0u32..1 << 24) {
            for dialect in Dialect::ALL {
                prop_assert_eq!(
                    Dialect::of(dialect.service_id(Qpn(qpn))),
                    Some((dialect, Qpn(qpn)))
                );
            }
        }

        #[test]
        fn a_matched_service_id_is_the_built_one(id: u64) {
            if let Some((dialect, qpn)) = Dialect::of(ServiceId(id)) {
                prop_assert_eq!(dialect.service_id(qpn), ServiceId(id));
            }
        }
    }
}
