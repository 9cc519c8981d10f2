//! The neighbor table: the adjacency of each next hop. A worker has its own table, which its port
//! driver changes on commands from control. Each packet takes one lookup.
//!
//! An address maps to a peer, and a peer to a [`Route`]. Several addresses may map to one peer (RFC
//! 4755 2.3), so a change of the peer's connection is written once. Multicast groups are in the
//! same map, by MGID, so every destination takes only one lookup.
//!
//! Why shards: workers read immutable published versions. A version consists of several hundred
//! parts, which versions share. A change copies only the parts that it touches, so adding a
//! neighbor to a table of 65,536 does not copy the whole table.

pub(crate) mod keys;

use keys::{Key, KeyMap, hash, key_of, key_of_group};
use pollux_mem::snapshot::{Publisher, Snapshot};
use pollux_verbs::Ah;
use pollux_wire::address::{Gid, Qpn, Scope};
use pollux_wire::ip::mgid::{GroupId, LinkGroup};
use pollux_wire::keys::PKey;
use std::net::IpAddr;
use std::sync::Arc;

/// The maximum number, multicast groups included.
pub const PEERS_MAX: u32 = 1 << 16;
/// The maximum number, multicast groups included.
pub const ADDRESSES_MAX: usize = 1 << 18;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Route {
    /// Not resolved; no request is pending.
    #[default]
    Unknown,
    Pending,
    Unreachable,
    Datagram(DatagramRoute),
    Connected(Connected),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramRoute {
    /// The address handle of the peer's port or of the group.
    pub ah: Ah,
    /// [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// The longest IP packet on this route, in bytes.
    pub mtu: u32,
}

/// A connection of a netdev. The generation distinguishes it from later connections in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    pub connection: ConnectionId,
    /// The longest IP packet on this connection, in bytes.
    pub mtu: u32,
    /// The route for packets that fit in a datagram, while the connection is not open.
    pub fallback: Option<DatagramRoute>,
}

