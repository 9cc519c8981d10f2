//! Tests of managers at subnets in memory: the result of sweeps, and the election of the master.

use super::*;
use crate::node::{NodeDrop, Traps};
use crate::subnet::Subnet;
use crate::topology::{End, Topology};
use pollux_wire::address::Qpn;
use pollux_wire::keys::PKey;
use pollux_wire::mad::MAD_LEN;
use pollux_wire::mad::smp::{
    MKey, MKeyProtection, NodeType, PortInfo, PortState, SmControl, SmKey,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A subnet and its managers, in virtual time.
struct World {
    subnet: Subnet,
    managers: Residents,
    now: Time,
}

impl World {
    fn new(spec: &str) -> Self {
        let subnet = Subnet::new(Topology::generate(spec, 1).unwrap());
        Self { subnet, managers: Residents::default(), now: Time::START }
    }

    /// A subnet with a manager at the first host.
    fn managed(spec: &str, config: SmConfig) -> Self {
        let mut world = Self::new(spec);
        world.start(1, config);
        world.settle();
        world
    }

    /// The port of a host, from 1.
    fn host(&self, number: usize) -> End {
        let nodes = self.subnet.topology().nodes();
        let hosts = (0..).zip(nodes).filter(|(_, node)| node.kind == NodeType::CHANNEL_ADAPTER);
        End { node: hosts.map(|(index, _)| index).nth(number - 1).unwrap(), port: 1 }
    }

    fn start(&mut self, host: usize, config: SmConfig) {
        let at = self.host(host);
        self.managers.start(&mut self.subnet, at, config);
    }

    fn stop(&mut self, host: usize) {
        let at = self.host(host);
        self.managers.stop(&mut self.subnet, at);
    }

    fn settle(&mut self) {
        self.managers.exchange(self.now, &mut self.subnet, |_, _| {});
    }

    /// Delivers a datagram, or else sends one of a manager, or else advances to the next timer
    /// within a second. `false` if there is nothing to do.
    fn exchange_one(&mut self) -> bool {
        if let Some((at, datagram)) = self.subnet.poll_delivery() {
            self.managers.handle(self.now, at, &datagram);
            return true;
        }
        let now = self.now;
        for (at, manager) in &mut self.managers.all {
            if let Some(datagram) = manager.poll_transmit(now) {
                self.subnet.send(now, *at, datagram);
                return true;
            }
        }
        let due = self.managers.due().filter(|due| *due < now + Duration::from_secs(1));
        let Some(due) = due else { return false };
        self.now = now.max(due);
        self.managers.timeout(self.now);
        true
    }

    /// Advances the time, from timer to timer.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.settle();
            let due = [self.managers.due(), self.subnet.traps_due()].into_iter().flatten().min();
            match due.filter(|due| *due <= end) {
                Some(due) => self.now = self.now.max(due),
                None => break,
            }
        }
        self.now = end;
        self.settle();
    }

    fn manager(&self, host: usize) -> &SubnetManager {
        self.managers.at(self.host(host)).unwrap()
    }

    fn state(&self, host: usize) -> SmState {
        self.manager(host).state()
    }

    /// Whether all linked ports are active, with unique LIDs.
    fn is_up(&self) -> bool {
        let mut lids = BTreeSet::new();
        self.subnet.nodes().iter().all(|node| {
            let own = &node.ports[usize::from(!node.is_switch())].info;
            let linked = node.ports[1..].iter().filter(|port| port.is_linked());
            own.lid.is_unicast()
                && lids.insert(own.lid)
                && own.master_sm_lid.is_unicast()
                && linked.clone().all(|port| port.info.port_state == PortState::ACTIVE)
        })
    }

    /// The output ports of the switches on the path from a host to a LID; `None` if the path does
    /// not lead there.
    fn path(&self, from: End, lid: Lid) -> Option<Vec<End>> {
        let (mut here, mut path) = (from, Vec::new());
        for _ in 0..64 {
            let (peer, _) = self.subnet.topology().peer(here)?;
            let node = &self.subnet.nodes()[peer.node as usize];
            if !node.is_switch() {
                return node.has_lid(peer.port, lid).then_some(path);
            }
            let port = node.forwarding.as_ref()?.port_of(lid)?;
            here = End { node: peer.node, port };
            if port == 0 {
                return node.has_lid(0, lid).then_some(path);
            }
            path.push(here);
        }
        None
    }

    fn hosts(&self) -> Vec<(End, Lid)> {
        let nodes = (0..).zip(self.subnet.nodes()).filter(|(_, node)| !node.is_switch());
        nodes.map(|(index, node)| (End { node: index, port: 1 }, node.lid(1))).collect()
    }
}

