//! Up/Down routing (Up*/Down*): balanced paths through the switches without credit loops (IBA
//! 18.2.4.3).
//!
//! Switches are put in an order. A path goes up in this order first and then down, and never up
//! again, so links cannot wait for each other in a circle. In a tree, the order is by the distance
//! from the hosts, so that all shortest paths have this form. If every switch has hosts (rings,
//! tori), the order is by the distance from a root.
//!
//! An LFT selects the output port by the destination only, so a switch does not know whether a
//! packet has already gone down. If a switch can reach a destination by going down only, it always
//! does so, even if a path that goes up first is shorter.

use crate::view::{PortRef, View};
use pollux_wire::mad::smp::LinearForwardingTable;
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

const FAR: u32 = u32::MAX;

/// Switches and the links between them. A switch is identified by its index in `nodes`.
pub(super) struct Graph {
    /// The index of each switch in the view.
    pub(super) nodes: Vec<u32>,
    /// The inverse of `nodes`.
    pub(super) index: BTreeMap<u32, u32>,
    /// The links of each switch: a port, and the switch at the other end.
    pub(super) links: Vec<Vec<(u8, u32)>>,
    /// The place of each switch in the order; no two switches have the same.
    height: Vec<u32>,
}

impl Graph {
    pub(super) fn new(view: &View) -> Self {
        let nodes: Vec<u32> = view.switches().map(|(index, ..)| index).collect();
        let index: BTreeMap<u32, u32> = nodes.iter().copied().zip(0..).collect();
        let mut has_hosts = vec![false; nodes.len()];
        let mut links = vec![Vec::new(); nodes.len()];
        for (switch, &node) in nodes.iter().enumerate() {
            for (number, port) in (0..=u8::MAX).zip(&view.node(node).ports) {
                let Some(peer) = port.peer else { continue };
                match index.get(&peer.node) {
                    Some(&other) if other as usize != switch => links[switch].push((number, other)),
                    Some(_) => {}
                    None => has_hosts[switch] = true,
                }
            }
        }
        let guids: Vec<_> = nodes.iter().map(|&node| view.node(node).info.node_guid).collect();
        let guid = |switch: usize| guids[switch];
        let mut graph = Self { height: Vec::new(), nodes, index, links };
        let hosts: Vec<u32> =
            (0..).zip(&has_hosts).filter(|(_, has)| **has).map(|(i, _)| i).collect();
        let from_hosts = graph.distances(&hosts);
        let order = |rank: &dyn Fn(usize) -> i64| {
            let mut order: Vec<usize> = (0..graph.nodes.len()).collect();
            order.sort_by_key(|&switch| (rank(switch), Reverse(guid(switch))));
            let mut height = vec![0; order.len()];
            (0..).zip(order).for_each(|(nth, switch)| height[switch] = nth);
            height
        };
        graph.height = order(&|switch| i64::from(from_hosts[switch]));
        if hosts.len() == graph.nodes.len() || !graph.joins(&hosts) {
            let busiest = |&switch: &usize| (graph.links[switch].len(), Reverse(guid(switch)));
            let root = (0..graph.nodes.len()).max_by_key(busiest);
            let root: Vec<u32> = root.into_iter().map(|root| root as u32).collect();
            let from_root = graph.distances(&root);
            graph.height = order(&|switch| -i64::from(from_root[switch]));
        }
        graph
    }

    /// The distance of each switch from the nearest of some switches.
    fn distances(&self, from: &[u32]) -> Vec<u32> {
        let mut distances = vec![FAR; self.nodes.len()];
        let mut next: VecDeque<u32> = from.iter().copied().collect();
        from.iter().for_each(|&switch| distances[switch as usize] = 0);
        while let Some(switch) = next.pop_front() {
            for &(_, other) in &self.links[switch as usize] {
                if distances[other as usize] == FAR {
                    distances[other as usize] = distances[switch as usize] + 1;
                    next.push_back(other);
                }
            }
        }
        distances
    }

    fn is_above(&self, one: u32, other: u32) -> bool {
        self.height[one as usize] > self.height[other as usize]
    }

    /// Whether up and down paths connect all switches with hosts that any paths connect.
    fn joins(&self, hosts: &[u32]) -> bool {
        let descending = self.descending();
        hosts.iter().all(|&to| {
            let any = self.distances(&[to]);
            let legal = self.legal_distances(to, &descending);
            hosts.iter().all(|&from| any[from as usize] == FAR || legal.has_path(from))
        })
    }

