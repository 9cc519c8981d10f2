//! The address from a DHCP server (RFC 4390). It is requested when the interface comes up, and
//! assigned after a probe. It is kept while the interface is down, and confirmed when the interface
//! comes up again. It is released when the operator takes the interface down.

use super::IpoibInterface;
use crate::address::{Lifetimes, Origin};
use crate::dhcp::{Dhcp, DhcpEvent, DhcpLease, DhcpState, client_id};
use crate::thread_check::assert_no_worker_thread;
use pollux_verbs::time::Time;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::dhcp::DhcpHeader;
use pollux_wire::ip::ipv4::Ipv4Packet;
use pollux_wire::ip::udp::UdpHeader;
use std::net::{IpAddr, Ipv4Addr};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    pub state: &'static str,
    pub since: Time,
    /// The lease, bound or offered.
    pub lease: Option<DhcpLease>,
}

impl IpoibInterface {
    pub fn lease_row(&self) -> Option<LeaseRow> {
        let (state, since) = self.dhcp.as_ref()?.state();
        let (state, lease) = match state {
            DhcpState::Stopped => ("stopped", None),
            DhcpState::Init { .. } => ("waiting", None),
            DhcpState::Selecting { .. } => ("selecting", None),
            DhcpState::Requesting { lease, .. } => ("requesting", Some(lease)),
            DhcpState::Checking { lease } => ("checking", Some(lease)),
            DhcpState::Bound { lease } => ("bound", Some(lease)),
            DhcpState::Renewing { lease, .. } => ("renewing", Some(lease)),
            DhcpState::Rebinding { lease, .. } => ("rebinding", Some(lease)),
        };
        Some(LeaseRow { state, since, lease: lease.cloned() })
    }

    /// Whether a server has assigned an address, and the address may be used.
    pub const fn has_lease(&self) -> bool {
        self.lease.is_some()
    }

    /// Releases the address. The release is sent only while the interface is up.
    pub fn release(&mut self, now: Time) {
        assert_no_worker_thread();
        if let Some(dhcp) = &mut self.dhcp {
            dhcp.stop(now);
        }
        // An address that is still being probed has no lease yet.
        let checked = self.addresses.iter().find(|one| one.origin == Origin::Dhcp);
        if let Some(ip) = checked.filter(|_| self.lease.is_none()).map(|one| one.ip) {
            self.addresses.remove(ip);
        }
        self.pump(now);
    }

    /// Passes a packet for the DHCP client to the client. Returns whether it was one.
    pub(super) fn take_dhcp_packet(
        &mut self,
        now: Time,
        packet: &Ipv4Packet<'_>,
        bytes: &[u8],
    ) -> bool {
        let Some(dhcp) = &mut self.dhcp else { return false };
        let header = packet.header();
        let ports = packet.payload().first_chunk().map(UdpHeader::parse);
        let is_for_client = header.protocol == IpProtocol::UDP
            && !header.is_fragment()
            && ports.is_some_and(|ports| ports.destination_port == DhcpHeader::CLIENT_PORT);
        if is_for_client {
            dhcp.handle_packet(now, bytes);
        }
        is_for_client
    }

    /// Requests a lease, or confirms it, when the interface has come up. The client is created here
    /// because its identifier contains the GUID of the port.
    pub(super) fn ask_for_lease(&mut self, now: Time) {
        if !self.config.dhcp {
            return;
        }
        let id = client_id(self.link_address().gid.guid(), self.config.p_key);
        let seed = self.dhcp_seed;
        self.dhcp.get_or_insert_with(|| Dhcp::new(&id, seed)).handle_link(now);
    }

    /// Handles frames and events of the client; returns whether there were any.
    pub(super) fn handle_dhcp_events(&mut self, now: Time) -> bool {
        let mut has_progress = false;
        while let Some(frame) = self.dhcp.as_mut().and_then(|dhcp| dhcp.poll_transmit()) {
            has_progress = true;
            self.send_frame(now, frame.at_link());
        }
        while let Some(event) = self.dhcp.as_mut().and_then(|dhcp| dhcp.poll_event()) {
            has_progress = true;
            match event {
                DhcpEvent::Check(ip) => self.check_lease(now, ip),
                DhcpEvent::Bound(lease) => self.hold(now, lease),
                DhcpEvent::Lost(ip) => self.lose_lease(ip),
            }
        }
        has_progress
    }

    /// Whether an address is from DHCP, so that it is probed before it is used.
    pub(super) fn is_leased(&self, ip: IpAddr) -> bool {
        let mut all = self.addresses.iter();
        all.any(|one| one.ip == ip && one.origin == Origin::Dhcp)
    }

    pub(super) fn lease_is_free(&mut self, now: Time, ip: IpAddr) {
        if let (Some(dhcp), IpAddr::V4(ip)) = (&mut self.dhcp, ip) {
            dhcp.handle_free(now, ip);
        }
    }

    pub(super) fn lease_is_taken(&mut self, now: Time, ip: IpAddr) {
        if let (Some(dhcp), IpAddr::V4(v4)) = (&mut self.dhcp, ip) {
            dhcp.handle_taken(now, v4);
            if self.is_leased(ip) {
                self.addresses.remove(ip);
            }
        }
    }

    fn check_lease(&mut self, now: Time, ip: Ipv4Addr) {
        let lease = self.lease_row().and_then(|row| row.lease);
        let Some(lease) = lease.filter(|lease| lease.ip == ip) else { return };
        let (len, lifetimes) = (lease.prefix_len, Lifetimes::default());
        if self.addresses.is_ours(ip.into()) {
            // The address is also configured, and was probed already.
            self.lease_is_free(now, ip.into());
        } else if !self.addresses.add(now, ip.into(), len, Origin::Dhcp, lifetimes) {
            // The address table is full; the server gets a DECLINE, as for an address in use.
            self.lease_is_taken(now, ip.into());
        }
    }

    /// Handles a new or renewed lease; a renewed one may have other parameters.
    fn hold(&mut self, now: Time, lease: DhcpLease) {
        let (ip, len) = (lease.ip.into(), lease.prefix_len);
        if let Some(before) = self.lease.take() {
            self.forget_routes(&before);
            if before.prefix_len != len {
                self.addresses.remove(ip);
                self.addresses.add(now, ip, len, Origin::Dhcp, Lifetimes::default());
            }
        }
        for router in &lease.routers {
            self.routes.add_router((*router).into());
        }
        self.lease = Some(lease);
        self.set_prefixes();
    }

    fn lose_lease(&mut self, ip: Ipv4Addr) {
        if let Some(lease) = self.lease.take() {
            self.forget_routes(&lease);
        }
        if self.is_leased(ip.into()) {
            self.addresses.remove(ip.into());
        }
    }

    /// Removes the routes of a lease, unless they are also configured.
    fn forget_routes(&mut self, lease: &DhcpLease) {
        self.set_prefixes();
        let routers = lease.routers.iter().map(|&router| IpAddr::V4(router));
        for router in routers.filter(|router| !self.config.routers.contains(router)) {
            self.routes.remove_router(router);
        }
    }
}