const SPECS: [&str; 7] = [
    "single:3",
    "ring:5",
    "ring:8",
    "torus:4x5",
    "fat-tree:4",
    "leaf-spine:6x4x3",
    "leaf-spine:1x1x2",
];

#[test]
fn every_kind_of_fabric_is_brought_up() {
    for spec in SPECS {
        let world = World::managed(spec, SmConfig::default());
        assert!(world.is_up() && world.manager(1).is_settled(), "{spec}");
        assert_eq!(world.manager(1).counters.failures, 0, "{spec}");
    }
}

#[test]
fn the_largest_switch_is_brought_up() {
    let world = World::managed("single:254", SmConfig::default());
    assert!(world.is_up() && world.hosts().len() == 254);
}

#[test]
fn hosts_reach_every_host_and_switch_and_no_links_wait_for_each_other_in_a_circle() {
    for spec in SPECS {
        let world = World::managed(spec, SmConfig::default());
        let own = |node: &crate::node::SubnetNode| node.lid(u8::from(!node.is_switch()));
        let lids: Vec<Lid> = world.subnet.nodes().iter().map(own).collect();
        let mut behind: BTreeMap<End, BTreeSet<End>> = BTreeMap::new();
        for (from, own) in world.hosts() {
            for &lid in lids.iter().filter(|lid| **lid != own) {
                let path =
                    world.path(from, lid).unwrap_or_else(|| panic!("{spec}: {from:?} {lid}"));
                for pair in path.windows(2) {
                    behind.entry(pair[0]).or_default().insert(pair[1]);
                }
            }
        }
        // Removes links that wait for no other link, until none is left.
        while !behind.is_empty() {
            let before = behind.len();
            let waiting: BTreeSet<End> = behind.keys().copied().collect();
            behind.retain(|_, after| after.iter().any(|link| waiting.contains(link)));
            assert!(behind.len() < before, "{spec}: {behind:?}");
        }
    }
}

#[test]
fn paths_in_trees_are_the_shortest() {
    let world = World::managed("fat-tree:4", SmConfig::default());
    let hosts = world.hosts();
    let hops = |to: usize| world.path(hosts[0].0, hosts[to].1).unwrap().len();
    // Hosts at the same edge switch, in the same pod, and in another pod.
    assert_eq!([hops(1), hops(2), hops(4), hops(15)], [1, 3, 5, 5]);
}

#[test]
fn links_of_a_kind_carry_as_many_addresses() {
    let world = World::managed("leaf-spine:8x4x8", SmConfig::default());
    for (index, node) in (0..).zip(world.subnet.topology().nodes()) {
        if !node.name.starts_with("leaf") {
            continue;
        }
        let tables = world.subnet.nodes()[index].forwarding.as_ref().unwrap();
        let mut loads = [0; 4];
        for (_, lid) in world.hosts() {
            if let Some(up @ 9..) = tables.port_of(lid) {
                loads[usize::from(up) - 9] += 1;
            }
        }
        let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
        assert!(most - least <= 2 && loads.iter().sum::<u32>() == 56, "{loads:?}");
    }
}

#[test]
fn addresses_are_kept_by_ports_and_by_the_table() {
    let mut world = World::managed("single:3", SmConfig { lmc: 1, ..SmConfig::default() });
    let (lids, table) = (world.hosts(), world.manager(1).lids.clone());
    assert!(lids.iter().all(|(_, lid)| lid.0.is_multiple_of(2)));
    world.stop(1);
    world.start(2, SmConfig { lmc: 1, ..SmConfig::default() });
    world.pass(Duration::from_secs(1));
    assert_eq!(world.hosts(), lids, "as the ports said");
    let lids = BTreeMap::from_iter(table.into_iter().map(|(guid, lid)| (guid, Lid(lid.0 + 64))));
    let world = World::managed("single:3", SmConfig { lids, lmc: 1, ..SmConfig::default() });
    assert!(world.hosts().iter().all(|(_, lid)| lid.0 > 64), "as the table said");
    let all: Vec<_> = world.hosts().iter().map(|(_, lid)| lid.0).collect();
    let path = |lid| world.path(world.hosts()[0].0, Lid(lid));
    assert!(path(all[2]).is_some() && path(all[2] + 1).is_some(), "two addresses each");
}

