//! Full queues, empty pools, and routes without an adjacency.

use crate::pair::*;
use crate::pair_world::World;
use pollux_dataplane::ipoib::{self, Netdev, NetdevConfig, NetdevEvent, Outgoing};
use pollux_dataplane::neighbor::Route;
use pollux_dataplane::packet_memory::{PACKET_OFFSET, PacketMemory};
use pollux_dataplane::reason::{PacketDrop, Refusal};
use pollux_fabric::link::Wire;
use pollux_fabric::{Adapter, Port, SoftDevice};
use pollux_mem::{Memory, Pool, PoolConfig};
use pollux_verbs::*;
use pollux_wire::address::{Guid, Lid};
use pollux_wire::ethernet::EtherType;

#[test]
fn a_full_queue_returns_packets_without_space() {
    let mut pair = Pair::new(1, Setup::default());
    let ids = pair.connect(QpType::Rc);
    pair.world.set_cut(true);
    let host = &mut pair.hosts[0];
    let route = host.connected(ids[0]);
    let packets: Vec<_> = (0..100).map(|nth| packet(4, 1000, nth)).collect();
    host.send(route, packets.clone());
    assert_eq!(host.refused.len(), 36, "64 sends may be outstanding");
    assert!(host.refused.iter().all(|refused| refused.why == Refusal::Full));
    let back = host.refused.drain(..).map(|one| one.outgoing.packet.bytes().to_vec());
    assert_eq!(back.collect::<Vec<_>>(), packets[64..]);
    assert_eq!(host.netdev.refusals().of(Refusal::Full), 36);
    // With space in the queue they are sent.
    pair.world.set_cut(false);
    pair.step_until_idle();
    pair.hosts[0].send(route, packets[64..].to_vec());
    pair.step_until_idle();
    assert_eq!(pair.hosts[1].bytes(), packets);
    pair.close();
}

/// Few inline sends are signaled; the others must not fill the queue.
#[test]
fn unsignaled_sends_free_their_slots_in_time() {
    let mut pair = Pair::new(1, Setup::default());
    let ids = pair.connect(QpType::Rc);
    for nth in 0..1000 {
        let host = &mut pair.hosts[0];
        let route = if nth % 2 == 0 { host.datagram() } else { host.connected(ids[0]) };
        host.send(route, [packet(4, 60, nth)]);
        assert!(host.refused.is_empty(), "{nth}");
        pair.step();
        pair.step();
        pair.hosts[1].received.clear();
    }
    pair.step_until_idle();
    assert_eq!(pair.hosts[1].netdev.traffic().connected_received, 500);
    assert_eq!(pair.hosts[1].netdev.traffic().datagrams_received, 500);
    pair.close();
}

/// A netdev with too few buffers for its receives counts that, and posts buffers when they are
/// recycled.
#[test]
fn an_empty_pool_is_counted_and_stalls_nothing() {
    let mut pair = Pair::new(1, Setup { small: [1024, 8], large: [256, 4], ..Setup::default() });
    let ids = pair.connect(QpType::Rc);
    let host = &mut pair.hosts[0];
    let (datagram, connected) = (host.datagram(), host.connected(ids[0]));
    host.send(datagram, (0..40).map(|nth| packet(4, 1000, nth)));
    host.send(connected, (0..40).map(|nth| packet(6, 3000, nth)));
    for _ in 0..1000 {
        pair.step();
    }
    let host = &mut pair.hosts[1];
    assert!(host.netdev.traffic().starved > 0);
    assert_eq!(host.received.len(), 12, "all buffers");
    assert!(host.small.pool().alloc().is_none() && host.large.pool().alloc().is_none());
    // The other datagrams are lost; the sender of the connection retries after RNR NAKs.
    let mut bytes = Vec::new();
    while bytes.len() < 48 {
        for received in std::mem::take(&mut pair.hosts[1].received) {
            bytes.push(received.packet.bytes().to_vec());
            pair.hosts[1].netdev.recycle(received.packet);
        }
        assert!(pair.step());
    }
    let datagrams = bytes.iter().filter(|packet| packet.len() == 1000).count();
    assert_eq!(datagrams, 8);
    // A new packet gets a buffer of the other memory if those of the first are too short.
    let host = &mut pair.hosts[0];
    let lengths = [60, 2044, 2045, 65_520].map(|bytes| host.netdev.buffer(bytes));
    let capacities = lengths.map(|buf| buf.map(|buf| buf.capacity() - PACKET_OFFSET));
    assert_eq!(capacities, [2044, 2044, 65_520, 65_520].map(Some));
    assert!(host.netdev.buffer(65_521).is_none());
    pair.close();
}

