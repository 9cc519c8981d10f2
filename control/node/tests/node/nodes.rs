//! Two nodes of ours at one fabric.

use crate::fabric::{Manager, Running};
use crate::guest::Opensm;
use crate::host::{Hosts, TIMEOUT};
use pollux_control::ipoib::InterfaceState;
use pollux_node::admin::request::{AdminRequest, AdminTable};
use pollux_node::interface::echo::EchoOutcome;
use pollux_node::interface::{NotSent, PingError};
use pollux_referee::tshark::dissect;
use pollux_verbs::QpType;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::ipv4::Ipv4Header;
use std::net::Ipv4Addr;

/// Two interfaces of a mode that are up.
fn two(fabric: &Running, mode: &str) -> Hosts {
    let mut hosts =
        Hosts::at(&[(fabric.port(1), "10.0.0.1/24"), (fabric.port(2), "10.0.0.2/24")], mode);
    hosts.come_up();
    hosts
}

#[test]
fn two_nodes_resolve_and_answer_each_other_by_datagrams() {
    let test = "two_nodes_resolve_and_answer_each_other_by_datagrams";
    let fabric = Running::start(test, 2, Manager::Ours);
    let mut hosts = two(&fabric, "ud");
    for bytes in [0, 1, 56, 2044 - 28] {
        hosts.must_answer(0, "10.0.0.2", bytes);
        hosts.must_answer(1, "10.0.0.1", bytes);
    }
    let peer = hosts.link_local(1);
    for bytes in [56, 2044 - 48] {
        hosts.must_answer(0, &peer, bytes);
    }
    drop(hosts);
    let packets = fabric.end();
    let bytes: Vec<_> = packets.iter().map(Vec::as_slice).collect();
    let Some(rows) = dissect(test, &bytes, &["arp.hw.type", "icmp.type", "icmpv6.type"]) else {
        return;
    };
    let malformed: Vec<_> = rows.iter().filter(|row| !row.malformed.is_empty()).collect();
    assert!(
        malformed.is_empty(),
        "{} of {}: {}",
        malformed.len(),
        rows.len(),
        malformed[0].malformed
    );
    let seen = |field: usize, value: &str| rows.iter().any(|row| row.values[field] == value);
    assert!(seen(0, "32") && seen(1, "0") && seen(1, "8") && seen(2, "129") && seen(2, "135"));
}

#[test]
fn pings_that_are_too_long_or_without_a_route_have_their_reason() {
    let fabric = Running::start("pings_have_their_reason", 2, Manager::Ours);
    let mut hosts = two(&fabric, "ud");
    hosts.must_answer(0, "10.0.0.2", 56);
    let too_big = EchoOutcome::NotSent(NotSent::TooBig(2044));
    assert_eq!(hosts.ping(0, "10.0.0.2", 2044 - 28 + 1), too_big);
    assert_eq!(hosts.ping(0, "10.0.0.9", 56), EchoOutcome::Unreachable);
}

/// The longest packets of connections, in both directions and families.
fn connected(test: &str, mode: &str, qp_type: QpType) {
    let fabric = Running::start(test, 2, Manager::Ours);
    let mut hosts = two(&fabric, mode);
    for bytes in [56, 2044 - 28, 2044 - 28 + 1, 65_520 - 28] {
        hosts.must_answer(0, "10.0.0.2", bytes);
        hosts.must_answer(1, "10.0.0.1", bytes);
    }
    let peer = hosts.link_local(1);
    hosts.must_answer(0, &peer, 65_520 - 48);
    for host in 0..2 {
        // One connection, for both directions and both families.
        let rows = hosts.connections(host);
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((row.qp_type, row.mtu, row.may_send), (qp_type, 65_520, true));
        let counts = hosts.hosts[host].driver().connection_use(row.connection).expect("it is open");
        assert!(counts.sent >= 4 && counts.received >= 4, "{counts:?}");
    }
    assert_eq!(
        hosts.ping(0, "10.0.0.2", 65_520 - 27),
        EchoOutcome::NotSent(NotSent::TooBig(65_520))
    );
    // The peer gets the end of the connection, and does not find out by silence.
    let now = hosts.now();
    hosts.hosts[0].leave(now);
    hosts.until("left", |hosts| hosts.hosts[0].has_left() && hosts.connections(1).is_empty());
    let ended = hosts.hosts[1].control().drop_rows().find(|row| row.1 == "peer_ended");
    assert_eq!(ended.map(|(_, _, count)| count), Some(1));
}

// req: cm-rc, cm-connection-per-link-address, cm-teardown-with-interface
#[test]
fn two_nodes_exchange_the_longest_packets_by_reliable_connections() {
    connected("two_nodes_exchange_the_longest_packets_by_rc", "rc", QpType::Rc);
}