// req: iba-partitions
#[test]
fn partitions_are_written_to_ports_and_to_the_switches_beside_them() {
    let mut world = World::new("single:3");
    let guid = world.subnet.nodes()[3].ports[1].guids[0];
    let text = format!("blue=0x12, ipoib : {guid}=full ; Default=0x7fff : ALL=limited, SELF=full;");
    let partitions = Partitions::read("conf", &text).unwrap();
    world.start(1, SmConfig { partitions, ..SmConfig::default() });
    world.settle();
    let keys = |node: usize, port: usize| world.subnet.nodes()[node].ports[port].p_keys.entries();
    let limited = PKey(0x7fff);
    assert_eq!((keys(1, 1)[0], keys(2, 1)[0]), (PKey::DEFAULT, limited));
    assert_eq!(keys(3, 1)[..3], [limited, PKey(0x8012), PKey::INVALID]);
    assert_eq!(keys(0, 3), keys(3, 1));
    let enforced = &world.subnet.nodes()[0].ports[3].info;
    assert!(enforced.partition_enforcement_inbound && enforced.partition_enforcement_outbound);
    assert!(world.is_up());
}

#[test]
fn a_cable_that_is_pulled_and_put_back_is_noticed() {
    let mut world = World::managed("leaf-spine:2x2x2", SmConfig::default());
    let host = world.host(4);
    let sweeps = world.manager(1).counters.sweeps;
    world.subnet.set_cable(host, false);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.manager(1).counters.sweeps, sweeps + 1, "by the trap");
    let first = world.hosts()[0].0;
    let lid = world.hosts()[3].1;
    assert!(world.path(first, lid).is_none() && world.manager(1).is_settled());
    world.subnet.set_cable(host, true);
    assert!(!world.is_up());
    world.pass(Duration::from_secs(1));
    assert!(
        world.is_up() && world.path(first, lid).is_some() && world.subnet.traps_due().is_none()
    );
    assert_eq!(world.hosts()[3].1, lid);
}

/// The port of a process goes down and up when the process is started again.
#[test]
fn a_port_that_returns_at_once_is_active_soon() {
    let mut world = World::managed("single:3", SmConfig::default());
    for down in [1, 20, 50] {
        world.subnet.set_cable(world.host(3), false);
        world.pass(Duration::from_millis(down));
        world.subnet.set_cable(world.host(3), true);
        world.pass(Duration::from_millis(50));
        assert!(world.is_up(), "after {down} ms");
    }
}

/// The port returns at any step of the sweep that its departure has started, with and without
/// traps of the switch.
#[test]
fn a_port_that_returns_during_a_sweep_is_not_missed() {
    for has_traps in [true, false] {
        for steps in 0..200 {
            let mut world = World::managed("single:3", SmConfig::default());
            let host = world.host(3);
            world.subnet.set_cable(host, false);
            world.subnet.send_traps(world.now);
            let mut left = steps;
            while left > 0 && world.exchange_one() {
                left -= 1;
            }
            world.subnet.set_cable(host, true);
            if !has_traps {
                world.subnet.node_mut(0).traps = Traps::default();
            }
            // Within two light sweeps.
            world.pass(Duration::from_secs(if has_traps { 1 } else { 21 }));
            assert!(world.is_up(), "after {steps} datagrams; with traps: {has_traps}");
            if left > 0 {
                break;
            }
        }
    }
}

#[test]
fn a_light_sweep_finds_changes_without_a_trap() {
    let mut world = World::managed("single:2", SmConfig::default());
    world.pass(Duration::from_secs(15));
    assert_eq!(world.manager(1).counters.light_sweeps, 1);
    let sweeps = world.manager(1).counters.sweeps;
    world.subnet.node_mut(0).forwarding.as_mut().unwrap().info.port_state_change = true;
    world.pass(Duration::from_secs(10));
    assert_eq!(world.manager(1).counters.sweeps, sweeps + 1);
    assert!(!world.subnet.nodes()[0].forwarding.as_ref().unwrap().info.port_state_change);
}