#[test]
fn routes_without_an_adjacency_return_the_packet() {
    let mut pair = Pair::new(1, Setup::default());
    let host = &mut pair.hosts[0];
    for (route, why) in [
        (Route::Unknown, Refusal::Unknown),
        (Route::Pending, Refusal::Pending),
        (Route::Unreachable, Refusal::Unreachable),
    ] {
        host.send(route, [packet(4, 100, 1)]);
        let refused = host.refused.pop().unwrap();
        assert_eq!((refused.why, refused.outgoing.packet.bytes()), (why, &packet(4, 100, 1)[..]));
    }
    // A connection that is not ready.
    let id = host.netdev.connect(&mut host.device, KEY, QpType::Rc).unwrap();
    host.send(host.connected(id), [packet(4, 100, 1), packet(4, 5000, 2)]);
    let back = host.refused.drain(..).map(|one| (one.why, one.outgoing.packet.len()));
    assert!(back.eq([(Refusal::Disconnected, 100), (Refusal::Disconnected, 5000)]));
    // An address handle of an older table: the others of the batch are sent.
    let stale = host.datagram();
    let ah = host.ah;
    host.ah = host.device.create_ah(host.pd, &path(2)).unwrap();
    host.device.destroy_ah(ah).unwrap();
    let outgoing = |route, nth| Outgoing {
        packet: host.packet(&packet(4, 100, nth)),
        ether_type: EtherType::IPV4,
        route,
    };
    let good = host.datagram();
    let mut batch = vec![outgoing(good, 1), outgoing(stale, 2), outgoing(good, 3)];
    host.netdev.send(&mut host.device, &mut batch, &mut host.refused);
    assert_eq!(host.refused.len(), 1);
    assert_eq!(host.refused[0].why, Refusal::Stale);
    assert_eq!(host.refused[0].outgoing.packet.bytes(), packet(4, 100, 2));
    pair.step_until_idle();
    assert_eq!(pair.hosts[1].bytes(), [packet(4, 100, 1), packet(4, 100, 3)]);
    pair.close();
}

#[test]
fn buffers_that_cannot_be_sent_are_returned_unchanged() {
    let mut pair = Pair::new(1, Setup::default());
    let host = &mut pair.hosts[0];
    let foreign = PoolConfig { buffers: 2, buffer_bytes: 256, headroom_bytes: 64 };
    let foreign = Pool::new(foreign).unwrap();
    let mut unknown = foreign.alloc().unwrap();
    unknown.push_back(150).unwrap().fill(0x45);
    let mut at_the_front = host.packet(&[]);
    at_the_front.set_window(3, 150).unwrap().fill(0x45);
    let mut short = foreign.alloc().unwrap();
    let inline = packet(4, 30, 1);
    short.push_back(30).unwrap().copy_from_slice(&inline);
    let (route, ether_type) = (host.datagram(), EtherType::IPV4);
    let mut batch = vec![
        Outgoing { packet: unknown, ether_type, route },
        Outgoing { packet: at_the_front, ether_type, route },
        Outgoing { packet: short, ether_type, route },
    ];
    host.netdev.send(&mut host.device, &mut batch, &mut host.refused);
    let whys: Vec<_> = host.refused.iter().map(|refused| refused.why).collect();
    assert_eq!(whys, [Refusal::Foreign, Refusal::NoHeadroom]);
    assert!(host.refused.iter().all(|one| one.outgoing.packet.bytes() == [0x45; 150]));
    pair.step_until_idle();
    assert_eq!(pair.hosts[1].bytes(), [inline], "an inline packet may be in any memory");
    pair.close();
    assert_eq!(foreign.outstanding(), 0, "its buffer is free");
}

#[test]
fn a_netdev_stops_and_starts_again() {
    let mut pair = Pair::new(1, Setup::default());
    for _ in 0..3 {
        let host = &mut pair.hosts[0];
        let (route, qpn) = (host.datagram(), host.netdev.qpn());
        host.send(route, (0..10).map(|nth| packet(4, 1000, nth)));
        host.netdev.stop(&mut host.device).unwrap();
        host.send(route, [packet(4, 1000, 1)]);
        assert_eq!(host.refused.pop().unwrap().why, Refusal::Down);
        pair.step_until_idle();
        let host = &mut pair.hosts[0];
        assert!(host.netdev.is_stopped());
        assert!(host.events.is_empty(), "a requested stop is no event");
        // A P_Key index that the port does not have: the netdev stays stopped.
        let invalid = ipoib::LinkAttributes { pkey_index: 99, ..host.link };
        assert!(host.netdev.start(&mut host.device, invalid).is_err());
        pair.step_until_idle();
        let host = &mut pair.hosts[0];
        host.netdev.start(&mut host.device, host.link).unwrap();
        let again = host.netdev.start(&mut host.device, host.link);
        assert!(matches!(again, Err(VerbsError::Busy { verb: "start", .. })));
        assert_eq!(host.netdev.qpn(), qpn);
        pair.hosts[1].received.clear();
        let route = pair.hosts[1].datagram();
        pair.hosts[1].send(route, [packet(6, 500, 3)]);
        pair.step_until_idle();
        assert_eq!(pair.hosts[0].bytes(), [packet(6, 500, 3)]);
    }
    pair.close();
}

