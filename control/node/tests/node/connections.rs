//! Connections with Linux: the side that connects, its service ID, and the longest packet.

use crate::fabric::{Manager, Running};
use crate::guest::Guest;
use crate::host::{Hosts, TIMEOUT};
use crate::meeting::Meeting;
use pollux_control::cm::Role;
use pollux_node::interface::NotSent;
use pollux_node::interface::echo::EchoOutcome;
use pollux_referee::tshark::PacketRow;
use pollux_verbs::time::Time;
use pollux_wire::mad::cm::ipoib::Dialect;

/// The kind of a message of connection management, and its sender.
const FIELDS: [&str; 5] = [
    "infiniband.mad.mgmtclass",
    "infiniband.mad.attributeid",
    "infiniband.cm.req.serviceid",
    "infiniband.cm.rej.reason",
    "infiniband.lrh.slid",
];

/// The fields of a message of connection management that matter here.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Message {
    Req { service_id: u64, from: String },
    Rej { reason: String },
    Other,
}

/// Those messages, in order. The capture has each at every link that it crosses: once is enough.
fn messages(rows: &[PacketRow]) -> Vec<Message> {
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let managed = rows.iter().filter(|row| row.values[0] == "0x07");
    let mut all: Vec<_> = managed
        .map(|row| match number(&row.values[1]) {
            Some(0x10) => Message::Req {
                service_id: number(&row.values[2]).expect("it has one"),
                from: row.values[4].clone(),
            },
            Some(0x12) => Message::Rej { reason: row.values[3].clone() },
            _ => Message::Other,
        })
        .collect();
    all.dedup();
    all
}

// req: cm-linux-dialect, cm-rc
#[test]
fn each_side_sends_by_the_connection_that_it_asked_for() {
    let test = "each_side_sends_by_the_connection_that_it_asked_for";
    let modes = ["rc", "connected"];
    let Some(mut meeting) = Meeting::arrange(test, Manager::Ours, modes) else { return };
    meeting.ping(65_000);
    let rows = meeting.connections();
    let roles: Vec<_> = rows.iter().map(|row| (row.role, row.may_send)).collect();
    assert_eq!(roles.len(), 2, "{rows:?}");
    assert!(roles.contains(&(Role::Active, true)) && roles.contains(&(Role::Passive, false)));
    meeting.end(test, &[]);
}

// req: cm-accept-all-modes, cm-flags-ud-only, cm-service-id-linux
#[test]
fn each_side_alone_may_want_connections() {
    let test = "each_side_alone_may_want_connections";
    let modes = ["rc", "datagram"];
    let Some(mut meeting) = Meeting::arrange(test, Manager::Ours, modes) else { return };
    // Linux accepts; its answers go by datagram, so they are no longer than that.
    for bytes in [56, 2044 - 28] {
        meeting.ping(bytes);
    }
    let rows = meeting.connections();
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((row.role, row.dialect), (Role::Active, Dialect::Linux));

    // We accept, and send by datagram.
    let peer = "mode = 'rc'\n[[interface.ib0.peer]]\naddress = '10.0.0.2'\nmode = 'ud'";
    meeting.change([peer, "connected"]);
    for bytes in [56, 2044 - 28] {
        meeting.ping(bytes);
    }
    let rows = meeting.connections();
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((row.role, row.may_send), (Role::Passive, false));

    // We offer none, and none is asked for.
    meeting.change(["mode = 'ud'", "connected"]);
    for bytes in [56, 2044 - 28] {
        meeting.ping(bytes);
    }
    let known = meeting.linux("ip neigh show dev ib0 to 10.0.0.1");
    assert!(known.contains("lladdr 00:"), "flags of connected mode in {known}");
    assert!(!meeting.linux("rdma resource show qp").contains("type RC"));

    // We asked first: by the service ID of RFC 4755 3.5, and when that was refused by Linux's.
    let Some(rows) = meeting.end(test, &FIELDS) else { return };
    let all = messages(&rows);
    let [
        Message::Req { service_id, .. },
        Message::Rej { reason },
        Message::Req { service_id: other, .. },
        ..,
    ] = &all[..]
    else {
        panic!("{all:?}")
    };
    assert_eq!((service_id >> 56, reason.as_str(), other >> 56), (0x01, "0x0008", 0x10));
}