#[test]
fn a_settled_subnet_is_swept_without_a_write() {
    let mut world = World::managed("fat-tree:4", SmConfig::default());
    let drops: u64 = world.subnet.nodes().iter().map(|node| node.drops.total()).sum();
    let state = |world: &World| {
        let ports = world.subnet.nodes().iter().flat_map(|node| &node.ports);
        let state = ports.map(|port| (port.info, port.p_keys.clone(), port.reregistrations));
        state.collect::<Vec<_>>()
    };
    let before = state(&world);
    world.subnet.node_mut(0).forwarding.as_mut().unwrap().info.port_state_change = true;
    let sent = world.manager(1).act_count;
    world.pass(Duration::from_secs(21));
    let nodes = world.subnet.nodes().len() as u32;
    let ports = world.subnet.nodes().iter().map(|node| node.ports.len() as u32).sum::<u32>();
    // Two Gets for each node, and at most one for each port and each link. One Set clears the
    // change.
    assert!(world.manager(1).act_count - sent < 3 * nodes + 3 * ports, "no writing");
    assert_eq!(state(&world), before);
    let after: u64 = world.subnet.nodes().iter().map(|node| node.drops.total()).sum();
    assert_eq!(after, drops);
}

#[test]
fn a_silent_node_does_not_hold_up_the_others() {
    let mut world = World::new("single:3");
    let port = &mut world.subnet.node_mut(2).ports[1];
    port.info.m_key = MKey(5);
    port.info.m_key_protection = MKeyProtection::NO_READ;
    world.start(1, SmConfig::default());
    world.pass(Duration::from_secs(2));
    let states = [1, 2, 3].map(|node: usize| world.subnet.nodes()[node].ports[1].info.port_state);
    assert_eq!(states, [PortState::ACTIVE, PortState::INITIALIZE, PortState::ACTIVE]);
    assert!(world.subnet.nodes()[2].drops.of(NodeDrop::MKey) >= 3);
    assert!(!world.manager(1).is_settled());
    world.subnet.node_mut(2).ports[1].info.m_key = MKey(0);
    world.pass(Duration::from_secs(20));
    assert!(world.is_up() && world.manager(1).is_settled(), "the next sweep tries again");
}

// req: iba-partitions
#[test]
fn ports_are_protected_by_a_key_if_there_is_one() {
    let mut world = World::managed("single:2", SmConfig { m_key: MKey(9), ..SmConfig::default() });
    assert!(world.subnet.nodes()[2].ports[1].info.m_key == MKey(9));
    world.subnet.set_cable(End { node: 2, port: 1 }, false);
    world.subnet.set_cable(End { node: 2, port: 1 }, true);
    world.pass(Duration::from_secs(1));
    assert!(world.is_up() && world.subnet.traps_due().is_none());
    assert!(world.subnet.nodes().iter().all(|node| node.drops.of(NodeDrop::MKey) == 0));
}

fn priority(priority: u8) -> SmConfig {
    SmConfig { priority, ..SmConfig::default() }
}

/// Two managers, the second started later.
fn two(first: u8, second: u8) -> World {
    let mut world = World::managed("leaf-spine:2x2x2", priority(first));
    world.start(3, priority(second));
    world.pass(Duration::from_secs(2));
    world
}

#[test]
fn the_higher_priority_is_master_in_any_order_of_start() {
    let world = two(9, 3);
    assert_eq!((world.state(1), world.state(3)), (SmState::MASTER, SmState::STANDBY));
    let world = two(3, 9);
    assert_eq!((world.state(1), world.state(3)), (SmState::STANDBY, SmState::MASTER));
    let master = world.hosts()[2].1;
    assert!(world.is_up());
    assert!(
        world.subnet.nodes().iter().all(|node| {
            node.ports[usize::from(!node.is_switch())].info.master_sm_lid == master
        })
    );
}

#[test]
fn with_one_priority_the_lower_guid_is_master() {
    assert_eq!(two(3, 3).state(1), SmState::MASTER);
    let mut world = World::managed("leaf-spine:2x2x2", priority(3));
    world.stop(1);
    world.start(3, priority(3));
    world.pass(Duration::from_secs(1));
    world.start(1, priority(3));
    world.pass(Duration::from_secs(1));
    assert_eq!((world.state(1), world.state(3)), (SmState::MASTER, SmState::STANDBY));
}

// req: iba-sm-election
#[test]
fn a_master_that_takes_over_requests_new_joins() {
    let mut world = World::managed("single:3", SmConfig::default());
    let asked = |world: &World, number| {
        let end = world.host(number);
        world.subnet.nodes()[end.node as usize].ports[usize::from(end.port)].reregistrations
    };
    for _ in 0..3 {
        let before = [2, 3].map(|number| asked(&world, number));
        world.start(1, SmConfig::default());
        world.settle();
        let after = [2, 3].map(|number| asked(&world, number));
        assert!((0..2).all(|nth| after[nth] > before[nth]), "{before:?} {after:?}");
        // There is none in the settled subnet either.
        world.pass(Duration::from_secs(60));
        assert_eq!([2, 3].map(|number| asked(&world, number)), after);
    }
}

