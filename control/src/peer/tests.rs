//! Connections against a peer that speaks Linux's dialect, and against one that lies: the other
//! end is plain connection management, led by hand.

mod migration;

use super::*;
use crate::cm::{CmConfig, CmEvent, Connect, as_requested, request_along};
use crate::mad::MadAddress;
use pollux_verbs::{QpAttributes, QpState, transition};
use pollux_wire::address::{Gid, Guid, Lid};
use pollux_wire::mad::cm::{CmMessage, RejectReason, Rep, Req, TransportService};
use pollux_wire::mad::sa::PathRecord;
use pollux_wire::psn::Psn;
use pollux_wire::units::{Mtu, TimeCode};
use std::time::Duration;

const OURS: LinkAddress = address(0x48, 1);
const THEIRS: LinkAddress = address(0x60, 2);

const fn address(qpn: u32, guid: u64) -> LinkAddress {
    let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(guid));
    LinkAddress { rc: true, uc: false, qpn: Qpn(qpn), gid }
}

fn path(from: &LinkAddress, to: &LinkAddress) -> PathRecord {
    let lid = |link: &LinkAddress| Lid(link.gid.guid().0 as u16);
    PathRecord {
        sgid: from.gid,
        dgid: to.gid,
        slid: lid(from),
        dlid: lid(to),
        p_key: PKey::DEFAULT,
        mtu: Mtu::OCTETS_2048,
        packet_life_time: TimeCode(14),
        ..PathRecord::default()
    }
}

/// Our connections, and a peer's manager.
struct Pair {
    ours: Connections,
    theirs: Cm,
    their_lid: Lid,
    now: Time,
    queue_pairs: BTreeMap<ConnectionKey, (Qpn, QpState)>,
    made: u32,
    /// What the peer was told.
    told: Vec<CmEvent>,
    /// Every message, and whether it is ours.
    said: Vec<(bool, CmMessage)>,
    /// How far the newest queue pair was when our first REP left.
    ready_at_rep: Option<QpState>,
    /// How queue pairs were made ready.
    modified: Vec<QpAttributes>,
}

impl Pair {
    fn new(listens: &[Dialect]) -> Self {
        let port = LocalPort { gids: vec![OURS.gid], ..LocalPort::default() };
        Self::at(port, listens)
    }