// req: cm-receive-mtu
#[test]
fn either_side_may_take_less() {
    let test = "either_side_may_take_less";
    let keys = "mode = 'rc'\nmtu = 9000";
    let Some(mut meeting) = Meeting::with(test, Manager::Ours, [keys, "connected"], "use_srq=0")
    else {
        return;
    };
    // Linux's adapter shares no receives here, so every connection has its own.
    meeting.ping(9000 - 28);
    let too_long = meeting.hosts.ping(0, "10.0.0.2", 9000 - 27);
    assert_eq!(too_long, EchoOutcome::NotSent(NotSent::TooBig(9000)));
    let (status, output) = meeting.linux_says("ping -Mdo -c2 -i0.5 -W1 -s8973 10.0.0.1");
    assert_ne!(status, 0, "{output}");
    // Linux takes that for a sign that the way is no wider than a datagram.
    assert!(meeting.linux("ip route get 10.0.0.1").contains("mtu 2044"));
    meeting.linux("ip route flush cache");

    // Linux receives whatever its buffers take; its MTU is for what it sends.
    meeting.change(["mode = 'rc'", "connected"]);
    meeting.linux("ip link set ib0 mtu 9000");
    meeting.ping(9000 - 28);
    let before = meeting.echoes_heard();
    assert_eq!(meeting.hosts.ping(0, "10.0.0.2", 65_000), EchoOutcome::Silence);
    assert_eq!(meeting.echoes_heard(), before + 1, "the answer came in pieces, the question whole");
    meeting.end(test, &[]);
}

impl Meeting {
    /// Echo requests that Linux has received.
    fn echoes_heard(&mut self) -> u32 {
        let output = self.linux("awk '/^Icmp:/ { print $10 }' /proc/net/snmp | tail -n1");
        output.trim().parse().expect("a number")
    }
}

/// How often both begin at once, each time with an interface of ours that Linux does not know yet.
const CROSSINGS: usize = 100;

// req: cm-linux-dialect
#[test]
fn both_ask_at_once_a_hundred_times() {
    let test = "both_ask_at_once_a_hundred_times";
    let fabric = Running::start(test, CROSSINGS, Manager::Ours);
    let Some(guest) = Guest::start(test, &fabric.wire(1)) else { return };
    let hosts = Hosts::with(&[], "");
    let mut meeting = Meeting { fabric, guest, hosts, traffic: None, opensm: None };
    meeting.linux("ipoib_up 10.0.0.2/24 connected");
    for round in 1..=CROSSINGS {
        let address = format!("10.0.0.{}/24", 10 + round);
        let device = [(meeting.fabric.port(round), address.as_str())];
        meeting.hosts = Hosts::with(&device, "mode = 'rc'\nipv6 = false");
        meeting.hosts.come_up();
        // We want a connection for our question and Linux one for its answer. Where the guest is
        // slow, ours has to be made again.
        while meeting.connections().len() < 2 {
            assert!(meeting.hosts.now() < Time::START + TIMEOUT, "round {round}");
            meeting.hosts.ping(0, "10.0.0.2", 1000);
        }
        let roles: Vec<_> = meeting.connections().iter().map(|row| row.role).collect();
        assert!(roles.contains(&Role::Active) && roles.contains(&Role::Passive), "round {round}");
        meeting.hosts.must_answer(0, "10.0.0.2", 10_000);
        meeting.leave();
    }
    meeting.linux("wait_for 10 no_connections");
    let Some(rows) = meeting.end(test, &FIELDS) else { return };
    let all = messages(&rows);
    let is_crossing = |pair: &&[Message]| match pair {
        [Message::Req { from, .. }, Message::Req { from: other, .. }] => from != other,
        _ => false,
    };
    let crossings = all.windows(2).filter(is_crossing).count();
    println!("requests crossed {crossings} times in {CROSSINGS} rounds");
    assert!(crossings > 0);
}
