//! Tests with queries of hosts to the administrator of a subnet in memory.

use super::*;
use crate::sm::Residents;
use crate::subnet::Subnet;
use crate::topology::{End, Topology};
use pollux_verbs::rmpp::TRANSFERS_MAX;
use pollux_wire::address::Guid;
use pollux_wire::keys::QKey;
use pollux_wire::mad::MAD_LEN;
use pollux_wire::mad::notice::{
    GidTrap, Notice, NoticeReport, ProducerType, TrapDetails, TrapNumber,
};
use pollux_wire::mad::sa::{
    JoinState, McMemberRecordMask, MultiPathRecordMask, NodeRecordMask, PathRecordMask,
    PortInfoRecordMask, Selector, ServiceRecordMask, records,
};
use pollux_wire::mad::service_id::ServiceId;
use pollux_wire::mad::smp::{CapabilityMask, NodeType};
use pollux_wire::units::Mtu;
use proptest::prelude::*;
use std::time::Duration;

/// A managed subnet, and the datagrams that have arrived at hosts.
struct World {
    subnet: Subnet,
    managers: Residents,
    now: Time,
    arrived: Vec<(End, SaMad)>,
}

impl World {
    /// The manager is at the first host.
    fn new(spec: &str, config: SmConfig) -> Self {
        let mut subnet = Subnet::new(Topology::generate(spec, 1).unwrap());
        let mut managers = Residents::default();
        let first = hosts(&subnet)[0];
        managers.start(&mut subnet, first, config);
        let mut world = Self { subnet, managers, now: Time::START, arrived: Vec::new() };
        world.settle();
        world
    }

    fn settle(&mut self) {
        let arrived = &mut self.arrived;
        self.managers.exchange(self.now, &mut self.subnet, |at, datagram| {
            arrived.push((at, SaMad::parse(&datagram.mad)));
        });
    }

    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds * 10 {
            self.now = self.now + Duration::from_millis(100);
            self.settle();
        }
    }

    fn lid(&self, host: usize) -> Lid {
        let at = hosts(&self.subnet)[host];
        self.subnet.nodes()[at.node as usize].lid(at.port)
    }

    fn gid(&self, host: usize) -> Gid {
        let at = hosts(&self.subnet)[host];
        self.subnet.nodes()[at.node as usize].gid(at.port)
    }

    fn send(&mut self, host: usize, mad: &SaMad) {
        let at = hosts(&self.subnet)[host];
        let (slid, dlid) = (self.lid(host), self.lid(0));
        let (src_qp, dest_qp) = (Qpn::GSI, Qpn::GSI);
        let (p_key, mad) = (PKey::DEFAULT, mad.emit());
        let datagram = Datagram { slid, dlid, src_qp, dest_qp, p_key, mad };
        self.subnet.send(self.now, at, datagram);
        self.settle();
    }

    /// Queries one record from a host; returns its status and the answer.
    fn ask<R: Record>(
        &mut self,
        host: usize,
        method: Method,
        mask: R::Mask,
        record: R,
    ) -> (MadStatus, R) {
        self.arrived.clear();
        self.send(host, &SaMad::new(method, 7, mask, record));
        let at = hosts(&self.subnet)[host];
        let mut answers = self
            .arrived
            .drain(..)
            .filter(|(end, mad)| *end == at && mad.header.method == method.response());
        let (_, mad) = answers.next().expect("an answer");
        assert_eq!((answers.count(), mad.header.transaction_id), (0, 7));
        (mad.header.status, R::from_data(&mad.data))
    }

    /// Queries a table from a host, and receives its segments.
    fn table<Q: Record, R: Record>(
        &mut self,
        host: usize,
        method: Method,
        mask: Q::Mask,
        wanted: Q,
        sm_key: SmKey,
    ) -> Result<Vec<R>, MadStatus> {
        self.arrived.clear();
        let mut mad = SaMad::new(method, 8, mask, wanted);
        mad.sa.sm_key = sm_key;
        self.send(host, &mad);
        let mut reception = Reception::default();
        loop {
            let mut segments: Vec<_> = self.arrived.drain(..).map(|(_, mad)| mad).collect();
            let first = segments.first().copied().expect("an answer");
            if !first.rmpp.active {
                return Err(first.header.status);
            }
            for segment in segments.drain(..) {
                match reception.receive(&segment, 1 << 24) {
                    SegmentOutcome::Ignored | SegmentOutcome::Kept => {}
                    SegmentOutcome::Acknowledged(reply) => self.send(host, &SaMad::parse(&reply)),
                    SegmentOutcome::Complete(reply) => {
                        self.send(host, &SaMad::parse(&reply));
                        assert!(self.arrived.is_empty());
                        let table = reception.into_table();
                        let offset = segment.sa.attribute_offset;
                        return Ok(records(&table, offset).unwrap().collect());
                    }
                    _ => panic!("{:?}", segment.rmpp),
                }
            }
        }
    }

    fn counters(&self) -> SaCounters {
        let at = hosts(&self.subnet)[0];
        let sa = self.managers.at(at).unwrap().administrator();
        SaCounters { lost: sa.counters.lost + sa.subscriptions.lost, ..sa.counters }
    }
}

