//! Fault rules: `[NODE:PORT/]KIND=CHANCE,...`, for the link at a port or for all links.
//!
//! ```text
//! loss=1%                                     a packet in a hundred vanishes, on every link
//! switch1:3/duplicate=0.1%,corrupt=50ppm      on the link at that port
//! reorder=1%,delay=20us                       the delay of a reordered packet
//! switch1:3/down                              the cable at that port is pulled
//! ```
//!
//! Of several rules with the same kind for a link, the greatest chance counts.

use super::config::find_port;
use super::quick;
use pollux_fabric::link::Wire;
use pollux_fabric::link::fault::Faults;
use pollux_fabric::net::Net;
use pollux_fabric::topology::Topology;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub const RULES_MAX: usize = 256;
/// Maximum delay of a reordered packet.
const DELAY_MAX: Duration = Duration::from_secs(60);

const FORM: &str = "write [NODE:PORT/]KIND=CHANCE,... with loss, duplicate, reorder or corrupt \
    as in loss=1%, and delay as in delay=20us; or NODE:PORT/down";

#[derive(Debug, Default)]
pub struct Rules {
    rules: BTreeMap<u32, Rule>,
    last: u32,
    /// Links with a pulled cable.
    down: BTreeSet<u32>,
}

#[derive(Debug)]
struct Rule {
    text: String,
    link: Option<u32>,
    /// `None` if the cable is pulled.
    faults: Option<Faults>,
}

impl Rules {
    /// Adds a rule, and returns its number.
    pub fn add(&mut self, topology: &Topology, text: &str) -> Result<u32, String> {
        if self.rules.len() >= RULES_MAX {
            return Err(format!(
                "there are {RULES_MAX} rules already; remove one with `pollux fault del`"
            ));
        }
        let (link, kinds) = match text.split_once('/') {
            Some((port, kinds)) => {
                let end = find_port(topology, port, false).map_err(|error| error.to_string())?;
                let node = &topology.nodes()[end.node as usize];
                let link = node.ports[usize::from(end.port)].link;
                (Some(link.ok_or_else(|| format!("{port} has no link to a node of ours"))?), kinds)
            }
            None => (None, text),
        };
        let faults = match kinds {
            "down" if link.is_none() => return Err(format!("`down` needs a link; {FORM}")),
            "down" => None,
            _ => Some(faults(kinds)?),
        };
        self.last += 1;
        self.rules.insert(self.last, Rule { text: text.into(), link, faults });
        Ok(self.last)
    }

    /// Removes a rule. Returns whether there was one.
    pub fn remove(&mut self, number: u32) -> bool {
        self.rules.remove(&number).is_some()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &str)> {
        self.rules.iter().map(|(number, rule)| (*number, rule.text.as_str()))
    }

    pub fn apply(&mut self, net: &mut Net) {
        self.set_cables(net);
        let of = |link| {
            let rules = self.rules.values().filter(|rule| rule.link.is_none() || rule.link == link);
            let faults = rules.filter_map(|rule| rule.faults).fold(Faults::default(), greatest);
            Wire { faults, ..quick() }
        };
        net.set_wires(of(None));
        for link in self.rules.values().filter_map(|rule| rule.link) {
            net.set_wire(link, of(Some(link)));
        }
    }

    /// Disconnects and reconnects cables after a change of rules.
    fn set_cables(&mut self, net: &mut Net) {
        let pulled = self.rules.values().filter(|rule| rule.faults.is_none());
        let down: BTreeSet<u32> = pulled.filter_map(|rule| rule.link).collect();
        for link in self.down.symmetric_difference(&down) {
            let end = net.subnet().topology().links()[*link as usize].ends[0];
            net.set_cable(end, !down.contains(link));
        }
        self.down = down;
    }
}

fn greatest(one: Faults, other: Faults) -> Faults {
    Faults {
        loss: one.loss.max(other.loss),
        duplication: one.duplication.max(other.duplication),
        reordering: one.reordering.max(other.reordering),
        corruption: one.corruption.max(other.corruption),
        delay_max: one.delay_max.max(other.delay_max),
    }
}