// req: cm-uc
#[test]
fn two_nodes_exchange_the_longest_packets_by_unreliable_connections() {
    connected("two_nodes_exchange_the_longest_packets_by_uc", "uc", QpType::Uc);
}

// req: cm-receive-mtu
#[test]
fn a_connection_takes_what_the_side_takes_that_takes_less() {
    let fabric = Running::start("a_connection_takes_the_less", 2, Manager::Ours);
    let mut hosts = Hosts::with(&[(fabric.port(1), "10.0.0.1/24")], "mode = 'rc'\nmtu = 9000");
    hosts.join(Hosts::at(&[(fabric.port(2), "10.0.0.2/24")], "rc"));
    hosts.come_up();
    for (host, to) in [(0, "10.0.0.2"), (1, "10.0.0.1")] {
        hosts.must_answer(host, to, 9000 - 28);
        let too_long = hosts.ping(host, to, 9000 - 27);
        assert_eq!(too_long, EchoOutcome::NotSent(NotSent::TooBig(9000)), "from {host}");
    }
}

/// Partitions beside the default one: in the first all are full members, in the second none is.
pub const PARTITIONS: &str = "Default=0x7fff, ipoib, defmember=full : ALL=full, SELF=full;
    one=0x1, ipoib, defmember=full : ALL=full, SELF=full;
    two=0x2, ipoib, defmember=limited : ALL=limited, SELF=limited;";

// req: ud-pkey-configured
#[test]
fn a_partition_is_a_link_of_its_own() {
    let test = "a_partition_is_a_link_of_its_own";
    let fabric = Running::partitioned(test, 3, PARTITIONS);
    let ports = [1, 2, 3].map(|host| fabric.port(host));
    let [one, two, three] = ports;
    let keys = "mode = 'rc'\npkey = 0x8001";
    let mut hosts = Hosts::with(&[(one, "10.0.1.1/24"), (two, "10.0.1.2/24")], keys);
    hosts.come_up();
    for bytes in [56, 60_000] {
        hosts.must_answer(0, "10.0.1.2", bytes);
        hosts.must_answer(1, "10.0.1.1", bytes);
    }
    // A host in another partition has the same address, and is no neighbor.
    let mut other = Hosts::at(&[(three, "10.0.1.2/24")], "rc");
    other.come_up();
    assert_eq!(other.ping(0, "10.0.1.1", 56), EchoOutcome::Unreachable);
    let packets = fabric.end();
    let bytes: Vec<_> = packets.iter().map(Vec::as_slice).collect();
    let fields = ["infiniband.bth.p_key", "icmp.type"];
    let Some(rows) = dissect(test, &bytes, &fields) else { return };
    let echoes: Vec<_> = rows.iter().filter(|row| !row.values[1].is_empty()).collect();
    assert!(!echoes.is_empty());
    assert!(echoes.iter().all(|row| row.values[0] == "32769"), "{:?}", echoes[0].values);
}

/// The file that OpenSM is installed with, which lets hosts talk with the administrator only, and a
/// partition of their own.
#[test]
fn limited_members_of_the_default_partition_join_their_own() {
    let test = "limited_members_of_the_default_partition_join_their_own";
    let file = "Default=0x7fff, ipoib : ALL=limited, SELF=full;
        one=0x1, ipoib, defmember=full : ALL=full, SELF=full;";
    let fabric = Running::partitioned(test, 2, file);
    let ports = [(fabric.port(1), "10.0.1.1/24"), (fabric.port(2), "10.0.1.2/24")];
    let mut hosts = Hosts::with(&ports, "mode = 'rc'\npkey = 0x8001");
    hosts.come_up();
    for bytes in [56, 60_000] {
        hosts.must_answer(0, "10.0.1.2", bytes);
    }
    let nodes = fabric.ask(&AdminRequest::Show(AdminTable::Nodes));
    assert!(!nodes.contains("p_key"), "nobody drops anything for its key: {nodes}");
}

