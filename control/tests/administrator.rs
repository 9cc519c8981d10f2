//! The client against an administrator that does not know it: the fabric's own, in virtual time.

use pollux_control::mad::{Envelope, MadAddress};
use pollux_control::sa::{
    Membership, RequestId, SaClient, SaConfig, SaDrop, SaError, SaEvent, SaQuery, SaReply,
};
use pollux_fabric::sm::{Residents, SmConfig};
use pollux_fabric::subnet::{Datagram, Subnet};
use pollux_fabric::topology::{End, Topology};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::address::{Gid, Guid, Lid, Qpn};
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::mad::notice::{GidTrap, NoticeReport, TrapDetails, TrapNumber};
use pollux_wire::mad::sa::{JoinState, McMemberRecord, SaMad};
use pollux_wire::mad::smp::NodeType;
use pollux_wire::mad::{MadStatus, Method};
use pollux_wire::units::Mtu;
use std::time::Duration;

const BROADCAST: Gid =
    Gid([0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);

/// A managed subnet, and a client at each of its hosts but those with a manager.
struct World {
    subnet: Subnet,
    managers: Residents,
    clients: Vec<SaClient>,
    hosts: Vec<End>,
    now: Time,
    rng: SeededRng,
    /// Datagrams from or to a client that are lost, in a million.
    lost: u32,
    /// Acknowledgements of reports are lost all the same.
    loses_acknowledgements: bool,
    notices: Vec<(usize, NoticeReport)>,
    answers: Vec<(usize, RequestId, Result<SaReply, SaError>)>,
    asked: u64,
    /// Segments that came to clients.
    segments: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        Self::managed(seed, SmConfig::default())
    }

    fn managed(seed: u64, config: SmConfig) -> Self {
        let mut subnet = Subnet::new(Topology::generate("leaf-spine:2x2x2", 1).unwrap());
        let nodes = (0..).zip(subnet.topology().nodes());
        let hosts = nodes.filter(|(_, node)| node.kind == NodeType::CHANNEL_ADAPTER);
        let hosts: Vec<_> = hosts.map(|(node, _)| End { node, port: 1 }).collect();
        let mut managers = Residents::default();
        managers.start(&mut subnet, hosts[0], config);
        let client =
            |host| SaClient::new(SaConfig::default(), SeededRng::new(seed * 8 + host as u64));
        let clients = (0..hosts.len()).map(client).collect();
        let mut world = Self {
            subnet,
            managers,
            clients,
            hosts,
            now: Time::START,
            rng: SeededRng::new(!seed),
            lost: 0,
            loses_acknowledgements: false,
            notices: Vec::new(),
            answers: Vec::new(),
            asked: 0,
            segments: 0,
        };
        world.settle();
        world.tell_clients();
        world
    }

    fn lid(&self, host: usize) -> Lid {
        let at = self.hosts[host];
        self.subnet.nodes()[at.node as usize].lid(at.port)
    }

    fn gid(&self, host: usize) -> Gid {
        let at = self.hosts[host];
        self.subnet.nodes()[at.node as usize].gid(at.port)
    }

    /// Each client takes the address of the administrator from its port.
    fn tell_clients(&mut self) {
        for (client, at) in self.clients.iter_mut().zip(&self.hosts) {
            let info = &self.subnet.nodes()[at.node as usize].ports[usize::from(at.port)].info;
            let administrator = MadAddress::gsi(info.master_sm_lid, 0, PKey::DEFAULT);
            client.handle_sm_change(self.now, Some(administrator));
        }
    }

    fn settle(&mut self) {
        loop {
            let mut arrived = Vec::new();
            self.managers.exchange(self.now, &mut self.subnet, |at, datagram| {
                arrived.push((at, datagram));
            });
            for (at, datagram) in arrived {
                self.arrive(at, &datagram);
            }
            if !self.transmit() {
                return;
            }
        }
    }

    fn arrive(&mut self, at: End, datagram: &Datagram) {
        let Some(host) = self.hosts.iter().position(|host| *host == at) else { return };
        if datagram.dest_qp != Qpn::GSI || self.rng.happens(self.lost) {
            return;
        }
        self.segments += usize::from(SaMad::parse(&datagram.mad).rmpp.active);
        let peer = MadAddress::gsi(datagram.slid, 0, PKey::DEFAULT);
        self.clients[host].handle_mad(self.now, &Envelope { peer, mad: datagram.mad });
        while let Some(event) = self.clients[host].poll_event() {
            match event {
                SaEvent::Answered { id, result } => self.answers.push((host, id, result)),
                SaEvent::Notice(report) => self.notices.push((host, *report)),
            }
        }
    }

    fn transmit(&mut self) -> bool {
        let mut has_sent = false;
        for host in 0..self.clients.len() {
            while let Some(Envelope { peer, mad }) = self.clients[host].poll_transmit() {
                has_sent = true;
                let is_acknowledgement = SaMad::parse(&mad).header.method == Method::REPORT_RESP;
                if self.rng.happens(self.lost) || is_acknowledgement && self.loses_acknowledgements
                {
                    continue;
                }
                let (slid, dlid) = (self.lid(host), peer.lid);
                let (src_qp, dest_qp) = (Qpn::GSI, peer.qpn);
                let p_key = peer.p_key;
                let datagram = Datagram { slid, dlid, src_qp, dest_qp, p_key, mad };
                self.subnet.send(self.now, self.hosts[host], datagram);
            }
        }
        has_sent
    }

    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now = self.now + Duration::from_millis(20);
            for host in 0..self.clients.len() {
                self.clients[host].handle_timeout(self.now);
                while let Some(SaEvent::Answered { id, result }) = self.clients[host].poll_event() {
                    self.answers.push((host, id, result));
                }
            }
            self.settle();
        }
    }

    /// Asks, and waits for the answer, of which there is one.
    fn ask(&mut self, host: usize, question: SaQuery) -> Result<SaReply, SaError> {
        self.asked += 1;
        let id = RequestId(self.asked);
        self.clients[host].ask(self.now, id, question).unwrap();
        self.settle();
        for _ in 0..200 {
            if let Some(at) = self.answers.iter().position(|(_, known, _)| *known == id) {
                return self.answers.swap_remove(at).2;
            }
            self.pass(Duration::from_millis(100));
        }
        panic!("no answer and no error for {question:?}");
    }

    fn member(&self, host: usize, mgid: Gid, join_state: JoinState) -> Membership {
        Membership { mgid, port_gid: self.gid(host), p_key: PKey::DEFAULT, join_state }
    }

    fn join_broadcast(&mut self, host: usize) -> McMemberRecord {
        let member = self.member(host, BROADCAST, JoinState::FULL_MEMBER);
        match self.ask(host, SaQuery::join(member)) {
            Ok(SaReply::Group(group)) => group,
            other => panic!("{other:?}"),
        }
    }
}

