//! Port bindings: the IDs that are bound to each port, and the listener for a request.
//!
//! As with sockets, a port of a port space belongs to one ID, at one address or at all addresses.
//! Several IDs can share a port if all of them allow it and none of them listens.

use super::RdmaCmError;
use pollux_wire::mad::cm::ip_service::PortSpace;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// The ephemeral ports, for IDs that do not name a port; the default range of Linux.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32_768..=60_999;

#[derive(Debug, Default)]
pub(super) struct Ports {
    bound: BTreeMap<(PortSpace, u16), Vec<Binding>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    pub(super) id: u32,
    /// Unspecified for all addresses.
    pub(super) ip: IpAddr,
    pub(super) is_shared: bool,
    /// With the unspecified IPv6 address: IPv4 addresses are excluded.
    pub(super) is_ipv6_only: bool,
    pub(super) listens: bool,
}

impl Binding {
    fn has(&self, ip: IpAddr) -> bool {
        let is_family = self.ip.is_ipv4() == ip.is_ipv4();
        match self.ip.is_unspecified() {
            true => is_family || self.ip.is_ipv6() && !self.is_ipv6_only,
            false => self.ip == ip,
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        let is_for_all = |it: &Self| it.ip.is_unspecified();
        match (is_for_all(self), is_for_all(other)) {
            (true, _) => self.has(other.ip) || is_for_all(other) && other.has(self.ip),
            (false, _) => other.has(self.ip),
        }
    }

    fn conflicts(&self, other: &Self) -> bool {
        let is_shared = self.is_shared && other.is_shared && !(self.listens || other.listens);
        self.id != other.id && self.overlaps(other) && !is_shared
    }
}

impl Ports {
    /// Binds an ID to a port. For port 0, selects an ephemeral port by `random`. Returns the
    /// address.
    pub(super) fn bind(
        &mut self,
        space: PortSpace,
        port: u16,
        binding: Binding,
        random: u64,
    ) -> Result<SocketAddr, RdmaCmError> {
        let count = u64::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
        let port = match port {
            0 => (0..count)
                .map(|step| EPHEMERAL.start() + (random.wrapping_add(step) % count) as u16)
                .find(|port| !self.bound.contains_key(&(space, *port)))
                .ok_or(RdmaCmError::NoPort)?,
            port => port,
        };
        let others = self.bound.entry((space, port)).or_default();
        if others.iter().any(|other| binding.conflicts(other)) {
            return Err(RdmaCmError::AddressInUse);
        }
        others.push(binding);
        Ok(SocketAddr::new(binding.ip, port))
    }

    /// Makes an ID listen at its port.
    pub(super) fn listen(
        &mut self,
        space: PortSpace,
        port: u16,
        id: u32,
    ) -> Result<(), RdmaCmError> {
        let all = self.bound.get_mut(&(space, port)).ok_or(RdmaCmError::Invalid)?;
        let index = all.iter().position(|one| one.id == id).ok_or(RdmaCmError::Invalid)?;
        let listener = Binding { listens: true, ..all[index] };
        if all.iter().any(|other| listener.conflicts(other)) {
            return Err(RdmaCmError::AddressInUse);
        }
        all[index] = listener;
        Ok(())
    }

    /// Ends the listening of an ID, which stays bound.
    pub(super) fn unlisten(&mut self, space: PortSpace, port: u16, id: u32) {
        let Some(all) = self.bound.get_mut(&(space, port)) else { return };
        all.iter_mut().filter(|one| one.id == id).for_each(|one| one.listens = false);
    }

    pub(super) fn unbind(&mut self, space: PortSpace, port: u16, id: u32) {
        let Some(all) = self.bound.get_mut(&(space, port)) else { return };
        all.retain(|one| one.id != id);
        if all.is_empty() {
            self.bound.remove(&(space, port));
        }
    }

    pub(super) fn has_listener(&self, space: PortSpace, port: u16) -> bool {
        self.bound.get(&(space, port)).is_some_and(|all| all.iter().any(|one| one.listens))
    }