fn hosts(subnet: &Subnet) -> Vec<End> {
    let nodes = (0..).zip(subnet.topology().nodes());
    let hosts = nodes.filter(|(_, node)| node.kind == NodeType::CHANNEL_ADAPTER);
    hosts.map(|(node, _)| End { node, port: 1 }).collect()
}

fn world() -> World {
    World::new("leaf-spine:2x2x2", SmConfig::default())
}

type P = PathRecordMask;

/// The path query of Linux.
fn path(world: &World, from: usize, to: usize) -> PathRecord {
    PathRecord {
        sgid: world.gid(from),
        dgid: world.gid(to),
        numb_path: 1,
        p_key: PKey::DEFAULT,
        ..PathRecord::default()
    }
}

#[test]
fn a_path_record_has_the_properties_that_packets_meet() {
    let mut world = world();
    let wanted = path(&world, 1, 3);
    let (status, found) = world.ask(1, Method::GET, P::LINUX_QUERY, wanted);
    assert_eq!((status, found.slid, found.dlid), (MadStatus::OK, world.lid(1), world.lid(3)));
    assert_eq!((found.mtu, found.rate), (Mtu::BYTES_4096, Rate::GBPS_100));
    assert_eq!((found.packet_life_time, found.p_key), (TimeCode(18), PKey::DEFAULT));
    assert_eq!((found.hop_limit, found.reversible, found.numb_path), (0, true, 0));
    assert_eq!(found.mtu_selector, Selector::EXACTLY);
    let own = PathRecord { dgid: world.gid(1), ..wanted };
    let (status, found) = world.ask(1, Method::GET, P::LINUX_QUERY, own);
    assert_eq!((status, found.packet_life_time), (MadStatus::OK, TimeCode(0)), "to itself");
    let by_lids = PathRecord { slid: world.lid(1), dlid: world.lid(3), ..PathRecord::default() };
    let (status, found) = world.ask(1, Method::GET, P::SLID.with(P::DLID), by_lids);
    assert_eq!((status, found.dgid), (MadStatus::OK, world.gid(3)));
}

#[test]
fn invalid_queries_have_their_status() {
    let mut world = world();
    let wanted = path(&world, 1, 3);
    let mut ask = |mask, edit: fn(&mut PathRecord)| {
        let mut wanted = wanted;
        edit(&mut wanted);
        let (status, found) = world.ask(1, Method::GET, P::LINUX_QUERY.with(mask), wanted);
        (status, found.mtu, found.rate)
    };
    let (none, mtu, rate) =
        (MadStatus::SA_NO_RECORDS, P::MTU.with(P::MTU_SELECTOR), P::RATE.with(P::RATE_SELECTOR));
    assert_eq!(ask(P::NONE, |path| path.dgid.0[15] ^= 0x80).0, MadStatus::SA_INVALID_GID);
    assert_eq!(ask(P::NONE, |path| path.p_key = PKey(0x8123)).0, none);
    assert_eq!(ask(P::SL, |path| path.sl = 3).0, none);
    assert_eq!(ask(mtu, |path| path.mtu = Mtu::BYTES_4096).0, none, "greater than the largest");
    let exact = ask(mtu, |path| {
        (path.mtu_selector, path.mtu) = (Selector::EXACTLY, Mtu::BYTES_1024);
    });
    assert_eq!((exact.0, exact.1), (MadStatus::OK, Mtu::BYTES_1024));
    let less = ask(rate, |path| {
        (path.rate_selector, path.rate) = (Selector::LESS_THAN, Rate::GBPS_100);
    });
    assert_eq!((less.0, less.2), (MadStatus::OK, Rate::GBPS_80));
    let faster = ask(rate, |path| {
        (path.rate_selector, path.rate) = (Selector::EXACTLY, Rate::GBPS_200);
    });
    assert_eq!(faster.0, none);
}

