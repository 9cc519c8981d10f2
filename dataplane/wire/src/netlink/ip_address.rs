//! Addresses of the kernel's links (`struct ifaddrmsg`, `IFA_*`).
//!
//! Byte offsets: 0 family, 1 prefix length, 2 low eight bits of the flags, 3 scope, 4 link index;
//! then attributes.
//!
//! On a point-to-point link, `IFA_LOCAL` is the local address and `IFA_ADDRESS` the peer address.
//! Without a peer, both are the local address, and IPv6 has `IFA_ADDRESS` only.

use super::AddressFamily;
use super::attribute::{AttributeWriter, Attributes, u32_at};
use crate::layout::{WireError, split_header};
use core::net::{IpAddr, Ipv4Addr};

const HEADER_LEN: usize = 8;

const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
const FLAGS: u16 = 8;

flags! {
    /// Flags of an address (`IFA_F_*`).
    pub struct AddressFlags(u32) {
        SECONDARY = 1 << 0,
        /// The kernel does not perform duplicate address detection.
        NO_DAD = 1 << 1,
        DAD_FAILED = 1 << 3,
        DEPRECATED = 1 << 5,
        TENTATIVE = 1 << 6,
        PERMANENT = 1 << 7,
        /// The kernel does not add a route to the prefix.
        NO_PREFIX_ROUTE = 1 << 9,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressMessage {
    pub index: u32,
    pub address: IpAddr,
    pub prefix_len: u8,
    pub flags: AddressFlags,
    /// Where the address is valid: 0 is everywhere, 253 is the link, 254 is this host.
    pub scope: u8,
}

impl AddressMessage {
    pub fn parse(body: &[u8]) -> Result<Self, WireError> {
        const BAD_FAMILY: WireError =
            WireError::BadValue { format: "AddressMessage", field: "family" };
        let (fixed, attributes) = split_header::<HEADER_LEN>("AddressMessage", body)?;
        let family = AddressFamily(fixed[0]);
        if fixed[1] > family.address_bits().ok_or(BAD_FAMILY)? {
            return Err(WireError::BadLength { format: "AddressMessage" });
        }
        let (mut address, mut local) = (None, None);
        let mut flags = AddressFlags(u32::from(fixed[2]));
        for attribute in Attributes::new(attributes) {
            let attribute = attribute?;
            match attribute.kind {
                ADDRESS => address = Some(attribute.address(family)?),
                LOCAL => local = Some(attribute.address(family)?),
                FLAGS => flags = AddressFlags(attribute.u32()?),
                _ => {}
            }
        }
        const NO_ADDRESS: WireError =
            WireError::BadValue { format: "AddressMessage", field: "address" };
        let address = local.or(address).ok_or(NO_ADDRESS)?;
        Ok(Self { index: u32_at(fixed, 4), address, prefix_len: fixed[1], flags, scope: fixed[3] })
    }

    /// Writes the body of a message for an address without a peer.
    pub fn write(&self, out: &mut AttributeWriter<'_>) -> Result<(), WireError> {
        let family = AddressFamily::of(self.address);
        out.bytes(&[family.0, self.prefix_len, self.flags.0 as u8, self.scope])?;
        out.bytes(&self.index.to_ne_bytes())?;
        out.address(LOCAL, self.address)?;
        out.address(ADDRESS, self.address)?;
        out.u32(FLAGS, self.flags.0)
    }

    /// Whether a socket of this host can use the address as source.
    pub const fn is_usable(&self) -> bool {
        let unusable = AddressFlags::TENTATIVE.with(AddressFlags::DAD_FAILED);
        self.flags.common(unusable).0 == 0
    }
}

impl Default for AddressMessage {
    fn default() -> Self {
        Self {
            index: 0,
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            prefix_len: 0,
            flags: AddressFlags::NONE,
            scope: 0,
        }
    }
}
