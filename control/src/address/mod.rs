//! The addresses of an interface, and its routes.
//!
//! [`Addresses`] holds the interface's own addresses with their states and lifetimes. It forms
//! addresses from advertised prefixes (RFC 4862 5.5), and selects source addresses. ARP and
//! neighbor discovery detect duplicates and report them here. [`HostRoutes`] chooses the next hop
//! of a packet.

mod identifier;
mod routes;
mod source;
#[cfg(test)]
mod tests;

pub use identifier::InterfaceId;
pub use routes::{HostRoutes, NextHop, RouteDrop};
pub(crate) use source::{choose as source_for, is_broadcast, is_in, subnet_broadcast};

use pollux_verbs::drops::Drops;
use pollux_verbs::reasons;
use pollux_verbs::time::Time;
use pollux_wire::ip::nd_option::PrefixInformation;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::{Display, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

pub const ADDRESSES_MAX: usize = 64;
/// The part of [`ADDRESSES_MAX`] for autoconfigured addresses: a router may announce any number of
/// prefixes.
pub const AUTOCONFIGURED_MAX: usize = 16;

/// The two-hour rule: an advertisement cannot shorten a valid lifetime below this (RFC 4862 5.5.3).
const TWO_HOURS: Duration = Duration::from_secs(7200);
/// The lifetime that means infinity (RFC 4861 4.6.2).
const INFINITE_SECONDS: u32 = u32::MAX;
/// The length in bits of a prefix for autoconfiguration; the interface identifier fills the other
/// 64.
const PREFIX_LEN: u8 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressState {
    Tentative,
    Preferred,
    Deprecated,
    /// Another node has the address. It is not used, and stays in the list for reports.
    Duplicate,
}

impl AddressState {
    pub const fn may_be_source(self) -> bool {
        matches!(self, Self::Preferred | Self::Deprecated)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Configured,
    LinkLocal,
    Autoconfigured,
    Dhcp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    pub ip: IpAddr,
    /// Leading bits that all addresses of the subnet share.
    pub prefix_len: u8,
    pub state: AddressState,
    pub origin: Origin,
    pub since: Time,
    /// `None`: it never becomes deprecated.
    pub preferred_until: Option<Time>,
    /// `None`: it never expires.
    pub valid_until: Option<Time>,
    /// The order of addition. Among equal candidates for a source address, the first one is
    /// selected.
    number: u64,
}

/// `None` means infinite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetimes {
    pub preferred: Option<Duration>,
    pub valid: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressEvent {
    Tentative(IpAddr),
    Preferred(IpAddr),
    Deprecated(IpAddr),
    Duplicate(IpAddr),
    Removed(IpAddr),
}

reasons! {
    pub enum AddressDrop {
        Full = "full",
        BadPrefix = "bad_prefix",
        LifetimeCut = "lifetime_cut",
    }
}

#[derive(Default)]
pub struct Addresses {
    all: BTreeMap<IpAddr, Address>,
    /// Addresses of all interfaces of the node.
    of_node: Arc<BTreeSet<IpAddr>>,
    /// The link addresses of the nodes that have our duplicate addresses, as text.
    holders: BTreeMap<IpAddr, String>,
    numbers: u64,
    events: VecDeque<AddressEvent>,
    drops: Drops<AddressDrop>,
}

impl Addresses {
    /// Adds a tentative address, or updates the prefix length, origin and lifetimes of a known one.
    /// Returns `false` if there are already [`ADDRESSES_MAX`] addresses.
    pub fn add(
        &mut self,
        now: Time,
        ip: IpAddr,
        prefix_len: u8,
        origin: Origin,
        lifetimes: Lifetimes,
    ) -> bool {
        if let Some(known) = self.all.get_mut(&ip) {
            (known.prefix_len, known.origin) = (prefix_len, origin);
            self.renew(now, ip, lifetimes);
            return true;
        }
        if self.all.len() >= ADDRESSES_MAX {
            self.drops.count(AddressDrop::Full);
            return false;
        }
        self.numbers += 1;
        let address = Address {
            ip,
            prefix_len,
            state: AddressState::Tentative,
            origin,
            since: now,
            preferred_until: lifetimes.preferred.map(|lifetime| now + lifetime),
            valid_until: lifetimes.valid.map(|lifetime| now + lifetime),
            number: self.numbers,
        };
        self.all.insert(ip, address);
        self.events.push_back(AddressEvent::Tentative(ip));
        true
    }

    pub fn remove(&mut self, ip: IpAddr) {
        self.holders.remove(&ip);
        if self.all.remove(&ip).is_some() {
            self.events.push_back(AddressEvent::Removed(ip));
        }
    }

    /// Handles the end of duplicate address detection: the address is unique.
    pub fn handle_assigned(&mut self, now: Time, ip: IpAddr) {
        if self.all.get(&ip).is_some_and(|address| !address.state.may_be_source()) {
            self.holders.remove(&ip);
            self.apply_preferred_lifetime(now, ip);
        }
    }

    /// Handles the end of duplicate address detection: another node has the address, with the link
    /// address `at` if known.
    pub fn handle_duplicate(&mut self, now: Time, ip: IpAddr, at: Option<impl Display>) {
        let Some(address) = self.all.get_mut(&ip) else { return };
        (address.state, address.since) = (AddressState::Duplicate, now);
        self.holders.extend(at.map(|at| (ip, at.to_string())));
        self.events.push_back(AddressEvent::Duplicate(ip));
    }

    pub fn unique(&self) -> impl Iterator<Item = &Address> {
        self.all.values().filter(|one| one.state != AddressState::Duplicate)
    }

    pub fn duplicates(&self) -> impl Iterator<Item = (IpAddr, Option<&str>)> {
        let all = self.all.values().filter(|one| one.state == AddressState::Duplicate);
        all.map(|one| (one.ip, self.holders.get(&one.ip).map(String::as_str)))
    }

    /// Handles an advertised prefix: adds an autoconfigured address, or renews the lifetimes of a
    /// known one (RFC 4862 5.5.3).
    pub fn handle_prefix(&mut self, now: Time, info: &PrefixInformation, identifier: InterfaceId) {
        if !info.autonomous {
            return;
        }
        let is_bad = info.prefix_length != PREFIX_LEN
            || info.prefix.is_unicast_link_local()
            || info.prefix.is_multicast()
            || info.preferred_lifetime_seconds > info.valid_lifetime_seconds;
        if is_bad {
            return self.drops.count(AddressDrop::BadPrefix);
        }
        let ip = IpAddr::V6(identifier.in_prefix(info.prefix));
        let lifetimes = Lifetimes {
            preferred: lifetime(info.preferred_lifetime_seconds),
            valid: lifetime(info.valid_lifetime_seconds),
        };
        match self.all.get(&ip) {
            Some(known) if known.origin == Origin::Autoconfigured => {
                let valid = self.valid_lifetime(now, known.valid_until, lifetimes.valid);
                self.renew(now, ip, Lifetimes { valid, ..lifetimes });
            }
            Some(_) => {}
            None if info.valid_lifetime_seconds == 0 => {}
            None => {
                let made = self.all.values().filter(|one| one.origin == Origin::Autoconfigured);
                if made.count() >= AUTOCONFIGURED_MAX {
                    return self.drops.count(AddressDrop::Full);
                }
                self.add(now, ip, PREFIX_LEN, Origin::Autoconfigured, lifetimes);
            }
        }
    }

    pub fn handle_timeout(&mut self, now: Time) {
        let is_over = |until: Option<Time>| until.is_some_and(|until| until <= now);
        let all: Vec<Address> = self.all.values().copied().collect();
        for Address { ip, state, valid_until, preferred_until, .. } in all {
            if is_over(valid_until) {
                self.remove(ip);
            } else if is_over(preferred_until) && state == AddressState::Preferred {
                self.set_state(now, ip, AddressState::Deprecated);
            }
        }
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        let due = self.all.values().flat_map(|one| {
            let is_preferred = one.state == AddressState::Preferred;
            [one.valid_until, one.preferred_until.filter(|_| is_preferred)]
        });
        due.flatten().min()
    }

    pub fn poll_event(&mut self) -> Option<AddressEvent> {
        self.events.pop_front()
    }

    pub const fn drops(&self) -> &Drops<AddressDrop> {
        &self.drops
    }

    pub fn iter(&self) -> impl Iterator<Item = &Address> {
        self.all.values()
    }

    /// Whether `ip` is an address of this interface in use: neither tentative nor duplicate.
    pub fn is_ours(&self, ip: IpAddr) -> bool {
        self.all.get(&ip).is_some_and(|address| address.state.may_be_source())
    }

    /// Whether `ip` is an address of any interface of this node.
    pub fn is_of_node(&self, ip: IpAddr) -> bool {
        self.is_ours(ip) || self.of_node.contains(&ip)
    }

    /// Addresses of all interfaces of the node.
    pub const fn of_node(&self) -> &Arc<BTreeSet<IpAddr>> {
        &self.of_node
    }

    /// Sets the addresses of all interfaces of the node; returns the former ones.
    pub fn set_of_node(&mut self, all: Arc<BTreeSet<IpAddr>>) -> Arc<BTreeSet<IpAddr>> {
        std::mem::replace(&mut self.of_node, all)
    }

    /// Whether `ip` is the limited broadcast address or the broadcast address of one of our
    /// subnets.
    pub fn is_broadcast(&self, ip: Ipv4Addr) -> bool {
        is_broadcast(self.all.values(), ip)
    }

    /// Source address selection (RFC 6724 5).
    pub fn source_for(&self, destination: IpAddr) -> Option<IpAddr> {
        source_for(self.all.values(), destination)
    }

    pub fn link_local(&self) -> Option<Ipv6Addr> {
        self.all.values().filter(|one| one.state.may_be_source()).find_map(|one| match one.ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => Some(ip),
            _ => None,
        })
    }

    /// The valid lifetime to apply when an advertisement, which is not authenticated, gives
    /// `announced`. It cannot shorten the remaining lifetime below two hours (RFC 4862 5.5.3).
    fn valid_lifetime(
        &mut self,
        now: Time,
        until: Option<Time>,
        announced: Option<Duration>,
    ) -> Option<Duration> {
        let remaining = until.map_or(Duration::MAX, |until| until.since(now));
        match announced {
            Some(announced) if announced <= TWO_HOURS && announced < remaining => {
                self.drops.count(AddressDrop::LifetimeCut);
                Some(remaining.min(TWO_HOURS))
            }
            announced => announced,
        }
    }

    fn renew(&mut self, now: Time, ip: IpAddr, lifetimes: Lifetimes) {
        let Some(address) = self.all.get_mut(&ip) else { return };
        address.preferred_until = lifetimes.preferred.map(|lifetime| now + lifetime);
        address.valid_until = lifetimes.valid.map(|lifetime| now + lifetime);
        if address.state.may_be_source() {
            self.apply_preferred_lifetime(now, ip);
        }
    }

    fn apply_preferred_lifetime(&mut self, now: Time, ip: IpAddr) {
        let until = self.all.get(&ip).and_then(|address| address.preferred_until);
        let state = match until {
            Some(until) if until <= now => AddressState::Deprecated,
            _ => AddressState::Preferred,
        };
        self.set_state(now, ip, state);
    }

    fn set_state(&mut self, now: Time, ip: IpAddr, state: AddressState) {
        let Some(address) = self.all.get_mut(&ip) else { return };
        if address.state == state {
            return;
        }
        (address.state, address.since) = (state, now);
        self.events.push_back(match state {
            AddressState::Tentative => AddressEvent::Tentative(ip),
            AddressState::Preferred => AddressEvent::Preferred(ip),
            AddressState::Deprecated => AddressEvent::Deprecated(ip),
            AddressState::Duplicate => AddressEvent::Duplicate(ip),
        });
    }
}

/// Describes the duplicate addresses for operators; empty if there are none.
pub fn text_of_duplicates(addresses: &Addresses) -> String {
    let mut text = String::new();
    for (ip, holder) in addresses.duplicates() {
        let holder = holder.unwrap_or("an unknown link address");
        let _ = write!(text, "; {ip} is not used, as another node has it: {holder}");
    }
    text
}

/// `None` if the lifetime is infinite.
fn lifetime(seconds: u32) -> Option<Duration> {
    (seconds != INFINITE_SECONDS).then(|| Duration::from_secs(u64::from(seconds)))
}