#[test]
fn an_exact_lifetime_is_that_of_the_record() {
    let mut world = world();
    let exactly = |to, life_time| PathRecord {
        packet_life_time_selector: Selector::EXACTLY,
        packet_life_time: TimeCode(life_time),
        ..path(&world, 1, to)
    };
    let asked = [exactly(3, 17), exactly(3, 18), exactly(3, 20), exactly(1, 0), exactly(1, 18)];
    let mask = P::LINUX_QUERY.with(P::PACKET_LIFE_TIME).with(P::PACKET_LIFE_TIME_SELECTOR);
    let answers = asked.map(|wanted| {
        let (status, found) = world.ask(1, Method::GET, mask, wanted);
        (status == MadStatus::OK).then_some(found.packet_life_time.0)
    });
    // A path has a lifetime of 18, and one of a port to itself has 0 (IBA 15.2.5.16).
    assert_eq!(answers, [None, Some(18), Some(20), Some(0), None]);
}

// req: iba-addressing
#[test]
fn ports_with_several_addresses_have_several_paths() {
    let mut world = World::new("leaf-spine:2x2x2", SmConfig { lmc: 1, ..SmConfig::default() });
    let wanted = PathRecord { numb_path: 127, ..path(&world, 1, 3) };
    let key = SmKey(0);
    let paths: Vec<PathRecord> =
        world.table(1, Method::GET_TABLE, P::LINUX_QUERY, wanted, key).unwrap();
    let lids: Vec<_> = paths.iter().map(|path| (path.slid.0, path.dlid.0)).collect();
    let (slid, dlid) = (world.lid(1).0, world.lid(3).0);
    assert_eq!(lids, [(slid, dlid), (slid + 1, dlid + 1)]);
    let one = PathRecord { numb_path: 1, ..wanted };
    let paths: Vec<PathRecord> =
        world.table(1, Method::GET_TABLE, P::LINUX_QUERY, one, key).unwrap();
    assert_eq!(paths.len(), 1);
}

#[test]
fn paths_between_many_are_a_table() {
    type M = MultiPathRecordMask;
    let mut world = world();
    let mut wanted = MultiPathRecord { sgid_count: 1, dgid_count: 2, ..MultiPathRecord::default() };
    wanted.gids[..3].copy_from_slice(&[world.gid(1), world.gid(2), world.gid(3)]);
    let mask = M::SGID_COUNT.with(M::DGID_COUNT);
    let paths: Vec<PathRecord> = world.table(1, Method::GET_MULTI, mask, wanted, SmKey(0)).unwrap();
    let to: Vec<_> = paths.iter().map(|path| path.dlid).collect();
    assert_eq!(to, [world.lid(2), world.lid(3)]);
    let none: Result<Vec<PathRecord>, _> =
        world.table(1, Method::GET_MULTI, M::NONE, wanted, SmKey(0));
    assert_eq!(none, Err(MadStatus::SA_INSUFFICIENT_COMPONENTS));
}

type M = McMemberRecordMask;

/// The membership of a host in the IPv4 broadcast group.
fn membership(world: &World, host: usize) -> McMemberRecord {
    McMemberRecord {
        mgid: Partitions::default().all()[0].broadcast_groups()[0],
        port_gid: world.gid(host),
        p_key: PKey::DEFAULT,
        join_state: JoinState::FULL_MEMBER,
        ..McMemberRecord::default()
    }
}

/// Another group with the properties of the broadcast group, as Linux creates it.
fn another(world: &mut World, host: usize) -> McMemberRecord {
    let broadcast = membership(world, host);
    let (_, like) = world.ask(host, Method::SET, M::LINUX_JOIN_BROADCAST, broadcast);
    let mut mgid = like.mgid;
    mgid.0[12..].copy_from_slice(&[0, 0, 0, 9]);
    McMemberRecord { mgid, join_state: JoinState::FULL_MEMBER, ..like }
}

