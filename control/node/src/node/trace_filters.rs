//! Access control lists and reverse-path filters in a trace.
//!
//! A trace has addresses, but no protocol and no ports, so a rule may match only some of its
//! packets. Each rule that may match is a step. A rule that matches all packets ends the list.

use super::routing::Routing;
use crate::admin::route::{RouteDecision, RouteVerdict, TraceStep};
use crate::config::{AclSettings, AclVerb, Prefix, RpfMode};
use pollux_verbs::time::Time;
use pollux_wire::ip::IpProtocol;
use std::net::IpAddr;

const ICMP: [IpProtocol; 2] = [IpProtocol::ICMPV4, IpProtocol::ICMPV6];

/// The steps so far.
#[derive(Default)]
pub(super) struct Trace(pub(super) Vec<TraceStep>);

impl Trace {
    pub(super) fn step(&mut self, step: &str, result: impl Into<String>, why: impl Into<String>) {
        self.0.push(TraceStep { step: step.into(), result: result.into(), why: why.into() });
    }
}

#[derive(Clone, Copy)]
pub(super) struct Addresses {
    pub(super) source: Option<IpAddr>,
    pub(super) destination: IpAddr,
}

/// Adds the rules of a list that may match. Returns whether some packets with these addresses pass.
pub(super) fn examine_list(
    trace: &mut Trace,
    key: &str,
    (name, rules): (&String, &Vec<AclSettings>),
    addresses: Addresses,
) -> bool {
    let mut passes = false;
    for (number, rule) in (1..).zip(rules).filter(|(_, rule)| may_match(rule, addresses)) {
        let fate = match rule.action {
            AclVerb::Permit => "they pass".into(),
            AclVerb::Deny => format!("counted as {key}, silently"),
            AclVerb::Reject => {
                format!("counted as {key}: the sender gets administratively prohibited")
            }
        };
        let is_last = matches_all(rule, addresses);
        let which = if is_last { "all other packets".into() } else { format!("packets: {rule}") };
        let result = format!("{name} rule {number}: {}", rule.action);
        trace.step(key, result, format!("{which}: {fate}"));
        passes |= rule.action == AclVerb::Permit;
        if is_last {
            return passes;
        }
    }
    trace.step(key, format!("{name}: permit"), "no rule matches other packets: they pass");
    true
}

/// Whether a rule matches some packets with these addresses. An unknown source may be any.
fn may_match(rule: &AclSettings, Addresses { source, destination }: Addresses) -> bool {
    let is_of = |prefix: Option<Prefix>, address: Option<IpAddr>| {
        let Some(prefix) = prefix else { return true };
        let family = prefix.ip.is_ipv4() == destination.is_ipv4();
        family && address.is_none_or(|address| prefix.contains(address))
    };
    let icmp = rule.protocol.filter(|protocol| ICMP.contains(protocol));
    let family = icmp.is_none_or(|protocol| (protocol == ICMP[0]) == destination.is_ipv4());
    family && is_of(rule.source, source) && is_of(rule.destination, Some(destination))
}

/// Whether a rule that may match matches all packets of these addresses.
fn matches_all(rule: &AclSettings, addresses: Addresses) -> bool {
    rule.protocol.is_none() && (rule.source.is_none() || addresses.source.is_some())
}

/// Adds the verdict of the reverse path filter. Returns whether the packet passes.
pub(super) fn examine_source(
    trace: &mut Trace,
    now: Time,
    (interface, domain, mode): (&str, &str, RpfMode),
    source: Option<IpAddr>,
    routing: &Routing,
) -> Result<bool, String> {
    if mode == RpfMode::Off {
        return Ok(true);
    }
    let Some(source) = source else {
        trace.step("rpf", mode.to_string(), "not examined: name the source with --from");
        return Ok(true);
    };
    let decision = routing.decide(now, source, Some(domain))?;
    let passes = leads_back(&decision, mode, interface);
    let route = decision.route.map_or("no route".into(), |route| format!("the route {}", route.to));
    let (verdict, why) = match passes {
        true => ("pass", format!("{route} leads to the source")),
        false => {
            let reason = "does not lead to the source that way";
            ("drop", format!("counted as reverse_path: {route} {reason}"))
        }
    };
    trace.step("rpf", format!("{mode}: {verdict}"), why);
    Ok(passes)
}

fn leads_back(decision: &RouteDecision, mode: RpfMode, interface: &str) -> bool {
    let via = decision.route.iter().flat_map(|route| &route.via);
    let mut by_interface = via.map(|hop| hop.interface == interface);
    decision.verdict == RouteVerdict::Forward
        && (mode == RpfMode::Loose || by_interface.any(|is_it| is_it))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NodeConfig;

    fn rules(text: &str) -> Vec<AclSettings> {
        let text = format!("[interface.a]\ndevice = 'null:'\n{text}");
        let config = NodeConfig::read("test", &text).expect("it is valid");
        config.acls["web"].clone()
    }

    fn examined(rules: &[AclSettings], source: Option<&str>) -> (bool, Vec<String>) {
        let mut trace = Trace::default();
        let source = source.map(|source| source.parse().unwrap());
        let addresses = Addresses { source, destination: "10.2.0.5".parse().unwrap() };
        let passes =
            examine_list(&mut trace, "acl_in", (&"web".into(), &rules.to_vec()), addresses);
        (passes, trace.0.into_iter().map(|step| step.result).collect())
    }

    #[test]
    fn rules_for_some_packets_are_steps_and_a_rule_for_all_ends_the_list() {
        let rules = rules(
            "[[acl.web]]\naction = 'permit'\nprotocol = 'icmpv6'\n\
             [[acl.web]]\naction = 'permit'\nprotocol = 'icmp'\n\
             [[acl.web]]\naction = 'permit'\ndestination = '10.9.0.0/16'\n\
             [[acl.web]]\naction = 'reject'\nsource = '10.1.0.0/16'\n\
             [[acl.web]]\naction = 'deny'\n",
        );
        let permit = "web rule 2: permit".to_string();
        let [reject, deny] = ["web rule 4: reject", "web rule 5: deny"].map(String::from);
        let unknown = examined(&rules, None);
        assert_eq!(unknown, (true, vec![permit.clone(), reject.clone(), deny.clone()]));
        assert_eq!(examined(&rules, Some("10.1.0.5")), (true, vec![permit.clone(), reject]));
        assert_eq!(examined(&rules, Some("10.3.0.5")), (true, vec![permit, deny]));
    }

    #[test]
    fn a_list_that_denies_all_packets_ends_the_way() {
        let rules = rules("[[acl.web]]\naction = 'deny'\n");
        assert_eq!(examined(&rules, None), (false, vec!["web rule 1: deny".to_string()]));
        assert_eq!(examined(&[], None), (true, vec!["web: permit".to_string()]));
    }
}
