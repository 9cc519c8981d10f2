//! The lease in a server's message (RFC 2131 4.3.1, RFC 2132).

use pollux_verbs::time::Time;
use pollux_wire::ip::dhcp::{DhcpMessage, DhcpOptionCode};
use pollux_wire::ip::ipv4::IPV4_MTU_MIN;
use std::net::Ipv4Addr;
use std::time::Duration;

/// Routers, and separately name servers, of a lease, at most.
pub const ROUTERS_MAX: usize = 8;

const INFINITE_SECONDS: u32 = u32::MAX;

pub(super) const WANTED: [u8; 7] = [
    DhcpOptionCode::SUBNET_MASK.0,
    DhcpOptionCode::ROUTER.0,
    DhcpOptionCode::DOMAIN_NAME_SERVER.0,
    DhcpOptionCode::INTERFACE_MTU.0,
    DhcpOptionCode::LEASE_TIME.0,
    DhcpOptionCode::RENEWAL_TIME.0,
    DhcpOptionCode::REBINDING_TIME.0,
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DhcpLease {
    pub ip: Ipv4Addr,
    /// Leading bits that all addresses of the subnet share.
    pub prefix_len: u8,
    pub routers: Vec<Ipv4Addr>,
    pub name_servers: Vec<Ipv4Addr>,
    pub mtu: Option<u32>,
    pub server: Ipv4Addr,
    /// T1. `None` in an infinite lease, like `rebind_at` and `expires_at`.
    pub renew_at: Option<Time>,
    /// T2.
    pub rebind_at: Option<Time>,
    pub expires_at: Option<Time>,
}

impl DhcpLease {
    /// The lease of `message`, if it has an address, a lease time and a server.
    pub(super) fn read(now: Time, message: &DhcpMessage<'_>) -> Option<Self> {
        let ip = message.header.yours;
        let is_host = !(ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast());
        let seconds = number(message, DhcpOptionCode::LEASE_TIME).filter(|&seconds| seconds > 0)?;
        let times = (seconds != INFINITE_SECONDS).then(|| times(message, seconds));
        let at = |seconds: u32| now + Duration::from_secs(u64::from(seconds));
        let mtu = message.option(DhcpOptionCode::INTERFACE_MTU).and_then(|mtu| mtu.try_into().ok());
        let mtu = mtu.map(|mtu| u32::from(u16::from_be_bytes(mtu)));
        is_host.then_some(Self {
            ip,
            prefix_len: prefix_len(message, ip),
            routers: addresses(message, DhcpOptionCode::ROUTER),
            name_servers: addresses(message, DhcpOptionCode::DOMAIN_NAME_SERVER),
            mtu: mtu.filter(|&mtu| mtu >= IPV4_MTU_MIN),
            server: server(message)?,
            renew_at: times.map(|(renew, _)| at(renew)),
            rebind_at: times.map(|(_, rebind)| at(rebind)),
            expires_at: times.map(|_| at(seconds)),
        })
    }
}

pub(super) fn server(message: &DhcpMessage<'_>) -> Option<Ipv4Addr> {
    let bytes: [u8; 4] = message.option(DhcpOptionCode::SERVER_IDENTIFIER)?.try_into().ok()?;
    Some(bytes.into())
}

/// Half of the time from `now` until `end` (RFC 2131 4.4.5).
pub(super) fn half_of_rest(now: Time, end: Option<Time>) -> Duration {
    end.map_or(Duration::ZERO, |end| end.since(now) / 2)
}

/// T1 and T2 in seconds. Missing or invalid values of the server are replaced by the defaults (RFC
/// 2131 4.4.5).
fn times(message: &DhcpMessage<'_>, lease: u32) -> (u32, u32) {
    let rebind = number(message, DhcpOptionCode::REBINDING_TIME).filter(|&rebind| rebind < lease);
    let rebind = rebind.unwrap_or(lease - lease / 8);
    let renew = number(message, DhcpOptionCode::RENEWAL_TIME).filter(|&renew| renew < rebind);
    (renew.unwrap_or((lease / 2).min(rebind)), rebind)
}

/// The prefix length by the subnet mask; without a valid mask, by the address class (RFC 950).
fn prefix_len(message: &DhcpMessage<'_>, ip: Ipv4Addr) -> u8 {
    let mask = number(message, DhcpOptionCode::SUBNET_MASK);
    let is_mask = |mask: &u32| mask.leading_ones() + mask.trailing_zeros() >= u32::BITS;
    match mask.filter(is_mask) {
        Some(mask) => mask.leading_ones() as u8,
        None => match ip.octets()[0] {
            0..128 => 8,
            128..192 => 16,
            _ => 24,
        },
    }
}

fn number(message: &DhcpMessage<'_>, code: DhcpOptionCode) -> Option<u32> {
    Some(u32::from_be_bytes(message.option(code)?.try_into().ok()?))
}

fn addresses(message: &DhcpMessage<'_>, code: DhcpOptionCode) -> Vec<Ipv4Addr> {
    let (all, _) = message.option(code).unwrap_or(&[]).as_chunks::<4>();
    all.iter().take(ROUTERS_MAX).map(|&bytes| bytes.into()).collect()
}