/// The number of ports of leaf switches that lead to hosts of a group.
fn receivers(world: &World, mlid: Lid) -> usize {
    let leaves = world.subnet.nodes().iter().filter(|node| node.identity.num_ports == 4);
    let tables = leaves.filter_map(|node| node.forwarding.as_ref());
    tables.map(|tables| tables.group(mlid).iter().filter(|port| *port <= 2).count()).sum()
}

#[test]
fn hosts_join_the_broadcast_group_as_linux_does() {
    let mut world = world();
    let wanted = membership(&world, 1);
    let (status, joined) = world.ask(1, Method::SET, M::LINUX_JOIN_BROADCAST, wanted);
    assert_eq!((status, joined.mlid, joined.q_key), (MadStatus::OK, Lid(0xc000), QKey(0xb1b)));
    assert_eq!((joined.mtu, joined.rate), (Mtu::BYTES_2048, Rate::GBPS_10));
    assert_eq!((joined.port_gid, joined.join_state), (world.gid(1), JoinState::FULL_MEMBER));
    let wanted = membership(&world, 3);
    world.ask(3, Method::SET, M::LINUX_JOIN_BROADCAST, wanted);
    let leaves = [2, 5].map(|node: usize| world.subnet.nodes()[node].forwarding.as_ref().unwrap());
    let ports = leaves.map(|tables| tables.group(Lid(0xc000)).iter().collect::<Vec<_>>());
    assert_eq!((ports[0][0], ports[1][0]), (2, 2), "the second host of each leaf");
    assert_eq!((ports[0].len(), ports[0].get(1)), (2, ports[1].get(1)), "by one spine");
    let (status, left) = world.ask(1, Method::DELETE, M::LINUX_LEAVE, membership(&world, 1));
    assert_eq!((status, left.join_state), (MadStatus::OK, JoinState::NONE));
    let tables = world.subnet.nodes()[2].forwarding.as_ref().unwrap();
    assert!(tables.group(Lid(0xc000)).is_empty(), "nobody is left at this leaf");
}

/// This includes a join that arrives during a sweep, also if another group ends then.
#[test]
fn a_join_is_answered_when_the_switches_know_of_it() {
    for (is_sweeping, another_ends) in [(false, false), (true, false), (true, true)] {
        let mut world = World::new("single:4", SmConfig::default());
        let at = hosts(&world.subnet)[1];
        let other = another_ends.then(|| another(&mut world, 2));
        if let Some(other) = other {
            assert_eq!(world.ask(2, Method::SET, M::LINUX_JOIN, other).0, MadStatus::OK);
        }
        if is_sweeping {
            world.subnet.set_cable(hosts(&world.subnet)[3], false);
            world.settle();
            world.now = world.now + SmConfig::default().sweep_gap;
            world.managers.timeout(world.now);
        }
        let wanted = membership(&world, 1);
        let join = SaMad::new(Method::SET, 7, M::LINUX_JOIN_BROADCAST, wanted);
        let leave = other.map(|other| SaMad::new(Method::DELETE, 8, M::LINUX_LEAVE, other));
        for (host, question) in [(1, Some(join)), (2, leave)] {
            let Some(question) = question else { continue };
            let (slid, dlid, mad) = (world.lid(host), world.lid(0), question.emit());
            let (src_qp, dest_qp, p_key) = (Qpn::GSI, Qpn::GSI, PKey::DEFAULT);
            let question = Datagram { slid, dlid, src_qp, dest_qp, p_key, mad };
            world.subnet.send(world.now, hosts(&world.subnet)[host], question);
        }
        let mut answers = 0;
        loop {
            while let Some((end, datagram)) = world.subnet.poll_delivery() {
                if end != at {
                    world.managers.handle(world.now, end, &datagram);
                    continue;
                }
                let answer = SaMad::parse(&datagram.mad);
                let record = McMemberRecord::from_data(&answer.data);
                let tables = world.subnet.nodes()[0].forwarding.as_ref().unwrap();
                assert!(tables.group(record.mlid).contains(2), "{is_sweeping} {another_ends}");
                answers += 1;
            }
            let subnet = &mut world.subnet;
            if !world.managers.transmit(world.now, |at, mad| subnet.send(world.now, at, mad)) {
                break;
            }
        }
        assert_eq!(answers, 1);
    }
}

