//! Static multicast routes: `[[multicast]]`.

use super::error::{Faults, unknown_table};
use super::lines::Step;
use super::{DEFAULT_DOMAIN, NodeConfig};
use pollux_dataplane::forward::{is_routed_group, martian};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

/// Maximum number of static multicast routes of a node. An interface can be a member of hardly more
/// groups.
pub(super) const MULTICAST_ROUTES_MAX: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MulticastSettings {
    pub group: IpAddr,
    /// The source of the packets. Without one, the route is for all sources that have no route of
    /// their own.
    pub source: Option<IpAddr>,
    pub from: String,
    pub to: Vec<String>,
    /// Only packets with a TTL above this are forwarded.
    #[serde(default = "any_ttl")]
    pub ttl_threshold: u8,
}

/// The unique key of a multicast route: group, source, and interface of arrival.
pub type MulticastKey = (IpAddr, Option<IpAddr>, String);

const fn any_ttl() -> u8 {
    1
}

impl MulticastSettings {
    pub fn key(&self) -> MulticastKey {
        (self.group, self.source, self.from.clone())
    }

    /// The key that is wrong in the route, and the reason.
    fn fault(&self) -> Option<(&'static str, String)> {
        let Self { group, source, from, to, ttl_threshold } = self;
        if !group.is_multicast() {
            return Some(("group", format!("{group} is no multicast address")));
        }
        if !is_routed_group(*group) {
            let reason = format!("{group} is a group of the link, which no router forwards");
            return Some(("group", reason));
        }
        if let Some(source) = source.filter(|source| martian(*source, *group).is_some()) {
            let reason =
                format!("packets to {group} cannot have the source {source}; write a host's");
            return Some(("source", reason));
        }
        if *ttl_threshold == 0 {
            return Some(("ttl_threshold", "a threshold of 0 is that of 1; write 1 to 255".into()));
        }
        if to.is_empty() {
            let reason = format!("packets to {group} leave by no interface; write to = [\"...\"]");
            return Some(("to", reason));
        }
        let mut known = BTreeSet::from([from]);
        let again = to.iter().find(|name| !known.insert(name))?;
        let reason = format!("packets to {group} are at {again} already; remove it from `to`");
        Some(("to", reason))
    }
}

impl fmt::Display for MulticastSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { to, ttl_threshold, .. } = self;
        write!(f, "{} to {}", multicast_name(&self.key()), to.join(", "))?;
        match ttl_threshold {
            1 => Ok(()),
            ttl => write!(f, ", with a TTL above {ttl}"),
        }
    }
}

pub(super) fn multicast_name((group, source, from): &MulticastKey) -> String {
    let of = source.map_or_else(String::new, |source| format!(" of {source}"));
    format!("{group}{of} from {from}")
}

/// Checks that the interfaces of a route exist and are in one domain, and that keys are unique.
pub(super) fn multicast(config: &NodeConfig, faults: &mut Faults) {
    let mut known = BTreeSet::new();
    for (nth, one) in config.multicast.iter().enumerate() {
        let path =
            |key: &'static str| -> [Step; 3] { ["multicast".into(), nth.into(), key.into()] };
        let most = MULTICAST_ROUTES_MAX;
        let reason = format!("there are too many multicast routes; write at most {most}");
        faults.refuse(&path("group"), (nth >= MULTICAST_ROUTES_MAX).then_some(reason));
        let reason = "multicast routes need a router; add [router]";
        faults.refuse(&path("group"), config.router.is_none().then(|| reason.into()));
        if let Some((key, reason)) = one.fault() {
            faults.add(&path(key), reason);
        }
        let name = multicast_name(&one.key());
        let known_interfaces = &config.interfaces;
        let unknown = |to: &String| {
            let is_known = known_interfaces.contains_key(to);
            (!is_known).then(|| unknown_table(&name, "interface", to, known_interfaces))
        };
        faults.refuse(&path("from"), unknown(&one.from));
        for to in &one.to {
            faults.refuse(&path("to"), unknown(to));
            let domain = |name: &String| {
                known_interfaces.get(name).map_or(DEFAULT_DOMAIN, |one| one.domain.as_str())
            };
            let reason = format!(
                "{} is in the domain {:?}, but {to} in {:?}; no multicast packet crosses domains",
                one.from,
                domain(&one.from),
                domain(to)
            );
            faults.refuse(&path("to"), (domain(&one.from) != domain(to)).then_some(reason));
        }
        let reason = format!("there are two routes of {name}; write all interfaces in one");
        faults.refuse(&path("group"), (!known.insert(one.key())).then_some(reason));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two interfaces in the default domain and one in another, and this multicast route.
    fn read(keys: &str) -> Result<NodeConfig, String> {
        let interface = |name| format!("[interface.{name}]\ndevice = \"soft:x@{name}\"\n");
        let text = format!(
            "[router]\n[domain.red]\n{}{}{}domain = \"red\"\n[[multicast]]\n{keys}",
            interface("ib1"),
            interface("ib2"),
            interface("ib3")
        );
        NodeConfig::read("test", &text).map_err(|error| error.to_string())
    }

    #[test]
    fn an_invalid_route_is_refused_with_its_key() {
        let with = |keys: &str| format!("group = \"239.1.2.3\"\n{keys}");
        for (keys, line, reason) in [
            ("group = \"10.0.0.1\"\nfrom = \"ib1\"\nto = [\"ib2\"]".into(), 11, "no multicast"),
            ("group = \"224.0.0.5\"\nfrom = \"ib1\"\nto = [\"ib2\"]".into(), 11, "of the link"),
            (with("source = \"fd00::1\"\nfrom = \"ib1\"\nto = [\"ib2\"]"), 12, "a host's"),
            (with("from = \"ib11\"\nto = [\"ib2\"]"), 12, "did you mean \"ib1\"?"),
            (with("from = \"ib1\"\nto = [\"ib2\", \"wan\"]"), 13, "write [interface.wan]"),
            (with("from = \"ib1\"\nto = [\"ib2\", \"ib1\"]"), 13, "at ib1 already"),
            (with("from = \"ib1\"\nto = []"), 13, "no interface"),
            (with("from = \"ib1\"\nto = [\"ib3\"]"), 13, "no multicast packet crosses domains"),
            (
                with(&format!(
                    "from = \"ib1\"\nto = [\"ib2\"]\n[[multicast]]\n{}",
                    with("from = \"ib1\"\nto = [\"ib2\"]\nttl_threshold = 9")
                )),
                15,
                "two routes of 239.1.2.3 from ib1",
            ),
        ] {
            let error = read(&keys).expect_err(&keys);
            assert!(error.contains(&format!("test:{line}:")) && error.contains(reason), "{error}");
        }
        let good = "from = \"ib1\"\nto = [\"ib2\"]\nsource = \"10.0.1.9\"\nttl_threshold = 9";
        let config = read(&with(good)).unwrap();
        let message = config.multicast[0].to_string();
        assert_eq!(message, "239.1.2.3 of 10.0.1.9 from ib1 to ib2, with a TTL above 9");
    }
}
