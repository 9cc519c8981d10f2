//! The path of a packet through the tables of a node, with the reason at each step: `pollux trace`.
//!
//! No packet is sent: control has every table that workers use, and predicts from them. A flow
//! takes one of several next hops by a hash that control does not compute, so all next hops are
//! shown.

use super::kinds::NodeInterface;
use super::opening::Interfaces;
use super::report::no_interface;
use super::routing::Routing;
use super::trace_filters::{Addresses, Trace, examine_list, examine_source};
use crate::admin::request::TraceRequest;
use crate::admin::route::{RouteDecision, RouteVerdict, TraceStep};
use crate::admin::rows::RouteHop;
use crate::config::{AclSettings, InterfaceSettings};
use crate::plain::PlainLink;
use pollux_control::ipoib::{Adjacency, WorkerId};
use pollux_dataplane::forward::martian;
use pollux_verbs::time::Time;
use std::collections::BTreeMap;
use std::net::IpAddr;

type AccessLists = BTreeMap<String, Vec<AclSettings>>;

pub(super) fn trace(
    now: Time,
    request: &TraceRequest,
    interfaces: &Interfaces,
    (routing, lists): (&Routing, &AccessLists),
) -> Result<Vec<TraceStep>, String> {
    let TraceRequest { address, source, interface } = request;
    let mut trace = Trace::default();
    if let Some(source) = source
        && source.is_ipv4() != address.is_ipv4()
    {
        return Err(format!("{source} and {address} are of two families; use one"));
    }
    let addresses = Addresses { source: *source, destination: *address };
    let mut passes = true;
    let settings = match interface {
        None => {
            trace.step("origin", "this node", "no --interface is given");
            None
        }
        Some(name) => Some(arrive(&mut trace, name, interfaces)?),
    };
    if let Some(list) = settings.and_then(|at| lists.get_key_value(at.acl_in.as_ref()?)) {
        passes = examine_list(&mut trace, "acl_in", list, addresses);
    }
    let domain = settings.map(|at| at.domain.as_str());
    let decision = routing.decide(now, *address, domain)?;
    if !passes || !has_passed(&mut trace, request, &decision, routing.forwards()) {
        return Ok(trace.0);
    }
    if let (Some(name), Some(at)) = (interface, settings) {
        let mode = (name.as_str(), at.domain.as_str(), at.rpf);
        if !examine_source(&mut trace, now, mode, *source, routing)? {
            return Ok(trace.0);
        }
    }
    let filters = settings.map(|_| (lists, addresses));
    route(&mut trace, now, &decision, interfaces, filters);
    Ok(trace.0)
}

/// Adds the interface where the packet arrives. Returns its settings.
fn arrive<'a>(
    trace: &mut Trace,
    name: &str,
    interfaces: &'a Interfaces,
) -> Result<&'a InterfaceSettings, String> {
    let named = interfaces.all.get(name).ok_or_else(|| no_interface(name))?;
    let is_up = named.interface.as_ref().is_ok_and(|one| one.is_up());
    let why = match is_up {
        true => format!("it receives packets, of domain {}", named.settings.domain),
        false => format!("it receives none now: it is {}", named.state()),
    };
    trace.step("origin", name, why);
    Ok(&named.settings)
}

/// Adds the verdict on the addresses. Returns whether the packet is routed.
fn has_passed(
    trace: &mut Trace,
    request: &TraceRequest,
    decision: &RouteDecision,
    forwards: bool,
) -> bool {
    let TraceRequest { address, source, interface } = request;
    let is_transit = interface.is_some();
    if decision.verdict == RouteVerdict::Local {
        trace.step("verdict", "local", decision.why.clone());
        return false;
    }
    if address.is_multicast() {
        let why = "packets to groups have routes of their own, in `pollux show multicast`; the \
                   groups of each interface are in `pollux show groups`";
        trace.step("verdict", "group", why);
        return false;
    }
    if !is_transit {
        trace.step("verdict", "send", "the packet is of this node");
        return true;
    }
    if !forwards {
        let why = "counted as transit: the configuration has no [router] with forward = true";
        trace.step("verdict", "drop", why);
        return false;
    }
    let any = if address.is_ipv4() { IpAddr::from([192, 0, 2, 1]) } else { DOCUMENTATION_V6 };
    if let Some(reason) = martian(source.unwrap_or(any), *address) {
        let name = reason.name();
        let why = format!("counted as {name}: no packet in transit has such an address");
        trace.step("verdict", "drop", &why);
        return false;
    }
    let why = "no interface of this node has the destination; the TTL is counted down by one";
    trace.step("verdict", "transit", why);
    true
}

/// A source address that is not martian, from the documentation prefix (RFC 3849).
const DOCUMENTATION_V6: IpAddr =
    IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));

