//! Tests of connections against a peer that uses the service-ID convention of Linux, and against a
//! hostile one. The other end is a CM that the tests drive directly.

mod migration;
mod pair;
mod states;
mod workers;

use super::*;
use crate::cm::{CmConfig, CmEvent, Connect, Role, as_requested, request_along};
use crate::mad::MadAddress;
use pair::{OURS, Pair, THEIRS, address, path};
use pollux_verbs::{QpAttributes, QpState, Retries, transition};
use pollux_wire::address::{Gid, Guid, Lid};
use pollux_wire::mad::cm::{CmMessage, RejectReason, Rep, Req, TransportService};
use pollux_wire::mad::sa::PathRecord;
use pollux_wire::psn::Psn;
use pollux_wire::units::{Mtu, TimeCode};
use std::time::Duration;

// req: cm-service-id-linux
#[test]
fn a_rejected_service_id_is_followed_by_the_other_which_is_remembered() {
    let mut pair = Pair::new(&[Dialect::Linux]);
    pair.connect();
    pair.accept(65_524, THEIRS.qpn);
    assert_eq!(pair.mtu(), Some(65_520));
    let asked = |pair: &Pair| {
        let requests = pair.said.iter().filter_map(|(is_ours, message)| match message {
            CmMessage::Req(req) if *is_ours => Dialect::of(req.service_id),
            _ => None,
        });
        requests.map(|(dialect, _)| dialect).collect::<Vec<_>>()
    };
    assert_eq!(asked(&pair), [Dialect::Rfc, Dialect::Linux]);
    let PeerState::Open { connection, .. } = pair.ours.peer_state(&THEIRS, WorkerId::PRIMARY)
    else {
        panic!()
    };
    pair.pass(Duration::from_secs(10));
    pair.ours.handle_event(pair.now, connection, &QueuePairEvent::Failed);
    pair.settle();
    pair.connect();
    assert_eq!(asked(&pair), [Dialect::Rfc, Dialect::Linux, Dialect::Linux]);
}

#[test]
fn pauses_grow_for_a_peer_that_rejects_both_service_ids() {
    let mut pair = Pair::new(&[]);
    for _ in 0..2000 {
        pair.connect();
        pair.pass(Duration::from_millis(200));
    }
    // Two REQs in each of five rounds.
    assert_eq!(pair.made - 0x100, 10);
    assert_eq!(pair.ours.peer_state(&THEIRS, WorkerId::PRIMARY), PeerState::Paused);
    assert!(pair.queue_pairs.is_empty());
}

// req: cm-linux-dialect
#[test]
fn with_linux_both_connections_stand_and_each_side_sends_by_its_own() {
    let mut pair = Pair::new(&[Dialect::Linux]);
    pair.connect();
    pair.ask(Dialect::Linux, &THEIRS, 0x600);
    pair.settle();
    assert_eq!(pair.ready_at_rep, Some(QpState::Rts), "data may come before their RTU");
    let reps = pair.said.iter().filter_map(|(is_ours, message)| match message {
        CmMessage::Rep(rep) if *is_ours => Some(*rep),
        _ => None,
    });
    assert!(reps.clone().count() > 0 && reps.clone().all(|rep| rep.rnr_retry_count == 7));
    assert_eq!(pair.mtu(), None, "nothing is sent by what the peer has made");
    let requests = pair.told.clone();
    pair.confirm_all();
    pair.told = requests;
    pair.accept(65_524, THEIRS.qpn);
    assert_eq!(pair.mtu(), Some(65_520));
    let rows: Vec<_> = pair.ours.rows().map(|row| (row.role, row.state, row.may_send)).collect();
    assert!(rows.contains(&(Role::Active, "open", true)), "{rows:?}");
    assert!(rows.contains(&(Role::Passive, "open", false)), "{rows:?}");
    assert_eq!(rows.len(), 2);
}

#[test]
fn data_before_the_confirmation_opens_a_connection() {
    let mut pair = Pair::new(&[]);
    pair.ask(Dialect::Rfc, &THEIRS, 0x600);
    pair.settle();
    let (&key, _) = pair.queue_pairs.first_key_value().unwrap();
    assert_eq!(pair.mtu(), None);
    pair.ours.handle_event(pair.now, key, &QueuePairEvent::DataCame);
    assert_eq!(pair.mtu(), Some(65_520));
}