// req: ud-pkey-configured
#[test]
fn interfaces_of_several_partitions_share_a_port() {
    let test = "interfaces_of_several_partitions_share_a_port";
    let fabric = Running::partitioned(test, 2, PARTITIONS);
    let keys = ["mode = 'rc'", "mode = 'rc'\npkey = 0x8001"];
    let node = |host: usize, addresses: [&str; 2]| {
        let [one, two] = addresses;
        Hosts::sharing(&fabric.port(host), &[(one, keys[0]), (two, keys[1])])
    };
    let mut hosts = node(1, ["10.0.0.1/24", "10.0.0.3/24"]);
    hosts.join(node(2, ["10.0.0.2/24", "10.0.0.4/24"]));
    hosts.come_up();
    for bytes in [56, 60_000] {
        for (host, to) in [(0, "10.0.0.2"), (1, "10.0.0.4"), (2, "10.0.0.1"), (3, "10.0.0.3")] {
            hosts.must_answer(host, to, bytes);
        }
    }
    // One subnet of addresses, and yet no host of the other partition is a neighbor.
    for (host, to) in [(0, "10.0.0.3"), (0, "10.0.0.4"), (1, "10.0.0.2"), (2, "10.0.0.3")] {
        assert_eq!(hosts.ping(host, to, 56), EchoOutcome::Unreachable, "{host} to {to}");
    }
    for host in 0..4 {
        let rows = hosts.connections(host);
        let [row] = &rows[..] else { panic!("{host}: {rows:?}") };
        assert_eq!((row.qp_type, row.mtu), (QpType::Rc, 65_520));
    }
    let now = hosts.now();
    hosts.hosts[1].leave(now);
    hosts.until("left", |hosts| hosts.hosts[1].has_left() && hosts.connections(3).is_empty());
    hosts.must_answer(0, "10.0.0.2", 60_000);
    // Queue pair 1 spoke for both partitions, in the one that each message was about.
    let packets = fabric.end();
    let bytes: Vec<_> = packets.iter().map(Vec::as_slice).collect();
    let fields = ["infiniband.bth.p_key", "infiniband.cm.req.pkey"];
    let Some(rows) = dissect(test, &bytes, &fields) else { return };
    let requests: Vec<_> = rows.iter().filter(|row| !row.values[1].is_empty()).collect();
    for partition in ["65535", "32769"] {
        assert!(requests.iter().any(|row| row.values[0] == partition), "none in {partition}");
    }
}

// req: ud-group-create
#[test]
fn opensm_makes_the_groups_that_we_join() {
    let test = "opensm_makes_the_groups_that_we_join";
    let fabric = Running::start(test, 3, Manager::Umad);
    let Some(opensm) = Opensm::start(test, &fabric) else { return };
    let devices = [(fabric.port(1), "10.0.0.1/24"), (fabric.port(3), "10.0.0.3/24")];
    let mut hosts = Hosts::at(&devices, "ud");
    hosts.come_up();
    let (now, group) = (hosts.now(), Ipv4Addr::new(239, 1, 2, 3));
    hosts.hosts[0].interface_mut().serve_sockets(now);
    assert!(hosts.hosts[0].interface_mut().join_group(now, group.into()));
    let header = Ipv4Header {
        source: Ipv4Addr::new(10, 0, 0, 3),
        destination: group,
        protocol: IpProtocol::UDP,
        ..Ipv4Header::default()
    };
    let mut packet = vec![0; 100];
    header.write_packet(&[], 80, &mut packet).expect("it has space");
    hosts.until("heard", |hosts| {
        let now = hosts.now();
        let [hearer, sender] = &mut hosts.hosts[..] else { panic!("there are two") };
        // A host that sends before the group exists queries again at the notice of its creation.
        let _sent = sender.send(now, &packet);
        hearer.0.worker.poll_delivery().is_some_and(|delivery| delivery.packet == packet)
    });
    drop((hosts, opensm));
    let packets = fabric.end();
    let bytes: Vec<_> = packets.iter().map(Vec::as_slice).collect();
    let fields = ["mgid", "q_key", "p_key", "mtu", "rate", "tclass", "sl", "flowlabel", "hoplimit"];
    let fields = fields.map(|field| format!("infiniband.mcmemberrecord.{field}"));
    let fields: Vec<_> =
        [vec!["infiniband.mad.method"], fields.iter().map(|it| &**it).collect()].concat();
    let Some(rows) = dissect(test, &bytes, &fields) else { return };
    // The fields of a group in OpenSM, but for its name.
    let like = |group: &str| {
        let answers = rows.iter().filter(|row| row.values[0] == "0x81" && row.values[1] == group);
        answers.map(|row| row.values[2..].to_vec()).next().expect("it was joined")
    };
    assert_eq!(like("ff12:401b:ffff::f01:203"), like("ff12:401b:ffff::ffff:ffff"));
}

// req: ud-full-member
#[test]
fn a_limited_member_stays_down_and_says_why() {
    let fabric = Running::partitioned("a_limited_member_stays_down", 1, PARTITIONS);
    let mut hosts = Hosts::with(&[(fabric.port(1), "10.0.2.1/24")], "pkey = 0x8002");
    hosts.until("limited", |hosts| {
        *hosts.hosts[0].control().state() == InterfaceState::LimitedMember
    });
    let why = hosts.hosts[0].control().row().why;
    assert!(why.contains("limited member"), "{why}");
    let now = hosts.now();
    let refused = hosts.hosts[0].ping(now, Ipv4Addr::new(10, 0, 2, 2).into(), 56, TIMEOUT);
    assert_eq!(refused, Err(PingError::Down));
}