fn faults(text: &str) -> Result<Faults, String> {
    let mut faults = Faults::default();
    for part in text.split(',') {
        let wrong = || format!("'{part}' is not a fault; {FORM}");
        let (kind, value) = part.split_once('=').ok_or_else(wrong)?;
        if kind == "delay" {
            let delay = duration(value).ok_or_else(wrong)?;
            if delay > DELAY_MAX {
                let longest = DELAY_MAX.as_secs();
                return Err(format!("the delay {value} is too long; write at most {longest}s"));
            }
            faults.delay_max = delay;
            continue;
        }
        let chance = chance(value).ok_or_else(wrong)?;
        match kind {
            "loss" => faults.loss = chance,
            "duplicate" => faults.duplication = chance,
            "reorder" => faults.reordering = chance,
            "corrupt" => faults.corruption = chance,
            _ => return Err(wrong()),
        }
    }
    if (faults.reordering > 0) != (faults.delay_max > Duration::ZERO) {
        return Err("reorder and delay belong together, as in reorder=1%,delay=20us".into());
    }
    Ok(faults)
}

/// Parses a chance, `1.5%` or `20ppm`, to parts per million.
fn chance(text: &str) -> Option<u32> {
    let (number, scale) = match text.strip_suffix('%') {
        Some(number) => (number, 10_000.0),
        None => (text.strip_suffix("ppm")?, 1.0),
    };
    let chance = number.parse::<f64>().ok()? * scale;
    (0.0..=1_000_000.0).contains(&chance).then_some(chance.round() as u32)
}

/// Parses a duration: `20us`, `5ms` or `1s`.
fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number = number.parse().ok()?;
    match unit {
        "ns" => Some(Duration::from_nanos(number)),
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_fabric::subnet::Subnet;

    #[test]
    fn rules_are_read_or_refused_with_advice() {
        let all = faults("loss=1%,duplicate=0.5%,reorder=20ppm,delay=5ms,corrupt=100%").unwrap();
        let delay_max = Duration::from_millis(5);
        let (loss, duplication, reordering, corruption) = (10_000, 5_000, 20, 1_000_000);
        assert_eq!(all, Faults { loss, duplication, reordering, corruption, delay_max });
        for bad in ["", "loss", "loss=1", "loss=-1%", "loss=101%", "lost=1%", "delay=20", "delay=x"]
        {
            assert!(faults(bad).unwrap_err().contains("loss=1%"), "{bad}");
        }
        assert!(faults("reorder=1%").unwrap_err().contains("together"));
        assert!(faults("reorder=1%,delay=60s").is_ok());
        for long in ["60001ms", "18446744073709551615s", "18446744073709551615us"] {
            let message = faults(&format!("reorder=1%,delay={long}")).unwrap_err();
            assert_eq!(message, format!("the delay {long} is too long; write at most 60s"));
        }
    }

    #[test]
    fn rules_are_added_and_removed() {
        let topology = Topology::generate("single:2", 1).unwrap();
        let mut rules = Rules::default();
        assert_eq!(rules.add(&topology, "loss=1%"), Ok(1));
        assert_eq!(rules.add(&topology, "host2:1/loss=2%"), Ok(2));
        assert!(rules.add(&topology, "host3:1/loss=2%").unwrap_err().contains("host2"));
        assert_eq!(rules.iter().map(|(number, _)| number).collect::<Vec<_>>(), [1, 2]);
        assert!(rules.remove(1) && !rules.remove(1));
    }

    #[test]
    fn a_cable_is_unplugged_while_a_rule_is_there() {
        let topology = Topology::generate("single:2", 1).unwrap();
        let mut net = Net::new(Subnet::new(topology.clone()), 1, quick());
        let mut rules = Rules::default();
        assert!(rules.add(&topology, "down").unwrap_err().contains("NODE:PORT/down"));
        // The two ends of one link.
        for rule in ["host1:1/down", "switch1:1/down", "host1:1/loss=1%"] {
            rules.add(&topology, rule).unwrap();
        }
        let mut linked = |rules: &mut Rules| {
            rules.apply(&mut net);
            let ports = &net.subnet().nodes()[0].ports;
            [1, 2].map(|port: usize| ports[port].is_linked())
        };
        assert_eq!(linked(&mut rules), [false, true]);
        assert!(rules.remove(1));
        assert_eq!(linked(&mut rules), [false, true], "the other rule says so");
        assert!(rules.remove(2));
        assert_eq!(linked(&mut rules), [true, true]);
    }
}