fn group(last: u8) -> Gid {
    let mut mgid = BROADCAST;
    mgid.0[12..].copy_from_slice(&[0, 0, 1, last]);
    mgid
}

#[test]
fn a_path_is_found_and_a_missing_one_has_its_error() {
    let mut world = World::new(1);
    let (sgid, dgid) = (world.gid(1), world.gid(3));
    let answer = world.ask(1, SaQuery::path(sgid, dgid, PKey::DEFAULT, 0));
    let Ok(SaReply::Path(path)) = answer else { panic!("{answer:?}") };
    assert_eq!((path.slid, path.dlid), (world.lid(1), world.lid(3)));
    assert_eq!((path.sgid, path.dgid, path.mtu), (sgid, dgid, Mtu::BYTES_4096));
    let answer = world.ask(1, SaQuery::paths(sgid, dgid, PKey::DEFAULT));
    assert_eq!(answer, Ok(SaReply::Paths(vec![path])), "there is one way");
    let nobody = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x999));
    let answer = world.ask(1, SaQuery::path(sgid, nobody, PKey::DEFAULT, 0));
    assert_eq!(answer, Err(SaError::InvalidGid));
    let answer = world.ask(1, SaQuery::path(sgid, dgid, PKey(0x8123), 0));
    assert_eq!(answer, Err(SaError::NoRecords));
}

