//! The routes of a namespace as `ip` shows them: what the mirror and nodes have to equal.
//!
//! The paths of a route with a nexthop object are those that `ip nexthop` shows, whatever the
//! kernel repeats in the route.

use crate::namespace::Namespace;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Interface, gateway, weight.
pub type Hop = (String, Option<IpAddr>, u64);

/// A route as `ip` and we both can say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Via(BTreeSet<Hop>),
    Other(&'static str),
}

/// Prefix, prefix length, metric.
pub type Table = BTreeMap<(IpAddr, u8, u32), Said>;

/// The table `main` in `ip`: the first usable route of each prefix and metric, by whom
/// `is_wanted` says (`proto`).
pub fn shown(namespace: &Namespace, is_wanted: impl Fn(&str) -> bool) -> Table {
    let nexthops: BTreeMap<u64, Value> = namespace
        .json("nexthop show")
        .into_iter()
        .map(|nexthop| (nexthop["id"].as_u64().expect("a number"), nexthop))
        .collect();
    let mut table = Table::new();
    for family in ["-4", "-6"] {
        for route in namespace.json(&format!("{family} -d route show table main")) {
            let (address, len) = prefix(route["dst"].as_str().expect("a destination"), family);
            let metric = route["metric"].as_u64().unwrap_or(0) as u32;
            let local = matches!(address, IpAddr::V6(a) if a.is_unicast_link_local());
            if local || !is_wanted(route["protocol"].as_str().unwrap_or_default()) {
                continue;
            }
            if let Some(message) = said_of(&route, &nexthops) {
                table.entry((address, len, metric)).or_insert(message);
            }
        }
    }
    table
}

/// A prefix as `ip` writes it.
fn prefix(text: &str, family: &str) -> (IpAddr, u8) {
    let is_v4 = family == "-4";
    let any = if is_v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    if text == "default" {
        return (any, 0);
    }
    let full = if is_v4 { 32 } else { 128 };
    match text.split_once('/') {
        Some((address, len)) => (address.parse().expect("dst"), len.parse().expect("a length")),
        None => (text.parse().expect("dst"), full),
    }
}

/// One route of `ip -j`; `None` if the kernel does not use it.
fn said_of(route: &Value, nexthops: &BTreeMap<u64, Value>) -> Option<Said> {
    for kind in ["blackhole", "unreachable", "prohibit"] {
        if route["type"] == kind {
            return Some(Said::Other(kind));
        }
    }
    let has = |hop: &Value, flag: &str| {
        hop["flags"].as_array().is_some_and(|flags| flags.iter().any(|f| f == flag))
    };
    let mut alive = paths(route, nexthops);
    alive.retain(|(hop, _)| !has(hop, "dead"));
    if alive.iter().any(|(hop, _)| !has(hop, "linkdown")) {
        alive.retain(|(hop, _)| !has(hop, "linkdown"));
    }
    if alive.is_empty() {
        return None;
    }
    let ours = alive.iter().filter_map(|(hop, weight)| {
        let dev = hop["dev"].as_str().filter(|dev| dev.starts_with("ib"))?;
        let gateway = hop["gateway"].as_str().or(hop["via"]["host"].as_str());
        let gateway = gateway.map(|g| g.parse().expect("a gateway"));
        Some((dev.to_owned(), gateway, *weight))
    });
    let ours: BTreeSet<Hop> = ours.collect();
    Some(if ours.is_empty() { Said::Other("unreachable") } else { Said::Via(ours) })
}

/// The paths of a route, with weights: its own, or those of its nexthop object.
fn paths<'a>(route: &'a Value, nexthops: &'a BTreeMap<u64, Value>) -> Vec<(&'a Value, u64)> {
    let weight = |hop: &Value| hop["weight"].as_u64().unwrap_or(1);
    let Some(id) = route["nhid"].as_u64() else {
        let one = std::slice::from_ref(route);
        let hops = route["nexthops"].as_array().map_or(one, Vec::as_slice);
        return hops.iter().map(|hop| (hop, weight(hop))).collect();
    };
    let Some(object) = nexthops.get(&id) else { return Vec::new() };
    match object["group"].as_array() {
        Some(group) => {
            let member = |member: &Value| {
                let id = member["id"].as_u64().expect("a number");
                Some((nexthops.get(&id)?, weight(member)))
            };
            group.iter().filter_map(member).collect()
        }
        None => vec![(object, 1)],
    }
}