    /// All switches, the highest first.
    fn descending(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.nodes.len() as u32).collect();
        order.sort_by_key(|&switch| Reverse(self.height[switch as usize]));
        order
    }

    /// The distance of each switch to the switch `to`, by down paths and by up and down paths.
    fn legal_distances(&self, to: u32, descending: &[u32]) -> LegalDistances {
        let mut down = vec![FAR; self.nodes.len()];
        down[to as usize] = 0;
        let mut next = VecDeque::from([to]);
        while let Some(switch) = next.pop_front() {
            for &(_, other) in &self.links[switch as usize] {
                if self.is_above(other, switch) && down[other as usize] == FAR {
                    down[other as usize] = down[switch as usize] + 1;
                    next.push_back(other);
                }
            }
        }
        let mut all = down.clone();
        for &switch in descending.iter().filter(|&&switch| down[switch as usize] == FAR) {
            let above =
                self.links[switch as usize].iter().filter(|(_, o)| self.is_above(*o, switch));
            let nearest = above.map(|&(_, other)| all[other as usize]).min().unwrap_or(FAR);
            all[switch as usize] = nearest.saturating_add(1);
        }
        LegalDistances { down, all }
    }

    /// The output ports of `from` on shortest paths.
    fn candidates(&self, legal: &LegalDistances, any: &[u32], from: u32, out: &mut Vec<u8>) {
        out.clear();
        let (down, all) = (legal.down[from as usize], legal.all[from as usize]);
        let is_next = |other: u32| {
            if down != FAR {
                legal.down[other as usize] == down - 1 && self.is_above(from, other)
            } else if all != FAR {
                self.is_above(other, from) && legal.all[other as usize] == all - 1
            } else {
                any[other as usize] != FAR && any[other as usize] + 1 == any[from as usize]
            }
        };
        let links = self.links[from as usize].iter();
        out.extend(links.filter(|(_, other)| is_next(*other)).map(|(port, _)| *port));
    }

    /// The switches that are above all their neighbors, the highest first: the roots of trees.
    pub(super) fn roots(&self) -> Vec<u32> {
        let is_top = |switch: &u32| {
            self.links[*switch as usize].iter().all(|(_, other)| self.is_above(*switch, *other))
        };
        self.descending().into_iter().filter(is_top).collect()
    }

    /// For each switch, the last link of the path from the root: the port towards the root, and the
    /// switch at the other end. A path goes down only, if there is such a path.
    pub(super) fn tree(&self, root: u32) -> Vec<Option<(u8, u32)>> {
        let mut towards = vec![None; self.nodes.len()];
        let mut reached = vec![false; self.nodes.len()];
        reached[root as usize] = true;
        for is_down_only in [true, false] {
            let mut next: VecDeque<u32> =
                (0..self.nodes.len() as u32).filter(|&switch| reached[switch as usize]).collect();
            while let Some(switch) = next.pop_front() {
                for &(_, other) in &self.links[switch as usize] {
                    let is_new = !reached[other as usize];
                    if is_new && (!is_down_only || self.is_above(switch, other)) {
                        reached[other as usize] = true;
                        let back = self.links[other as usize].iter().find(|(_, to)| *to == switch);
                        towards[other as usize] = back.copied();
                        next.push_back(other);
                    }
                }
            }
        }
        towards
    }
}

struct LegalDistances {
    /// By paths that only go down.
    down: Vec<u32>,
    /// By paths that go up and then down.
    all: Vec<u32>,
}

impl LegalDistances {
    fn has_path(&self, from: u32) -> bool {
        self.all[from as usize] != FAR
    }
}

pub(super) fn route(view: &mut View, graph: &Graph) {
    let entries = usize::from(view.lid_last().0) + 1;
    let mut tables = vec![vec![LinearForwardingTable::UNREACHABLE; entries]; graph.nodes.len()];
    let mut loads: Vec<[u32; 256]> = vec![[0; 256]; graph.nodes.len()];
    let descending = graph.descending();
    let mut candidates = Vec::new();
    for (to, lids) in (0..).zip(lids_at_switches(view, graph)) {
        if lids.is_empty() {
            continue;
        }
        let (legal, any) = (graph.legal_distances(to, &descending), graph.distances(&[to]));
        for from in 0..graph.nodes.len() as u32 {
            let table = &mut tables[from as usize];
            if from == to {
                lids.iter().for_each(|&(lid, port)| table[usize::from(lid)] = port);
                continue;
            }
            graph.candidates(&legal, &any, from, &mut candidates);
            let loads = &mut loads[from as usize];
            for &(lid, _) in &lids {
                if let Some(port) = lightest(&candidates, loads, lid) {
                    loads[usize::from(port)] += 1;
                    table[usize::from(lid)] = port;
                }
            }
        }
    }
    for (&node, table) in graph.nodes.iter().zip(tables) {
        if let Some(switch) = view.switch_mut(node) {
            switch.wanted = table;
        }
    }
}

/// The port with the least load. Among equals the LID decides, so that switches of a level choose
/// alike.
fn lightest(candidates: &[u8], loads: &[u32; 256], lid: u16) -> Option<u8> {
    let first = usize::from(lid) % candidates.len().max(1);
    let (behind, before) = candidates.split_at(first);
    let turned = behind.iter().chain(before);
    turned.min_by_key(|&&port| loads[usize::from(port)]).copied()
}

/// For each switch, the LIDs at it: each LID with its output port, which is 0 for the switch's own
/// LID.
fn lids_at_switches(view: &View, graph: &Graph) -> Vec<Vec<(u16, u8)>> {
    let mut lids = vec![Vec::new(); graph.nodes.len()];
    for (own, port) in view.ports_with_lid() {
        let is_switch = graph.index.contains_key(&own.node);
        let at = if is_switch { Some(PortRef { port: 0, ..own }) } else { port.peer };
        let Some(at) = at.filter(|_| port.lid.is_unicast()) else { continue };
        if let Some(&switch) = graph.index.get(&at.node) {
            let range = port.lid.0..port.lid.0 + port.lid_count();
            lids[switch as usize].extend(range.map(|lid| (lid, at.port)));
        }
    }
    lids
}
