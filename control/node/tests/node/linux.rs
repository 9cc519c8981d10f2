//! Linux's own IP over InfiniBand as our peer, with our subnet manager between both.

use crate::fabric::{Manager, Running};
use crate::guest::{Guest, Opensm};
use crate::host::{Hosts, PATIENCE};
use crate::nodes::PARTITIONS;
use pollux_control::cm::Role;
use pollux_control::neighbour::State;
use pollux_node::interface::echo::Outcome;
use pollux_referee::tshark::dissect;
use pollux_wire::mad::cm::ipoib::Dialect;

/// A fabric with a guest at its switch and an interface of ours at its first host, both up.
struct Meeting {
    fabric: Running,
    guest: Guest,
    hosts: Hosts,
    _opensm: Option<Opensm>,
}

impl Meeting {
    /// With our mode and that of Linux; `None` after having said that `test` is skipped.
    fn arrange(test: &str, manager: Manager, [ours, theirs]: [&str; 2]) -> Option<Self> {
        let fabric = Running::start(test, 2, manager);
        let opensm = match manager {
            Manager::Umad => Some(Opensm::start(test, &fabric)?),
            _ => None,
        };
        let mut guest = Guest::start(test, &fabric.folder.join("wire"))?;
        if manager == Manager::Guest {
            guest.begin("sm_start && wait_active");
            assert_eq!(guest.answer(), (0, String::new()));
        }
        let hosts = Hosts::at(&[(fabric.port(1), "10.0.0.1/24")], ours);
        let mut meeting = Self { fabric, guest, hosts, _opensm: opensm };
        meeting.hosts.come_up();
        meeting.linux(&format!("ipoib_up 10.0.0.2/24 {theirs}"));
        Some(meeting)
    }

    /// Has the guest do something, which must succeed, while our side goes on.
    fn linux(&mut self, command: &str) -> String {
        let (status, output) = self.linux_says(command);
        assert_eq!(status, 0, "{command}: {output}");
        output
    }

    fn linux_says(&mut self, command: &str) -> (i64, String) {
        let Self { guest, hosts, .. } = self;
        guest.begin(command);
        std::thread::scope(|scope| {
            let answer = scope.spawn(|| guest.answer());
            let begun = hosts.now();
            while !answer.is_finished() {
                assert!(hosts.now() < begun + 3 * PATIENCE, "{command} does not end");
                hosts.step();
            }
            answer.join().expect("it answers")
        })
    }

    /// Another guest in the place of this one, which nobody asked to end.
    fn reboot(&mut self, test: &str, mode: &str) {
        self.guest.kill();
        let wire = self.fabric.folder.join("wire");
        self.guest = Guest::start(test, &wire).expect("there was one before");
        self.linux(&format!("ipoib_up 10.0.0.2/24 {mode}"));
    }

    /// Waits until each gets answers from the other, to packets that need a connection.
    fn must_reach_each_other(&mut self) {
        let begun = self.hosts.now();
        while !matches!(self.hosts.ping(0, "10.0.0.2", 65_000), Outcome::Answered { .. }) {
            assert!(self.hosts.now() < begun + PATIENCE, "no answer from Linux");
        }
        self.linux("wait_for 30 ping -c1 -W1 -s65000 10.0.0.1");
    }

    /// The address that Linux has of its port.
    fn link_local(&mut self) -> String {
        let shown = self.linux("ip -6 -o addr show dev ib0 scope link");
        let address = shown.split_whitespace().find(|word| word.starts_with("fe80::"));
        let (address, _) = address.and_then(|word| word.split_once('/')).expect("it has one");
        address.into()
    }

    /// Either has the other's addresses in its cache.
    fn must_know_each_other(&mut self, ours: [&str; 2], theirs: [&str; 2]) {
        let (control, now) = (self.hosts.hosts[0].control(), self.hosts.now());
        for ip in theirs {
            let row = control.neighbour_rows(now).find(|row| row.ip.to_string() == ip);
            let state = row.expect("it was asked for").state;
            let is_known = !matches!(state, State::Incomplete { .. } | State::Failed { .. });
            assert!(is_known, "{ip}: {state:?}");
        }
        let known = self.linux("ip neigh show dev ib0");
        for ip in ours {
            let is_known = |line: &str| line.starts_with(ip) && line.contains("lladdr");
            assert!(known.lines().any(is_known), "{ip} is not in {known}");
        }
    }

