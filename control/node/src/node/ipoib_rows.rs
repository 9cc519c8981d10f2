//! The rows of IPoIB interfaces, from the state of their control planes.

use crate::admin::page::{RowKey, rows_after};
use crate::admin::rows::{
    ConnectionRole, ConnectionStatus, GroupStatus, InterfaceStatus, LeaseStatus, MembershipStatus,
    NeighborState, NeighborStatus, NeighborTransport, ServiceDialect,
};
use crate::interface::IpoibLink;
use pollux_control::cm::Role;
use pollux_control::ipoib::connected::ConnectionRow;
use pollux_control::ipoib::{Adjacency, GroupRow, LeaseRow, WorkerId};
use pollux_control::neighbor::NeighborRow;
use pollux_dataplane::ipoib::Traffic;
use pollux_verbs::time::Time;
use pollux_wire::mad::cm::ipoib::Dialect;
use std::net::IpAddr;

/// The row of an interface, without its names, state and addresses.
pub(super) fn status(now: Time, one: &IpoibLink) -> InterfaceStatus {
    let (control, all_counters) = (one.control(), one.counters().collect::<Vec<_>>());
    let row = control.row();
    let sum =
        |of: fn(&Traffic) -> u64| all_counters.iter().map(|(_, it)| of(&it.traffic)).sum::<u64>();
    InterfaceStatus {
        waits_for: row.waits_for.map(String::from),
        refused: all_counters.iter().find_map(|(_, counters)| counters.refused.clone()),
        seconds: Some(now.since(row.since).as_secs()),
        link: Some(row.address.to_string()),
        lid: row.link.map(|link| link.lid.0),
        mtu: row.link.map(|link| link.mtu),
        dhcp: control.lease_row().map(|row| lease(now, &row)),
        workers: Some(all_counters.len()),
        sent: Some(sum(|it| it.datagrams_sent + it.connected_sent)),
        received: Some(sum(|it| it.datagrams_received + it.connected_received)),
        bytes_sent: Some(sum(|it| it.bytes_sent)),
        bytes_received: Some(sum(|it| it.bytes_received)),
        ..InterfaceStatus::default()
    }
}

/// The state of DHCP, and the seconds for which its lease is still valid.
fn lease(now: Time, row: &LeaseRow) -> LeaseStatus {
    let expires = row.lease.as_ref().and_then(|lease| lease.expires_at);
    LeaseStatus {
        state: row.state.into(),
        server: row.lease.as_ref().map(|lease| lease.server.to_string()),
        left: expires.map(|expires| expires.since(now).as_secs()),
    }
}

/// A page of the neighbors after `after`, and the key of its last row if there may be more.
pub(super) fn neighbors(
    now: Time,
    name: &str,
    one: &IpoibLink,
    after: Option<IpAddr>,
) -> (Vec<NeighborStatus>, Option<RowKey>) {
    let control = one.control();
    let row = |row: NeighborRow| {
        let (peer, adjacency) = control.adjacency_to(&row).unzip();
        let pause = peer.and_then(|peer| control.pause_of(&peer, WorkerId::PRIMARY));
        let (by, mtu) = adjacency.map(|adjacency| transport(&adjacency)).unzip();
        NeighborStatus {
            interface: name.into(),
            address: row.ip,
            state: NeighborState::of(&row.state),
            link: peer.map(|peer| peer.to_string()),
            by,
            mtu: mtu.flatten(),
            why: row.why.into(),
            connection: pause.map(|pause| pause.text(now)),
            seconds: now.since(row.since).as_secs(),
            pending: row.pending,
        }
    };
    let rows = control.neighbor_rows_after(after);
    let (rows, last) = rows_after(rows, |row| RowKey::Neighbor(row.ip), None);
    (rows.into_iter().map(row).collect(), last)
}

const fn transport(adjacency: &Adjacency) -> (NeighborTransport, Option<u32>) {
    match adjacency {
        Adjacency::Unknown => (NeighborTransport::Unknown, None),
        Adjacency::Pending => (NeighborTransport::Pending, None),
        Adjacency::Unreachable => (NeighborTransport::Unreachable, None),
        Adjacency::Datagram(adjacency) => (NeighborTransport::Datagram, Some(adjacency.mtu)),
        Adjacency::Connected { mtu, .. } => (NeighborTransport::Connection, Some(*mtu)),
    }
}

/// A page of the connections after `after`, and the key of its last row if there may be more.
/// `thread` returns the thread of a worker.
pub(super) fn connections(
    now: Time,
    name: &str,
    one: &IpoibLink,
    thread: &dyn Fn(u8) -> usize,
    after: Option<RowKey>,
) -> (Vec<ConnectionStatus>, Option<RowKey>) {
    let all_counters: Vec<_> = one.counters().map(|(_, counters)| counters).collect();
    let row = |row: ConnectionRow| {
        let counts = all_counters.iter().find_map(|it| it.uses.get(&row.connection).copied());
        let counts = counts.unwrap_or_default();
        ConnectionStatus {
            interface: name.into(),
            worker: thread(row.worker.0),
            peer: row.peer.to_string(),
            qp_type: row.qp_type.to_string(),
            role: match row.role {
                Role::Active => ConnectionRole::Active,
                Role::Passive => ConnectionRole::Passive,
            },
            dialect: match row.dialect {
                Dialect::Rfc => ServiceDialect::Rfc,
                Dialect::Linux => ServiceDialect::Linux,
            },
            state: row.state.into(),
            why: row.why.into(),
            seconds: now.since(row.since).as_secs(),
            mtu: row.mtu,
            qpn: row.qpn.map(|qpn| qpn.0),
            alternate: row.alternate.into(),
            migrations: row.migrations,
            sends: row.may_send,
            sent: counts.sent,
            received: counts.received,
        }
    };
    let rows = one.control().connection_rows();
    let (rows, last) = rows_after(rows, |row| RowKey::Connection(row.connection.0), after);
    (rows.into_iter().map(row).collect(), last)
}

pub(super) fn groups(now: Time, name: &str, one: &IpoibLink) -> Vec<GroupStatus> {
    let row = |row: GroupRow| {
        GroupStatus::Membership(MembershipStatus {
            interface: name.into(),
            group: row.mgid.to_string(),
            lid: row.mlid.map(|lid| format!("{:#06x}", lid.0)),
            state: row.state.into(),
            receives: row.is_full_member,
            why: row.why,
            seconds: now.since(row.since).as_secs(),
            pending: row.pending,
        })
    };
    one.control().group_rows().map(row).collect()
}
