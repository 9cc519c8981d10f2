//! Access control lists. Each table `[[acl.NAME]]` is a rule of the list NAME; interfaces name
//! lists.

use super::{Prefix, text, valid};
use pollux_dataplane::acl::{AclAction, AclRule};
use pollux_dataplane::forward::ReversePath;
use pollux_dataplane::port::PortId;
use pollux_wire::ip::IpProtocol;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::ops::RangeInclusive;

/// Maximum number of rules of a list. Each packet is compared with the rules one by one.
pub(super) const ACL_RULES_MAX: usize = 1024;

const PROTOCOLS: [(&str, IpProtocol); 4] = [
    ("tcp", IpProtocol::TCP),
    ("udp", IpProtocol::UDP),
    ("icmp", IpProtocol::ICMPV4),
    ("icmpv6", IpProtocol::ICMPV6),
];

/// A table `[[acl.NAME]]`: a rule. An absent key matches every packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AclSettings {
    pub action: AclVerb,
    pub source: Option<Prefix>,
    pub destination: Option<Prefix>,
    #[serde(default, deserialize_with = "protocol", serialize_with = "text::protocol")]
    pub protocol: Option<IpProtocol>,
    #[serde(default, deserialize_with = "ports", serialize_with = "text::ports")]
    pub source_port: Option<RangeInclusive<u16>>,
    #[serde(default, deserialize_with = "ports", serialize_with = "text::ports")]
    pub destination_port: Option<RangeInclusive<u16>>,
    pub icmp_type: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AclVerb {
    Permit,
    /// Drops packets silently.
    Deny,
    /// Drops packets, and answers with an ICMP error: administratively prohibited.
    Reject,
}

/// The reverse path filter: the source addresses that an interface accepts in packets in transit
/// (RFC 3704).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RpfMode {
    #[default]
    Off,
    /// Sources to which there is a route.
    Loose,
    /// Sources to which there is a route by this interface.
    Strict,
}

impl RpfMode {
    pub(crate) const fn at(self, port: PortId) -> ReversePath {
        match self {
            Self::Off => ReversePath::Any,
            Self::Loose => ReversePath::Loose,
            Self::Strict => ReversePath::Strict(port),
        }
    }
}

impl AclSettings {
    pub(crate) fn rule(&self) -> AclRule {
        let pair = |prefix: Prefix| (prefix.ip, prefix.len);
        AclRule {
            action: match self.action {
                AclVerb::Permit => AclAction::Permit,
                AclVerb::Deny => AclAction::Deny,
                AclVerb::Reject => AclAction::Reject,
            },
            source: self.source.map(pair),
            destination: self.destination.map(pair),
            protocol: self.protocol,
            source_ports: self.source_port.clone(),
            destination_ports: self.destination_port.clone(),
            icmp_type: self.icmp_type,
        }
    }

    /// The key that is wrong in the rule, and the reason.
    pub(super) fn fault(&self) -> Option<(&'static str, String)> {
        let Self { source, destination, protocol, source_port, destination_port, .. } = self;
        for (key, prefix) in [("source", source), ("destination", destination)] {
            let Some(prefix) = prefix else { continue };
            let network = prefix.network();
            if *prefix != network {
                return Some((key, format!("{prefix} has host bits; write {network}")));
            }
        }
        let families = [source, destination].map(|prefix| prefix.map(|one| one.ip.is_ipv4()));
        let of_protocol = match *protocol {
            Some(IpProtocol::ICMPV4) => Some(true),
            Some(IpProtocol::ICMPV6) => Some(false),
            _ => None,
        };
        let mut families = families.into_iter().chain([of_protocol]).flatten();
        if let Some(first) = families.next()
            && families.any(|other| other != first)
        {
            let reason = "the rule has conditions of IPv4 and of IPv6, so it matches no packet; \
                          write a rule for each";
            return Some(("action", reason.into()));
        }
        let has_ports = matches!(*protocol, Some(IpProtocol::TCP | IpProtocol::UDP));
        for (key, ports) in [("source_port", source_port), ("destination_port", destination_port)] {
            if ports.is_some() && !has_ports {
                let reason =
                    format!("{key} needs protocol = \"tcp\" or \"udp\"; write one of them");
                return Some((key, reason));
            }
        }
        let has_type = matches!(*protocol, Some(IpProtocol::ICMPV4 | IpProtocol::ICMPV6));
        let reason = "icmp_type needs protocol = \"icmp\" or \"icmpv6\"; write one of them";
        (self.icmp_type.is_some() && !has_type).then(|| ("icmp_type", reason.into()))
    }
}

/// The conditions of the rule, or `any` if it has none.
impl fmt::Display for AclSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |range: &RangeInclusive<u16>| match (*range.start(), *range.end()) {
            (first, last) if first == last => format!("port {first}"),
            (first, last) => format!("port {first}-{last}"),
        };
        let name = |protocol: IpProtocol| {
            let known = PROTOCOLS.iter().find(|(_, known)| *known == protocol);
            known.map_or_else(|| format!("protocol {}", protocol.0), |(name, _)| (*name).into())
        };
        let words = [
            self.protocol.map(name),
            self.icmp_type.map(|kind| format!("type {kind}")),
            self.source.map(|source| format!("from {source}")),
            self.source_port.as_ref().map(|ports| format!("from {}", range(ports))),
            self.destination.map(|destination| format!("to {destination}")),
            self.destination_port.as_ref().map(|ports| format!("to {}", range(ports))),
        ];
        let words: Vec<_> = words.into_iter().flatten().collect();
        f.write_str(&if words.is_empty() { "any".into() } else { words.join(" ") })
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u16),
    Text(String),
}

fn protocol<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpProtocol>, D::Error> {
    let found = match NumberOrText::deserialize(deserializer) {
        Ok(NumberOrText::Number(number)) => u8::try_from(number).ok().map(IpProtocol),
        Ok(NumberOrText::Text(text)) => {
            PROTOCOLS.iter().find(|(name, _)| *name == text).map(|(_, known)| *known)
        }
        Err(_) => None,
    };
    valid(found.map(Some), || "not a protocol; write tcp, udp, icmp, icmpv6, or 0 to 255".into())
}

fn ports<'de, D>(deserializer: D) -> Result<Option<RangeInclusive<u16>>, D::Error>
where
    D: Deserializer<'de>,
{
    let found = match NumberOrText::deserialize(deserializer) {
        Ok(NumberOrText::Number(number)) => Some(number..=number),
        Ok(NumberOrText::Text(text)) => {
            let (first, last) = text.split_once('-').unwrap_or((&text, &text));
            first.parse().ok().zip(last.parse().ok()).map(|(first, last)| first..=last)
        }
        Err(_) => None,
    };
    let found = found.filter(|range| !range.is_empty());
    valid(found.map(Some), || "not a port or range; write 80, or \"1024-65535\"".into())
}
