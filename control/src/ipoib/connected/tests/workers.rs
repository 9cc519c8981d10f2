//! Which of our workers a connection is for: ours that we ask for, and theirs.

use super::*;
use pollux_wire::mad::cm::ipoib::AskingWorker;

fn pair(workers: u8, listens: &[Dialect]) -> Pair {
    let port = LocalPort { gids: vec![OURS.gid], ..LocalPort::default() };
    Pair::of(workers, port, listens)
}

impl Pair {
    /// The peer asks for its worker of such a number, one of so many, by another queue pair.
    fn ask_as(&mut self, worker: u8, workers: u8) -> ConnectionKey {
        self.asking = Some(AskingWorker::new(worker, workers));
        let id = self.ask(Dialect::Rfc, &THEIRS, 0x600 + self.made);
        self.settle();
        id
    }

    /// The worker of each connection that does not end, in the order in which they were entered.
    fn workers(&self) -> Vec<u8> {
        let rows = self.ours.rows().filter(|row| row.state != "ending");
        rows.map(|row| row.worker.0).collect()
    }

    /// The dialect and the worker in our REQs.
    fn asked(&self) -> Vec<(Dialect, Option<(u8, u8)>)> {
        let requests = self.said.iter().filter_map(|(is_ours, message)| match message {
            CmMessage::Req(req) if *is_ours => Some(req),
            _ => None,
        });
        let asking = |req: &Req| {
            AskingWorker::of(&req.private_data).map(|asking| (asking.worker, asking.workers))
        };
        requests.map(|req| (Dialect::of(req.service_id).unwrap().0, asking(req))).collect()
    }
}

#[test]
fn linux_is_asked_for_a_connection_of_each_worker() {
    let mut pair = pair(2, &[Dialect::Linux]);
    pair.connect_by(WorkerId(1));
    pair.accept(65_524, THEIRS.qpn);
    assert!(matches!(pair.ours.peer_state(&THEIRS, WorkerId::PRIMARY), PeerState::Open { .. }));
    assert_eq!(
        pair.ours.peer_state(&THEIRS, WorkerId(1)),
        PeerState::Idle,
        "the primary worker was first"
    );
    pair.connect_by(WorkerId(1));
    pair.accept(65_524, THEIRS.qpn);
    let open = [WorkerId::PRIMARY, WorkerId(1)].map(|worker| pair.ours.peer_state(&THEIRS, worker));
    assert!(open.iter().all(|it| matches!(it, PeerState::Open { mtu: 65_520, .. })), "{open:?}");
    assert_ne!(open[0], open[1]);
    let primary = Some((0, 2));
    let asked =
        [(Dialect::Rfc, primary), (Dialect::Linux, primary), (Dialect::Linux, Some((1, 2)))];
    assert_eq!(pair.asked(), asked);
    // What it asks for itself is for the worker with fewest, and stands beside them.
    pair.ask(Dialect::Linux, &THEIRS, 0x600);
    pair.settle();
    pair.confirm_all();
    assert_eq!(pair.workers(), [0, 1, 0]);
}

#[test]
fn requests_of_linux_go_to_the_worker_with_the_fewest_connections() {
    let mut pair = pair(3, &[]);
    for nth in 0..7 {
        pair.ask(Dialect::Linux, &address(0x1000 + nth, 2), 0x2000 + nth);
        pair.settle();
    }
    assert_eq!(pair.workers(), [0, 1, 2, 0, 1, 2, 0]);
    pair.confirm_all();
    // A REQ of a restarted worker replaces its connection, at any worker of ours.
    let again = pair.ask(Dialect::Linux, &address(0x1001, 2), 0x3000);
    pair.settle();
    pair.confirm_all();
    assert_eq!(pair.workers(), [0, 2, 0, 1, 2, 0, 1]);
    assert!(pair.theirs.keys().any(|key| key == again));
}

#[test]
fn a_request_without_the_extension_is_of_a_single_worker() {
    let mut pair = pair(2, &[]);
    pair.ask(Dialect::Rfc, &THEIRS, 0x600);
    pair.settle();
    pair.confirm_all();
    assert_eq!(pair.workers(), [0]);
    pair.ask(Dialect::Rfc, &THEIRS, 0x601);
    pair.settle();
    pair.confirm_all();
    assert_eq!(pair.workers(), [0], "it has begun anew");

    let mut alone = Pair::new(&[Dialect::Rfc]);
    alone.connect();
    assert_eq!(alone.asked(), [(Dialect::Rfc, None)]);
}

#[test]
fn a_connection_takes_the_place_of_none_but_the_same_workers() {
    let mut pair = pair(2, &[]);
    for lane in 0..4 {
        pair.ask_as(lane, 4);
        pair.confirm_all();
    }
    assert_eq!(pair.workers(), [0, 1, 0, 1]);
    let before: Vec<_> = pair.ours.rows().map(|row| row.connection).collect();
    pair.ask_as(2, 4);
    pair.confirm_all();
    let rows = pair.ours.rows().filter(|row| row.state != "ending");
    let after: Vec<_> = rows.map(|row| row.connection).collect();
    assert_eq!((&after[..3], after.len()), (&[before[0], before[1], before[3]][..], 4));
    assert_eq!(pair.ours.drops().of(PeerDrop::Replaced), 1);
}

#[test]
fn words_that_make_no_sense_are_read_over() {
    let mut pair = pair(2, &[]);
    pair.ask_as(3, 2);
    pair.asking = Some(AskingWorker { mark: 1, worker: 1, workers: 2 });
    pair.ask(Dialect::Rfc, &THEIRS, 0x900);
    pair.settle();
    assert_eq!(pair.workers(), [0, 0]);
}

#[test]
fn a_port_that_makes_up_workers_has_its_share() {
    let mut pair = pair(2, &[]);
    for lane in 0..60 {
        pair.ask_as(lane, 255);
    }
    let of = |worker| pair.workers().iter().filter(|it| **it == worker).count();
    assert_eq!((of(0), of(1)), (8, 8), "as much again is for the first of others there");
}

#[test]
fn a_worker_that_is_refused_waits_while_the_lead_goes_on() {
    let mut pair = pair(2, &[Dialect::Rfc]);
    pair.connect();
    pair.accept(65_524, THEIRS.qpn);
    pair.connect_by(WorkerId(1));
    let asked = pair.told.drain(..).find_map(|event| match event {
        CmEvent::Request { key: id, .. } => Some(id),
        _ => None,
    });
    pair.theirs.reject(pair.now, asked.unwrap(), RejectReason::NO_QP, &[], [0; 148]).unwrap();
    pair.settle();
    assert_eq!(pair.ours.peer_state(&THEIRS, WorkerId(1)), PeerState::Paused);
    assert_eq!(pair.mtu(), Some(65_520));
    pair.connect_by(WorkerId(1));
    assert_eq!(pair.asked().len(), 2, "not yet");
    pair.pass(Duration::from_secs(2));
    pair.connect_by(WorkerId(1));
    assert_eq!(pair.asked().len(), 3);
    pair.ours.forget(pair.now, &THEIRS);
    pair.pass(Duration::from_secs(60));
    assert_eq!((pair.ours.due.len(), pair.ours.peers.len()), (0, 0));
}