// req: cm-rc-timers
#[test]
fn retries_are_over_before_tcp_tries_again() {
    let mut pair = Pair::new(&[Dialect::Rfc]);
    pair.connect();
    pair.accept(65_524, THEIRS.qpn);
    let shown = pair.ours.rows().next().unwrap().retry_period.unwrap();
    let set = pair.modified.iter().find_map(|it| it.timeout.zip(it.retry_count)).unwrap();
    let tries = u32::from(set.1.get()) + 1;
    assert_eq!(shown, Duration::from_nanos(set.0.nanoseconds()) * tries);
    assert!(shown < Duration::from_millis(200), "{shown:?}");
}

#[test]
fn a_peer_without_receives_is_tried_as_long_as_it_asks_for() {
    let mut pair = Pair::new(&[Dialect::Rfc]);
    pair.connect();
    pair.accept(65_524, THEIRS.qpn);
    pair.ask(Dialect::Rfc, &THEIRS, 0x600);
    pair.settle();
    let tries = pair.modified.iter().filter_map(|it| it.rnr_retry);
    let tries: Vec<_> = tries.map(Retries::get).collect();
    assert_eq!(tries, [7, 0], "what their REP and then their REQ said");
}

#[test]
fn a_connection_narrower_than_a_datagram_is_not_sent_by() {
    let mut pair = Pair::new(&[Dialect::Rfc]);
    pair.connect();
    pair.accept(1500, THEIRS.qpn);
    assert_eq!(pair.ours.rows().next().unwrap().state, "open");
    assert_eq!(pair.ours.peer_state(&THEIRS, WorkerId::PRIMARY), PeerState::Paused);
    pair.connect();
    assert_eq!(pair.ours.rows().count(), 1, "nor is it asked for again");
}

#[test]
fn while_a_peer_asks_we_do_not() {
    let mut pair = Pair::new(&[Dialect::Rfc]);
    pair.ask(Dialect::Rfc, &THEIRS, 0x600);
    pair.settle();
    assert_eq!(pair.ours.peer_state(&THEIRS, WorkerId::PRIMARY), PeerState::UnderWay(pair.now));
    pair.connect();
    assert_eq!(pair.ours.rows().count(), 1);
}

/// A rejection of the service ID would make the peer remember the other convention.
#[test]
fn a_request_before_the_port_is_known_is_not_rejected() {
    let mut pair = Pair::new(&[]);
    let local = pair.ours.local.clone();
    pair.ours.set_local_end(pair.now, None);
    pair.ask(Dialect::Rfc, &THEIRS, 0x500);
    pair.settle();
    assert!(pair.said.iter().all(|(is_ours, _)| !is_ours), "{:?}", pair.said);
    assert_eq!(pair.ours.drops().of(PeerDrop::Down), 1);
    pair.ours.set_local_end(pair.now, local);
    pair.ask(Dialect::Rfc, &THEIRS, 0x501);
    pair.settle();
    pair.confirm_all();
    assert_eq!(pair.mtu(), Some(65_520));
}

#[test]
fn our_request_stands_while_there_is_no_room_for_the_one_that_crosses_it() {
    let mut pair = Pair::new(&[Dialect::Rfc]);
    pair.ours.config.connections_max = 1;
    pair.connect();
    let before = pair.ours.peer_state(&THEIRS, WorkerId::PRIMARY);
    pair.ask(Dialect::Rfc, &THEIRS, 0x600);
    pair.settle();
    assert_eq!(pair.ours.peer_state(&THEIRS, WorkerId::PRIMARY), before);
    pair.told.retain(|event| matches!(event, CmEvent::Request { .. }));
    pair.accept(65_524, THEIRS.qpn);
    assert_eq!(pair.mtu(), Some(65_520));
}

#[test]
fn a_port_that_makes_up_queue_pairs_has_its_share() {
    let mut pair = Pair::new(&[]);
    for nth in 0..40 {
        pair.ask(Dialect::Rfc, &address(0x1000 + nth, 2), 0x2000 + nth);
        pair.settle();
    }
    assert_eq!(pair.ours.rows().count(), 16);
}