#[test]
fn the_broadcast_group_is_joined_and_others_are_made_like_it() {
    let mut world = World::new(1);
    let broadcast = world.join_broadcast(1);
    assert_eq!((broadcast.mlid, broadcast.q_key), (Lid(0xc000), QKey(0xb1b)));
    let member = world.member(1, group(9), JoinState::FULL_MEMBER);
    assert_eq!(world.ask(1, SaQuery::join(member)), Err(SaError::InsufficientComponents));
    let answer = world.ask(1, SaQuery::join_or_create(member, &broadcast));
    let Ok(SaReply::Group(made)) = answer else { panic!("{answer:?}") };
    assert_eq!(
        (made.mgid, made.q_key, made.join_state),
        (group(9), QKey(0xb1b), member.join_state)
    );
    // Members that only send, with both join states.
    for state in [JoinState::SEND_ONLY_FULL_MEMBER, JoinState::SEND_ONLY_NON_MEMBER] {
        let sender = world.member(2, group(9), state);
        let answer = world.ask(2, SaQuery::join_or_create(sender, &broadcast));
        let Ok(SaReply::Group(joined)) = answer else { panic!("{answer:?}") };
        assert!(joined.join_state.contains(state), "{joined:?}");
        assert!(world.ask(2, SaQuery::leave(sender)).is_ok());
    }
    let listener = world.member(2, group(9), JoinState::FULL_MEMBER);
    let answer = world.ask(2, SaQuery::join(listener));
    let Ok(SaReply::Group(found)) = answer else { panic!("{answer:?}") };
    assert_eq!(found.mlid, made.mlid);
    assert!(world.ask(2, SaQuery::leave(listener)).is_ok());
    assert!(world.ask(1, SaQuery::leave(member)).is_ok());
    assert_eq!(world.ask(2, SaQuery::join(listener)), Err(SaError::InsufficientComponents));
}

#[test]
fn groups_that_come_and_go_are_reported_once_though_acknowledgements_get_lost() {
    let mut world = World::new(3);
    for trap in [TrapNumber::MULTICAST_GROUP_CREATED, TrapNumber::MULTICAST_GROUP_DELETED] {
        let answer = world.ask(2, SaQuery::subscription(trap, true));
        assert!(matches!(answer, Ok(SaReply::Subscription(_))), "{answer:?}");
    }
    let broadcast = world.join_broadcast(1);
    let member = world.member(1, group(1), JoinState::FULL_MEMBER);
    let told = |world: &World| {
        let of = |(host, report): &(usize, NoticeReport)| {
            assert_eq!(*host, 2);
            assert_eq!(report.notice.details(), TrapDetails::Gid(GidTrap { gid: group(1) }));
            report.notice.trap_number.0
        };
        world.notices.iter().map(of).collect::<Vec<_>>()
    };
    world.ask(1, SaQuery::join_or_create(member, &broadcast)).unwrap();
    world.pass(Duration::from_secs(1));
    assert_eq!(told(&world), [66]);
    world.loses_acknowledgements = true;
    world.ask(1, SaQuery::leave(member)).unwrap();
    world.pass(Duration::from_secs(5));
    assert_eq!(told(&world), [66, 67]);
    assert!(world.clients[2].drops().of(SaDrop::Repeated) > 0, "it came again");
    world.loses_acknowledgements = false;
    world.ask(2, SaQuery::subscription(TrapNumber::MULTICAST_GROUP_CREATED, false)).unwrap();
    world.ask(1, SaQuery::join_or_create(member, &broadcast)).unwrap();
    world.pass(Duration::from_secs(5));
    assert_eq!(told(&world), [66, 67]);
}

#[test]
fn a_long_table_comes_whole_though_segments_and_acknowledgements_get_lost() {
    /// Each port has 128 LIDs, and as many paths are asked for as one query can.
    const LMC: u8 = 7;
    const PATHS: usize = 127;
    for seed in 0..20 {
        let mut world = World::managed(seed, SmConfig { lmc: LMC, ..SmConfig::default() });
        world.lost = 50_000;
        let (sgid, dgid) = (world.gid(3), world.gid(1));
        let answer = world.ask(3, SaQuery::paths(sgid, dgid, PKey::DEFAULT));
        let Ok(SaReply::Paths(found)) = answer else { panic!("seed {seed}: {answer:?}") };
        assert_eq!(found.len(), PATHS, "seed {seed}");
        assert!(world.segments >= PATHS * 64 / 200);
    }
}

#[test]
fn every_question_is_answered_in_bad_weather_or_ends() {
    let mut answered = 0;
    for seed in 0..100 {
        let mut world = World::new(seed);
        world.lost = 200_000;
        for host in 1..4 {
            let (sgid, dgid) = (world.gid(host), world.gid(host % 3 + 1));
            match world.ask(host, SaQuery::path(sgid, dgid, PKey::DEFAULT, 0)) {
                Ok(SaReply::Path(path)) => {
                    assert_eq!(path.dlid, world.lid(host % 3 + 1));
                    answered += 1;
                }
                other => assert_eq!(other, Err(SaError::NoResponse), "seed {seed}"),
            }
        }
        assert!(world.clients.iter().all(|client| client.poll_timeout().is_none()));
    }
    assert!(answered > 290, "{answered} of 300");
}