#[test]
fn groups_begin_and_end_with_their_full_members() {
    let mut world = world();
    let wanted = another(&mut world, 1);
    let (status, _) = world.ask(1, Method::SET, M::LINUX_JOIN_BROADCAST, wanted);
    assert_eq!(status, MadStatus::SA_INSUFFICIENT_COMPONENTS);
    let sends = McMemberRecord { join_state: JoinState::SEND_ONLY_NON_MEMBER, ..wanted };
    assert_eq!(world.ask(1, Method::SET, M::LINUX_JOIN, sends).0, MadStatus::SA_REQUEST_INVALID);
    let (status, created) = world.ask(1, Method::SET, M::LINUX_JOIN, wanted);
    assert_eq!((status, created.mlid), (MadStatus::OK, Lid(0xc002)));
    assert_eq!(receivers(&world, created.mlid), 1);
    let other = McMemberRecord { port_gid: world.gid(3), ..sends };
    let (status, joined) = world.ask(3, Method::SET, M::LINUX_JOIN, other);
    assert_eq!((status, joined.join_state), (MadStatus::OK, JoinState::SEND_ONLY_NON_MEMBER));
    assert_eq!(receivers(&world, created.mlid), 1, "who only sends does not receive");
    let leaf = world.subnet.nodes()[5].forwarding.as_ref().unwrap();
    assert!(!leaf.group(created.mlid).is_empty(), "but has a way to the tree");
    let (status, _) = world.ask(1, Method::DELETE, M::LINUX_LEAVE, wanted);
    assert_eq!(status, MadStatus::OK);
    let by_name = M::MGID;
    assert_eq!(world.ask(1, Method::GET, by_name, wanted).0, MadStatus::SA_NO_RECORDS);
    assert_eq!(receivers(&world, created.mlid), 0);
}

#[test]
fn joins_that_do_not_fit_are_refused() {
    let mut world = world();
    let wanted = another(&mut world, 1);
    world.ask(1, Method::SET, M::LINUX_JOIN, wanted);
    let invalid = MadStatus::SA_REQUEST_INVALID;
    type Edit = fn(&mut McMemberRecord);
    let cases: [(Edit, MadStatus); 8] = [
        (|record| record.q_key = QKey(5), invalid),
        (|record| record.mtu = Mtu::BYTES_1024, invalid),
        (|record| record.sl = 2, invalid),
        (|record| record.p_key = PKey(0x8123), invalid),
        (|record| record.port_gid = Gid::NONE, MadStatus::SA_INVALID_GID),
        (|record| record.join_state = JoinState::NONE, MadStatus::SA_INSUFFICIENT_COMPONENTS),
        // Other groups of IP over InfiniBand must have the properties of the broadcast group.
        (|record| (record.mgid.0[15], record.q_key) = (77, QKey(5)), invalid),
        (|record| (record.mgid.0[15], record.mtu) = (77, Mtu::BYTES_4096), invalid),
    ];
    for (number, (edit, expected)) in cases.into_iter().enumerate() {
        let mut record = wanted;
        edit(&mut record);
        assert_eq!(world.ask(1, Method::SET, M::LINUX_JOIN, record).0, expected, "{number}");
    }
    assert_eq!(world.ask(3, Method::SET, M::LINUX_JOIN, wanted).0, invalid, "for another port");
    assert_eq!(world.ask(3, Method::DELETE, M::LINUX_LEAVE, wanted).0, invalid);
    let other = McMemberRecord { join_state: JoinState::NON_MEMBER, ..wanted };
    assert_eq!(world.ask(1, Method::DELETE, M::LINUX_LEAVE, other).0, invalid, "not so a member");
    let nameless = McMemberRecord { mgid: Gid::NONE, ..wanted };
    let (status, named) = world.ask(1, Method::SET, M::LINUX_JOIN, nameless);
    assert!(status == MadStatus::OK && named.mgid.is_multicast());
}

