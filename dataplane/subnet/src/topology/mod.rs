//! The plan of a fabric: nodes, ports, and links (IBA 3.2), without the decisions of a subnet
//! manager, apart from the LIDs in a dump.
//!
//! A plan comes from a specification such as `fat-tree:4` ([`Topology::generate`]), or from a file
//! in the format of `ibnetdiscover` ([`Topology::read`]), so that a dump of a real cluster can be
//! loaded. Its [`Display`](std::fmt::Display) writes the same format.

mod error;
mod generate;
mod rate;
mod read;
mod write;

pub use error::{Problem, TopologyError};
pub use rate::LinkRate;
pub use read::preamble;

use pollux_wire::address::{Guid, Lid};
use pollux_wire::mad::smp::NodeType;

/// Nodes of a topology: as many as there are unicast LIDs.
pub const NODES_MAX: usize = Lid::UNICAST_LAST.0 as usize;
/// Physical ports of a node. Why not 255: that number means no port in forwarding tables, and all
/// ports in performance management.
pub const PORTS_MAX: u8 = 254;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    nodes: Vec<PlannedNode>,
    links: Vec<PlannedLink>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedNode {
    pub kind: NodeType,
    pub name: String,
    pub guid: Guid,
    pub system_image_guid: Guid,
    /// The IEEE OUI of its vendor.
    pub vendor_id: u32,
    pub device_id: u16,
    /// The ports, by number. Port 0 is the management port of a switch, and unused at other nodes.
    pub ports: Vec<PlannedPort>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlannedPort {
    /// Its GUID; external ports of a switch have none.
    pub guid: Guid,
    /// The LID that the port has already; [`Lid::NONE`] if a subnet manager must assign it.
    pub lid: Lid,
    /// The port has 2^lmc LIDs.
    pub lmc: u8,
    /// The index of its link.
    pub link: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedLink {
    pub ends: [End; 2],
    pub rate: LinkRate,
}

/// A port, by the index of its node and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct End {
    pub node: u32,
    pub port: u8,
}

impl PlannedNode {
    /// A node with unlinked ports. The GUIDs of its ports are derived from `guid`.
    fn new(kind: NodeType, name: String, guid: Guid, num_ports: u8) -> Self {
        let (vendor_id, device_id, ports) = (0, 0, Vec::new());
        let mut node =
            Self { kind, name, guid, system_image_guid: guid, vendor_id, device_id, ports };
        let guids = (0..=u64::from(num_ports)).map(|number| node.port_guid(number));
        node.ports = guids.map(|guid| PlannedPort { guid, ..PlannedPort::default() }).collect();
        node
    }

    /// The default GUID of a port.
    fn port_guid(&self, number: u64) -> Guid {
        match (self.kind, number) {
            (NodeType::SWITCH, 0) => self.guid,
            (NodeType::SWITCH, _) | (_, 0) => Guid(0),
            _ => Guid(self.guid.0.wrapping_add(number)),
        }
    }

    pub fn num_ports(&self) -> u8 {
        self.ports.len() as u8 - 1
    }
}

impl Topology {
    pub fn nodes(&self) -> &[PlannedNode] {
        &self.nodes
    }

    pub fn links(&self) -> &[PlannedLink] {
        &self.links
    }

    pub fn peer(&self, end: End) -> Option<(End, &PlannedLink)> {
        let port = self.nodes.get(end.node as usize)?.ports.get(usize::from(end.port))?;
        let link = &self.links[port.link? as usize];
        let [one, other] = link.ends;
        Some((if one == end { other } else { one }, link))
    }

    /// Adds free ports to a node until it has the port `end`.
    pub fn add_ports(&mut self, end: End) {
        let Some(node) = self.nodes.get_mut(end.node as usize) else { return };
        let last = end.port.min(PORTS_MAX);
        while node.num_ports() < last {
            let number = u64::from(node.num_ports()) + 1;
            let guid = node.port_guid(number);
            node.ports.push(PlannedPort { guid, ..PlannedPort::default() });
        }
    }

    fn join(&mut self, ends: [End; 2], rate: LinkRate) {
        let index = self.links.len() as u32;
        for end in ends {
            self.nodes[end.node as usize].ports[usize::from(end.port)].link = Some(index);
        }
        self.links.push(PlannedLink { ends, rate });
    }
}

/// The GUID of the `index`-th node of a fabric with this seed. The next 255 are for its ports.
fn guid_of(seed: u64, index: usize) -> Guid {
    /// An EUI-64 with the bit of local administration.
    const LOCAL: u64 = 0x0250_0000_0000_0000;
    // Spreads seeds that are close to each other, so that joined fabrics do not share GUIDs.
    let spread = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    Guid(LOCAL | spread << 32 | (index as u64 + 1) << 8)
}
