//! What moves an interface's packets, as simple as can be, and strict about what it is told to do.

use pollux_control::interface::{Action, By, DatagramWay, Link, Outgoing, PeerKey, Way};
use pollux_wire::address::{Gid, Lid, Qpn};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The device's and the tables' side of an interface.
#[derive(Default)]
pub struct Mover {
    pub link: Option<Link>,
    pub attached: BTreeMap<Gid, Lid>,
    pub own: BTreeSet<IpAddr>,
    pub peers: BTreeMap<PeerKey, Way>,
    pub bound: BTreeMap<IpAddr, PeerKey>,
    pub groups: BTreeMap<Gid, PeerKey>,
}

impl Mover {
    /// Does what control wants; panics where that makes no sense.
    pub fn act(&mut self, action: Action) {
        match action {
            Action::Start(link) => self.link = Some(link),
            Action::Stop => {
                assert!(self.link.take().is_some(), "stopped though not started");
                assert!(self.attached.is_empty(), "attached: {:?}", self.attached);
                assert!(self.peers.is_empty(), "peers: {:?}", self.peers);
                assert!(self.own.is_empty(), "own: {:?}", self.own);
            }
            Action::Attach { mgid, mlid } => {
                assert!(self.link.is_some(), "attached before it is started");
                assert_eq!(self.attached.insert(mgid, mlid), None, "attached twice");
            }
            Action::Detach { mgid, mlid } => {
                assert_eq!(self.attached.remove(&mgid), Some(mlid), "detached, not attached");
            }
            Action::AddOwn(ip) => assert!(self.own.insert(ip), "{ip} twice"),
            Action::RemoveOwn(ip) => assert!(self.own.remove(&ip), "{ip} is not ours"),
            Action::SetPeer { peer, way } => _ = self.peers.insert(peer, way),
            Action::RemovePeer { peer } => {
                let bound: Vec<_> = self.bound.iter().filter(|(_, to)| **to == peer).collect();
                assert!(bound.is_empty(), "still bound: {bound:?}");
                assert!(self.groups.values().all(|to| *to != peer), "a group is still bound");
                assert!(self.peers.remove(&peer).is_some(), "removed twice");
            }
            Action::Bind { ip, peer } => {
                assert!(self.peers.contains_key(&peer), "bound to nobody");
                self.bound.insert(ip, peer);
            }
            Action::Unbind { ip } => assert!(self.bound.remove(&ip).is_some(), "{ip} not bound"),
            Action::BindGroup { mgid, peer } => {
                assert!(self.peers.contains_key(&peer), "bound to nobody");
                self.groups.insert(mgid, peer);
            }
            Action::UnbindGroup { mgid } => {
                assert!(self.groups.remove(&mgid).is_some(), "the group is not bound");
            }
            other => panic!("no connections here: {other:?}"),
        }
    }

    /// How a packet goes, if it can.
    pub fn way(&self, outgoing: &Outgoing) -> Option<DatagramWay> {
        match outgoing.by {
            By::Datagram(way) => Some(way),
            By::Peer(peer) => match self.peers.get(&peer)? {
                Way::Datagram(way) => Some(*way),
                _ => None,
            },
        }
    }

    /// Whether the UD queue pair hears what goes to a port's LID and a queue pair, or to a group.
    pub fn hears(&self, qpn: Qpn, way: &DatagramWay) -> bool {
        let Some(link) = &self.link else { return false };
        match (way.qpn, way.vector.grh) {
            (Qpn::MULTICAST, Some(grh)) => self.attached.get(&grh.dgid) == Some(&way.vector.dlid),
            _ => way.qpn == qpn && link.lid.covers(link.lmc, way.vector.dlid),
        }
    }
}