    /// Ends it. Neither Linux nor tshark may have found anything wrong with what was on the wire.
    fn must_be_well_formed(mut self, test: &str) {
        assert_eq!(self.linux("counter port_rcv_errors").trim(), "0");
        let Self { fabric, guest, hosts, _opensm } = self;
        drop((guest, hosts, _opensm));
        let packets = fabric.end();
        let octets: Vec<_> = packets.iter().map(Vec::as_slice).collect();
        let Some(rows) = dissect(test, &octets, &["infiniband.bth.opcode"]) else { return };
        let malformed: Vec<_> = rows.iter().map(|row| &row.malformed).collect();
        let malformed: Vec<_> = malformed.into_iter().filter(|why| !why.is_empty()).collect();
        assert!(malformed.is_empty(), "{} of {}: {malformed:?}", malformed.len(), rows.len());
    }
}

/// Neither side has connections.
const DATAGRAMS: [&str; 2] = ["ud", "datagram"];

/// Both ask each other, of both families, with packets from short to as long as the link takes.
fn ping_both_ways(meeting: &mut Meeting) {
    // Linux asks for us first, and then we for Linux.
    meeting.linux("wait_for 10 ping -c1 -W1 10.0.0.1");
    meeting.linux("ip neigh flush all");
    for octets in [56, 1000, 2044 - 28] {
        meeting.hosts.must_answer(0, "10.0.0.2", octets);
        meeting.linux(&format!("ping -c3 -i0.2 -W2 -s{octets} 10.0.0.1"));
    }
    let (ours, theirs) = (meeting.hosts.link_local(0), meeting.link_local());
    meeting.linux(&format!("wait_for 10 ping -c1 -W1 {ours}%ib0"));
    for octets in [56, 2044 - 48] {
        meeting.hosts.must_answer(0, &theirs, octets);
        meeting.linux(&format!("ping -c3 -i0.2 -W2 -s{octets} {ours}%ib0"));
    }
    meeting.must_know_each_other(["10.0.0.1", &ours], ["10.0.0.2", &theirs]);
}

// req: ud-arp, ud-nd-option, ud-encapsulation
#[test]
fn linux_and_we_ping_each_other_by_datagrams() {
    let test = "linux_and_we_ping_each_other_by_datagrams";
    let Some(mut meeting) = Meeting::arrange(test, Manager::Ours, DATAGRAMS) else { return };
    ping_both_ways(&mut meeting);
    meeting.must_be_well_formed(test);
}

#[test]
fn linux_and_we_meet_in_another_partition() {
    let test = "linux_and_we_meet_in_another_partition";
    let fabric = Running::partitioned(test, 2, PARTITIONS);
    let Some(guest) = Guest::start(test, &fabric.folder.join("wire")) else { return };
    let device = [(fabric.port(1), "10.0.1.1/24")];
    let hosts = Hosts::with(&device, "mode = 'rc'\npkey = 0x8001");
    let mut meeting = Meeting { fabric, guest, hosts, _opensm: None };
    meeting.hosts.come_up();
    meeting.linux("wait_active; ip link set ib0 up; echo 0x8001 > /sys/class/net/ib0/create_child");
    meeting.linux("ipoib_up 10.0.1.2/24 connected ib0.8001");
    meeting.linux("wait_for 10 ping -c1 -W1 10.0.1.1");
    for octets in [56, 65_000] {
        meeting.hosts.must_answer(0, "10.0.1.2", octets);
        meeting.linux(&format!("ping -c3 -i0.2 -W2 -s{octets} 10.0.1.1"));
    }
    meeting.must_be_well_formed(test);
}

#[test]
fn opensm_in_the_guest_brings_both_together() {
    let test = "opensm_in_the_guest_brings_both_together";
    let Some(mut meeting) = Meeting::arrange(test, Manager::Guest, DATAGRAMS) else { return };
    ping_both_ways(&mut meeting);
    meeting.must_be_well_formed(test);
}

#[test]
fn opensm_at_our_fabric_brings_both_together() {
    let test = "opensm_at_our_fabric_brings_both_together";
    let Some(mut meeting) = Meeting::arrange(test, Manager::Umad, DATAGRAMS) else { return };
    ping_both_ways(&mut meeting);
    meeting.must_be_well_formed(test);
}