#[test]
fn a_peer_that_accepts_and_disconnects_causes_a_pause() {
    let mut pair = Pair::new(&[Dialect::Rfc]);
    pair.connect();
    pair.accept(65_524, THEIRS.qpn);
    let id = pair.theirs.keys().next().unwrap();
    pair.theirs.disconnect(pair.now, id, [0; 220]).unwrap();
    pair.settle();
    assert_eq!(pair.ours.peer_state(&THEIRS, WorkerId::PRIMARY), PeerState::Paused);
}

// req: cm-private-data-everywhere, cm-reserved-zero
#[test]
fn every_req_rep_and_rej_has_our_private_data() {
    let mut pair = Pair::new(&[Dialect::Rfc]);
    pair.connect();
    pair.accept(30_000, THEIRS.qpn);
    pair.ask(Dialect::Rfc, &THEIRS, 0x600);
    pair.settle();
    pair.confirm_all();
    pair.ask(Dialect::Rfc, &address(1, 3), 0x700);
    pair.settle();
    let words = IpoibPrivateData { ud_qpn: OURS.qpn, receive_mtu: 65_524 }.emit();
    let mut kinds = BTreeSet::new();
    for (_, message) in pair.said.iter().filter(|(is_ours, _)| *is_ours) {
        let (kind, private_data): (_, &[u8]) = match message {
            CmMessage::Req(req) => ("REQ", &req.private_data),
            CmMessage::Rep(rep) => ("REP", &rep.private_data),
            CmMessage::Rtu(rtu) => ("RTU", &rtu.private_data),
            CmMessage::Rej(rej) => ("REJ", &rej.private_data),
            _ => continue,
        };
        kinds.insert(kind);
        assert_eq!(private_data[..8], words, "{kind}");
        assert!(private_data[8..].iter().all(|byte| *byte == 0), "{kind}");
    }
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["REJ", "REP", "REQ", "RTU"]);
}

// req: slides-mtu-offer
#[test]
fn an_mtu_without_room_for_a_packet_is_refused_with_the_wanted_one() {
    let mut pair = Pair::new(&[Dialect::Rfc]);
    pair.connect();
    pair.accept(4, THEIRS.qpn);
    assert_eq!(pair.mtu(), None);
    let refusal = pair.said.iter().rev().find_map(|(is_ours, message)| match message {
        CmMessage::Rej(rej) if *is_ours => Some(*rej),
        _ => None,
    });
    let refusal = refusal.unwrap();
    assert_eq!(refusal.reason, RejectReason::CONSUMER_REJECT);
    assert_eq!(refusal.info(), 65_524u32.to_be_bytes());
}

#[test]
fn a_reply_from_another_interface_is_rejected() {
    let mut pair = Pair::new(&[Dialect::Rfc]);
    pair.connect();
    pair.accept(65_524, Qpn(0x61));
    assert_eq!(pair.mtu(), None);
    assert_eq!(pair.ours.peer_state(&THEIRS, WorkerId::PRIMARY), PeerState::Paused);
}

#[test]
fn a_storm_of_requests_costs_limits_and_leaves_nothing() {
    let mut pair = Pair::new(&[Dialect::Rfc]);
    for nth in 0..500u32 {
        let liar = address(0x1000 + nth % 50, 2);
        pair.ask(Dialect::ALL[nth as usize % 2], &liar, 0x2000 + nth);
        pair.settle();
        assert!(pair.queue_pairs.len() <= 64 + 1, "{} queue pairs", pair.queue_pairs.len());
    }
    pair.connect();
    pair.accept(65_524, THEIRS.qpn);
    assert_eq!(pair.mtu(), Some(65_520), "who is honest is served");
    pair.pass(Duration::from_secs(300));
    assert_eq!(pair.ours.rows().count(), 1, "those that nobody confirmed are gone");
    assert_eq!((pair.queue_pairs.len(), pair.ours.peers.len()), (1, 1));
}

