//! Connections that end: by request, during traffic, by a misbehaving peer.

use crate::pair::*;
use pollux_dataplane::ipoib::{NetdevConfig, NetdevEvent};
use pollux_dataplane::neighbor::{Connected, Route};
use pollux_dataplane::reason::{PacketDrop, Refusal};
use pollux_dataplane::verdict::Destinations;
use pollux_verbs::*;

fn is_ended(event: &NetdevEvent) -> bool {
    matches!(event, NetdevEvent::ConnectionEnded { .. })
}

fn is_failed(event: &NetdevEvent) -> bool {
    matches!(event, NetdevEvent::ConnectionFailed { .. })
}

fn ends_in_order(qp_type: QpType, config: NetdevConfig) {
    let mut pair = Pair::new(1, Setup { config, ..Setup::default() });
    for _ in 0..3 {
        let ids = pair.connect(qp_type);
        let route = pair.hosts[0].connected(ids[0]);
        pair.hosts[0].send(route, (0..20).map(|nth| packet(4, 3000, nth)));
        pair.step_until_idle();
        assert_eq!(pair.hosts[1].bytes().len(), 20);
        for (host, id) in pair.hosts.iter_mut().zip(ids) {
            assert!(host.netdev.disconnect(&mut host.device, id));
            assert!(!host.netdev.disconnect(&mut host.device, id), "it is ending");
        }
        pair.step_until_idle();
        for (host, id) in pair.hosts.iter_mut().zip(ids) {
            assert_eq!(host.events.drain(..).filter(is_ended).count(), 1);
            assert_eq!(host.netdev.peering(id), None);
            assert!(!host.netdev.disconnect(&mut host.device, id), "it has ended");
        }
    }
    pair.close();
}

// req: cm-two-qp-sets
#[test]
fn a_connection_ends_and_another_uses_its_slot() {
    let config = Setup::default().config;
    ends_in_order(QpType::Rc, config);
    ends_in_order(QpType::Uc, config);
    ends_in_order(QpType::Uc, NetdevConfig { uc_shares: false, ..config });
}

#[test]
fn a_connection_before_rtr_ends_at_once() {
    let mut pair = Pair::new(1, Setup::default());
    let host = &mut pair.hosts[0];
    for init in [None, Some(to_init())] {
        let id = host.netdev.connect(&mut host.device, KEY, QpType::Rc).unwrap();
        if let Some(change) = init {
            host.netdev.modify_connection(&mut host.device, id, &change).unwrap();
        }
        assert!(host.netdev.disconnect(&mut host.device, id));
        host.turn();
        host.turn();
        assert_eq!(host.events.drain(..).filter(is_ended).count(), 1);
    }
    pair.close();
}

/// The event may arrive long after the change of the state. Until then the queue pair may have
/// taken a receive, so it is not destroyed.
#[test]
fn a_connection_ends_only_after_its_last_wqe_event() {
    let mut pair = Pair::new(1, Setup::default());
    let [id, _] = pair.connect(QpType::Rc);
    let host = &mut pair.hosts[0];
    assert!(host.netdev.disconnect(&mut host.device, id));
    for _ in 0..5 {
        host.netdev.poll(&mut host.device, &Destinations::new(), &mut host.received).unwrap();
        assert_eq!(host.netdev.poll_event(), None);
    }
    assert!(
        host.netdev.handle_event(&AsyncEvent::LastWqeReached(host.netdev.peering(id).unwrap().qp))
    );
    host.netdev.poll(&mut host.device, &Destinations::new(), &mut host.received).unwrap();
    assert!(host.netdev.poll_event().is_some_and(|event| is_ended(&event)));
    pair.close();
}

/// Sends packets while the connection fails: each is received, counted or refused. Retries are few,
/// so that the sender detects the failure. Returns the lost packets, and whether datagrams were
/// sent instead.
fn send_until_failure(seed: u64) -> (u64, bool) {
    let setup = Setup::lossy(1000);
    let mut pair = Pair::new(seed, setup);
    let ids = pair.connect_with(QpType::Rc, Retries::new(1).unwrap());
    let route = pair.hosts[0].connected(ids[0]);
    let mut sent = 0;
    for nth in 0..60 {
        if nth == 20 + seed % 20 {
            // The peer ends the connection without a DREQ.
            let peer = &mut pair.hosts[1];
            assert!(peer.netdev.disconnect(&mut peer.device, ids[1]));
        }
        pair.hosts[0].send(route, [packet(4, 9000, nth), packet(4, 60, nth)]);
        sent += 2;
        for _ in 0..3 {
            pair.step();
        }
    }
    pair.step_until_idle();
    let [a, b] = &mut pair.hosts;
    let lost = a.netdev.drops().of(PacketDrop::ConnectionLost);
    let received = b.netdev.traffic().connected_received;
    let (traffic, refused) = (a.netdev.traffic(), a.refused.len() as u64);
    assert_eq!(traffic.connected_sent + traffic.datagrams_sent + refused, sent, "seed {seed}");
    // A packet whose acknowledgement was lost is counted at both ends.
    let is_counted = received + lost >= traffic.connected_sent;
    assert!(is_counted, "seed {seed}: {received} received, {lost} lost");
    b.received.clear();
    assert!(a.refused.iter().all(|one| one.why == Refusal::Disconnected), "seed {seed}");
    let failed = a.events.iter().filter(|event| is_failed(event)).count();
    assert_eq!(failed, 1, "seed {seed}: one event");
    assert!(a.netdev.disconnect(&mut a.device, ids[0]));
    let fell_back = a.netdev.traffic().datagrams_sent > 0;
    pair.step_until_idle();
    assert!(pair.hosts.iter().all(|host| host.events.iter().any(is_ended)));
    pair.close();
    (lost, fell_back)
}