    /// The ID that listens at an address. A listener at exactly this address takes precedence over
    /// one at all addresses.
    pub(super) fn listener(&self, space: PortSpace, port: u16, ip: IpAddr) -> Option<u32> {
        let all = self.bound.get(&(space, port))?;
        let listeners = || all.iter().filter(|one| one.listens && one.has(ip));
        let found = listeners().find(|one| one.ip == ip).or_else(|| listeners().next());
        found.map(|one| one.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const ALL: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    const ONE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const TWO: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    const TCP: PortSpace = PortSpace::TCP;

    fn binding(id: u32, ip: IpAddr) -> Binding {
        Binding { id, ip, is_shared: false, is_ipv6_only: false, listens: false }
    }

    fn shared(id: u32, ip: IpAddr) -> Binding {
        Binding { is_shared: true, ..binding(id, ip) }
    }

    #[test]
    fn a_port_is_of_one_id_at_each_address() {
        let mut ports = Ports::default();
        let in_use = Err(RdmaCmError::AddressInUse);
        assert_eq!(ports.bind(TCP, 7, binding(1, ONE), 0), Ok(SocketAddr::new(ONE, 7)));
        assert_eq!(ports.bind(TCP, 7, binding(2, ONE), 0), in_use);
        assert_eq!(ports.bind(TCP, 7, binding(2, ALL), 0), in_use);
        let all_of_ipv6: IpAddr = "::".parse().unwrap();
        assert_eq!(ports.bind(TCP, 7, binding(2, all_of_ipv6), 0), in_use);
        let ipv6_only = Binding { is_ipv6_only: true, ..binding(2, all_of_ipv6) };
        assert!(ports.bind(TCP, 7, ipv6_only, 0).is_ok());
        assert!(ports.bind(TCP, 7, binding(3, TWO), 0).is_ok());
        assert!(ports.bind(PortSpace::UDP, 7, binding(4, ONE), 0).is_ok());
        ports.unbind(TCP, 7, 1);
        assert!(ports.bind(TCP, 7, binding(5, ONE), 0).is_ok());
    }

    #[test]
    fn a_shared_port_has_one_listener() {
        let mut ports = Ports::default();
        assert!(ports.bind(TCP, 7, shared(1, ALL), 0).is_ok());
        assert!(ports.bind(TCP, 7, shared(2, ONE), 0).is_ok());
        assert_eq!(ports.bind(TCP, 7, binding(3, ONE), 0), Err(RdmaCmError::AddressInUse));
        assert_eq!(ports.listen(TCP, 7, 1), Err(RdmaCmError::AddressInUse));
        ports.unbind(TCP, 7, 2);
        assert_eq!(ports.listen(TCP, 7, 1), Ok(()));
        assert_eq!(ports.bind(TCP, 7, shared(4, TWO), 0), Err(RdmaCmError::AddressInUse));
    }

    #[test]
    fn a_request_finds_the_listener_of_its_address() {
        let mut ports = Ports::default();
        for (id, ip) in [(1, ONE), (2, TWO)] {
            ports.bind(TCP, 7, binding(id, ip), 0).unwrap();
            ports.listen(TCP, 7, id).unwrap();
        }
        ports.bind(TCP, 8, binding(3, ALL), 0).unwrap();
        assert_eq!(ports.listener(TCP, 8, ONE), None, "it is bound and does not listen");
        ports.listen(TCP, 8, 3).unwrap();
        let listener = |port, ip| ports.listener(TCP, port, ip);
        assert_eq!(
            [listener(7, ONE), listener(7, TWO), listener(8, TWO)].map(Option::unwrap),
            [1, 2, 3]
        );
        assert_eq!(listener(7, [10, 0, 0, 3].into()), None);
        assert_eq!(listener(9, ONE), None);
    }

    #[test]
    fn ephemeral_ports_end() {
        let mut ports = Ports::default();
        let mut bind = |id| ports.bind(TCP, 0, binding(id, ALL), u64::from(id) * 7);
        let count = u32::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
        assert!((0..count).all(|id| bind(id).is_ok_and(|at| EPHEMERAL.contains(&at.port()))));
        assert_eq!(bind(count), Err(RdmaCmError::NoPort));
    }
}