#[test]
fn the_number_of_a_queue_pair_stays_taken_while_packets_may_come_for_it() {
    let mut pair = Pair::new(&[Dialect::Rfc]);
    pair.connect();
    pair.accept(65_524, THEIRS.qpn);
    let key = *pair.queue_pairs.first_key_value().unwrap().0;
    pair.ours.forget(pair.now, &THEIRS);
    pair.settle();
    assert_eq!(pair.queue_pairs[&key].1, QpState::Err, "nothing comes or goes any more");
    assert_eq!(pair.ours.rows().next().unwrap().state, "ending");
    let over = pair.ours.poll_timeout().unwrap();
    assert!(over > pair.now);
    pair.pass(Duration::from_secs(20));
    assert_eq!((pair.queue_pairs.len(), pair.ours.rows().count()), (0, 0));
}

/// An earlier event of the CM may have ended the connection of a REP.
#[test]
fn a_connection_that_ends_before_its_rep_is_handled_leaves_no_queue_pair() {
    let mut pair = Pair::new(&[Dialect::Rfc]);
    pair.connect();
    let key = *pair.queue_pairs.first_key_value().unwrap().0;
    let Some(CmEvent::Request { key: asked, .. }) = pair.told.pop() else { panic!() };
    pair.theirs.accept(pair.now, asked, Rep { local_qpn: Qpn(0x500), ..Rep::default() }).unwrap();
    let mad = pair.theirs.poll_transmit().unwrap().mad;
    let peer = MadAddress::gsi(pair.their_lid, 0, PKey::DEFAULT);
    pair.ours.cm.handle_mad(pair.now, &CmDatagram::parse(&Envelope { peer, mad }));
    pair.ours.end(pair.now, key, PeerDrop::Policy);
    pair.ours.handle_cm_events(pair.now);
    pair.settle();
    pair.pass(Duration::from_secs(60));
    assert_eq!((pair.queue_pairs.len(), pair.ours.rows().count()), (0, 0));
}

#[test]
fn a_port_that_lets_connections_end_has_its_share_of_those_too() {
    let mut pair = Pair::new(&[]);
    for nth in 0..200 {
        let id = pair.ask(Dialect::Rfc, &THEIRS, 0x2000 + nth);
        pair.settle();
        pair.confirm_all();
        // The connection may have been refused.
        let _gone = pair.theirs.disconnect(pair.now, id, [0; 220]);
        pair.settle();
        pair.told.clear();
        assert!(pair.queue_pairs.len() <= 64, "{} queue pairs", pair.queue_pairs.len());
    }
    pair.pass(Duration::from_secs(60));
    assert_eq!(pair.queue_pairs.len(), 0);
}

#[test]
fn a_full_table_is_silent() {
    let mut pair = Pair::new(&[]);
    pair.ours.config.connections_max = 1;
    for (nth, guid) in [(0, 2), (1, 3)] {
        pair.ask(Dialect::Rfc, &address(0x1000 + nth, guid), 0x2000 + nth);
        pair.settle();
    }
    assert_eq!((pair.ours.rows().count(), pair.ours.drops().of(PeerDrop::Full)), (1, 1));
    let rejections = pair.said.iter().filter(|said| matches!(said.1, CmMessage::Rej(_)));
    assert_eq!(rejections.count(), 0, "who is rejected asks again at once");
}

// req: cm-connection-record
#[test]
fn a_request_of_another_partition_is_rejected() {
    let mut pair = Pair::new(&[]);
    let elsewhere = PathRecord { p_key: PKey(0x8001), ..path(&THEIRS, &OURS) };
    pair.ask_along(&elsewhere, Dialect::Rfc, &THEIRS, 0x600);
    pair.settle();
    let drops = pair.ours.drops().of(PeerDrop::BadPrivateData);
    assert_eq!((pair.ours.rows().count(), drops), (0, 1));
}