#[test]
fn a_failed_connection_leaks_no_buffer_and_counts_every_packet() {
    let runs: Vec<_> = (0..30).map(send_until_failure).collect();
    assert!(runs.iter().any(|(lost, _)| *lost > 1), "packets were outstanding");
    assert!(runs.iter().all(|(_, fell_back)| *fell_back), "short packets are sent as datagrams");
}

#[test]
fn a_failure_names_the_peer() {
    let mut pair = Pair::new(1, Setup::default());
    let ids = pair.connect_with(QpType::Rc, Retries::NONE);
    pair.world.set_cut(true);
    let host = &mut pair.hosts[0];
    let route = host.connected(ids[0]);
    host.send(route, [packet(6, 5000, 1)]);
    pair.step_until_idle();
    let host = &pair.hosts[0];
    let [NetdevEvent::ConnectionFailed { connection, peering, status }] = host.events[..] else {
        panic!("{:?}", host.events);
    };
    assert_eq!((connection, peering.key), (ids[0], KEY));
    assert_eq!(status, Some(CompletionStatus::RetryExceeded));
    pair.close();
}

#[test]
fn a_message_above_the_receive_mtu_fails_the_connection_at_both_ends() {
    let config = NetdevConfig { receive_mtu: 4096, ..Setup::default().config };
    let mut pair = Pair::new(1, Setup { config, ..Setup::default() });
    let ids = pair.connect(QpType::Rc);
    // A message of the receive MTU is received.
    let route = pair.hosts[0].connected(ids[0]);
    pair.hosts[0].send(route, [packet(4, 4092, 1)]);
    pair.step_until_idle();
    assert_eq!(pair.hosts[1].bytes(), [packet(4, 4092, 1)]);
    // A longer one fails the connection, and no byte is written beyond the receive.
    pair.hosts[0].send(route, [packet(4, 4093, 2)]);
    pair.step_until_idle();
    for host in &mut pair.hosts {
        assert_eq!(host.events.drain(..).filter(is_failed).count(), 1);
    }
    assert!(pair.hosts[1].bytes().is_empty());
    assert_eq!(pair.hosts[0].netdev.drops().of(PacketDrop::ConnectionLost), 1);
    pair.close();
}

#[test]
fn a_packet_above_the_mtu_is_returned_with_the_mtu() {
    let mut pair = Pair::new(1, Setup::default());
    let ids = pair.connect(QpType::Rc);
    let host = &mut pair.hosts[0];
    let Route::Connected(connected) = host.connected(ids[0]) else { unreachable!() };
    let short = Route::Connected(Connected { mtu: 9000, ..connected });
    for (route, mtu) in [(host.datagram(), UD_MTU), (short, 9000)] {
        host.send(route, [packet(4, mtu as usize + 1, 7), packet(4, mtu as usize, 8)]);
        let refused = host.refused.pop().unwrap();
        assert!(host.refused.is_empty());
        assert_eq!((refused.why, refused.mtu), (Refusal::TooBig, Some(mtu)));
        assert_eq!(refused.outgoing.packet.bytes(), packet(4, mtu as usize + 1, 7));
    }
    pair.step_until_idle();
    let mut lengths: Vec<_> = pair.hosts[1].bytes().iter().map(Vec::len).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [UD_MTU as usize, 9000]);
    pair.close();
}

#[test]
fn connections_have_a_limit_and_ids_are_not_used_again() {
    let config = NetdevConfig { connections_max: 2, ..Setup::default().config };
    let mut pair = Pair::new(1, Setup { config, ..Setup::default() });
    let first = pair.connect(QpType::Rc);
    pair.connect(QpType::Rc);
    let host = &mut pair.hosts[0];
    let more = host.netdev.connect(&mut host.device, KEY, QpType::Rc);
    assert!(matches!(more, Err(VerbsError::Limit { limit: "connections_max", max: 2, .. })));
    for (host, id) in pair.hosts.iter_mut().zip(first) {
        host.netdev.disconnect(&mut host.device, id);
    }
    pair.step_until_idle();
    let again = pair.connect(QpType::Rc);
    assert_ne!(first, again);
    // A worker with an older table sends by the old ID, which no connection has.
    let route = pair.hosts[0].connected(first[0]);
    pair.hosts[0].send(route, [packet(4, 60, 1), packet(4, 5000, 2)]);
    pair.step_until_idle();
    assert_eq!(pair.hosts[0].netdev.traffic().datagrams_sent, 1);
    assert_eq!(pair.hosts[0].refused[0].why, Refusal::Disconnected);
    assert_eq!(pair.hosts[0].netdev.connection_use(again[0]).unwrap().sent, 0);
    pair.close();
}