/// Adds the route and its next hops; `filters` are for packets in transit.
fn route(
    trace: &mut Trace,
    now: Time,
    decision: &RouteDecision,
    interfaces: &Interfaces,
    filters: Option<(&AccessLists, Addresses)>,
) {
    let RouteDecision { verdict, route, next_hops, why, .. } = decision;
    let Some(route) = route else {
        let why = "counted as no_route: the sender gets destination unreachable";
        return trace.step("route", "none", why);
    };
    trace.step("route", route.to.clone(), why.clone());
    let rejected = match verdict {
        RouteVerdict::Blackhole => Some("counted as blackhole, silently"),
        RouteVerdict::Unreachable => {
            Some("counted as rejected: the sender gets destination unreachable")
        }
        RouteVerdict::Prohibit => {
            Some("counted as rejected: the sender gets administratively prohibited")
        }
        RouteVerdict::Forward | RouteVerdict::Local | RouteVerdict::NoRoute => None,
    };
    if let Some(why) = rejected {
        return trace.step("target", verdict.to_string(), why);
    }
    let (count, group) = (next_hops.len(), "flows are distributed to them by hash");
    if count > 1 {
        trace.step("group", format!("{count} next hops"), group);
    }
    for (next_hop, RouteHop { interface, gateway, .. }) in next_hops.iter().zip(&route.via) {
        let why = match gateway {
            Some(_) => "the gateway of the route is on the link of that interface",
            None => "the destination is on the link of that interface",
        };
        trace.step("next hop", format!("{next_hop} at {interface}"), why);
        let Some(named) = interfaces.all.get(interface) else { continue };
        let list = named.settings.acl_out.as_ref();
        let filter = filters.and_then(|(lists, to)| Some((lists.get_key_value(list?)?, to)));
        if let Some((list, addresses)) = filter
            && !examine_list(trace, "acl_out", list, addresses)
        {
            continue;
        }
        if let Ok(one) = &named.interface {
            neighbor(trace, now, *next_hop, one);
        }
    }
}

const NEVER_ASKED: &str = "no packet has gone there yet: the first one is kept while ARP or \
                           neighbor discovery asks for its address";
const NO_ADDRESS: &str = "its link address is not known: packets are kept, or their senders get \
                          destination unreachable";
const MTU: &str = "the sender of a longer packet gets the ICMP error with this MTU, unless \
                   fragments may be made of it";

/// Adds the neighbor, and the path of packets to it.
fn neighbor(trace: &mut Trace, now: Time, next_hop: IpAddr, one: &NodeInterface) {
    let control = match one {
        NodeInterface::Ipoib(one) => one.control(),
        NodeInterface::Plain(link) => return plain_neighbor(trace, next_hop, link),
    };
    let Some(row) = control.neighbor_rows().find(|row| row.ip == next_hop) else {
        return trace.step("neighbor", "unknown", NEVER_ASKED);
    };
    trace.step("neighbor", row.state.name(), row.why);
    let Some((peer, adjacency)) = control.adjacency_to(&row) else {
        return trace.step("path", "none", NO_ADDRESS);
    };
    let pause = control.pause_of(&peer, WorkerId::PRIMARY).map(|pause| pause.text(now));
    let (path, mtu, why) = match &adjacency {
        Adjacency::Unknown => ("none yet", None, "the first packet has its path resolved".into()),
        Adjacency::Pending => ("pending", None, "the subnet administrator is asked for it".into()),
        Adjacency::Unreachable => ("none", None, "there is no path to its port".into()),
        Adjacency::Datagram(adjacency) => {
            let why = pause.unwrap_or_else(|| "its mode, or that of the peer, is ud".into());
            ("datagrams", Some(adjacency.mtu), why)
        }
        Adjacency::Connected { mtu, .. } => {
            ("connection", Some(*mtu), "see `pollux show connections`".into())
        }
    };
    trace.step("path", format!("{path} to {peer}"), why);
    if let Some(mtu) = mtu {
        trace.step("mtu", mtu.to_string(), MTU);
    }
}

/// Does the same for a link that is not InfiniBand.
fn plain_neighbor(trace: &mut Trace, next_hop: IpAddr, one: &PlainLink) {
    let control = one.control();
    if let Some(why) = control.why_down() {
        return trace.step("path", "none", why);
    }
    match control.ethernet() {
        None => trace.step("neighbor", "the kernel", "a TUN device has no other"),
        Some(link) => {
            let Some(row) = link.rows_after(None).find(|row| row.ip == next_hop) else {
                return trace.step("neighbor", "unknown", NEVER_ASKED);
            };
            trace.step("neighbor", row.state.name(), row.why);
            let Some(address) = row.state.address() else {
                return trace.step("path", "none", NO_ADDRESS);
            };
            trace.step("path", format!("frames to {address}"), one.method());
        }
    }
    trace.step("mtu", control.mtu().to_string(), MTU);
}
