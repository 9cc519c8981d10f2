//! The configuration of an interface.

use crate::icmp::IcmpConfig;
use crate::ipoib::connected::{PeerConfig, Policy};
use crate::neighbor::NeighborConfig;
use crate::sa::SaConfig;
use pollux_wire::address::{Guid, Qpn};
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::units::{Mtu, Rate};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct InterfaceConfig {
    /// The QPN of our UD queue pair, which never changes.
    pub qpn: Qpn,
    /// The P_Key of the link's partition; the membership bit is ignored.
    pub p_key: PKey,
    /// The properties of the broadcast group if this node has to create it. With `None` the group
    /// must exist, as for Linux.
    pub create: Option<GroupTerms>,
    /// Our addresses, with their prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Whether another address is requested from a DHCP server.
    pub dhcp: bool,
    /// The longest packet to send, in bytes, even if the link and connections allow longer ones.
    pub mtu_max: u32,
    pub routers: Vec<IpAddr>,
    /// Static neighbors.
    pub neighbors: Vec<(IpAddr, LinkAddress)>,
    pub ipv6: bool,
    /// The number of workers that move the packets of the interface, the primary one included.
    pub workers: u8,
    /// The pause after the SA has refused a query or has not answered; it doubles with each
    /// failure.
    pub pause_min: Duration,
    pub pause_max: Duration,
    pub paths_max: usize,
    /// REQs from unverified senders that are held, at most: half of the queries that the SA client
    /// can hold.
    pub requests_held_max: usize,
    /// SA queries per second for unverified senders with one LID: as many as a node may have
    /// workers that connect at the same time.
    pub unverified_per_lid_per_second_max: u32,
    /// Packets that wait for one path or one group, at most.
    pub pending_per_destination_max: usize,
    pub groups_max: usize,
    pub packets_max: usize,
    pub neighbor: NeighborConfig,
    pub icmp: IcmpConfig,
    pub sa: SaConfig,
    pub peer: PeerConfig,
    /// Policies for the peers that these addresses lead to, where they differ from the interface's.
    pub policies: BTreeMap<IpAddr, Policy>,
}

/// The properties of a new broadcast group (RFC 4391 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupTerms {
    pub q_key: QKey,
    pub mtu: Mtu,
    /// The highest rate at which members may send to the group.
    pub rate: Rate,
    pub sl: u8,
}

impl Default for GroupTerms {
    /// The values of OpenSM.
    fn default() -> Self {
        Self { q_key: QKey::IPOIB_OPENSM, mtu: Mtu::BYTES_2048, rate: Rate::GBPS_10, sl: 0 }
    }
}

impl InterfaceConfig {
    /// The default settings for a link of a partition.
    pub fn new(ca_guid: Guid, qpn: Qpn, p_key: PKey) -> Self {
        Self {
            qpn,
            p_key: p_key.full(),
            create: None,
            addresses: Vec::new(),
            dhcp: false,
            mtu_max: u32::MAX,
            routers: Vec::new(),
            neighbors: Vec::new(),
            ipv6: true,
            workers: 1,
            pause_min: Duration::from_secs(1),
            pause_max: Duration::from_secs(16),
            paths_max: 16_384,
            requests_held_max: 2048,
            unverified_per_lid_per_second_max: 64,
            pending_per_destination_max: 64,
            groups_max: 1024,
            packets_max: 4096,
            neighbor: NeighborConfig::default(),
            icmp: IcmpConfig::default(),
            sa: SaConfig::default(),
            peer: PeerConfig::of(ca_guid),
            policies: BTreeMap::new(),
        }
    }

    #[must_use]
    pub fn address(mut self, ip: IpAddr, prefix_len: u8) -> Self {
        self.addresses.push((ip, prefix_len));
        self
    }
}