    fn at(port: LocalPort, listens: &[Dialect]) -> Self {
        let config = PeerConfig { policy: Policy::Auto, migrates: true, ..PeerConfig::of(Guid(1)) };
        let mut ours = Connections::new(config, 1);
        let (p_key, pkey_index, datagram_mtu) = (PKey::DEFAULT, 0, 2044);
        let place = Place { link: OURS, p_key, pkey_index, port, datagram_mtu };
        ours.handle_place(Time::START, Some(place));
        let mut theirs = Cm::new(CmConfig::of(Guid(2)), Dice::new(2));
        for dialect in listens {
            theirs.listen(dialect.service_id(THEIRS.qpn), [0; 148]).unwrap();
        }
        Self {
            ours,
            theirs,
            their_lid: Lid(2),
            now: Time::START,
            queue_pairs: BTreeMap::new(),
            made: 0x100,
            told: vec![],
            said: vec![],
            ready_at_rep: None,
            modified: vec![],
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.ours.poll_action() {
            let (key, news) = match action {
                Action::Connect { connection, .. } => {
                    self.made += 1;
                    let qpn = Qpn(self.made);
                    self.queue_pairs.insert(connection, (qpn, QpState::Init));
                    (connection, ConnectionNews::Made { qpn })
                }
                Action::Modify { connection, attributes } => {
                    let (_, state) = self.queue_pairs.get_mut(&connection).unwrap();
                    *state = transition::check(QpType::Rc, *state, &attributes).unwrap();
                    self.modified.push(*attributes);
                    continue;
                }
                Action::Disconnect { connection } => {
                    self.queue_pairs.remove(&connection);
                    (connection, ConnectionNews::Ended)
                }
                other => panic!("{other:?}"),
            };
            self.ours.handle_news(self.now, key, &news);
        }
    }

    fn settle(&mut self) {
        loop {
            self.act();
            if let Some(envelope) = self.ours.poll_mad() {
                let (_, message) = CmMessage::parse_mad(&envelope.mad).unwrap();
                if matches!(message, CmMessage::Rep(_)) && self.ready_at_rep.is_none() {
                    self.ready_at_rep = self.queue_pairs.values().last().map(|it| it.1);
                }
                self.said.push((true, message));
                let peer = MadAddress::gsi(Lid(1), 0, PKey::DEFAULT);
                self.theirs.handle_mad(self.now, &Envelope { peer, mad: envelope.mad });
            } else if let Some(envelope) = self.theirs.poll_transmit() {
                let (_, message) = CmMessage::parse_mad(&envelope.mad).unwrap();
                self.said.push((false, message));
                let peer = MadAddress::gsi(self.their_lid, 0, PKey::DEFAULT);
                self.ours.handle_mad(self.now, &Envelope { peer, mad: envelope.mad });
            } else {
                break;
            }
        }
        self.told.extend(std::iter::from_fn(|| self.theirs.poll_event()));
    }

    fn connect(&mut self) {
        self.ours.connect(self.now, &THEIRS, QpType::Rc, &path(&OURS, &THEIRS));
        self.settle();
    }

    /// The peer accepts what it was asked for, with these private data.
    fn accept(&mut self, receive_mtu: u32, ud_qpn: Qpn) {
        let asked = self.told.drain(..).find_map(|event| match event {
            CmEvent::Request { id, .. } => Some(id),
            _ => None,
        });
        let private_data = IpoibPrivateData { ud_qpn, receive_mtu }.padded();
        let rep = Rep { local_qpn: Qpn(0x500), rnr_retry_count: 7, private_data, ..Rep::default() };
        self.theirs.accept(self.now, asked.unwrap(), rep).unwrap();
        self.settle();
    }

    /// The peer asks, in a dialect.
    fn ask(&mut self, dialect: Dialect, from: &LinkAddress, qpn: u32) -> ConnectionId {
        self.ask_along(&path(from, &OURS), dialect, from, qpn)
    }

    fn ask_along(
        &mut self,
        path: &PathRecord,
        dialect: Dialect,
        from: &LinkAddress,
        qpn: u32,
    ) -> ConnectionId {
        self.ask_for(path, dialect, from, qpn, None)
    }

    fn ask_for(
        &mut self,
        path: &PathRecord,
        dialect: Dialect,
        from: &LinkAddress,
        qpn: u32,
        alternate: Option<&PathRecord>,
    ) -> ConnectionId {
        let alternate = alternate.map(|path| as_requested(path, TimeCode(8)));
        let words = IpoibPrivateData { ud_qpn: from.qpn, receive_mtu: 65_524 };
        let req = Req {
            service_id: dialect.service_id(OURS.qpn),
            local_qpn: Qpn(qpn),
            transport_service: TransportService::RC,
            starting_psn: Psn::new(0),
            private_data: words.padded(),
            alternate: alternate.unwrap_or_default(),
            ..request_along(path, TimeCode(8))
        };
        let to = MadAddress::gsi(Lid(1), 0, PKey::DEFAULT);
        let packet_life_time = TimeCode(14);
        self.theirs.connect(self.now, Connect { to, req, packet_life_time }).unwrap()
    }

    fn confirm_all(&mut self) {
        for event in std::mem::take(&mut self.told) {
            if let CmEvent::Reply { id, .. } = event {
                self.theirs.confirm(self.now, id, [0; 224]).unwrap();
            }
        }
        self.settle();
    }

    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(due) = [self.ours.poll_timeout(), self.theirs.poll_timeout()]
            .into_iter()
            .flatten()
            .min()
            .filter(|due| *due <= until)
        {
            self.now = self.now.max(due);
            self.ours.handle_timeout(self.now);
            self.theirs.handle_timeout(self.now);
            self.settle();
        }
        self.now = until;
    }

    fn mtu(&self) -> Option<u32> {
        match self.ours.standing(&THEIRS) {
            Standing::Open { mtu, .. } => Some(mtu),
            _ => None,
        }
    }
}

// req: cm-service-id-linux
#[test]
fn whoever_refuses_one_service_id_is_asked_by_the_other_and_that_is_remembered() {
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
    let Standing::Open { connection, .. } = pair.ours.standing(&THEIRS) else { panic!() };
    pair.pass(Duration::from_secs(10));
    pair.ours.handle_news(pair.now, connection, &ConnectionNews::Failed);
    pair.settle();
    pair.connect();
    assert_eq!(asked(&pair), [Dialect::Rfc, Dialect::Linux, Dialect::Linux]);
}

