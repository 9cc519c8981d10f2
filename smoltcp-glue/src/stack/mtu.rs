//! How long a packet may be on its way to a destination (RFC 1191, RFC 8201): the link's MTU, until
//! somebody says otherwise, and then for a while.

use pollux_verbs::time::Time;
use pollux_wire::ip::ipv6::IPV6_MTU_MIN;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// The shortest that is believed of IPv4: every host takes this (RFC 1122 3.3.3), and less makes
/// one of us send many small packets for whoever says so.
pub(super) const MTU_MIN: u32 = 576;
/// The longest packet of IP over InfiniBand (RFC 4755 5.1).
pub(super) const MTU_MAX: u32 = 65_520;
/// When a longer packet is tried again (RFC 1191 6.3).
const BELIEVED_FOR: Duration = Duration::from_secs(600);
const DESTINATIONS_MAX: usize = 4096;

/// MTUs, by destination.
#[derive(Debug)]
pub(super) struct Mtus {
    link: u32,
    known: BTreeMap<IpAddr, (u32, Time)>,
}

impl Mtus {
    pub(super) fn new(link: u32) -> Self {
        Self { link: link.clamp(MTU_MIN, MTU_MAX), known: BTreeMap::new() }
    }

    pub(super) fn set_link(&mut self, mtu: u32) {
        self.link = mtu.clamp(MTU_MIN, MTU_MAX);
    }

    /// The longest packet to a destination.
    pub(super) fn of(&self, now: Time, to: IpAddr) -> u32 {
        match self.known.get(&to) {
            Some((mtu, until)) if now < *until => *mtu,
            _ => self.link,
        }
    }

    /// Destinations that have one of their own.
    pub(super) fn destinations(&self) -> impl Iterator<Item = IpAddr> {
        self.known.keys().copied()
    }

    /// Somebody who knows says how long a packet to a destination may be.
    pub(super) fn set(&mut self, now: Time, to: IpAddr, mtu: u32) {
        let least = if to.is_ipv4() { MTU_MIN } else { IPV6_MTU_MIN };
        if self.known.len() == DESTINATIONS_MAX && !self.known.contains_key(&to) {
            self.known.retain(|_, (_, until)| now < *until);
            if self.known.len() == DESTINATIONS_MAX {
                return;
            }
        }
        self.known.insert(to, (mtu.clamp(least, MTU_MAX), now + BELIEVED_FOR));
    }

    /// The same from somebody who can only say that it is less.
    pub(super) fn lower(&mut self, now: Time, to: IpAddr, mtu: u32) {
        if mtu < self.of(now, to) {
            self.set(now, to, mtu);
        }
    }
}
