//! Alternate paths: search, offer, acceptance and migration.

use super::*;
use crate::cm::CmDatagram;
use pollux_verbs::qp::Migration;
use pollux_wire::mad::cm::{ApStatus, Apr, Lap};

/// By then a second path is looked for, after so many failed attempts.
fn pause(failures: u32) -> Duration {
    Duration::from_secs(6) * 2u32.pow(failures)
}

const OUR_LID: u16 = 0x10;
const THEIR_LID: u16 = 0x20;

/// One of the two paths between ports with two LIDs each.
fn way(number: u16) -> PathRecord {
    let path = path(&OURS, &THEIRS);
    let (slid, dlid) = (Lid(OUR_LID + number), Lid(THEIR_LID + number));
    PathRecord { slid, dlid, reversible: true, ..path }
}

/// The same as they see it.
fn back(number: u16) -> PathRecord {
    let PathRecord { sgid, dgid, slid, dlid, .. } = way(number);
    PathRecord { sgid: dgid, dgid: sgid, slid: dlid, dlid: slid, ..way(number) }
}

fn pair(lmc: u8, dialect: Dialect) -> Pair {
    let lid = Lid(OUR_LID);
    let port = LocalPort { lid, lmc, gids: vec![OURS.gid], ..LocalPort::default() };
    Pair { their_lid: Lid(THEIR_LID), ..Pair::at(port, &[dialect]) }
}

/// A pair with a connection that we asked for, along the first path.
fn connected(lmc: u8, dialect: Dialect) -> Pair {
    let mut pair = pair(lmc, dialect);
    pair.ours.connect(pair.now, &THEIRS, WorkerId::PRIMARY, QpType::Rc, &way(0));
    pair.settle();
    pair.accept(65_524, THEIRS.qpn);
    assert!(pair.mtu().is_some());
    pair
}

/// They have asked for a connection along the first path, which stands.
fn asked() -> (Pair, ConnectionKey) {
    let mut pair = pair(1, Dialect::Rfc);
    let id = pair.ask_along(&back(0), Dialect::Rfc, &THEIRS, 0x600);
    pair.settle();
    pair.confirm_all();
    assert!(pair.mtu().is_some());
    (pair, id)
}

impl Pair {
    fn key(&self) -> ConnectionKey {
        self.ours.rows().next().unwrap().connection
    }

    /// What is shown of the only connection's second path, and how often it went on by one.
    fn shown(&self) -> (&'static str, u64) {
        let row = self.ours.rows().next().unwrap();
        (row.alternate, row.migrations)
    }

    /// The administrator answers, if it was asked.
    fn find_paths(&mut self, paths: &[PathRecord]) -> bool {
        let Some(gid) = self.ours.poll_path_query() else { return false };
        assert_eq!(gid, THEIRS.gid);
        self.ours.handle_paths(self.now, gid, paths);
        self.settle();
        true
    }

    /// The peer's answer to what it was offered.
    fn answer(&mut self, status: ApStatus) -> Lap {
        let offered = self.told.drain(..).find_map(|event| match event {
            CmEvent::PathOffered { key: id, lap } => Some((id, *lap)),
            _ => None,
        });
        let (id, lap) = offered.expect("an offer");
        self.theirs.answer_path(self.now, id, Apr { status, ..Apr::default() }).unwrap();
        self.settle();
        lap
    }

    /// The second path that our queue pair was given last: to which LID, by which of ours.
    fn loaded(&self) -> Option<(Lid, u8)> {
        let last = self.modified.last()?;
        assert_eq!(last.alternate_path.is_some(), last.migration == Some(Migration::Rearm));
        last.alternate_path.map(|way| (way.dlid, way.src_path_bits))
    }

    /// What became of their offer of a path.
    fn offer(&mut self, id: ConnectionKey, lap: Lap) -> ApStatus {
        self.theirs.offer_path(self.now, id, lap).unwrap();
        self.settle();
        let answered = self.told.drain(..).find_map(|event| match event {
            CmEvent::PathAnswered { apr, .. } => apr,
            _ => None,
        });
        answered.expect("an answer").status
    }
}

fn lap(path: &PathRecord) -> Lap {
    Lap {
        remote_cm_response_timeout: TimeCode(16),
        ..Lap::of_path(&as_requested(path, TimeCode(8)))
    }
}

