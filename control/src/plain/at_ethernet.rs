//! The neighbors of a plain interface on an Ethernet link.

use super::{FrameTo, PlainFrame, PlainInterface};
use crate::address::Addresses;
use crate::ethernet::{EthernetEvent, EthernetNeighbors};
use crate::icmp::IcmpError;
use crate::thread_check::assert_no_worker_thread;
use pollux_verbs::time::Time;
use pollux_wire::ethernet::MacAddress;
use std::net::IpAddr;

impl PlainInterface {
    pub fn handle_arp(&mut self, now: Time, packet: &[u8]) {
        assert_no_worker_thread();
        if self.down.is_none() {
            self.with_link(now, |link, ours| link.handle_arp(now, packet, ours));
        }
    }

    /// Handles a packet that a worker has for an unresolved next hop.
    pub fn handle_unresolved(&mut self, now: Time, next_hop: IpAddr, packet: Vec<u8>) {
        assert_no_worker_thread();
        self.send_to(now, next_hop, packet);
    }

    /// Handles a report that workers sent packets to a next hop.
    pub fn handle_use(&mut self, now: Time, next_hop: IpAddr) {
        assert_no_worker_thread();
        self.with_link(now, |link, ours| link.handle_use(now, next_hop, ours));
    }

    pub fn handle_timeout(&mut self, now: Time) {
        assert_no_worker_thread();
        self.with_link(now, |link, ours| link.handle_timeout(now, ours));
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        self.ethernet.as_ref().and_then(EthernetNeighbors::poll_timeout)
    }

    /// Sets a static neighbor. Returns `false` if the table is full or the link is not Ethernet.
    pub fn set_neighbor(&mut self, now: Time, ip: IpAddr, address: MacAddress) -> bool {
        assert_no_worker_thread();
        let set =
            |link: &mut EthernetNeighbors, ours: &_| link.set_neighbor(now, ip, address, ours);
        self.with_link(now, set) == Some(true)
    }

    /// Removes a static neighbor. The next packet to it starts address resolution.
    pub fn remove_neighbor(&mut self, now: Time, ip: IpAddr) {
        assert_no_worker_thread();
        self.with_link(now, |link, ours| link.remove_neighbor(now, ip, ours));
    }

    /// The next change for workers: a next hop with its link address, or `None` if the address is
    /// no longer known.
    pub fn poll_neighbor(&mut self) -> Option<(IpAddr, Option<MacAddress>)> {
        self.ethernet.as_mut()?.poll_change()
    }

    /// Calls the neighbor table of an Ethernet link, and drains its events and frames.
    pub(super) fn with_link<R>(
        &mut self,
        now: Time,
        call: impl FnOnce(&mut EthernetNeighbors, &Addresses) -> R,
    ) -> Option<R> {
        let result = call(self.ethernet.as_mut()?, &self.addresses);
        self.poll_link(now);
        Some(result)
    }

    /// Handles the events and frames of the neighbor table.
    pub(super) fn poll_link(&mut self, now: Time) {
        while let Some(event) = self.ethernet.as_mut().and_then(EthernetNeighbors::poll_event) {
            match event {
                EthernetEvent::Assigned(ip) => self.addresses.handle_assigned(now, ip),
                EthernetEvent::Duplicate(ip, by) => self.addresses.handle_duplicate(now, ip, by),
                EthernetEvent::Unreachable(packet) => {
                    self.send_icmp_error(now, &packet, IcmpError::AddressUnreachable);
                }
            }
            self.handle_address_events(now);
        }
        while let Some(frame) = self.ethernet.as_mut().and_then(EthernetNeighbors::poll_frame) {
            let to = FrameTo::Ethernet(frame.to, frame.ether_type);
            self.frames.push(PlainFrame { packet: frame.packet, to });
        }
    }
}
