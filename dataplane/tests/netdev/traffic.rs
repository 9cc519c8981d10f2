//! Packets of all lengths, by all transports.

use crate::pair::*;
use pollux_dataplane::ipoib::{NetdevConfig, RxSource};
use pollux_dataplane::packet_memory::PACKET_OFFSET;
use pollux_dataplane::reason::PacketDrop;
use pollux_verbs::*;
use pollux_wire::address::{Gid, Lid, Qpn};

/// Lengths around the limits: the shortest, inline, one IB packet of a connection, the longest.
const LENGTHS: [usize; 14] =
    [21, 41, 64, 123, 124, 125, 1500, 2043, 2044, 2045, 4092, 9000, 65_519, 65_520];

fn packets(mtu: u32) -> Vec<Vec<u8>> {
    let lengths = LENGTHS.into_iter().filter(|&bytes| bytes <= mtu as usize);
    let versions = |bytes| [4, 6].into_iter().map(move |version| (version, bytes));
    let makeable =
        lengths.flat_map(versions).filter(|&(version, bytes)| version == 4 || bytes > 40);
    (0..).zip(makeable).map(|(nth, (version, bytes))| packet(version, bytes, nth)).collect()
}

// req: ud-encapsulation
#[test]
fn datagrams_carry_every_length() {
    let mut pair = Pair::new(1, Setup::default());
    let packets = packets(UD_MTU);
    for from in [0, 1] {
        let route = pair.hosts[from].datagram();
        pair.hosts[from].send(route, packets.clone());
        pair.step_until_idle();
        let (qpn, lid) = (pair.hosts[from].netdev.qpn(), Lid(from as u16 + 1));
        let to = &mut pair.hosts[1 - from];
        let expected = RxSource::Datagram { qpn, lid, gid: None, group: None };
        assert!(to.received.iter().all(|received| received.from == expected));
        assert!(
            to.received.iter().all(|one| one.headers.ether_type == ether_type(one.packet.bytes()))
        );
        assert!(to.received.iter().all(|one| one.packet.headroom() == PACKET_OFFSET));
        assert_eq!(to.bytes(), packets);
    }
    pair.close();
}

fn by_connection(qp_type: QpType, config: NetdevConfig) {
    let mut pair = Pair::new(1, Setup { config, ..Setup::default() });
    let ids = pair.connect(qp_type);
    let packets = packets(CM_MTU);
    for from in [0, 1] {
        let route = pair.hosts[from].connected(ids[from]);
        pair.hosts[from].send(route, packets.clone());
        pair.step_until_idle();
        let to = &mut pair.hosts[1 - from];
        let expected = RxSource::Connection(ids[1 - from]);
        assert!(to.received.iter().all(|received| received.from == expected));
        assert!(to.received.iter().all(|one| one.packet.headroom() == PACKET_OFFSET));
        assert_eq!(to.bytes(), packets);
    }
    for host in &pair.hosts {
        let traffic = host.netdev.traffic();
        assert_eq!(traffic.connected_sent, packets.len() as u64);
        assert_eq!(traffic.connected_received, packets.len() as u64);
        let bytes: usize = packets.iter().map(Vec::len).sum();
        assert_eq!((traffic.bytes_sent, traffic.bytes_received), (bytes as u64, bytes as u64));
        assert_eq!((host.netdev.drops().total(), host.netdev.refusals().total()), (0, 0));
    }
    pair.close();
}

// req: cm-rc
#[test]
fn reliable_connections_carry_every_length() {
    by_connection(QpType::Rc, Setup::default().config);
}

// req: cm-uc
#[test]
fn unreliable_connections_carry_every_length() {
    by_connection(QpType::Uc, Setup::default().config);
}

#[test]
fn unreliable_connections_work_without_the_srq() {
    by_connection(QpType::Uc, NetdevConfig { uc_shares: false, ..Setup::default().config });
}

// req: cm-accept-all-modes
#[test]
fn packets_are_received_by_all_transports_at_once() {
    let mut pair = Pair::new(1, Setup::default());
    let (rc, uc) = (pair.connect(QpType::Rc), pair.connect(QpType::Uc));
    let host = &mut pair.hosts[0];
    let routes = [host.datagram(), host.connected(rc[0]), host.connected(uc[0])];
    for (nth, route) in (0..).zip(routes.into_iter().cycle().take(30)) {
        host.send(route, [packet(4, 100, nth)]);
    }
    pair.step_until_idle();
    let mut received = pair.hosts[1].bytes();
    let mut sent: Vec<_> = (0..30).map(|nth| packet(4, 100, nth)).collect();
    received.sort();
    sent.sort();
    assert_eq!(received, sent);
    pair.close();
}

