//! Answers of a worker thread to questions about its interfaces.

use super::opening::{Named, WorkerSenders};
use super::questions::{Answer, Unanswered};
use crate::admin::CONNECTIONS_MAX;
use crate::interface::counters::DriverCounters;
use crate::interface::echo::{EchoId, Outcome};
use crate::interface::sending::NotSent;
use crate::interface::{Interface, PingError};
use pollux_control::cm::Role;
use pollux_control::interface::{Adjacency, GroupRow, LeaseRow, Worker};
use pollux_control::neighbor::{NeighborRow, State};
use pollux_control::peer::ConnectionRow;
use pollux_dataplane::ipoib::Traffic;
use pollux_dataplane::reason::{PacketDrop, Refusal};
use pollux_verbs::time::Time;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::mad::cm::ipoib::Dialect;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Timeout of an echo request: less than the time that the client waits.
const ECHO_TIMEOUT: Duration = Duration::from_secs(4);
/// Echo requests of questions, at most: as many as the socket takes questions.
const PINGS_MAX: usize = CONNECTIONS_MAX;

/// The objects that questions are about.
pub(super) struct Asked<'a> {
    pub(super) interfaces: &'a mut BTreeMap<String, Named>,
    pub(super) pings: &'a mut BTreeMap<u64, (String, EchoId)>,
    /// The threads of secondary workers of these interfaces.
    pub(super) senders: &'a WorkerSenders,
}

impl Asked<'_> {
    /// The answer to a question, once there is one.
    pub(super) fn answer(&mut self, now: Time, number: u64, question: &str) -> Option<Answer> {
        let words: Vec<_> = question.split_whitespace().collect();
        let rows = match words[..] {
            ["show", "interfaces"] => self.interfaces(now),
            ["show", "neighbors"] => self.rows(|name, one| neighbors(now, name, one)),
            ["show", "connections"] => {
                self.rows(|name, one| connections(now, name, one, self.senders))
            }
            ["show", "groups"] => self.rows(|name, one| groups(now, name, one)),
            ["show", "drops"] => self.rows(drops),
            ["ping", address, bytes] => return self.ping(now, number, address, bytes, None),
            ["ping", address, bytes, from] => {
                return self.ping(now, number, address, bytes, Some(from));
            }
            _ => {
                return Some(Answer::No(
                    "unknown query; a node answers: show interfaces, neighbors, connections, \
                     groups, drops or \
                     workers; ping ADDRESS BYTES [INTERFACE]; idle poll, pause or adaptive \
                     [WORKER]"
                        .into(),
                ));
            }
        };
        Some(Answer::Rows(rows))
    }

    fn interfaces(&self, now: Time) -> Vec<Value> {
        let all = self.interfaces.iter();
        let rows = all.map(|(name, named)| match &named.interface {
            Ok(one) => interface(now, name, &named.settings.device, one),
            Err(outage) => json!({
                "interface": name,
                "device": named.settings.device,
                "state": outage.state(),
                "why": outage.to_string(),
                "waits_for": "the device",
            }),
        });
        rows.collect()
    }

    fn rows(&self, of: impl Fn(&str, &Interface) -> Vec<Value>) -> Vec<Value> {
        let all = self.interfaces.iter();
        let running = all.filter_map(|(name, named)| Some((name, named.interface.as_ref().ok()?)));
        running.flat_map(|(name, one)| of(name, one)).collect()
    }

    /// Sends an echo request, or returns its outcome, once there is one.
    fn ping(
        &mut self,
        now: Time,
        number: u64,
        address: &str,
        bytes: &str,
        from: Option<&str>,
    ) -> Option<Answer> {
        if let Some((name, id)) = self.pings.get(&number) {
            let interface = self.interfaces.get_mut(name)?.interface.as_mut();
            let outcome = interface.map_or(Some(Outcome::Silence), |one| one.echo(*id))?;
            self.pings.remove(&number);
            return Some(Answer::One(echo(outcome)));
        }
        match self.begin(now, address, bytes, from) {
            Ok(ping) => {
                if self.pings.len() == PINGS_MAX {
                    self.pings.pop_first();
                }
                self.pings.insert(number, ping);
                None
            }
            Err(answer) => Some(answer),
        }
    }

    fn begin(
        &mut self,
        now: Time,
        address: &str,
        bytes: &str,
        from: Option<&str>,
    ) -> Result<(String, EchoId), Answer> {
        let no = |what: &str, kind| Answer::No(format!("{what:?} is not {kind}"));
        let to: IpAddr = address.parse().map_err(|_| no(address, "an IP address"))?;
        let bytes = bytes.parse().map_err(|_| no(bytes, "a number of bytes"))?;
        let leads_there = |(name, named): &(&String, &mut Named)| match (from, &named.interface) {
            (Some(from), _) => from == name.as_str(),
            (None, Ok(one)) => one.control().next_hop(now, to).is_some(),
            (None, Err(_)) => named.may_lead_to(to),
        };
        let may_come = self.interfaces.values().any(Named::is_coming_up);
        let found = self.interfaces.iter_mut().find(leads_there);
        let (name, named) = found.ok_or_else(|| {
            Answer::Elsewhere(match (from, may_come) {
                (Some(from), _) => Unanswered::No(format!(
                    "there is no interface {from}; list them with `pollux show interfaces`"
                )),
                (None, true) => {
                    Unanswered::Later(format!("no interface that is up has a route to {to}"))
                }
                (None, false) => Unanswered::No(format!(
                    "no interface has a route to {to}; see `pollux show interfaces`"
                )),
            })
        })?;
        let (state, asks) = (named.state(), named.settings.asks_for_address());
        let interface = named.interface.as_mut();
        let interface = interface.map_err(|_| Answer::Later(format!("{name} is {state}")))?;
        let id = interface.ping(now, to, bytes, ECHO_TIMEOUT).map_err(|error| match error {
            PingError::Down => Answer::Later(format!("{name} is {state}")),
            PingError::NoSource => {
                let why = format!("{name} has no source address for {to}");
                // One that is asked for, or is tried for duplicates, may come.
                if asks || to.is_ipv6() { Answer::Later(why) } else { Answer::No(why) }
            }
            PingError::TooMany => Answer::Later("too many echo requests are pending".into()),
            PingError::TooLong => {
                Answer::No(format!("{bytes} data bytes do not fit an IP packet; send fewer"))
            }
        })?;
        Ok((name.clone(), id))
    }
}