#[test]
fn members_show_to_the_trusted_only() {
    let mut world = world();
    let wanted = membership(&world, 1);
    world.ask(1, Method::SET, M::LINUX_JOIN_BROADCAST, wanted);
    let mut list = |key| -> Vec<McMemberRecord> {
        let wanted = McMemberRecord::default();
        world.table(2, Method::GET_TABLE, M::NONE, wanted, SmKey(key)).unwrap()
    };
    let gids = |list: &[McMemberRecord]| list.iter().map(|one| one.port_gid).collect::<Vec<_>>();
    assert_eq!(gids(&list(0)), [Gid::NONE; 2], "two groups, and of nobody who is in them");
    assert_eq!(gids(&list(1)).len(), 1);
    let mut mad = SaMad::new(Method::GET_TABLE, 9, M::NONE, wanted);
    mad.sa.sm_key = SmKey(77);
    world.send(2, &mad);
    assert_eq!((world.arrived.len(), world.counters().untrusted), (0, 1));
}

#[test]
fn table_queries_return_all_records() {
    let mut world = World::new("leaf-spine:3x2x4", SmConfig::default());
    let key = SmKey(0);
    let (none, node) = (NodeRecordMask::NONE, NodeRecord::default());
    let nodes: Vec<NodeRecord> = world.table(1, Method::GET_TABLE, none, node, key).unwrap();
    let mut names: Vec<_> = nodes.iter().map(|node| node.node_description.text()).collect();
    names.sort_unstable();
    assert_eq!((names.len(), names[0], names[16]), (17, "host1", "spine2"));
    let kind = NodeRecordMask::NODE_TYPE;
    let mut wanted = node;
    wanted.node_info.node_type = NodeType::SWITCH;
    let switches: Vec<NodeRecord> = world.table(1, Method::GET_TABLE, kind, wanted, key).unwrap();
    assert_eq!(switches.len(), 5);
    let one = NodeRecord { lid: world.lid(2), ..node };
    let (status, found) = world.ask(1, Method::GET, NodeRecordMask::LID, one);
    assert_eq!((status, found.node_description.text()), (MadStatus::OK, "host3"));
    assert_eq!(world.ask(1, Method::GET, kind, wanted).0, MadStatus::SA_TOO_MANY_RECORDS);
    let links: Vec<LinkRecord> =
        world.table(1, Method::GET_TABLE, 0.into(), LinkRecord::default(), key).unwrap();
    assert_eq!(links.len(), 2 * 18);
    let tables: Vec<LftRecord> =
        world.table(1, Method::GET_TABLE, 0.into(), LftRecord::default(), key).unwrap();
    assert_eq!(tables.len(), 5);
    let mut manager = SaMad::new(Method::GET_TABLE, 3, PortInfoRecordMask::CAPABILITY_MASK, {
        let mut wanted = PortInfoRecord::default();
        wanted.port_info.capability_mask = CapabilityMask::SM;
        wanted
    });
    manager.header.attribute_modifier = 1 << 31;
    world.arrived.clear();
    world.send(1, &manager);
    let (_, found) = world.arrived[0];
    let found = PortInfoRecord::from_data(&found.data);
    assert_eq!((found.lid, world.arrived.len()), (world.lid(0), 1), "the manager's port alone");
}

#[test]
fn services_are_announced_for_a_time() {
    type S = ServiceRecordMask;
    let mut world = world();
    let service = ServiceRecord {
        service_id: ServiceId(5),
        service_gid: world.gid(1),
        service_p_key: PKey::DEFAULT,
        service_lease_s: 10,
        service_key: [7; 16],
        ..ServiceRecord::default()
    };
    let all = S::SERVICE_ID.with(S::SERVICE_GID).with(S::SERVICE_P_KEY).with(S::SERVICE_LEASE);
    assert_eq!(world.ask(1, Method::SET, all, service).0, MadStatus::OK);
    let thief = ServiceRecord { service_key: [8; 16], ..service };
    assert_eq!(world.ask(2, Method::SET, all, thief).0, MadStatus::SA_DENIED);
    assert_eq!(world.ask(2, Method::DELETE, all, thief).0, MadStatus::SA_DENIED);
    let (status, found) = world.ask(2, Method::GET, S::SERVICE_ID, service);
    assert_eq!((status, found.service_gid), (MadStatus::OK, world.gid(1)));
    assert_eq!((found.service_key, found.service_lease_s), ([0; 16], 10));
    world.pass(11);
    assert_eq!(world.ask(2, Method::GET, S::SERVICE_ID, service).0, MadStatus::SA_NO_RECORDS);
    world.ask(1, Method::SET, all, service);
    assert_eq!(world.ask(1, Method::DELETE, all, service).0, MadStatus::OK);
    assert_eq!(world.ask(2, Method::GET, S::SERVICE_ID, service).0, MadStatus::SA_NO_RECORDS);
}

