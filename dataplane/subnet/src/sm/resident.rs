//! Subnet managers at ports of a [`Subnet`].
//!
//! A manager decides and a subnet forwards; neither knows the other. This module connects them: it
//! keeps the port of each manager, sets the IsSM bit of the port, and moves datagrams between
//! managers and the subnet.

use super::{SmConfig, SubnetManager};
use crate::subnet::{Datagram, Subnet};
use crate::time::Time;
use crate::topology::End;
use pollux_wire::address::Lid;
use pollux_wire::mad::MgmtClass;
use pollux_wire::mad::smp::CapabilityMask;

/// Datagrams that a manager sends in a row before it receives again.
const BATCH: usize = 256;

#[derive(Default)]
pub struct Residents {
    pub(super) all: Vec<(End, SubnetManager)>,
}

impl Residents {
    /// Starts a manager at a port. A switch has its manager at port 0.
    pub fn start(&mut self, subnet: &mut Subnet, at: End, config: SmConfig) {
        self.stop(subnet, at);
        let port = subnet.port(at);
        let (guid, capability) = (port.guids[0], port.info.capability_mask);
        subnet.node_mut(at.node).set_capability(at.port, capability.with(CapabilityMask::SM));
        self.all.push((at, SubnetManager::new(config, guid)));
    }

    /// Stops the manager at a port. It sends nothing: other managers must notice that it is gone.
    pub fn stop(&mut self, subnet: &mut Subnet, at: End) {
        let before = self.all.len();
        self.all.retain(|(end, _)| *end != at);
        if self.all.len() < before {
            let capability = subnet.port(at).info.capability_mask.without(CapabilityMask::SM);
            subnet.node_mut(at.node).set_capability(at.port, capability);
        }
    }

    pub fn at(&self, at: End) -> Option<&SubnetManager> {
        self.all.iter().find(|(end, _)| *end == at).map(|(_, manager)| manager)
    }

    pub fn takes(&self, at: End, class: MgmtClass) -> bool {
        (class.is_smi() || class == MgmtClass::SUBN_ADM) && self.at(at).is_some()
    }

    pub fn have_lid(&self, subnet: &Subnet, lid: Lid) -> bool {
        self.all.iter().any(|(at, _)| subnet.nodes()[at.node as usize].lid(at.port) == lid)
    }

    pub fn handle(&mut self, now: Time, at: End, datagram: &Datagram) {
        if let Some((_, manager)) = self.all.iter_mut().find(|(end, _)| *end == at) {
            manager.handle(now, datagram);
        }
    }

    /// Passes datagrams of managers to `send`, a limited number of each manager. Returns whether
    /// there were any.
    pub fn transmit(&mut self, now: Time, mut send: impl FnMut(End, Datagram)) -> bool {
        let mut has_sent = false;
        for (at, manager) in &mut self.all {
            for _ in 0..BATCH {
                let Some(datagram) = manager.poll_transmit(now) else { break };
                send(*at, datagram);
                has_sent = true;
            }
        }
        has_sent
    }

    pub fn due(&self) -> Option<Time> {
        self.all.iter().filter_map(|(_, manager)| manager.poll_timeout()).min()
    }

    pub fn timeout(&mut self, now: Time) {
        self.all.iter_mut().for_each(|(_, manager)| manager.handle_timeout(now));
    }

    /// Exchanges datagrams between managers and the subnet until none is left at this time.
    /// `others` gets the datagrams for ports without a manager.
    pub fn exchange(
        &mut self,
        now: Time,
        subnet: &mut Subnet,
        mut others: impl FnMut(End, Datagram),
    ) {
        self.timeout(now);
        subnet.send_traps(now);
        loop {
            while let Some((at, datagram)) = subnet.poll_delivery() {
                if self.at(at).is_some() {
                    self.handle(now, at, &datagram);
                } else {
                    others(at, datagram);
                }
            }
            if !self.transmit(now, |at, datagram| subnet.send(now, at, datagram)) {
                break;
            }
        }
    }
}