#[test]
fn questions_outlive_the_subnet_manager() {
    let mut world = World::new(1);
    let (sgid, dgid) = (world.gid(1), world.gid(3));
    let at = world.hosts[0];
    world.managers.stop(&mut world.subnet, at);
    let id = RequestId(77);
    let question = SaQuery::path(sgid, dgid, PKey::DEFAULT, 0);
    world.clients[1].ask(world.now, id, question).unwrap();
    world.pass(Duration::from_secs(2));
    assert!(world.answers.is_empty());
    assert_eq!(world.clients[1].queries(), (0, 1));
    let second = world.hosts[2];
    world.managers.start(&mut world.subnet, second, SmConfig::default());
    world.pass(Duration::from_secs(1));
    world.tell_clients();
    assert_eq!(world.clients[1].administrator().unwrap().lid, world.lid(2));
    world.settle();
    let (host, known, result) = world.answers.pop().expect("an answer");
    assert_eq!((host, known), (1, id));
    assert!(matches!(result, Ok(SaReply::Path(path)) if path.dlid == world.lid(3)));
}

#[test]
fn without_an_administrator_questions_wait_and_can_be_taken_back() {
    let mut world = World::new(1);
    let (sgid, dgid) = (world.gid(1), world.gid(3));
    let question = SaQuery::path(sgid, dgid, PKey::DEFAULT, 0);
    world.clients[1].handle_sm_change(world.now, None);
    for id in 0..3 {
        world.clients[1].ask(world.now, RequestId(id), question).unwrap();
    }
    world.pass(Duration::from_secs(60));
    assert_eq!((world.clients[1].queries(), world.answers.len()), ((3, 0), 0));
    world.clients[1].cancel(world.now, RequestId(1));
    world.tell_clients();
    world.settle();
    let ids: Vec<_> = world.answers.iter().map(|(_, id, _)| id.0).collect();
    assert_eq!(ids, [0, 2]);
}

#[test]
fn reports_of_strangers_are_not_believed() {
    let mut world = World::new(1);
    let report = SaMad::new(Method::REPORT, 5, 0, NoticeReport::default()).emit();
    let peer = MadAddress::gsi(world.lid(2), 0, PKey::DEFAULT);
    world.clients[1].handle_mad(world.now, &Envelope { peer, mad: report });
    assert!(world.clients[1].poll_event().is_none());
    assert!(world.clients[1].poll_transmit().is_none());
    assert_eq!(world.clients[1].drops().iter().map(|(_, times)| times).sum::<u64>(), 1);
}

#[test]
fn answers_of_strangers_are_not_believed() {
    let mut client = SaClient::new(SaConfig::default(), SeededRng::new(1));
    let [peer, stranger] = [1, 2].map(|lid| MadAddress::gsi(Lid(lid), 0, PKey::DEFAULT));
    client.handle_sm_change(Time::START, Some(peer));
    client
        .ask(
            Time::START,
            RequestId(1),
            SaQuery::subscription(TrapNumber::MULTICAST_GROUP_CREATED, true),
        )
        .unwrap();
    let mut answer = SaMad::parse(&client.poll_transmit().unwrap().mad);
    answer.header.method = Method::GET_RESP;
    for (peer, is_believed) in [(stranger, false), (peer, true)] {
        client.handle_mad(Time::START, &Envelope { peer, mad: answer.emit() });
        assert_eq!(client.poll_event().is_some(), is_believed);
    }
    assert_eq!(client.drops().of(SaDrop::Stranger), 1);
}

#[test]
fn a_busy_administrator_is_asked_again() {
    let mut client = SaClient::new(SaConfig::default(), SeededRng::new(1));
    let peer = MadAddress::gsi(Lid(1), 0, PKey::DEFAULT);
    let mut now = Time::START;
    client.handle_sm_change(now, Some(peer));
    client
        .ask(now, RequestId(1), SaQuery::subscription(TrapNumber::MULTICAST_GROUP_CREATED, true))
        .unwrap();
    let mut asked = 0;
    let result = loop {
        while let Some(Envelope { mad, .. }) = client.poll_transmit() {
            asked += 1;
            let mut answer = SaMad::parse(&mad);
            answer.header.method = Method::GET_RESP;
            answer.header.status = MadStatus::BUSY;
            client.handle_mad(now, &Envelope { peer, mad: answer.emit() });
        }
        if let Some(SaEvent::Answered { result, .. }) = client.poll_event() {
            break result;
        }
        now = client.poll_timeout().expect("it will ask again");
        client.handle_timeout(now);
    };
    assert_eq!((asked, result), (8, Err(SaError::Busy)));
    assert!(now > Time::START + Duration::from_secs(10), "with exponential backoff");
}