impl Route {
    /// The MTU, if there is an adjacency.
    pub const fn mtu(&self) -> Option<u32> {
        match self {
            Self::Datagram(DatagramRoute { mtu, .. }) | Self::Connected(Connected { mtu, .. }) => {
                Some(*mtu)
            }
            Self::Unknown | Self::Pending | Self::Unreachable => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer(u32);

const SHARDS: usize = 256;
const PEERS_PER_PART: usize = 64;

/// A version of the table. On an InfiniBand link, the adjacency of a peer is a [`Route`].
#[derive(Clone, Debug)]
pub struct Routes<R = Route> {
    shards: Box<[Arc<KeyMap>; SHARDS]>,
    peers: Vec<Arc<[R; PEERS_PER_PART]>>,
    p_key: PKey,
    scope: Scope,
    seed: u64,
}

impl<R: Copy + Default> Routes<R> {
    fn new(p_key: PKey, scope: Scope, seed: u64) -> Self {
        let empty = Arc::new(KeyMap::new(seed));
        let shards = Box::new(std::array::from_fn(|_| empty.clone()));
        Self { shards, peers: Vec::new(), p_key, scope, seed }
    }

    /// The adjacency of a next hop or a multicast group.
    #[inline]
    pub fn route(&self, to: IpAddr) -> R {
        let key = self.key(to);
        let hash = hash(key, self.seed);
        let Some(peer) = self.shards[shard_of(hash)].find_hashed(key, hash) else {
            return R::default();
        };
        let peer = peer as usize;
        self.peers[peer / PEERS_PER_PART][peer % PEERS_PER_PART]
    }

    #[inline]
    fn key(&self, to: IpAddr) -> Key {
        match GroupId::of(to) {
            None => key_of(to),
            Some(id) => {
                let group = LinkGroup { id, p_key: self.p_key, scope: self.scope };
                key_of_group(group.mgid())
            }
        }
    }
}

/// The shard of a hash, by its high bits. The low bits choose the slot within the shard.
#[inline]
fn shard_of(hash: u64) -> usize {
    (hash >> 56) as usize
}

/// The table as the port driver changes it. Readers see the changes when they are published.
pub struct RouteTable<R = Route> {
    publisher: Publisher<Routes<R>>,
    next: Routes<R>,
    /// The number of addresses of each peer; `None` for a free index.
    bound: Vec<Option<u32>>,
    free: Vec<Peer>,
    addresses: usize,
}

impl<R: Copy + Default + Send + Sync + 'static> RouteTable<R> {
    /// The seed must be secret.
    pub fn new(p_key: PKey, scope: Scope, seed: u64) -> Self {
        let next = Routes::new(p_key, scope, seed);
        let publisher = Publisher::new(next.clone());
        Self { publisher, next, bound: Vec::new(), free: Vec::new(), addresses: 0 }
    }

    pub fn reader(&self) -> Snapshot<Routes<R>> {
        self.publisher.reader()
    }

    /// Adds a peer. `None` if there are [`PEERS_MAX`] peers already.
    pub fn add_peer(&mut self, route: R) -> Option<Peer> {
        let peer = self.free.pop().or_else(|| self.fresh())?;
        self.bound[peer.0 as usize] = Some(0);
        self.set(peer, route);
        Some(peer)
    }

    fn fresh(&mut self) -> Option<Peer> {
        let next = self.bound.len() as u32;
        if next == PEERS_MAX {
            return None;
        }
        self.bound.push(None);
        if (next as usize).is_multiple_of(PEERS_PER_PART) {
            self.next.peers.push(Arc::new([R::default(); PEERS_PER_PART]));
        }
        Some(Peer(next))
    }

    /// Sets the adjacency of a peer. Returns `false` if there is no such peer.
    pub fn set(&mut self, peer: Peer, route: R) -> bool {
        let at = peer.0 as usize;
        let exists = self.bound.get(at).is_some_and(Option::is_some);
        if exists {
            Arc::make_mut(&mut self.next.peers[at / PEERS_PER_PART])[at % PEERS_PER_PART] = route;
        }
        exists
    }

    /// Removes a peer. Returns `false` if addresses map to it or it does not exist.
    pub fn remove_peer(&mut self, peer: Peer) -> bool {
        let is_unbound = self.bound.get(peer.0 as usize) == Some(&Some(0));
        if is_unbound {
            self.set(peer, R::default());
            self.bound[peer.0 as usize] = None;
            self.free.push(peer);
        }
        is_unbound
    }

    /// Maps an address to a peer and replaces its former mapping. Returns `false` if there is no
    /// such peer or the table is full. A multicast address stands for its group on the link.
    pub fn bind(&mut self, address: IpAddr, peer: Peer) -> bool {
        self.bind_key(self.next.key(address), peer)
    }

    /// As [`Self::bind`], for a group.
    pub fn bind_group(&mut self, mgid: Gid, peer: Peer) -> bool {
        self.bind_key(key_of_group(mgid), peer)
    }

    /// Removes the mapping of an address. Returns the peer to which it mapped.
    pub fn unbind(&mut self, address: IpAddr) -> Option<Peer> {
        self.unbind_key(self.next.key(address))
    }

    /// As [`Self::unbind`], for a group.
    pub fn unbind_group(&mut self, mgid: Gid) -> Option<Peer> {
        self.unbind_key(key_of_group(mgid))
    }

    pub fn publish(&mut self) {
        self.publisher.publish(self.next.clone());
    }

    /// Drops old versions without readers, and returns how many are left. With none left, the
    /// address handles and connections that only old versions contained can be destroyed.
    pub fn reclaim(&mut self) -> usize {
        self.publisher.reclaim()
    }

    fn bind_key(&mut self, key: Key, peer: Peer) -> bool {
        if !self.bound.get(peer.0 as usize).is_some_and(Option::is_some) {
            return false;
        }
        let shard = &mut self.next.shards[shard_of(hash(key, self.next.seed))];
        if self.addresses == ADDRESSES_MAX && shard.find(key).is_none() {
            return false;
        }
        let former = Arc::make_mut(shard).insert(key, peer.0);
        match former {
            Some(former) => self.count(Peer(former), -1),
            None => self.addresses += 1,
        }
        self.count(peer, 1);
        true
    }

    fn unbind_key(&mut self, key: Key) -> Option<Peer> {
        let shard = &mut self.next.shards[shard_of(hash(key, self.next.seed))];
        shard.find(key)?;
        let peer = Arc::make_mut(shard).remove(key).map(Peer)?;
        self.addresses -= 1;
        self.count(peer, -1);
        Some(peer)
    }

    fn count(&mut self, peer: Peer, change: i32) {
        if let Some(count) = &mut self.bound[peer.0 as usize] {
            *count = count.wrapping_add_signed(change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn table() -> RouteTable {
        RouteTable::new(PKey::DEFAULT, Scope::LINK_LOCAL, 0x5eed)
    }

    fn datagram(nth: u32) -> Route {
        Route::Datagram(DatagramRoute { ah: Ah(nth), qpn: Qpn(nth), mtu: 2044 })
    }

    /// One of a few addresses of both families and of groups, so that operations collide.
    fn address(nth: u8) -> IpAddr {
        match nth % 3 {
            0 => IpAddr::from([10, 0, 0, nth]),
            1 => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(nth)]),
            _ => IpAddr::from([239, 0, 0, nth]),
        }
    }

    #[derive(Clone, Debug)]
    enum Operation {
        Add,
        Set(usize, u32),
        RemovePeer(usize),
        Bind(u8, usize),
        Unbind(u8),
        Publish,
    }

    fn operations() -> impl Strategy<Value = Vec<Operation>> {
        let operation = prop_oneof![
            Just(Operation::Add),
            (0usize..20, 0u32..1000).prop_map(|(peer, route)| Operation::Set(peer, route)),
            (0usize..20).prop_map(Operation::RemovePeer),
            (0u8..60, 0usize..20).prop_map(|(address, peer)| Operation::Bind(address, peer)),
            (0u8..60).prop_map(Operation::Unbind),
            Just(Operation::Publish),
        ];
        prop::collection::vec(operation, 0..200)
    }

    proptest! {
        #[test]
        fn two_plain_maps_agree(operations in operations()) {
            let mut table = table();
            let mut reader = table.reader();
            // Routes by peer and peers by address, written and published.
            let (mut peers, mut addresses) = (BTreeMap::new(), BTreeMap::new());
            let mut published = BTreeMap::new();
            let mut names = Vec::new();
            for operation in operations {
                let name = |nth: usize| names.get(nth).copied();
                match operation {
                    Operation::Add => {
                        let peer = table.add_peer(Route::Pending).unwrap();
                        peers.insert(peer, Route::Pending);
                        names.push(peer);
                    }
                    Operation::Set(nth, route) => if let Some(peer) = name(nth) {
                        let is_set = table.set(peer, datagram(route));
                        prop_assert_eq!(is_set, peers.contains_key(&peer));
                        peers.entry(peer).and_modify(|was| *was = datagram(route));
                    },
                    Operation::RemovePeer(nth) => if let Some(peer) = name(nth) {
                        let may = peers.contains_key(&peer)
                            && !addresses.values().any(|to| *to == peer);
                        prop_assert_eq!(table.remove_peer(peer), may);
                        if may {
                            peers.remove(&peer);
                        }
                    },
                    Operation::Bind(nth, to) => if let Some(peer) = name(to) {
                        let is_bound = table.bind(address(nth), peer);
                        prop_assert_eq!(is_bound, peers.contains_key(&peer));
                        if is_bound {
                            addresses.insert(nth, peer);
                        }
                    },
                    Operation::Unbind(nth) => {
                        prop_assert_eq!(table.unbind(address(nth)), addresses.remove(&nth));
                    }
                    Operation::Publish => {
                        table.publish();
                        let routes = addresses.iter().map(|(nth, peer)| (*nth, peers[peer]));
                        published = routes.collect();
                    }
                }
                let routes = reader.refresh();
                for nth in 0..60 {
                    let expected = published.get(&nth).copied().unwrap_or_default();
                    prop_assert_eq!(routes.route(address(nth)), expected);
                }
            }
        }
    }

    #[test]
    fn addresses_of_one_peer_change_together() {
        let mut table = table();
        let mut reader = table.reader();
        let peer = table.add_peer(Route::Pending).unwrap();
        for address in ["10.0.0.2", "10.0.0.3", "fd00::2"] {
            assert!(table.bind(address.parse().unwrap(), peer));
        }
        table.publish();
        assert_eq!(reader.refresh().route("10.0.0.3".parse().unwrap()), Route::Pending);
        table.set(peer, datagram(5));
        table.publish();
        for address in ["10.0.0.2", "10.0.0.3", "fd00::2"] {
            assert_eq!(reader.refresh().route(address.parse().unwrap()), datagram(5));
        }
        assert_eq!(table.reclaim(), 0);
    }

    #[test]
    fn groups_are_found_by_any_address_that_maps_to_them() {
        let mut table = table();
        let mut reader = table.reader();
        let group = table.add_peer(datagram(1)).unwrap();
        let broadcast = table.add_peer(datagram(2)).unwrap();
        // As Linux maps them.
        let mgid = |text: &str| Gid(text.parse::<std::net::Ipv6Addr>().unwrap().octets());
        assert!(table.bind_group(mgid("ff12:401b:ffff::f01:203"), group));
        assert!(table.bind_group(mgid("ff12:401b:ffff::ffff:ffff"), broadcast));
        table.publish();
        let mut route = |text: &str| reader.refresh().route(text.parse().unwrap());
        assert_eq!(route("239.1.2.3"), datagram(1));
        assert_eq!(route("255.255.255.255"), datagram(2));
        assert_eq!(route("239.1.2.4"), Route::Unknown);
        assert_eq!(table.unbind("239.1.2.3".parse().unwrap()), Some(group));
        assert_eq!(table.unbind_group(mgid("ff12:401b:ffff::ffff:ffff")), Some(broadcast));
        assert!(table.remove_peer(group) && table.remove_peer(broadcast));
    }

    #[test]
    fn a_change_copies_the_parts_that_it_touches() {
        let mut table = table();
        for nth in 0..1000u32 {
            let peer = table.add_peer(datagram(nth)).unwrap();
            assert!(table.bind(IpAddr::from(nth.to_be_bytes()), peer));
        }
        table.publish();
        let mut reader = table.reader();
        let before = reader.refresh().clone();
        table.set(Peer(3), Route::Unreachable);
        assert!(table.bind("fd00::7".parse().unwrap(), Peer(3)));
        table.publish();
        let after = reader.refresh();
        let pairs = before.shards.iter().zip(after.shards.iter());
        assert_eq!(pairs.filter(|(before, after)| !Arc::ptr_eq(before, after)).count(), 1);
        let pairs = before.peers.iter().zip(&after.peers);
        assert_eq!(pairs.filter(|(before, after)| !Arc::ptr_eq(before, after)).count(), 1);
    }

    #[test]
    fn a_full_table_refuses_peers() {
        let mut table = table();
        let peers = std::iter::from_fn(|| table.add_peer(Route::Pending));
        let last = peers.last().unwrap();
        assert_eq!(table.add_peer(Route::Pending), None);
        assert!(table.remove_peer(last));
        assert_eq!(table.add_peer(Route::Pending), Some(last));
    }
}
