//! Packets of an IP over InfiniBand link, for tests that have them dissected.

use pollux_referee::frames::{ud, ud_multicast};
use pollux_referee::tshark::DissectedFrame;
use pollux_wire::address::{Gid, Guid, Qpn, Scope};
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::ipoib::IpoibHeader;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::ip::mgid::{GroupId, LinkGroup};
use pollux_wire::keys::PKey;
use pollux_wire::layout::Layout;
use std::net::IpAddr;

/// A port.
pub const GID: Gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0002_c903_0000_1001));
/// An interface of that port.
pub const LINK_ADDRESS: LinkAddress = LinkAddress { rc: true, uc: true, qpn: Qpn(0x48), gid: GID };

/// The bytes of a fixed format.
pub fn emitted<T: Layout>(value: T) -> Vec<u8> {
    let mut out = vec![0; T::LEN];
    value.write(&mut out).expect("it is that long");
    out
}

/// `bytes` as tshark prints them.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A datagram to `destination`, or to its group if it is one.
pub fn frame(
    name: impl Into<String>,
    destination: IpAddr,
    ether_type: EtherType,
    packet: &[u8],
) -> DissectedFrame {
    let payload = [&IpoibHeader { ether_type }.emit()[..], packet].concat();
    let bytes = match GroupId::of(destination) {
        Some(id) => {
            let group = LinkGroup { id, p_key: PKey::DEFAULT, scope: Scope::LINK_LOCAL };
            ud_multicast(group.mgid(), &payload)
        }
        None => ud(&payload),
    };
    DissectedFrame::new(name, bytes)
}
