//! Connections by IP address and port (RDMA IP CM service, IBA annex A11).
//!
//! The service ID contains the port space and the port. The private data of a REQ or SIDR_REQ
//! begins with the addresses of both ends; the consumer's private data follows.

use crate::mad::service_id::ServiceId;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

codes! {
    /// The space of a port: a byte 1, then an IP protocol number.
    pub struct PortSpace(u16) {
        TCP = 0x0106,
        UDP = 0x0111,
        /// Native InfiniBand, without an IP protocol.
        IB = 0x013f,
    }
}

impl PortSpace {
    /// The service ID of a port.
    pub const fn service_id(self, port: u16) -> ServiceId {
        ServiceId((self.0 as u64) << 16 | port as u64)
    }

    /// The port space and port of a service ID; `None` if the service ID has another form.
    pub fn of_service(id: ServiceId) -> Option<(Self, u16)> {
        let space = Self(u16::try_from(id.0 >> 16).ok()?);
        Self::ALL.contains(&space).then_some((space, id.0 as u16))
    }
}

layout! {
    /// The addresses before the consumer's private data (IBA A11.2).
    pub struct IpServiceHeader: 36 bytes {
        0:0     4  major_version: u8,
        0:4     4  minor_version: u8,
        1:0     4  ip_version: u8,
        2:0    16  source_port: u16,
        4:0   128  source: [u8; 16],
        20:0  128  destination: [u8; 16],
    }
}

impl IpServiceHeader {
    /// Makes the header for two addresses of the same family. For different families, the header
    /// has IP version 0, and [`IpServiceHeader::addresses`] returns `None`.
    pub fn new(source: SocketAddr, destination: IpAddr) -> Self {
        let ip_version = match (source.ip(), destination) {
            (IpAddr::V4(_), IpAddr::V4(_)) => 4,
            (IpAddr::V6(_), IpAddr::V6(_)) => 6,
            _ => 0,
        };
        Self {
            major_version: 0,
            minor_version: 0,
            ip_version,
            source_port: source.port(),
            source: padded(source.ip()),
            destination: padded(destination),
        }
    }

    /// The source and the destination; `None` if the header version or the IP version is unknown.
    pub fn addresses(&self) -> Option<(SocketAddr, IpAddr)> {
        let ip = |bytes: &[u8; 16]| match self.ip_version {
            4 => Some(IpAddr::V4(Ipv4Addr::from(*bytes.last_chunk::<4>()?))),
            6 => Some(IpAddr::V6(Ipv6Addr::from(*bytes))),
            _ => None,
        };
        let (source, destination) = (ip(&self.source)?, ip(&self.destination)?);
        (self.major_version == 0)
            .then_some((SocketAddr::new(source, self.source_port), destination))
    }
}

/// The bytes of an address, with zeros before an IPv4 address.
fn padded(ip: IpAddr) -> [u8; 16] {
    let mut bytes = [0; 16];
    match ip {
        IpAddr::V4(ip) => bytes[12..].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes = ip.octets(),
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::tests::assert_bytes;

    #[test]
    fn every_field_is_where_the_specification_has_it() {
        let source = SocketAddr::from(([10, 0, 0, 1], 0x1234));
        let header = IpServiceHeader::new(source, [10, 0, 0, 2].into());
        assert_bytes(
            &header,
            &[
                (0, &[0, 0x40, 0x12, 0x34]),
                (4, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]),
                (20, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]),
            ],
        );
        assert_eq!(header.addresses(), Some((source, [10, 0, 0, 2].into())));
        let source = SocketAddr::from((Ipv6Addr::LOCALHOST, 7));
        let header = IpServiceHeader::new(source, "fd00::2".parse().unwrap());
        assert_eq!(header.emit()[1], 0x60);
        assert_eq!(header.addresses(), Some((source, "fd00::2".parse().unwrap())));
    }

    #[test]
    fn unknown_versions_have_no_addresses() {
        let source = SocketAddr::from(([10, 0, 0, 1], 1));
        let header = IpServiceHeader::new(source, Ipv6Addr::LOCALHOST.into());
        assert_eq!(header.addresses(), None, "a mixture");
        let header = IpServiceHeader::new(source, [10, 0, 0, 2].into());
        assert_eq!(IpServiceHeader { major_version: 1, ..header }.addresses(), None);
    }

    #[test]
    fn services_have_the_ids_of_their_ports() {
        assert_eq!(PortSpace::TCP.service_id(7174), ServiceId(0x0106_1c06));
        assert_eq!(PortSpace::of_service(ServiceId(0x0106_1c06)), Some((PortSpace::TCP, 7174)));
        for other in [0, 0x0107_0001, 0x01_0106_1c06, 0x1000_0000_0000_0001] {
            assert_eq!(PortSpace::of_service(ServiceId(other)), None, "{other:#x}");
        }
    }
}
