//! Settings of an interface: the initial configuration of control, and settings that change while
//! the interface runs. Also the multicast groups that sockets and forwarding join.

use super::IpoibLink;
use crate::config::diff::Setting;
use crate::config::{InterfaceSettings, Mode};
use crate::port::PortHandle;
use pollux_control::beyond::{InterfaceTransfer, NodeRoutes, TransferKind};
use pollux_control::ipoib::InterfaceConfig;
use pollux_control::ipoib::connected::{PeerConfig, Policy};
use pollux_dataplane::port::PortId;
use pollux_verbs::DeviceAttributes;
use pollux_verbs::time::Time;
use pollux_wire::address::Qpn;
use pollux_wire::ip::ipoib::IpoibHeader;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

impl IpoibLink {
    /// Changes a setting. `false` if there is no space for it.
    pub fn apply(&mut self, now: Time, setting: &Setting) -> bool {
        let control = self.control_mut();
        let mut is_done = true;
        match *setting {
            Setting::SetAddress(prefix) => {
                is_done = control.add_address(now, prefix.ip, prefix.len);
            }
            Setting::AddRouter(ip) => is_done = control.add_router(now, ip),
            Setting::SetNeighbor(one) => {
                let link = one.link.ipoib();
                is_done = link.is_some_and(|link| control.set_neighbor(now, one.address, link));
            }
            Setting::RemoveAddress(ip) => control.remove_address(now, ip),
            Setting::RemoveRouter(ip) => control.remove_router(now, ip),
            Setting::RemoveNeighbor(ip) => control.remove_neighbor(now, ip),
            Setting::SetMode(mode) => control.set_policy(now, policy(mode)),
            Setting::SetPeer(peer) => {
                control.set_peer_policy(now, peer.address, Some(policy(peer.mode)));
            }
            Setting::RemovePeer(ip) => control.set_peer_policy(now, ip, None),
            // The node applies settings of shadows and forwarding; other kinds of interfaces have
            // the rest.
            Setting::SetShadow(_)
            | Setting::SetDomain(_)
            | Setting::SetAclIn(_)
            | Setting::SetAclOut(_)
            | Setting::SetRpf(_)
            | Setting::SetMtu(_)
            | Setting::RemoveKernelAddress(_)
            | Setting::SetKernelAddress(_) => {}
        }
        self.drain(now);
        is_done
    }

    pub fn set_node_routes(&mut self, number: PortId, routes: Arc<dyn NodeRoutes>) {
        self.control.set_node_routes(number.0, routes);
    }

    pub fn poll_transfer(&mut self) -> Option<InterfaceTransfer> {
        self.control.poll_transfer()
    }

    /// Handles a packet that another interface passes to this one.
    pub fn handle_transfer(&mut self, now: Time, packet: Vec<u8>, kind: TransferKind) {
        self.control.handle_transfer(now, packet, kind);
        self.drain(now);
    }

    /// Sets the addresses of all interfaces of the domain; this interface accepts packets to each
    /// of them. Returns whether they have changed.
    pub fn set_node_addresses(&mut self, now: Time, all: &Arc<BTreeSet<IpAddr>>) -> bool {
        let is_new = self.control.set_node_addresses(all);
        if is_new {
            self.drain(now);
        }
        is_new
    }

    /// Joins a group for a socket. `false` if `group` is not a multicast address, or if there are
    /// too many.
    pub fn join_group(&mut self, now: Time, group: IpAddr) -> bool {
        let is_joined = self.control_mut().join(now, group);
        self.drain(now);
        is_joined
    }

    pub fn leave_group(&mut self, now: Time, group: IpAddr) {
        self.control_mut().leave(now, group);
        self.drain(now);
    }

    /// Joins the groups with multicast routes from this interface, and leaves those without any
    /// more.
    pub(crate) fn set_forwarded_groups(&mut self, now: Time, groups: &Arc<BTreeSet<IpAddr>>) {
        if self.control.set_forwarded_groups(now, groups) {
            self.control_is_due = true;
            self.drain(now);
        }
    }
}

const fn policy(mode: Mode) -> Policy {
    match mode {
        Mode::Ud => Policy::Ud,
        Mode::Rc => Policy::Rc,
        Mode::Uc => Policy::Uc,
        Mode::Auto => Policy::Auto,
    }
}

pub(super) fn config(settings: &InterfaceSettings, port: &PortHandle, qpn: Qpn) -> InterfaceConfig {
    let DeviceAttributes { node_guid: guid, can, .. } = port.attributes();
    let peer = match can.acks_when_polled {
        true => PeerConfig::of_polled(guid),
        false => PeerConfig::of(guid),
    };
    InterfaceConfig {
        addresses: settings.fixed_addresses().map(|prefix| (prefix.ip, prefix.len)).collect(),
        dhcp: settings.uses_dhcp(),
        mtu_max: settings.mtu,
        routers: settings.router.clone(),
        neighbors: settings
            .neighbor
            .iter()
            .filter_map(|one| Some((one.address, one.link.ipoib()?)))
            .collect(),
        ipv6: settings.ipv6,
        workers: settings.workers,
        peer: PeerConfig {
            policy: policy(settings.mode),
            receive_mtu: receive_mtu(settings),
            migrates: can.migration,
            ..peer
        },
        policies: settings.peer.iter().map(|one| (one.address, policy(one.mode))).collect(),
        ..InterfaceConfig::new(guid, qpn, settings.pkey)
    }
}

/// The longest message of a connection.
pub(super) const fn receive_mtu(settings: &InterfaceSettings) -> u32 {
    settings.mtu + IpoibHeader::LEN as u32
}