#[test]
fn whoever_refuses_both_service_ids_is_left_alone_for_longer_and_longer() {
    let mut pair = Pair::new(&[]);
    for _ in 0..2000 {
        pair.connect();
        pair.pass(Duration::from_millis(200));
    }
    // Two a round, and five rounds.
    assert_eq!(pair.made - 0x100, 10);
    assert_eq!(pair.ours.standing(&THEIRS), Standing::Paused);
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
    pair.ours.handle_news(pair.now, key, &ConnectionNews::DataCame);
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
fn a_peer_without_receives_is_not_tried_for_ever() {
    let mut pair = Pair::new(&[Dialect::Rfc]);
    pair.connect();
    pair.accept(65_524, THEIRS.qpn);
    pair.ask(Dialect::Rfc, &THEIRS, 0x600);
    pair.settle();
    let tries: Vec<_> = pair.modified.iter().filter_map(|it| it.rnr_retry).collect();
    assert_eq!(tries.len(), 2, "of either side");
    assert!(tries.iter().all(|it| it.get() < 7), "{tries:?}");
}

#[test]
fn a_connection_narrower_than_a_datagram_is_not_sent_by() {
    let mut pair = Pair::new(&[Dialect::Rfc]);
    pair.connect();
    pair.accept(1500, THEIRS.qpn);
    assert_eq!(pair.ours.rows().next().unwrap().state, "open");
    assert_eq!(pair.ours.standing(&THEIRS), Standing::Paused);
    pair.connect();
    assert_eq!(pair.ours.rows().count(), 1, "nor is it asked for again");
}

#[test]
fn while_a_peer_asks_we_do_not() {
    let mut pair = Pair::new(&[Dialect::Rfc]);
    pair.ask(Dialect::Rfc, &THEIRS, 0x600);
    pair.settle();
    assert_eq!(pair.ours.standing(&THEIRS), Standing::UnderWay(pair.now));
    pair.connect();
    assert_eq!(pair.ours.rows().count(), 1);
}

/// A refusal would say that we speak another dialect, and be remembered.
#[test]
fn whoever_asks_before_there_is_a_place_is_not_refused() {
    let mut pair = Pair::new(&[]);
    let place = pair.ours.place.clone();
    pair.ours.handle_place(pair.now, None);
    pair.ask(Dialect::Rfc, &THEIRS, 0x500);
    pair.settle();
    assert!(pair.said.iter().all(|(is_ours, _)| !is_ours), "{:?}", pair.said);
    assert_eq!(pair.ours.drops().of(PeerDrop::Down), 1);
    pair.ours.handle_place(pair.now, place);
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
    let before = pair.ours.standing(&THEIRS);
    pair.ask(Dialect::Rfc, &THEIRS, 0x600);
    pair.settle();
    assert_eq!(pair.ours.standing(&THEIRS), before);
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
fn whoever_accepts_only_to_end_is_left_alone_for_a_while() {
    let mut pair = Pair::new(&[Dialect::Rfc]);
    pair.connect();
    pair.accept(65_524, THEIRS.qpn);
    let id = pair.theirs.connections().next().unwrap().id;
    pair.theirs.disconnect(pair.now, id, [0; 220]).unwrap();
    pair.settle();
    assert_eq!(pair.ours.standing(&THEIRS), Standing::Paused);
}

// req: cm-private-data-everywhere, cm-reserved-zero
#[test]
fn every_message_that_makes_or_refuses_a_connection_says_who_we_are() {
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
        assert!(private_data[8..].iter().all(|octet| *octet == 0), "{kind}");
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
fn whoever_answers_for_another_interface_is_refused() {
    let mut pair = Pair::new(&[Dialect::Rfc]);
    pair.connect();
    pair.accept(65_524, Qpn(0x61));
    assert_eq!(pair.mtu(), None);
    assert_eq!(pair.ours.standing(&THEIRS), Standing::Paused);
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

#[test]
fn a_port_that_lets_connections_end_has_its_share_of_those_too() {
    let mut pair = Pair::new(&[]);
    for nth in 0..200 {
        let id = pair.ask(Dialect::Rfc, &THEIRS, 0x2000 + nth);
        pair.settle();
        pair.confirm_all();
        // It may be one that was refused.
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
fn who_asks_in_another_partition_is_refused() {
    let mut pair = Pair::new(&[]);
    let elsewhere = PathRecord { p_key: PKey(0x8001), ..path(&THEIRS, &OURS) };
    pair.ask_along(&elsewhere, Dialect::Rfc, &THEIRS, 0x600);
    pair.settle();
    let drops = pair.ours.drops().of(PeerDrop::BadPrivateData);
    assert_eq!((pair.ours.rows().count(), drops), (0, 1));
}