/// The number of probes in a minute on a UC connection, and whether the connection is open at the
/// end. `we_ask`: our side requested it. `sends`: we send a packet each second. `answers`: the peer
/// still has the connection and answers probes.
fn probes_of(we_ask: bool, sends: bool, answers: bool) -> (usize, bool) {
    let mut pair = Pair::new(&[Dialect::Rfc]);
    pair.qp_type = QpType::Uc;
    if we_ask {
        pair.connect();
        pair.accept(65_524, THEIRS.qpn);
    } else {
        pair.ask(Dialect::Rfc, &THEIRS, 0x600);
        pair.settle();
        pair.confirm_all();
    }
    assert!(pair.mtu().is_some());
    let key = pair.ours.rows().next().unwrap().connection;
    pair.is_deaf = !answers;
    let before = pair.said.len();
    for _ in 0..60 {
        if sends {
            pair.ours.handle_event(pair.now, key, &QueuePairEvent::Used { received: false });
        }
        pair.pass(Duration::from_secs(1));
    }
    let probes = pair.said[before..].iter().filter(|(is_ours, message)| {
        *is_ours && matches!(message, CmMessage::Req(_) | CmMessage::Rep(_))
    });
    (probes.count(), pair.mtu().is_some())
}

#[test]
fn an_unreliable_connection_is_probed_while_it_only_sends() {
    for we_ask in [true, false] {
        assert_eq!(probes_of(we_ask, true, true), (30, true), "every two seconds: {we_ask}");
        assert_eq!(probes_of(we_ask, false, true), (0, true), "an idle one costs nothing");
        assert_eq!(probes_of(we_ask, true, false), (4, false), "a silent peer is gone");
    }
}

#[test]
fn a_peer_that_announces_itself_is_asked_at_once_but_once_a_second() {
    for qp_type in [QpType::Uc, QpType::Rc] {
        let mut pair = Pair::new(&[Dialect::Rfc]);
        pair.qp_type = qp_type;
        pair.connect();
        pair.accept(65_524, THEIRS.qpn);
        pair.pass(Duration::from_secs(10));
        let before = pair.said.len();
        let requests = |pair: &Pair| {
            let said = pair.said[before..].iter();
            said.filter(|(is_ours, it)| *is_ours && matches!(it, CmMessage::Req(_))).count()
        };
        pair.ours.handle_announcement(pair.now, &THEIRS);
        pair.pass(Duration::from_millis(1));
        assert_eq!(requests(&pair), 1);
        for _ in 0..100 {
            pair.ours.handle_announcement(pair.now, &THEIRS);
            pair.pass(Duration::from_millis(50));
        }
        assert_eq!(requests(&pair), 9, "four, and in five seconds");
        assert!(pair.mtu().is_some());
    }
}

/// Linux does not answer a repeated REQ.
#[test]
fn a_reliable_connection_to_linux_is_not_probed() {
    let mut pair = Pair::new(&[Dialect::Linux]);
    pair.connect();
    pair.accept(65_524, THEIRS.qpn);
    pair.pass(Duration::from_secs(10));
    let before = pair.said.len();
    pair.ours.handle_announcement(pair.now, &THEIRS);
    pair.pass(Duration::from_secs(60));
    assert_eq!(pair.said.len(), before);
    assert!(pair.mtu().is_some());
}

impl Pair {
    /// The lengths of our pauses after consecutive failed attempts, in seconds.
    fn pauses(&mut self, attempts: usize, mut fail: impl FnMut(&mut Self)) -> Vec<u64> {
        let pauses = (0..attempts).map(|_| {
            self.connect();
            fail(self);
            let pause = self.ours.pause_of(&THEIRS, WorkerId::PRIMARY).expect("it failed");
            let time = pause.until.since_start() - pause.since.since_start();
            self.pass(time);
            time.as_secs()
        });
        pauses.collect()
    }

    fn refuse(&mut self, reason: RejectReason) {
        let asked = self.told.drain(..).find_map(|event| match event {
            CmEvent::Request { key: id, .. } => Some(id),
            _ => None,
        });
        self.theirs.reject(self.now, asked.unwrap(), reason, &[], [0; 148]).unwrap();
        self.settle();
    }

    fn accept_and_fail(&mut self) {
        self.accept(65_524, THEIRS.qpn);
        let row = self.ours.rows().find(|row| row.state == "open").expect("it is open");
        self.ours.handle_event(self.now, row.connection, &QueuePairEvent::Failed);
        self.settle();
    }
}

