//! Multicast GIDs of IP over InfiniBand: the mapping from an IP group to a link-layer group (RFC
//! 4391 4).
//!
//! A link-layer group belongs to one partition. It has the scope of the link's broadcast group, not
//! the scope of the IP group. Its GID identifies an IPv4 group completely, but contains only the
//! low 80 bits of an IPv6 group, so several IPv6 groups can share one link-layer group.

use crate::address::{Gid, Scope};
use crate::keys::PKey;
use crate::layout::WireError;
use core::net::{IpAddr, Ipv4Addr};

layout! {
    /// The multicast GID of an IPoIB link-layer group (RFC 4391 4, figure 1).
    pub struct Mgid: 16 bytes {
        /// Always `0xff`, for multicast.
        0:0    8  multicast: u8,
        /// Always 1: a transient group.
        1:0    4  flags: u8,
        1:4    4  scope: Scope,
        2:0   16  signature: Signature,
        /// The P_Key of the partition, with the membership bit set.
        4:0   16  p_key: PKey,
        /// The low 80 bits of the IPv4 or IPv6 address.
        6:0   80  group: [u8; 10],
    }
}

codes! {
    /// The signature of a multicast GID (RFC 4391 4).
    pub struct Signature(u16) {
        IPV4 = 0x401b,
        IPV6 = 0x601b,
    }
}

/// The part of an IP group address that the link-layer group depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupId {
    /// All interfaces of the link; used for IPv4 limited broadcast and ARP.
    Broadcast,
    V4(Ipv4Addr),
    /// The low 80 bits of an IPv6 group.
    V6([u8; 10]),
}

impl GroupId {
    const BROADCAST: [u8; 10] = [0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];

    /// The group for packets to `destination`; `None` for a unicast address.
    pub fn of(destination: IpAddr) -> Option<Self> {
        match destination {
            IpAddr::V4(Ipv4Addr::BROADCAST) => Some(Self::Broadcast),
            IpAddr::V4(group) => group.is_multicast().then_some(Self::V4(group)),
            IpAddr::V6(group) => {
                let [_, _, _, _, _, _, low @ ..] = group.octets();
                group.is_multicast().then_some(Self::V6(low))
            }
        }
    }
}

/// A link-layer multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkGroup {
    pub id: GroupId,
    pub p_key: PKey,
    /// The scope of the link's broadcast group.
    pub scope: Scope,
}

impl LinkGroup {
    const MULTICAST: u8 = 0xff;
    const TRANSIENT: u8 = 1;

    pub fn mgid(&self) -> Gid {
        let (signature, group) = match self.id {
            GroupId::Broadcast => (Signature::IPV4, GroupId::BROADCAST),
            GroupId::V4(address) => {
                let [a, b, c, d] = address.octets();
                (Signature::IPV4, [0, 0, 0, 0, 0, 0, a & 0x0f, b, c, d])
            }
            GroupId::V6(low) => (Signature::IPV6, low),
        };
        let mgid = Mgid {
            multicast: Self::MULTICAST,
            flags: Self::TRANSIENT,
            scope: self.scope,
            signature,
            p_key: self.p_key.full(),
            group,
        };
        Gid(mgid.emit())
    }

    pub fn from_mgid(mgid: Gid) -> Result<Self, WireError> {
        let bad = |field| WireError::BadValue { format: "Mgid", field };
        let Mgid { multicast, flags, scope, signature, p_key, group } = Mgid::parse(&mgid.0);
        if multicast != Self::MULTICAST || flags != Self::TRANSIENT {
            return Err(bad("flags"));
        }
        if !p_key.is_full() {
            return Err(bad("p_key"));
        }
        let id = match (signature, group) {
            (Signature::IPV4, GroupId::BROADCAST) => GroupId::Broadcast,
            (Signature::IPV4, [0, 0, 0, 0, 0, 0, a @ 0..=0x0f, b, c, d]) => {
                GroupId::V4(Ipv4Addr::new(a | 0xe0, b, c, d))
            }
            (Signature::IPV6, low) => GroupId::V6(low),
            (Signature::IPV4, _) => return Err(bad("group")),
            _ => return Err(bad("signature")),
        };
        Ok(Self { id, p_key, scope })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Qpn;
    use crate::ip::link_address::LinkAddress;
    use proptest::prelude::*;
    use std::format;

    fn mgid(group: &str, p_key: u16, scope: Scope) -> Gid {
        let id = GroupId::of(group.parse().unwrap()).unwrap();
        LinkGroup { id, p_key: PKey(p_key), scope }.mgid()
    }

    // req: ud-mgid
    #[test]
    fn groups_have_the_gids_that_linux_gives_them() {
        let vectors = [
            ("255.255.255.255", 0xffff, "ff12:401b:ffff::ffff:ffff"),
            ("224.0.0.1", 0xffff, "ff12:401b:ffff::1"),
            ("239.1.2.3", 0xffff, "ff12:401b:ffff::f01:203"),
            ("239.255.255.255", 0xffff, "ff12:401b:ffff::fff:ffff"),
            ("ff02::1", 0xffff, "ff12:601b:ffff::1"),
            ("ff02::1:ff00:1234", 0xffff, "ff12:601b:ffff::1:ff00:1234"),
            ("ff0e:1:2:3:4:5:6:7", 0x8012, "ff12:601b:8012:3:4:5:6:7"),
            ("224.0.0.1", 0x0012, "ff12:401b:8012::1"),
        ];
        for (group, p_key, gid) in vectors {
            assert_eq!(format!("{}", mgid(group, p_key, Scope::LINK_LOCAL)), gid);
        }
        let site = mgid("ff02::1", 0xffff, Scope::SITE_LOCAL);
        assert_eq!(format!("{site}"), "ff15:601b:ffff::1", "the scope is the link's");
    }

    #[test]
    fn gids_of_other_users_are_not_groups_of_the_link() {
        let group = LinkGroup { id: GroupId::Broadcast, p_key: PKey(0x8001), scope: Scope(2) };
        assert_eq!(LinkGroup::from_mgid(group.mgid()), Ok(group));
        for (byte, value) in [(0, 0xfe), (1, 0x02), (2, 0x50), (4, 0x00), (11, 1), (12, 0x1f)] {
            let mut gid = group.mgid();
            gid.0[byte] = value;
            assert!(LinkGroup::from_mgid(gid).is_err(), "{gid}");
        }
        assert_eq!(GroupId::of("10.0.0.255".parse().unwrap()), None);
        assert_eq!(GroupId::of("fe80::1".parse().unwrap()), None);
    }

    #[test]
    fn link_address_of_a_group_is_every_queue_pair_of_it() {
        let broadcast = mgid("255.255.255.255", 0xffff, Scope::LINK_LOCAL);
        let bytes = LinkAddress::group(broadcast).emit();
        assert_eq!(bytes[..4], [0, 0xff, 0xff, 0xff]);
        assert_eq!(bytes[4..], broadcast.0);
        assert_eq!(LinkAddress::parse(&bytes).qpn, Qpn::MULTICAST);
    }

    proptest! {
        #[test]
        fn a_group_has_the_gid_that_it_was_parsed_from(mut bytes: [u8; 16], like_ours: bool) {
            if like_ours {
                let version = bytes[2] & 0x20;
                bytes[..5].copy_from_slice(&[0xff, 0x12, 0x40 | version, 0x1b, 0x80]);
                bytes[6..12].fill(0);
            }
            if let Ok(group) = LinkGroup::from_mgid(Gid(bytes)) {
                prop_assert_eq!(group.mgid(), Gid(bytes));
            }
        }
    }
}
