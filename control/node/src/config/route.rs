//! The routes of a configuration: `[[route]]` and `[router]`.

use super::Prefix;
use super::domain::{DEFAULT_DOMAIN, default_domain};
use serde::de::IntoDeserializer;
use serde::de::value::{self, StrDeserializer};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;

/// The table `[router]`: the node forwards packets between its interfaces, unless `forward` is
/// false.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouterSettings {
    #[serde(default = "yes")]
    pub forward: bool,
    /// The kernel's routing table whose routes the node uses; 254 is `main`. The device of such a
    /// route is the shadow of an interface.
    pub kernel_table: Option<u32>,
}

/// A table `[[route]]`: a static route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteSettings {
    #[serde(default = "default_domain")]
    pub domain: String,
    pub to: Prefix,
    /// Gateways. The flows are distributed to them.
    #[serde(default)]
    pub via: Vec<IpAddr>,
    /// Another domain. With gateways, the gateways are in it; without gateways, the destination is
    /// looked up again in it.
    pub next_domain: Option<String>,
    #[serde(default, rename = "type")]
    pub kind: RouteKind,
}

const fn yes() -> bool {
    true
}

/// The kind of a route, with the words of `ip route`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteKind {
    /// To gateways, or to the link.
    #[default]
    Unicast,
    /// Packets are dropped silently.
    Blackhole,
    /// Packets are answered with destination unreachable.
    Unreachable,
    /// Packets are answered with administratively prohibited.
    Prohibit,
}

impl RouteKind {
    pub fn named(name: &str) -> Option<Self> {
        let name: StrDeserializer<'_, value::Error> = name.into_deserializer();
        Self::deserialize(name).ok()
    }
}

impl fmt::Display for RouteSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, to, via, next_domain, kind } = self;
        if *kind != RouteKind::Unicast {
            write!(f, "{kind} ")?;
        }
        write!(f, "{to}")?;
        if domain != DEFAULT_DOMAIN {
            write!(f, " in {domain}")?;
        }
        if !via.is_empty() {
            let via: Vec<_> = via.iter().map(ToString::to_string).collect();
            write!(f, " via {}", via.join(", "))?;
        }
        match next_domain {
            Some(next) => write!(f, " by domain {next}"),
            None => Ok(()),
        }
    }
}

impl RouteSettings {
    /// The key that is wrong and the reason, if there cannot be such a route.
    pub(crate) fn fault(&self) -> Option<(&'static str, String)> {
        let Self { domain, to, via, next_domain, kind } = self;
        let network = to.network();
        if *to != network {
            return Some(("to", format!("{to} has host bits; write {network}")));
        }
        let is_unicast = *kind == RouteKind::Unicast;
        if is_unicast && via.is_empty() && next_domain.is_none() {
            let reason = format!("the route to {to} has no gateway; write via = [\"...\"]");
            return Some(("to", reason));
        }
        let name = kind.to_string();
        if !is_unicast && !via.is_empty() {
            let reason = format!("a route with type {name:?} has no gateways; remove the key");
            return Some(("via", reason));
        }
        if !is_unicast && next_domain.is_some() {
            let reason = format!("a route with type {name:?} leads into no domain; remove the key");
            return Some(("next_domain", reason));
        }
        if next_domain.as_ref() == Some(domain) {
            let reason =
                format!("the route to {to} leads from {domain} into {domain}; remove the key");
            return Some(("next_domain", reason));
        }
        let other = via.iter().find(|ip| ip.is_ipv4() != to.ip.is_ipv4())?;
        let reason =
            format!("the gateway {other} is of another family than {to}; write one of the same");
        Some(("via", reason))
    }
}