fn subscription(trap_number: TrapNumber) -> InformInfo {
    InformInfo {
        lid_range_begin: Lid::PERMISSIVE,
        is_generic: 1,
        subscribe: 1,
        notice_type: 0xffff,
        trap_number,
        producer: ProducerType(0xff_ffff),
        ..InformInfo::default()
    }
}

fn reports(world: &World) -> Vec<(TrapNumber, Gid)> {
    let reports = world.arrived.iter().filter(|(_, mad)| mad.header.method == Method::REPORT);
    let notices = reports.map(|(_, mad)| NoticeReport::from_data(&mad.data).notice);
    let gid = |notice: Notice| match notice.details() {
        TrapDetails::Gid(GidTrap { gid }) => (notice.trap_number, gid),
        _ => (notice.trap_number, Gid::NONE),
    };
    notices.map(gid).collect()
}

#[test]
fn subscribers_hear_of_groups_and_ports() {
    let mut world = world();
    let all = subscription(TrapNumber(0xffff));
    assert_eq!(world.ask(2, Method::SET, 0, all).0, MadStatus::OK);
    let wanted = another(&mut world, 1);
    world.arrived.clear();
    world.send(1, &SaMad::new(Method::SET, 7, M::LINUX_JOIN, wanted));
    let created = TrapNumber::MULTICAST_GROUP_CREATED;
    assert_eq!(reports(&world), [(created, wanted.mgid)]);
    world.pass(5);
    assert_eq!(reports(&world), [(created, wanted.mgid); 3], "three times, for want of an answer");
    let gid = world.gid(3);
    world.arrived.clear();
    let cable = hosts(&world.subnet)[3];
    world.subnet.set_cable(cable, false);
    world.settle();
    world.pass(1);
    let heard = reports(&world);
    assert!(heard.contains(&(TrapNumber::LINK_STATE_CHANGED, Gid::NONE)), "{heard:?}");
    assert!(heard.contains(&(TrapNumber::GID_OUT_OF_SERVICE, gid)), "{heard:?}");
    let (_, report) = world.arrived[0];
    let header = MadHeader { method: Method::REPORT_RESP, ..report.header };
    let strays = world.counters().strays;
    world.send(2, &SaMad { header, ..report });
    assert_eq!(world.counters().strays, strays, "it was asked for");
    assert_eq!(world.ask(2, Method::SET, 0, InformInfo { subscribe: 0, ..all }).0, MadStatus::OK);
    let again = world.ask(2, Method::SET, 0, InformInfo { subscribe: 0, ..all }).0;
    assert_eq!(again, MadStatus::SA_REQUEST_INVALID);
}

#[test]
fn members_that_are_gone_are_members_no_more() {
    let mut world = world();
    let wanted = another(&mut world, 1);
    world.ask(1, Method::SET, M::LINUX_JOIN, wanted);
    let cable = hosts(&world.subnet)[1];
    world.subnet.set_cable(cable, false);
    world.settle();
    world.pass(1);
    assert_eq!(world.ask(2, Method::GET, M::MGID, wanted).0, MadStatus::SA_NO_RECORDS);
}

#[test]
fn class_port_info_has_the_capabilities_of_the_administrator() {
    let mut world = world();
    let (status, info) = world.ask(1, Method::GET, 0, ClassPortInfo::default());
    assert_eq!((status, info.capability_mask2), (MadStatus::OK, 1 << 12));
    assert_eq!((info.class_version, info.trap.lid), (2, world.lid(0)));
}

