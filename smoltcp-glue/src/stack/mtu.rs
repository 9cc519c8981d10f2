//! Path MTU discovery (RFC 1191, RFC 8201): the path MTU is that of the link, until an ICMP error
//! lowers it for ten minutes. In connected mode, the route of a destination sets it too.

use pollux_verbs::time::Time;
use pollux_wire::ip::ipv6::IPV6_MTU_MIN;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// The minimum for IPv4. Every host accepts packets of this length (RFC 1122 3.3.3), and a forged
/// error with a smaller MTU would make this host send many small packets.
pub(super) const MTU_MIN: u32 = 576;
/// The longest packet of IP over InfiniBand (RFC 4755 5.1).
pub(super) const MTU_MAX: u32 = 65_520;
/// How long a path MTU is kept. Then longer packets are tried again (RFC 1191 6.3).
const PATH_MTU_LIFETIME: Duration = Duration::from_secs(600);
const DESTINATIONS_MAX: usize = 4096;

#[derive(Debug)]
pub(super) struct Mtus {
    link: u32,
    /// The MTU of packets to groups.
    groups: u32,
    known: BTreeMap<IpAddr, (u32, Time)>,
}

impl Mtus {
    pub(super) fn new(link: u32) -> Self {
        let link = link.clamp(MTU_MIN, MTU_MAX);
        Self { link, groups: link, known: BTreeMap::new() }
    }

    pub(super) fn set_link(&mut self, mtu: u32) {
        self.link = mtu.clamp(MTU_MIN, MTU_MAX);
    }

    pub(super) fn set_groups(&mut self, mtu: u32) {
        self.groups = mtu.clamp(MTU_MIN, MTU_MAX);
    }

    pub(super) fn of(&self, now: Time, to: IpAddr) -> u32 {
        match self.known.get(&to) {
            Some((mtu, until)) if now < *until => *mtu,
            _ if to.is_multicast() => self.groups.min(self.link),
            _ => self.link,
        }
    }

    pub(super) fn destinations(&self) -> impl Iterator<Item = IpAddr> {
        self.known.keys().copied()
    }

    pub(super) fn set(&mut self, now: Time, to: IpAddr, mtu: u32) {
        let least = if to.is_ipv4() { MTU_MIN } else { IPV6_MTU_MIN };
        if self.known.len() == DESTINATIONS_MAX && !self.known.contains_key(&to) {
            self.known.retain(|_, (_, until)| now < *until);
            if self.known.len() == DESTINATIONS_MAX {
                return;
            }
        }
        self.known.insert(to, (mtu.clamp(least, MTU_MAX), now + PATH_MTU_LIFETIME));
    }

    /// `None` restores the MTU of the link.
    pub(super) fn set_or_clear(&mut self, now: Time, to: IpAddr, mtu: Option<u32>) {
        match mtu {
            Some(mtu) => self.set(now, to, mtu),
            None => drop(self.known.remove(&to)),
        }
    }

    /// Lowers the path MTU after an ICMP error, which must not raise it.
    pub(super) fn lower(&mut self, now: Time, to: IpAddr, mtu: u32) {
        if mtu < self.of(now, to) {
            self.set(now, to, mtu);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_mtus_expire_and_have_bounds() {
        let (v4, v6) = (IpAddr::from([10, 0, 0, 2]), IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 2]));
        let mut mtus = Mtus::new(2044);
        mtus.lower(Time::START, v4, 4000);
        assert_eq!(mtus.of(Time::START, v4), 2044, "an ICMP error cannot raise the MTU");
        mtus.lower(Time::START, v4, 0);
        mtus.lower(Time::START, v6, 0);
        assert_eq!((mtus.of(Time::START, v4), mtus.of(Time::START, v6)), (576, 1280));
        mtus.set(Time::START, v6, 65_520);
        assert_eq!(mtus.of(Time::START, v6), 65_520);
        assert_eq!(mtus.of(Time::START + PATH_MTU_LIFETIME, v4), 2044);
    }

    #[test]
    fn expired_path_mtus_make_space() {
        let to = |number: usize| IpAddr::from((number as u32).to_be_bytes());
        let mut mtus = Mtus::new(2044);
        for number in 0..=DESTINATIONS_MAX {
            mtus.lower(Time::START, to(number), 1000);
        }
        assert_eq!(mtus.destinations().count(), DESTINATIONS_MAX);
        let later = Time::START + PATH_MTU_LIFETIME;
        mtus.lower(later, to(DESTINATIONS_MAX), 1000);
        assert_eq!(mtus.of(later, to(DESTINATIONS_MAX)), 1000);
    }
}
