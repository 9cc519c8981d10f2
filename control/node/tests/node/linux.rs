//! Linux's own IP over InfiniBand as our peer, with our subnet manager between both.

use crate::fabric::Running;
use crate::guest::Guest;
use crate::host::{Hosts, PATIENCE};
use pollux_control::neighbour::State;
use pollux_referee::tshark::dissect;
use std::net::IpAddr;

/// A fabric with a guest at its switch and an interface of ours at its first host, both up.
struct Meeting {
    fabric: Running,
    guest: Guest,
    hosts: Hosts,
}

impl Meeting {
    /// `None` after having said that `test` is skipped.
    fn arrange(test: &str, mode: &str) -> Option<Self> {
        let fabric = Running::start(test, 1, true);
        let guest = Guest::start(test, &fabric.folder.join("wire"))?;
        let hosts = Hosts::at(&[(fabric.port(1), "10.0.0.1/24")]);
        let mut meeting = Self { fabric, guest, hosts };
        meeting.hosts.come_up();
        meeting.linux(&format!("ipoib_up 10.0.0.2/24 {mode}"));
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

    /// Ends it. Neither Linux nor tshark may have found anything wrong with what was on the wire.
    fn must_be_well_formed(mut self, test: &str) {
        assert_eq!(self.linux("counter port_rcv_errors").trim(), "0");
        let Self { fabric, guest, hosts } = self;
        drop((guest, hosts));
        let packets = fabric.end();
        let octets: Vec<_> = packets.iter().map(Vec::as_slice).collect();
        let Some(rows) = dissect(test, &octets, &["infiniband.bth.opcode"]) else { return };
        let malformed: Vec<_> = rows.iter().map(|row| &row.malformed).collect();
        let malformed: Vec<_> = malformed.into_iter().filter(|why| !why.is_empty()).collect();
        assert!(malformed.is_empty(), "{} of {}: {malformed:?}", malformed.len(), rows.len());
    }
}

/// How we know a neighbour.
fn neighbour(hosts: &Hosts, ip: &str) -> State {
    let ip: IpAddr = ip.parse().expect("an address");
    let control = hosts.hosts[0].control();
    let row = control.neighbour_rows(hosts.now()).find(|row| row.ip == ip);
    row.expect("it was asked for").state
}

#[test]
fn linux_and_we_ping_each_other_by_datagrams() {
    let test = "linux_and_we_ping_each_other_by_datagrams";
    let Some(mut meeting) = Meeting::arrange(test, "datagram") else { return };
    // Linux asks for us first, and then we for Linux.
    meeting.linux("wait_for 10 ping -c1 -W1 10.0.0.1");
    meeting.linux("ip neigh flush all");
    for octets in [56, 1000, 2044 - 28] {
        meeting.hosts.must_answer(0, "10.0.0.2", octets);
        meeting.linux(&format!("ping -c3 -i0.2 -W2 -s{octets} 10.0.0.1"));
    }
    let ours = meeting.hosts.link_local(0);
    let theirs =
        meeting.linux("ip -6 -o addr show dev ib0 scope link | sed 's/.*inet6 //; s:/.*::'");
    meeting.linux(&format!("wait_for 10 ping -c1 -W1 {ours}%ib0"));
    for octets in [56, 2044 - 48] {
        meeting.hosts.must_answer(0, theirs.trim(), octets);
        meeting.linux(&format!("ping -c3 -i0.2 -W2 -s{octets} {ours}%ib0"));
    }

    for ip in ["10.0.0.2", theirs.trim()] {
        let state = neighbour(&meeting.hosts, ip);
        let is_known = !matches!(state, State::Incomplete { .. } | State::Failed { .. });
        assert!(is_known, "{ip}: {state:?}");
    }
    let known = meeting.linux("ip neigh show dev ib0");
    for ip in ["10.0.0.1", &ours] {
        let is_known = |line: &str| line.starts_with(ip) && line.contains("lladdr");
        assert!(known.lines().any(is_known), "{ip} is not in {known}");
    }
    meeting.must_be_well_formed(test);
}