#[test]
fn a_flood_is_sent_away_and_does_not_keep_the_manager_from_its_work() {
    let mut world = world();
    let (at, slid) = (hosts(&world.subnet)[0], world.lid(1));
    let wanted = path(&world, 1, 2);
    let mad = |id| SaMad::new(Method::GET, id, P::LINUX_QUERY, wanted).emit();
    for id in 0..20_000 {
        let dlid = world.lid(0);
        let (src_qp, p_key, mad) = (Qpn::GSI, PKey::DEFAULT, mad(id));
        let datagram = Datagram { slid, dlid, src_qp, dest_qp: src_qp, p_key, mad };
        world.managers.handle(world.now, at, &datagram);
    }
    let counters = world.counters();
    assert!(counters.busy > 10_000 && counters.lost > 10_000);
    // A cable is unplugged while thousands of queries and answers wait.
    let cable = hosts(&world.subnet)[3];
    world.subnet.set_cable(cable, false);
    world.settle();
    world.pass(1);
    let statuses: Vec<_> = world.arrived.iter().map(|(_, mad)| mad.header.status).collect();
    let of = |status| statuses.iter().filter(|one| **one == status).count();
    assert_eq!(of(MadStatus::OK), QUESTIONS_MAX);
    assert_eq!(of(MadStatus::BUSY), OUTGOING_MAX);
    assert!(world.managers.at(at).unwrap().is_settled());
    let wanted = path(&world, 1, 3);
    let (status, _) = world.ask(1, Method::GET, P::LINUX_QUERY, wanted);
    assert_eq!(status, MadStatus::SA_INVALID_GID, "the port is gone");
}

#[test]
fn untaken_tables_are_limited_in_number_and_time() {
    let mut world = world();
    let ask = |world: &mut World, id| {
        let mask = NodeRecordMask::NONE;
        let mad = SaMad::new(Method::GET_TABLE, id, mask, NodeRecord::default());
        world.arrived.clear();
        world.send(1, &mad);
        world.arrived[0].1.header.status
    };
    for id in 0..TRANSFERS_MAX as u64 {
        assert_eq!(ask(&mut world, id), MadStatus::OK);
    }
    assert_eq!(ask(&mut world, 999), MadStatus::BUSY);
    world.pass(10);
    assert_eq!(ask(&mut world, 999), MadStatus::OK);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_datagram_is_answered_or_counted(
        mads in prop::collection::vec(
            (any::<[u8; 32]>(), 0usize..10, 0usize..16, any::<u64>(), any::<bool>()), 1..60),
    ) {
        const METHODS: [u8; 10] = [1, 2, 0x12, 0x15, 0x14, 0x86, 0x12, 0x92, 2, 0x15];
        const ATTRIBUTES: [u8; 16] = [
            1, 3, 0x11, 0x12, 0x14, 0x15, 0x17, 0x18, 0x20, 0x31, 0x33, 0x35, 0x38, 0x3a, 0xf3, 0,
        ];
        let mut world = World::new("single:2", SmConfig::default());
        for (filling, method, attribute, mask, is_segment) in mads {
            let mut mad = [0; MAD_LEN];
            mad.chunks_exact_mut(32).for_each(|part| part.copy_from_slice(&filling));
            mad[..4].copy_from_slice(&[1, 3, 2, METHODS[method]]);
            mad[16..18].copy_from_slice(&[0, ATTRIBUTES[attribute]]);
            mad[24..44].fill(0);
            if is_segment {
                mad[24..36].copy_from_slice(&filling[..12]);
            }
            mad[48..56].copy_from_slice(&mask.to_be_bytes());
            let gid = world.gid(usize::from(filling[0] & 1));
            mad[72..88].copy_from_slice(&gid.0);
            let mad = SaMad::parse(&mad);
            world.arrived.clear();
            let before = world.counters();
            world.send(1, &mad);
            let is_handled = world.counters() != before || !world.arrived.is_empty();
            let is_about_a_transfer = mad.rmpp.active;
            prop_assert!(is_handled || is_about_a_transfer, "{:?}", mad.header);
        }
        let wanted = PathRecord { dgid: world.gid(0), sgid: world.gid(1), ..PathRecord::default() };
        let mask = P::DGID.with(P::SGID);
        let (status, _) = world.ask(1, Method::GET, mask, wanted);
        prop_assert_eq!(status, MadStatus::OK);
    }
}

#[test]
fn an_unknown_guid_matches_no_port() {
    let mut world = world();
    let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0));
    let wanted = PathRecord { dgid: gid, ..path(&world, 1, 1) };
    let (status, _) = world.ask(1, Method::GET, P::LINUX_QUERY, wanted);
    assert_eq!(status, MadStatus::SA_INVALID_GID);
}