// req: cm-multicast-on-ud
// req: ud-grh-optional
#[test]
fn group_packets_are_datagrams_and_their_echo_is_dropped() {
    let mut pair = Pair::new(1, Setup::default());
    let mgid: std::net::Ipv6Addr = "ff12:401b:ffff::ffff:ffff".parse().unwrap();
    let (mgid, mlid) = (Gid(mgid.octets()), Lid(0xc000));
    for host in &mut pair.hosts {
        let qp = host.netdev.datagram_qp();
        host.device.attach_multicast(qp, mgid, mlid).unwrap();
    }
    let route = pair.hosts[0].group(mgid, mlid);
    pair.hosts[0].send(route, [packet(4, 300, 1), packet(6, 1000, 2)]);
    pair.step_until_idle();
    assert!(pair.hosts[0].received.is_empty());
    assert_eq!(
        pair.hosts[0].netdev.drops().of(PacketDrop::Echo),
        2,
        "the adapter received it back"
    );
    // Both netdevs have the same QPN: the port distinguishes them.
    assert_eq!(pair.hosts[0].netdev.qpn(), pair.hosts[1].netdev.qpn());
    let qpn = pair.hosts[0].netdev.qpn();
    let expected = RxSource::Datagram { qpn, lid: Lid(1), gid: Some(gid(1)), group: Some(mgid) };
    assert!(pair.hosts[1].received.iter().all(|received| received.from == expected));
    assert_eq!(pair.hosts[1].bytes(), [packet(4, 300, 1), packet(6, 1000, 2)]);

    // Unicast with a GRH is received, too.
    let grh = Some(GlobalRoute::to(gid(2), 9));
    let host = &mut pair.hosts[0];
    let address = AddressVector { grh, ..path(2) };
    host.ah = host.device.create_ah(host.pd, &address).unwrap();
    host.send(host.datagram(), [packet(4, 60, 3)]);
    pair.step_until_idle();
    let expected = RxSource::Datagram { qpn, lid: Lid(1), gid: Some(gid(1)), group: None };
    assert_eq!(pair.hosts[1].received[0].from, expected);
    assert_ne!(qpn, Qpn(0));
    for host in &mut pair.hosts {
        host.device.detach_multicast(host.netdev.datagram_qp(), mgid, mlid).unwrap();
    }
    pair.close();
}

/// Sends over a lossy wire: packets arrive complete and in order, and by RC all do. Returns the
/// lost packets.
fn lossy(qp_type: QpType, seed: u64) -> usize {
    let mut pair = Pair::new(seed, Setup::lossy(20_000));
    let ids = match qp_type {
        QpType::Ud => None,
        connected => Some(pair.connect(connected)),
    };
    let lengths = [60, 1500, 2044, 9000, 65_520];
    let mut sent = Vec::new();
    for nth in 0..60 {
        let host = &mut pair.hosts[0];
        let (route, count) = match ids {
            Some(ids) => (host.connected(ids[0]), 5),
            None => (host.datagram(), 3),
        };
        let packet = packet(4, lengths[nth as usize % count], nth);
        host.send(route, [packet.clone()]);
        sent.push(packet);
        pair.step();
    }
    pair.step_until_idle();
    assert!(pair.hosts[0].refused.is_empty(), "seed {seed}");
    let received = pair.hosts[1].bytes();
    let mut rest = sent.iter();
    assert!(received.iter().all(|one| rest.any(|sent| sent == one)), "seed {seed}: order or bytes");
    pair.close();
    sent.len() - received.len()
}

// req: cm-uc
#[test]
fn loss_costs_reliable_connections_nothing_and_others_single_packets() {
    let lost = |qp_type| (0..20).map(|seed| lossy(qp_type, seed)).sum::<usize>();
    assert_eq!(lost(QpType::Rc), 0);
    // Of 1,200 packets, each 1 to 33 IB packets, of which one in fifty is lost.
    assert!((100..350).contains(&lost(QpType::Uc)));
    assert!((5..60).contains(&lost(QpType::Ud)));
}