/// The outcome of an echo request, as JSON.
fn echo(outcome: Outcome) -> Value {
    let lost = |why: String| json!({ "lost": why });
    match outcome {
        Outcome::Answered { bytes, hop_limit, after } => {
            json!({ "bytes": bytes, "ttl": hop_limit, "us": after.as_nanos() as f64 / 1e3 })
        }
        Outcome::Silence => lost("no answer".into()),
        Outcome::NotSent(NotSent::TooBig(mtu)) => lost(format!("message too long, mtu={mtu}")),
        Outcome::NotSent(NotSent::Full) => lost("no buffer space available".into()),
        Outcome::NotSent(_) | Outcome::Unreachable => lost("destination host unreachable".into()),
    }
}

fn seconds(now: Time, since: Time) -> u64 {
    now.since_start().saturating_sub(since.since_start()).as_secs()
}

fn link(address: &LinkAddress) -> String {
    let bytes = address.emit().map(|byte| format!("{byte:02x}"));
    bytes.join(":")
}

fn interface(now: Time, name: &str, device: &str, one: &Interface) -> Value {
    let (control, all_counters) = (one.control(), one.counters().collect::<Vec<_>>());
    let row = control.row();
    let sum =
        |of: fn(&Traffic) -> u64| all_counters.iter().map(|(_, it)| of(&it.traffic)).sum::<u64>();
    let addresses = control.addresses().iter();
    let addresses: Vec<_> = addresses.map(|one| format!("{}/{}", one.ip, one.prefix_len)).collect();
    json!({
        "interface": name,
        "device": device,
        "state": row.state,
        "why": row.why,
        "waits_for": row.waits_for,
        "refused": all_counters.iter().find_map(|(_, counters)| counters.refused.as_ref()),
        "seconds": seconds(now, row.since),
        "link": link(&row.address),
        "lid": row.link.map(|link| link.lid.0),
        "mtu": row.link.map(|link| link.mtu),
        "addresses": addresses,
        "dhcp": control.lease_row().map(|row| lease(now, &row)),
        "workers": all_counters.len(),
        "sent": sum(|it| it.datagrams_sent + it.connected_sent),
        "received": sum(|it| it.datagrams_received + it.connected_received),
    })
}

/// The state of DHCP, and the seconds for which its lease is still valid.
fn lease(now: Time, row: &LeaseRow) -> Value {
    let expires = row.lease.as_ref().and_then(|lease| lease.expires_at);
    json!({
        "state": row.state,
        "server": row.lease.as_ref().map(|lease| lease.server.to_string()),
        "left": expires.map(|expires| seconds(expires, now)),
    })
}