#[test]
fn when_the_master_dies_the_standby_takes_over() {
    let mut world = two(9, 3);
    world.stop(1);
    world.pass(Duration::from_secs(30));
    assert_eq!(world.state(3), SmState::STANDBY, "the master is polled a few times more");
    world.pass(Duration::from_secs(30));
    assert_eq!(world.state(3), SmState::MASTER);
    let master = world.hosts()[2].1;
    assert!(
        world.subnet.nodes().iter().all(|node| {
            node.ports[usize::from(!node.is_switch())].info.master_sm_lid == master
        })
    );
    world.start(1, priority(9));
    world.pass(Duration::from_secs(2));
    assert_eq!((world.state(1), world.state(3)), (SmState::MASTER, SmState::STANDBY));
}

#[test]
fn three_agree_on_one() {
    let mut world = World::new("leaf-spine:2x2x2");
    (1..=3).for_each(|host| world.start(host, priority(host as u8)));
    world.pass(Duration::from_secs(60));
    let states = [1, 2, 3].map(|host| world.state(host));
    assert_eq!(states, [SmState::STANDBY, SmState::STANDBY, SmState::MASTER]);
}

// req: iba-sm-election
#[test]
fn a_manager_accepts_sets_only_with_the_key_and_in_the_right_state() {
    let mut world = two(9, 3);
    let mut tell = |what: SmControl, sm_key| {
        let (guid, at) = (world.manager(1).guid, world.host(3));
        let info = SmInfo { guid, sm_key, ..world.manager(1).own_info() };
        let header = MadHeader {
            attribute_modifier: what.0,
            ..MadHeader::new(MgmtClass::SUBN_LID_ROUTED, Method::SET, 99, SmInfo::ID)
        };
        let mad = LidSmp { header, data: info.to_data(), ..LidSmp::default() }.emit();
        let (slid, dlid) = (world.hosts()[0].1, world.hosts()[2].1);
        let datagram = Datagram::smp(slid, dlid, mad);
        world.managers.handle(world.now, at, &datagram);
        world.settle();
        world.state(3)
    };
    use SmState as S;
    assert_eq!(tell(SmControl::DISABLE, SmKey(7)), S::STANDBY, "a wrong key");
    assert_eq!(tell(SmControl::ACKNOWLEDGE, SmKey(1)), S::STANDBY);
    assert_eq!(tell(SmControl::DISABLE, SmKey(1)), S::NOT_ACTIVE);
    assert_eq!(tell(SmControl::HANDOVER, SmKey(1)), S::NOT_ACTIVE);
    assert_eq!(tell(SmControl::STANDBY, SmKey(1)), S::STANDBY);
    assert_eq!(tell(SmControl::DISCOVER, SmKey(1)), S::STANDBY, "it looks, and finds the master");
    assert_eq!(tell(SmControl::HANDOVER, SmKey(1)), S::STANDBY, "it gives it back");
    assert_eq!(world.state(1), S::MASTER);
    assert!(world.is_up());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// After any datagrams at any time, the manager continues, and the subnet comes up.
    #[test]
    fn any_datagram_is_survived(
        mads in prop::collection::vec(
            (any::<[u8; 32]>(), 0u8..4, 0u8..8, 0x10u8..0x24, 0u32..600, any::<bool>()), 1..60),
    ) {
        let mut world = World::new("single:2");
        world.start(1, SmConfig { tries: 1, ..SmConfig::default() });
        let at = world.host(1);
        world.managers.timeout(world.now);
        for (filling, class, method, attribute, id, is_wellformed) in mads {
            let mut mad = [0; MAD_LEN];
            mad.chunks_exact_mut(32).for_each(|part| part.copy_from_slice(&filling));
            if is_wellformed {
                let methods = [1, 2, 5, 7, 0x81, 0x81, 0x81, 0x12];
                let classes = [1, 0x81, 0x81, 3];
                mad[..4].copy_from_slice(&[
                    1,
                    classes[usize::from(class)],
                    if class == 3 { 2 } else { 1 },
                    methods[usize::from(method)],
                ]);
                mad[4..6].fill(0);
                mad[8..16].copy_from_slice(&u64::from(id).to_be_bytes());
                mad[16..18].copy_from_slice(&[0, attribute]);
                mad[20..24].fill(0);
            }
            let (slid, dlid) = (Lid(2), Lid(1));
            let qp = Qpn::GSI;
            let datagram = Datagram { src_qp: qp, dest_qp: qp, ..Datagram::smp(slid, dlid, mad) };
            world.managers.handle(world.now, at, &datagram);
            if let Some((_, manager)) = world.managers.all.first_mut()
                && let Some(datagram) = manager.poll_transmit(world.now)
            {
                world.subnet.send(world.now, at, datagram);
            }
        }
        world.pass(Duration::from_secs(25));
        let is_master = world.state(1) == SmState::MASTER;
        prop_assert!(!is_master || world.is_up());
    }
}