// req: ud-qkey
#[test]
fn datagrams_carry_the_q_key_of_the_broadcast_group() {
    let mut pair = Pair::new(1, Setup::default());
    let host = &mut pair.hosts[0];
    let other = ipoib::LinkAttributes { qkey: pollux_wire::keys::QKey(7), ..host.link };
    host.netdev.set_link(&mut host.device, other).unwrap();
    let route = host.datagram();
    host.send(route, [packet(4, 100, 1)]);
    pair.step_until_idle();
    assert!(pair.hosts[1].bytes().is_empty(), "another Q_Key");
    let host = &mut pair.hosts[0];
    host.netdev.set_link(&mut host.device, host.link).unwrap();
    host.send(route, [packet(4, 100, 2)]);
    pair.step_until_idle();
    assert_eq!(pair.hosts[1].bytes(), [packet(4, 100, 2)]);
    pair.close();
}

/// The UD queue pair fails without a request.
#[test]
fn a_failed_queue_pair_is_reported_and_starts_again() {
    let mut pair = Pair::new(1, Setup::default());
    let host = &mut pair.hosts[0];
    let qp = host.netdev.datagram_qp();
    let error = QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() };
    host.device.modify_qp(qp, &error).unwrap();
    pair.step_until_idle();
    let host = &mut pair.hosts[0];
    let status = CompletionStatus::Flushed;
    assert_eq!(host.events, [NetdevEvent::DatagramsFailed { status }]);
    assert!(host.netdev.is_stopped());
    host.netdev.start(&mut host.device, host.link).unwrap();
    let route = host.datagram();
    host.send(route, [packet(4, 1000, 1)]);
    pair.step_until_idle();
    assert_eq!(pair.hosts[1].bytes(), [packet(4, 1000, 1)]);
    pair.close();
}

/// The memory of a netdev is deregistered: packets sent from it fail, and inline packets are still
/// sent.
#[test]
fn a_datagram_that_cannot_be_sent_stops_no_other() {
    // The first region of every software adapter has the same key.
    let (_, [link, _]) = World::new(1, Wire::default());
    let mut other = SoftDevice::new("soft", Adapter::new(Port::active(Lid(1), Guid(1))), link);
    let (pd, memory) = (other.create_pd().unwrap(), Memory::private(4096).unwrap());
    let lkey = other.register(pd, &memory, Access::NONE).unwrap().lkey;

    let mut pair = Pair::new(1, Setup::default());
    let host = &mut pair.hosts[0];
    host.device.deregister(lkey).unwrap();
    let route = host.datagram();
    host.send(route, [packet(4, 1000, 1)]);
    pair.step_until_idle();
    assert_eq!(pair.hosts[0].netdev.drops().of(PacketDrop::DatagramFailed), 1);
    pair.hosts[0].send(route, [packet(4, 60, 2)]);
    pair.step_until_idle();
    assert_eq!(pair.hosts[1].bytes(), [packet(4, 60, 2)]);
    assert!(pair.hosts[0].refused.is_empty());
}

#[test]
fn an_impossible_configuration_is_refused_with_its_limit() {
    let (_, [link, _]) = World::new(1, Wire::default());
    let adapter = Adapter::new(Port::active(Lid(1), Guid(1)));
    let mut device = SoftDevice::new("soft", adapter, link);
    let pd = device.create_pd().unwrap();
    let memory = |bytes| PacketMemory::new(4, bytes).unwrap();
    let mut refusal = |config, small, large| {
        let (small, large) = (memory(small), memory(large));
        Netdev::new(&mut device, pd, config, &small, &large).unwrap_err().to_string()
    };
    let config = NetdevConfig::default();
    assert_eq!(
        refusal(config, 2044, CM_MTU),
        "netdev: small: its buffers hold packets of 2044 bytes, but 4092 are needed"
    );
    assert_eq!(
        refusal(config, 4092, 9000),
        "netdev: large: its buffers hold packets of 9000 bytes, but 65520 are needed"
    );
    let config = NetdevConfig { receive_mtu: 65_525, ..config };
    assert_eq!(refusal(config, 4092, CM_MTU), "netdev: over the adapter's receive_mtu of 65524");
    assert_eq!(PacketDrop::Runt.name(), "runt");
}
