//! Three netdevs on a switch.

use crate::net_world::{NetLink, NetWorld};
use crate::pair::*;
use pollux_dataplane::ipoib::RxSource;
use pollux_dataplane::neighbor::{DatagramRoute, Route};
use pollux_dataplane::reason::PacketDrop;
use pollux_fabric::link::Wire;
use pollux_fabric::net::Net;
use pollux_fabric::subnet::Subnet;
use pollux_fabric::topology::{End, Topology};
use pollux_fabric::{Adapter, SoftDevice};
use pollux_verbs::*;
use pollux_wire::address::{Gid, Lid};
use pollux_wire::mad::smp::{LinearForwardingTable, MulticastForwardingTable};
use pollux_wire::mad::smp::{MulticastForwardingTableModifier, PortState};

/// Does the work of a subnet manager: LIDs, active ports, the LFT of the switch, and every host in
/// every group. Returns the hosts' ports.
fn manage(subnet: &mut Subnet) -> Vec<End> {
    let nodes = subnet.nodes();
    let is_switch = |node: &u32| nodes[*node as usize].is_switch();
    let (switches, hosts): (Vec<u32>, Vec<u32>) = (0..nodes.len() as u32).partition(is_switch);
    let mut table = LinearForwardingTable::default();
    for &node in hosts.iter().chain(&switches) {
        let own = usize::from(!switches.contains(&node));
        let ports = &mut subnet.node_mut(node).ports;
        ports[own].info.lid = Lid(node as u16 + 1);
        let linked = ports.iter_mut().filter(|port| port.is_linked());
        linked.for_each(|port| port.info.port_state = PortState::ACTIVE);
    }
    for &node in &hosts {
        let (peer, _) = subnet.topology().peer(End { node, port: 1 }).unwrap();
        table.ports[node as usize + 1] = peer.port;
    }
    let tables = subnet.node_mut(switches[0]).forwarding.as_mut().unwrap();
    tables.set_linear_block(0, &table);
    tables.info.linear_fdb_top = Lid(63);
    let groups = MulticastForwardingTable { port_masks: [0b1110; 32] };
    tables.set_multicast_block(MulticastForwardingTableModifier::default(), &groups);
    hosts.into_iter().map(|node| End { node, port: 1 }).collect()
}

fn hosts(world: &NetWorld, ends: &[End]) -> Vec<Host<NetLink>> {
    let host = |end: &End| {
        let adapter = Adapter::new(world.net().port(*end));
        let device = SoftDevice::new("soft", adapter, world.link(*end));
        Host::new(device, 1, Setup::default().config, (512, 128))
    };
    ends.iter().map(host).collect()
}

// req: cm-multicast-on-ud
#[test]
fn all_members_but_the_sender_receive_a_group_packet() {
    let mut subnet = Subnet::new(Topology::generate("single:3", 1).unwrap());
    let ends = manage(&mut subnet);
    let world = NetWorld::new(Net::new(subnet, 1, Wire::default()));
    let mut hosts = hosts(&world, &ends);
    let mgid: std::net::Ipv6Addr = "ff12:401b:ffff::ffff:ffff".parse().unwrap();
    let (mgid, mlid) = (Gid(mgid.octets()), Lid(0xc000));
    for host in &mut hosts {
        host.device.attach_multicast(host.netdev.datagram_qp(), mgid, mlid).unwrap();
    }
    for sender in 0..3 {
        let group = hosts[sender].group(mgid, mlid);
        // To the group, and to each of the others.
        hosts[sender].send(group, [packet(4, 500, sender as u64)]);
        for other in (0..3).filter(|other| *other != sender) {
            let (lid, qpn) = (hosts[other].link.lid, hosts[other].netdev.qpn());
            let host = &mut hosts[sender];
            let ah = host.device.create_ah(host.pd, &path(lid.0)).unwrap();
            let route = Route::Datagram(DatagramRoute { ah, qpn, mtu: UD_MTU });
            host.send(route, [packet(6, 700, other as u64)]);
        }
        let mut quiet = 0;
        while quiet < 10 {
            hosts.iter_mut().for_each(Host::turn);
            quiet = if world.step() { 0 } else { quiet + 1 };
        }
        let from = hosts[sender].link;
        for (nth, host) in hosts.iter_mut().enumerate() {
            if nth == sender {
                assert!(host.received.is_empty());
                assert_eq!(host.netdev.drops().of(PacketDrop::Echo), 1);
                continue;
            }
            let groups = host.received.iter().map(|received| match received.from {
                RxSource::Datagram { lid, group, .. } if lid == from.lid => group,
                other => panic!("{other:?}"),
            });
            assert!(groups.eq([Some(mgid), None]));
            assert_eq!(host.bytes(), [packet(4, 500, sender as u64), packet(6, 700, nth as u64)]);
        }
    }
    for mut host in hosts {
        host.device.detach_multicast(host.netdev.datagram_qp(), mgid, mlid).unwrap();
        host.close();
    }
}