// req: cm-path-migration
#[test]
fn a_good_connection_gets_a_second_path_and_after_migration_another() {
    let mut pair = connected(1, Dialect::Rfc);
    assert!(!pair.find_paths(&[]), "not at once");
    pair.pass(pause(0));
    assert!(pair.find_paths(&[way(0), way(1)]));
    assert_eq!(pair.shown(), ("offered", 0));
    let lap = pair.answer(ApStatus::LOADED);
    assert_eq!((lap.alternate_local_lid, lap.alternate_remote_lid), (Lid(0x11), Lid(0x21)));
    assert_eq!(lap.remote_qpn, Qpn(0x500));
    assert_eq!(pair.loaded(), Some((Lid(0x21), 1)));
    assert_eq!(pair.shown(), ("loaded", 0));

    let key = pair.key();
    pair.ours.handle_event(pair.now, key, &QueuePairEvent::Migrated);
    assert_eq!(pair.shown(), ("none", 1));
    pair.pass(pause(0));
    assert!(pair.find_paths(&[way(0), way(1)]), "the first path may be good again");
    pair.answer(ApStatus::LOADED);
    assert_eq!(pair.loaded(), Some((Lid(0x20), 0)));
    assert_eq!(pair.shown(), ("loaded", 1));
}

/// Each time later, so that what is never found costs the administrator little.
#[test]
fn a_second_path_is_searched_again_after_a_failure() {
    let mut pair = connected(1, Dialect::Rfc);
    let narrow = PathRecord { mtu: Mtu::BYTES_1024, ..way(1) };
    for (paths, failures) in [&[way(0)][..], &[], &[narrow]].into_iter().zip(0..) {
        pair.pass(pause(failures) * 2 / 3);
        assert!(!pair.find_paths(paths), "too soon");
        pair.pass(pause(failures) / 3);
        assert!(pair.find_paths(paths));
        assert_eq!(pair.shown(), ("none", 0));
    }
    pair.pass(pause(3));
    assert!(pair.find_paths(&[way(0), way(1)]));
    pair.answer(ApStatus::REJECTED);
    assert_eq!(pair.shown(), ("none", 0));
    pair.pass(pause(4));
    assert!(pair.find_paths(&[way(0), way(1)]));
    // The peer says nothing, however often it is asked.
    pair.pass(pause(6));
    assert_eq!((pair.shown(), pair.loaded()), (("queried", 0), None));
}

#[test]
fn a_peer_that_rejects_paths_gets_no_more_offers() {
    for is_here in [true, false] {
        let mut pair = connected(1, Dialect::Rfc);
        pair.pass(pause(0));
        assert!(pair.find_paths(&[way(1)]));
        if is_here {
            pair.answer(ApStatus::LOADED);
            let key = pair.key();
            pair.ours.handle_event(pair.now, key, &QueuePairEvent::AlternateRefused);
        } else {
            pair.answer(ApStatus::NOT_SUPPORTED);
        }
        assert_eq!((pair.shown(), pair.mtu()), (("none", 0), Some(65_520)));
        pair.pass(Duration::from_secs(599));
        assert!(!pair.find_paths(&[]), "for ten minutes");
        pair.pass(Duration::from_secs(100));
        assert!(pair.find_paths(&[]));
    }
}

/// A peer that was stopped answers both offers, when it has forgotten the first.
#[test]
fn an_answer_to_an_earlier_offer_is_ignored() {
    let mut pair = connected(1, Dialect::Rfc);
    pair.pass(pause(0));
    assert!(pair.find_paths(&[way(1)]));
    pair.told.clear();
    pair.pass(pause(2));
    assert_eq!((pair.shown(), pair.loaded()), (("queried", 0), None), "it was not answered");
    assert!(pair.find_paths(&[way(1)]));
    let mut offers = pair.said.iter().filter_map(|(_, message)| match message {
        CmMessage::Lap(lap) => Some(*lap),
        _ => None,
    });
    let lap = offers.next_back().expect("there were some");
    let (local_comm_id, remote_comm_id) = (lap.remote_comm_id, lap.local_comm_id);
    let late = Apr { local_comm_id, remote_comm_id, ..Apr::default() };
    let mad = CmMessage::Apr(late).emit_mad(7);
    let peer = MadAddress::gsi(pair.their_lid, 0, PKey::DEFAULT);
    pair.ours.handle_mad(pair.now, &CmDatagram::parse(&Envelope { peer, mad }));
    assert_eq!((pair.shown(), pair.loaded()), (("offered", 0), None));
}