fn neighbors(now: Time, name: &str, one: &Interface) -> Vec<Value> {
    let control = one.control();
    let peers: Vec<_> = control.peer_rows().collect();
    let by_ip: BTreeMap<_, _> =
        peers.iter().flat_map(|peer| peer.ips.iter().map(move |ip| (*ip, peer))).collect();
    let rows = control.neighbor_rows(now);
    let row = |row: NeighborRow| {
        let peer = by_ip.get(&row.ip);
        let (by, mtu) = peer.map_or(("-", None), |peer| adjacency(&peer.adjacency));
        let pause = peer.and_then(|peer| control.pause_of(&peer.link, Worker::LEAD));
        json!({
            "interface": name,
            "address": row.ip.to_string(),
            "state": state(&row.state),
            "link": peer.map(|peer| link(&peer.link)),
            "by": by,
            "mtu": row.mtu.or(mtu),
            "why": row.why,
            "connection": pause.map(|pause| pause.text(now)),
            "seconds": seconds(now, row.since),
            "pending": row.pending,
        })
    };
    rows.map(row).collect()
}

/// The transport of packets to a peer, and their MTU.
const fn adjacency(adjacency: &Adjacency) -> (&'static str, Option<u32>) {
    match adjacency {
        Adjacency::Unknown => ("unknown", None),
        Adjacency::Pending => ("pending", None),
        Adjacency::Unreachable => ("unreachable", None),
        Adjacency::Datagram(adjacency) => ("datagram", Some(adjacency.mtu)),
        Adjacency::Connected { mtu, .. } => ("connection", Some(*mtu)),
    }
}

const fn state(state: &State) -> &'static str {
    match state {
        State::Incomplete { .. } => "incomplete",
        State::Reachable { .. } => "reachable",
        State::Stale { .. } => "stale",
        State::Delay { .. } => "delay",
        State::Probe { .. } => "probe",
        State::Failed { .. } => "failed",
        State::Permanent { .. } => "permanent",
    }
}

fn connections(now: Time, name: &str, one: &Interface, senders: &WorkerSenders) -> Vec<Value> {
    let all_counters: Vec<_> = one.counters().map(|(_, counters)| counters).collect();
    let row = |row: ConnectionRow| {
        let counts = all_counters.iter().find_map(|it| it.uses.get(&row.connection).copied());
        let counts = counts.unwrap_or_default();
        json!({
            "interface": name,
            "worker": senders.number(row.worker),
            "peer": link(&row.peer),
            "type": row.qp_type.to_string(),
            "role": if row.role == Role::Active { "active" } else { "passive" },
            "dialect": if row.dialect == Dialect::Rfc { "rfc" } else { "linux" },
            "state": row.state,
            "why": row.why,
            "seconds": seconds(now, row.since),
            "mtu": row.mtu,
            "qpn": row.qpn.map(|qpn| qpn.0),
            "alternate": row.alternate,
            "migrations": row.migrations,
            "sends": row.may_send,
            "sent": counts.sent,
            "received": counts.received,
        })
    };
    one.control().connection_rows().map(row).collect()
}

fn groups(now: Time, name: &str, one: &Interface) -> Vec<Value> {
    let row = |row: GroupRow| {
        json!({
            "interface": name,
            "group": row.mgid.to_string(),
            "lid": row.mlid.map(|lid| format!("{:#06x}", lid.0)),
            "state": row.state,
            "receives": row.is_heard,
            "why": row.why,
            "seconds": seconds(now, row.since),
            "pending": row.pending,
        })
    };
    one.control().group_rows().map(row).collect()
}

/// The drop counters of all workers that are not zero.
fn drops(name: &str, one: &Interface) -> Vec<Value> {
    let mut all = BTreeMap::new();
    let mut count = |of, why, count| *all.entry((of, why)).or_insert(0) += count;
    for (_, DriverCounters { drops, refusals, counts, mads_unsent, .. }) in one.counters() {
        PacketDrop::ALL.iter().for_each(|&why| count("received", why.name(), drops.of(why)));
        Refusal::ALL.iter().for_each(|&why| count("refused", why.name(), refusals.of(why)));
        let moved = [
            ("transit", counts.transit),
            ("no_room", counts.no_room),
            ("refused_actions", counts.refused_actions),
            ("given_up", counts.given_up),
            ("punts_dropped", counts.punts_dropped),
            ("mads_unsent", mads_unsent),
        ];
        moved.into_iter().for_each(|(why, times)| count("port_driver", why, times));
    }
    one.control().drop_rows().for_each(|(of, why, times)| count(of, why, times));
    let dropped = all.into_iter().filter(|(_, count)| *count > 0);
    let row =
        |((of, why), count)| json!({ "interface": name, "of": of, "why": why, "count": count });
    dropped.map(row).collect()
}