/// With packets that only connections have room for.
fn ping_by_connections(meeting: &mut Meeting) {
    meeting.linux("wait_for 10 ping -c1 -W1 10.0.0.1");
    for octets in [56, 2044, 65_000, 65_520 - 28] {
        meeting.hosts.must_answer(0, "10.0.0.2", octets);
        meeting.linux(&format!("ping -c3 -i0.2 -W2 -s{octets} 10.0.0.1"));
    }
    let (ours, theirs) = (meeting.hosts.link_local(0), meeting.link_local());
    meeting.hosts.must_answer(0, &theirs, 65_000);
    meeting.linux(&format!("ping -c3 -i0.2 -W2 -s65000 {ours}%ib0"));
}

// req: cm-linux-dialect, cm-service-id-linux, cm-rc
#[test]
fn linux_and_we_exchange_long_packets_by_connections() {
    let test = "linux_and_we_exchange_long_packets_by_connections";
    let modes = ["rc", "connected"];
    let Some(mut meeting) = Meeting::arrange(test, Manager::Ours, modes) else { return };
    ping_by_connections(&mut meeting);
    // Each side sends by the connection that it asked for, and only by that.
    let rows = meeting.hosts.connections(0);
    let roles: Vec<_> = rows.iter().map(|row| (row.role, row.may_send)).collect();
    assert_eq!(roles.len(), 2, "{rows:?}");
    assert!(roles.contains(&(Role::Active, true)) && roles.contains(&(Role::Passive, false)));
    meeting.must_be_well_formed(test);
}

// req: cm-accept-all-modes
#[test]
fn linux_in_datagram_mode_accepts_our_connection() {
    let test = "linux_in_datagram_mode_accepts_our_connection";
    let modes = ["rc", "datagram"];
    let Some(mut meeting) = Meeting::arrange(test, Manager::Ours, modes) else { return };
    meeting.linux("wait_for 10 ping -c1 -W1 10.0.0.1");
    // Its answers go by datagram, so they are no longer than that.
    for octets in [56, 2044 - 28] {
        meeting.hosts.must_answer(0, "10.0.0.2", octets);
        meeting.linux(&format!("ping -c3 -i0.2 -W2 -s{octets} 10.0.0.1"));
    }
    let rows = meeting.hosts.connections(0);
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((row.role, row.dialect), (Role::Active, Dialect::Linux));
    meeting.must_be_well_formed(test);
}

// req: cm-linux-dialect
#[test]
fn linux_that_went_away_and_came_back_is_reached_again() {
    let test = "linux_that_went_away_and_came_back_is_reached_again";
    let modes = ["rc", "connected"];
    let Some(mut meeting) = Meeting::arrange(test, Manager::Ours, modes) else { return };
    meeting.linux("wait_for 10 ping -c1 -W1 10.0.0.1");
    meeting.hosts.must_answer(0, "10.0.0.2", 65_000);

    // Its connections end in good order.
    meeting.linux("ip link set ib0 down; sleep 1; ip link set ib0 up; wait_carrier ib0");
    meeting.must_reach_each_other();

    // It dies, and another one has its place and its names.
    meeting.reboot(test, "connected");
    meeting.must_reach_each_other();
}

// req: cm-flags-ud-only
#[test]
fn an_interface_without_connections_offers_linux_none() {
    let test = "an_interface_without_connections_offers_linux_none";
    let modes = ["ud", "connected"];
    let Some(mut meeting) = Meeting::arrange(test, Manager::Ours, modes) else { return };
    meeting.linux("wait_for 10 ping -c1 -W1 10.0.0.1");
    for octets in [56, 2044 - 28] {
        meeting.hosts.must_answer(0, "10.0.0.2", octets);
        meeting.linux(&format!("ping -c3 -i0.2 -W2 -s{octets} 10.0.0.1"));
    }
    let known = meeting.linux("ip neigh show dev ib0 to 10.0.0.1");
    assert!(known.contains("lladdr 00:"), "flags of connected mode in {known}");
    assert!(!meeting.linux("rdma resource show qp").contains("type RC"));
    meeting.must_be_well_formed(test);
}