#[test]
fn second_paths_are_offered_only_by_ports_and_to_peers_that_can_use_them() {
    for mut pair in [connected(0, Dialect::Rfc), connected(1, Dialect::Linux), asked().0] {
        pair.pass(Duration::from_secs(60));
        assert!(!pair.find_paths(&[]));
    }
}

#[test]
fn a_valid_path_of_the_peer_is_loaded() {
    let (mut pair, id) = asked();
    let foreign = Gid::new(Gid::DEFAULT_PREFIX, Guid(9));
    let bad = [
        (PathRecord { sgid: foreign, ..back(1) }, ApStatus::INVALID_GID),
        (PathRecord { dgid: foreign, ..back(1) }, ApStatus::INVALID_GID),
        (PathRecord { slid: Lid(0x40), ..back(1) }, ApStatus::INVALID_LID),
        (PathRecord { dlid: Lid(0x40), ..back(1) }, ApStatus::INVALID_LID),
        (PathRecord { slid: Lid::PERMISSIVE, ..back(1) }, ApStatus::INVALID_LID),
        (back(0), ApStatus::IS_CURRENT_PATH),
    ];
    for (path, status) in bad {
        assert_eq!(pair.offer(id, lap(&path)), status, "{path:?}");
        assert_eq!((pair.shown(), pair.loaded()), (("none", 0), None));
    }
    assert_eq!(pair.offer(id, lap(&back(1))), ApStatus::LOADED);
    assert_eq!(pair.loaded(), Some((Lid(0x21), 1)));
    assert_eq!(pair.shown(), ("loaded", 0));
    let key = pair.key();
    pair.ours.handle_event(pair.now, key, &QueuePairEvent::Migrated);
    assert_eq!(pair.shown(), ("none", 1));
    assert_eq!(pair.offer(id, lap(&back(1))), ApStatus::IS_CURRENT_PATH);
    assert_eq!(pair.offer(id, lap(&back(0))), ApStatus::LOADED);
    // A loaded path stays when it is offered again, and changes only after an interval.
    let loads = |pair: &Pair| pair.modified.iter().filter(|it| it.alternate_path.is_some()).count();
    assert_eq!(pair.offer(id, lap(&back(0))), ApStatus::LOADED);
    assert_eq!(loads(&pair), 2);
    let other = PathRecord { sl: 3, ..back(0) };
    assert_eq!(pair.offer(id, lap(&other)), ApStatus::REJECTED);
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.offer(id, lap(&other)), ApStatus::LOADED);
    assert_eq!(loads(&pair), 3);
}

#[test]
fn while_we_offer_a_path_we_take_none() {
    let mut pair = connected(1, Dialect::Rfc);
    pair.pass(pause(0));
    assert!(pair.find_paths(&[way(1)]));
    let id = pair.theirs.keys().next().unwrap();
    assert_eq!(pair.offer(id, lap(&back(1))), ApStatus::REJECTED);
    assert_eq!((pair.shown(), pair.loaded()), (("offered", 0), None));
}

#[test]
fn an_adapter_without_migration_rejects_paths() {
    let (mut pair, id) = asked();
    pair.ours.config.migrates = false;
    assert_eq!(pair.offer(id, lap(&back(1))), ApStatus::NOT_SUPPORTED);
    assert_eq!(pair.loaded(), None);
}

/// What the reply says of the second path of a request, and what our queue pair was given.
#[test]
fn a_second_path_may_come_with_the_request() {
    let cases = [
        (true, back(1), 0, Some(Lid(0x21))),
        (true, PathRecord { sgid: OURS.gid, ..back(1) }, 2, None),
        (false, back(1), 1, None),
    ];
    for (migrates, path, said, dlid) in cases {
        let mut pair = pair(1, Dialect::Rfc);
        pair.ours.config.migrates = migrates;
        pair.ask_for(&back(0), Dialect::Rfc, &THEIRS, 0x600, Some(&path));
        pair.settle();
        let rep = pair.said.iter().find_map(|(_, message)| match message {
            CmMessage::Rep(rep) => Some(rep.failover_accepted),
            _ => None,
        });
        assert_eq!(rep, Some(said));
        assert_eq!(pair.loaded().map(|(dlid, _)| dlid), dlid);
    }
}
