//! The configuration of a fabric, and errors of its start.

use pollux_fabric::sm::Partitions;
use pollux_fabric::topology::{End, PORTS_MAX, Topology, preamble};
use pollux_fabric::wire_io::WireAddress;
use pollux_wire::mad::smp::NodeType;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

#[derive(Clone, Debug, Default)]
pub struct FabricConfig {
    pub topology: Topology,
    pub seed: u64,
    /// The admin socket; processes open ports at `PATH.ports`.
    pub socket: Option<PathBuf>,
    /// The name by which programs with libumad2sim find the fabric.
    pub umad: Option<String>,
    pub wires: Vec<Plug>,
    pub capture: Option<PathBuf>,
    pub faults: Vec<String>,
    /// Whether links take the time of their rates, with virtual lanes, credits and arbitration.
    pub is_paced: bool,
    /// The partitions of the embedded subnet managers; `None` for no embedded managers.
    pub partitions: Option<Partitions>,
    /// Processes and wires at these ports (`NODE` or `NODE:PORT`) may manage the subnet. SMPs from
    /// other ports can only read.
    pub managers: Vec<String>,
    /// The M_Key of embedded managers; 0 for no protection, `None` for a random key.
    pub m_key: Option<u64>,
    /// The SM_Key by which embedded managers trust other managers and SA queries; `None` for a
    /// random key.
    pub sm_key: Option<u64>,
    /// Embedded managers give each adapter port 2^lmc LIDs, each with its own path.
    pub lmc: u8,
}

/// A wire and the port that it is plugged into: `NODE:PORT=ADDRESS`.
#[derive(Clone, Debug)]
pub struct Plug {
    pub port: String,
    pub name: String,
    pub address: WireAddress,
}

impl FromStr for Plug {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (port, name) = text.split_once('=').ok_or_else(|| {
            format!("'{text}' is not a wire; write NODE:PORT=stream:PATH or NODE:PORT=udp:ADDRESS")
        })?;
        let address = name.parse().map_err(|error| format!("{error}"))?;
        Ok(Self { port: port.into(), name: name.into(), address })
    }
}

/// The reason why a fabric did not start: one sentence, with the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct FabricStartError(String);

impl FabricStartError {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns a function for `map_err` that names the operation that failed.
    pub(super) fn of<E: Display>(operation: impl Display) -> impl FnOnce(E) -> Self {
        move |error| Self(format!("{operation}: {error}"))
    }
}

/// Reads the topology from the file `spec`, or else generates it from `spec`. `note` gets a message
/// about skipped lines.
pub fn topology(
    spec: &str,
    seed: u64,
    note: impl FnOnce(&str),
) -> Result<Topology, FabricStartError> {
    let path = Path::new(spec);
    if !path.exists() {
        return Topology::generate(spec, seed).map_err(|error| {
            FabricStartError::new(format!("{error} (and there is no file of this name)"))
        });
    }
    let text = std::fs::read_to_string(path);
    let text = text.map_err(FabricStartError::of(format!("cannot read the topology {spec}")))?;
    let topology = Topology::read(spec, &text, seed);
    let topology = topology.map_err(|error| FabricStartError::new(error.to_string()))?;
    if let Some(text) = skipped(spec, &preamble(&text)) {
        note(&text);
    }
    Ok(topology)
}

fn skipped(file: &str, lines: &[(usize, &str)]) -> Option<String> {
    let (first, line) = lines.first()?;
    let others = match lines.len() - 1 {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    Some(format!(
        "{file}:{first}: skipped '{line}'{others} before the first node, as no part of a topology; \
         a dump made with '2>/dev/null' has no such lines"
    ))
}

/// The ports of `NODE` or `NODE:PORT`.
pub(super) fn find_ports(topology: &Topology, text: &str) -> Result<Vec<End>, FabricStartError> {
    let mut named = topology.nodes().iter().zip(0..).filter(|(node, _)| node.name == text);
    match named.next() {
        Some((node, index)) => {
            Ok((1..=node.num_ports()).map(|port| End { node: index, port }).collect())
        }
        None => find_port(topology, text, false).map(|end| vec![end]),
    }
}

/// The port of `NODE:PORT`. With `is_new`, a switch may get more ports for it.
pub(super) fn find_port(
    topology: &Topology,
    text: &str,
    is_new: bool,
) -> Result<End, FabricStartError> {
    let wrong = |reason: String| FabricStartError::new(format!("'{text}' is not a port: {reason}"));
    let split = text.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse().ok()?)));
    let (name, port) = split.ok_or_else(|| wrong("write NODE:PORT, as in switch1:4".into()))?;
    let found = topology.nodes().iter().zip(0..).find(|(node, _)| node.name == name);
    let (node, index) = found.ok_or_else(|| {
        let names = topology.nodes().iter().take(5).map(|node| node.name.as_str());
        wrong(format!("the nodes are called {} ...", names.collect::<Vec<_>>().join(", ")))
    })?;
    let grows = is_new && node.kind == NodeType::SWITCH;
    let last = if grows { PORTS_MAX } else { node.num_ports() };
    if !(1..=last).contains(&port) {
        return Err(wrong(format!("{name} has ports 1 to {last}")));
    }
    Ok(End { node: index, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_found_or_refused_with_advice() {
        let plan = topology("single:2", 1, |_| {}).unwrap();
        assert_eq!(find_port(&plan, "switch1:2", false).unwrap(), End { node: 0, port: 2 });
        assert_eq!(find_port(&plan, "switch1:9", true).unwrap(), End { node: 0, port: 9 });
        let refusal = |text, is_new| find_port(&plan, text, is_new).unwrap_err().to_string();
        assert!(refusal("switch1", true).contains("NODE:PORT"));
        assert!(refusal("switch1:9", false).contains("ports 1 to 2"));
        assert!(refusal("host1:2", true).contains("ports 1 to 1"));
        assert!(refusal("missing:1", true).contains("switch1, host1, host2"));
        let ports = [1, 2].map(|port| End { node: 0, port });
        assert_eq!(find_ports(&plan, "switch1").unwrap(), ports);
        assert_eq!(find_ports(&plan, "switch1:2").unwrap(), ports[1..]);
        assert!(find_ports(&plan, "missing").unwrap_err().to_string().contains("NODE:PORT"));
        assert!(topology("single:x", 1, |_| {}).unwrap_err().to_string().contains("no file"));
    }

    #[test]
    fn plugs_are_read_or_refused_with_advice() {
        let plug: Plug = "switch1:4=udp:127.0.0.1:7".parse().unwrap();
        assert_eq!((plug.port.as_str(), plug.name.as_str()), ("switch1:4", "udp:127.0.0.1:7"));
        assert!("switch1:4".parse::<Plug>().unwrap_err().contains("NODE:PORT=stream:PATH"));
        assert!("switch1:4=tcp:1".parse::<Plug>().unwrap_err().contains("stream:PATH"));
    }
}