/// The M_Keys of all ports with a LID, and their protection.
fn keys(world: &World) -> BTreeSet<(u64, u8)> {
    let nodes = world.subnet.nodes().iter();
    let infos = nodes.map(|node| node.ports[usize::from(!node.is_switch())].info);
    infos.map(|info| (info.m_key.0, info.m_key_protection.0)).collect()
}

#[test]
fn a_manager_with_another_key_takes_over_when_the_lease_of_the_old_one_is_over() {
    let config = |key| SmConfig { m_key: MKey(key), ..SmConfig::default() };
    let mut world = World::managed("single:3", config(0xa));
    world.pass(Duration::from_secs(1));
    assert!(world.is_up() && keys(&world) == BTreeSet::from([(0xa, 1)]));
    world.stop(1);
    world.start(2, config(0xb));
    world.pass(Duration::from_secs(25));
    assert_eq!(keys(&world), BTreeSet::from([(0xa, 1)]), "the key is hidden, and holds");
    world.pass(Duration::from_secs(60));
    assert_eq!(keys(&world), BTreeSet::from([(0xb, 1)]));
    assert!(world.is_up() && world.manager(2).is_settled());
}

/// A node tries wrong keys for the time of three leases. The answer of the master to each trap ends
/// the lease.
#[test]
fn a_master_that_is_there_keeps_its_key_hidden() {
    let m_key = MKey(0xa);
    let mut world = World::managed("single:3", SmConfig { m_key, ..SmConfig::default() });
    world.pass(Duration::from_secs(1));
    let hosts = world.hosts();
    let ((from, slid), (_, dlid)) = (hosts[2], hosts[1]);
    for wrong in 1..=90 {
        let header = MadHeader::new(MgmtClass::SUBN_LID_ROUTED, Method::SET, wrong, PortInfo::ID);
        let smp = LidSmp { header, m_key: MKey(wrong << 8), ..LidSmp::default() };
        let datagram = Datagram::smp(slid, dlid, smp.emit());
        world.subnet.send(world.now, from, datagram);
        world.pass(Duration::from_secs(1));
        assert_eq!(keys(&world), BTreeSet::from([(0xa, 1)]), "after {wrong} tries");
    }
    let host = &world.subnet.nodes()[2];
    assert_eq!(host.drops.of(NodeDrop::MKey), 90);
}

/// Only managers with the M_Key of the subnet can read the SM_Key.
#[test]
fn the_sm_key_is_readable_only_with_the_m_key() {
    let (m_key, sm_key) = (MKey(0xa), SmKey(0x77));
    let mut world = World::managed("single:3", SmConfig { m_key, sm_key, ..SmConfig::default() });
    world.pass(Duration::from_secs(1));
    let hosts = world.hosts();
    for (shown, expected) in [(MKey(0), SmKey(0)), (MKey(0xb), SmKey(0)), (m_key, sm_key)] {
        let header = MadHeader::new(MgmtClass::SUBN_LID_ROUTED, Method::GET, 9, SmInfo::ID);
        let smp = LidSmp { header, m_key: shown, ..LidSmp::default() };
        let ((from, slid), dlid, mad) = (hosts[2], hosts[0].1, smp.emit());
        let datagram = Datagram::smp(slid, dlid, mad);
        world.subnet.send(world.now, from, datagram);
        let mut answers = Vec::new();
        world.managers.exchange(world.now, &mut world.subnet, |at, answer| {
            answers.push((at, SmInfo::from_data(&LidSmp::parse(&answer.mad).data).sm_key));
        });
        assert_eq!(answers, [(from, expected)], "with {shown:?}");
    }
}
