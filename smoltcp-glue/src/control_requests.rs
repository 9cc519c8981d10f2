//! Requests of sockets and applications to the control plane of an interface.

use crate::control_thread::{Answer, ControlHandle};
use crate::error::UpError;
use pollux_control::ipoib::Adjacency;
use pollux_node::config::InterfaceSettings;
use pollux_node::interface::echo::{EchoOutcome, EchoRequest};
use pollux_node::interface::{IpoibLink, NotSent, PingError};
use pollux_verbs::QpType;
use pollux_wire::ip::link_address::LinkAddress;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

/// A neighbor, and how packets reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighborRoute {
    /// The IP addresses of the neighbor, and the groups whose packets are sent to it.
    pub addresses: Vec<IpAddr>,
    /// Link-layer address (QPN and GID).
    pub link: LinkAddress,
    /// The queue pair type of the connection to it; `None` if packets are sent by UD.
    pub connection: Option<QpType>,
    /// The MTU, in bytes.
    pub mtu: u32,
}

impl ControlHandle {
    /// Answers with the addresses of the interface when it is up and has all configured ones, or
    /// with an error when another host has one of them.
    pub(crate) fn when_up(
        &self,
        settings: &InterfaceSettings,
    ) -> Answer<Result<Vec<IpAddr>, UpError>> {
        let settings = settings.clone();
        self.ask(move |interface, _| addresses_if_up(interface, &settings))
    }

    /// The state of the interface, and the reason for it.
    pub(crate) fn state(&self) -> io::Result<String> {
        let row = self.ask(|interface, _| Some(interface.control().row())).wait()?;
        Ok(format!("{}: {}", row.state, row.why))
    }

    pub(crate) fn neighbors(&self) -> io::Result<Vec<NeighborRoute>> {
        self.ask(|interface, _| Some(neighbors(interface))).wait()
    }

    /// Sends an ICMP echo request with this many bytes of data; answers with the round-trip time.
    pub(crate) fn ping(
        &self,
        to: IpAddr,
        bytes: usize,
        timeout: Duration,
    ) -> Answer<io::Result<Duration>> {
        let mut id = None;
        self.ask(move |interface, now| match id {
            None => match interface.ping(now, EchoRequest::new(to, bytes, timeout)) {
                Ok(begun) => {
                    id = Some(begun);
                    None
                }
                Err(why) => Some(Err(ping_error(why))),
            },
            Some(id) => interface.echo(id).map(|(outcome, _)| round_trip(outcome)),
        })
    }

    /// Joins a multicast group. Fails if the address is not a group, or there are too many groups.
    pub(crate) fn join_group(&self, group: IpAddr) -> io::Result<()> {
        let joined = self.ask(move |interface, now| Some(interface.join_group(now, group)));
        match joined.wait()? {
            true => Ok(()),
            false => Err(io::ErrorKind::QuotaExceeded.into()),
        }
    }

    pub(crate) fn leave_group(&self, group: IpAddr) {
        self.run(move |interface, now| interface.leave_group(now, group));
    }

    /// Answers when all packets that the workers and the control plane accepted are sent.
    pub(crate) fn when_drained(&self) -> Answer<()> {
        self.ask(|interface, _| interface.is_drained().then_some(()))
    }

    /// Leaves all groups and disconnects all peers; answers when that is complete.
    pub(crate) fn leave(&self) -> Answer<()> {
        self.ask(|interface, now| {
            interface.leave(now);
            interface.has_disconnected().then_some(())
        })
    }
}

fn addresses_if_up(
    interface: &IpoibLink,
    settings: &InterfaceSettings,
) -> Option<Result<Vec<IpAddr>, UpError>> {
    let control = interface.control();
    let is_fixed = |ip| settings.fixed_addresses().any(|one| one.ip == ip);
    let mut duplicates = control.addresses().duplicates().filter(|(ip, _)| is_fixed(*ip));
    if let Some((address, holder)) = duplicates.next() {
        let holder = holder.unwrap_or("(unknown)").into();
        return Some(Err(UpError::AddressInUse { address, holder }));
    }
    let own: Vec<_> = control.snapshot().own().collect();
    let has_lease = control.has_lease() || !settings.uses_dhcp();
    let has_all = settings.fixed_addresses().all(|one| own.contains(&one.ip));
    (control.is_up() && has_lease && has_all).then_some(Ok(own))
}

fn neighbors(interface: &IpoibLink) -> Vec<NeighborRoute> {
    let control = interface.control();
    let connections: Vec<_> = control.connection_rows().collect();
    let connection = |key| connections.iter().find(|row| row.connection == key);
    let rows = control.peer_rows().filter_map(|row| {
        let (connection, mtu) = match row.adjacency {
            Adjacency::Datagram(adjacency) => (None, adjacency.mtu),
            Adjacency::Connected { connection: key, mtu, .. } => {
                (connection(key).map(|row| row.qp_type), mtu)
            }
            _ => return None,
        };
        Some(NeighborRoute { addresses: row.ips, link: row.link, connection, mtu })
    });
    rows.collect()
}

fn ping_error(why: PingError) -> io::Error {
    let kind = match why {
        PingError::TooMany => io::ErrorKind::QuotaExceeded,
        PingError::TooLong => io::ErrorKind::InvalidInput,
        PingError::Down => io::ErrorKind::NetworkDown,
        _ => io::ErrorKind::AddrNotAvailable,
    };
    kind.into()
}

fn round_trip(outcome: EchoOutcome) -> io::Result<Duration> {
    match outcome {
        EchoOutcome::Answered { after, .. } => Ok(after),
        EchoOutcome::Silence => Err(io::ErrorKind::TimedOut.into()),
        EchoOutcome::NotSent(NotSent::TooBig(_)) => Err(io::ErrorKind::InvalidInput.into()),
        EchoOutcome::NotSent(_)
        | EchoOutcome::Unreachable
        | EchoOutcome::Prohibited
        | EchoOutcome::TimeExceeded => Err(io::ErrorKind::HostUnreachable.into()),
    }
}