#[test]
fn only_a_peer_that_refuses_or_is_silent_is_given_up() {
    let pair = || Pair::new(&[Dialect::Rfc]);
    let refuses = |pair: &mut Pair| pair.refuse(RejectReason::CONSUMER_REJECT);
    let is_full = |pair: &mut Pair| pair.refuse(RejectReason::NO_QP);
    let is_slow = Pair::accept_and_fail;
    assert_eq!(pair().pauses(7, refuses), [1, 2, 4, 8, 600, 1, 2]);
    assert_eq!(pair().pauses(7, is_full), [1, 2, 4, 8, 16, 32, 32]);
    assert_eq!(pair().pauses(7, is_slow), [1, 2, 4, 8, 16, 32, 32]);
    let mut silent = pair();
    silent.is_deaf = true;
    let is_silent = |pair: &mut Pair| {
        while pair.ours.pause_of(&THEIRS, WorkerId::PRIMARY).is_none() {
            pair.pass(Duration::from_millis(50));
        }
    };
    assert_eq!(silent.pauses(6, is_silent), [1, 2, 4, 8, 600, 1]);
}

#[test]
fn a_sign_of_life_shortens_the_pause_to_the_minimum() {
    for asks in [false, true] {
        let mut pair = Pair::new(&[Dialect::Rfc]);
        pair.pauses(4, Pair::accept_and_fail);
        pair.connect();
        pair.accept_and_fail();
        let begin = pair.now;
        if asks {
            // A connection that Linux requests only receives.
            pair.ask(Dialect::Linux, &THEIRS, 0x600);
            pair.settle();
            pair.confirm_all();
        } else {
            pair.ours.handle_announcement(pair.now, &THEIRS);
        }
        let pause = pair.ours.pause_of(&THEIRS, WorkerId::PRIMARY).expect("not at once");
        assert_eq!(pause.until, begin + Duration::from_secs(1), "it asks: {asks}");
        assert_eq!(
            pause.text(begin),
            "last connection attempt failed (the queue pair failed), retry in 1 s"
        );
        pair.pass(Duration::from_secs(1));
        assert_eq!(pair.ours.peer_state(&THEIRS, WorkerId::PRIMARY), PeerState::Idle);
    }
}

#[test]
fn a_pause_has_the_reason_of_the_peers_rej() {
    let mut pair = Pair::new(&[Dialect::Rfc]);
    pair.connect();
    pair.refuse(RejectReason(99));
    pair.pass(Duration::from_millis(300));
    let pause = pair.ours.pause_of(&THEIRS, WorkerId::PRIMARY).unwrap();
    assert_eq!(pause.text(pair.now), "last connection attempt failed (REJ 99), retry in 1 s");
    let mut pair = Pair::new(&[]);
    pair.connect();
    let pause = pair.ours.pause_of(&THEIRS, WorkerId::PRIMARY).unwrap();
    assert_eq!(
        pause.text(pair.now),
        "last connection attempt failed (REJ 8, INVALID_SERVICE_ID), retry in 1 s"
    );
}

#[test]
fn a_request_costs_no_walk_over_all_connections() {
    let mut pair = Pair::new(&[]);
    for nth in 0..300 {
        let before = pair.ours.all.walked();
        pair.ask(
            Dialect::ALL[nth as usize % 2],
            &address(0x1000 + nth, 2 + u64::from(nth)),
            0x2000 + nth,
        );
        pair.settle();
        pair.confirm_all();
        assert_eq!(pair.ours.all.walked() - before, 0, "with {nth} others");
        pair.ours.all.check();
    }
    assert_eq!(pair.ours.rows().filter(|row| row.state == "open").count(), 300);
    for (nth, key) in pair.queue_pairs.keys().copied().collect::<Vec<_>>().into_iter().enumerate() {
        match nth % 3 {
            0 => pair.ours.handle_event(pair.now, key, &QueuePairEvent::Failed),
            1 => pair.ours.end(pair.now, key, PeerDrop::Idle),
            _ => pair.ours.handle_event(pair.now, key, &QueuePairEvent::Ended),
        }
        pair.settle();
        pair.ours.all.check();
    }
}
