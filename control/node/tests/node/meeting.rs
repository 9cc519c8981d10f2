//! Linux and an interface of ours at one fabric.

use crate::fabric::{Manager, Running};
use crate::guest::{Guest, Opensm};
use crate::host::{Hosts, TIMEOUT};
use pollux_control::ipoib::connected::ConnectionRow;
use pollux_control::neighbor::State;
use pollux_node::interface::echo::{EchoId, EchoOutcome};
use pollux_referee::tshark::{PacketRow, dissect};
use pollux_verbs::time::Time;
use std::time::Duration;

/// How long an answer may take while something else goes on.
const SOON: Duration = Duration::from_secs(4);

/// How long nothing is asked after a question.
const PAUSE: Duration = Duration::from_millis(20);

/// A fabric with a guest at its switch and an interface of ours at its first host, both up.
pub struct Meeting {
    pub fabric: Running,
    pub guest: Guest,
    pub hosts: Hosts,
    /// Echo requests of ours while Linux does something.
    pub traffic: Option<Traffic>,
    /// The subnet manager, if that is OpenSM on this side.
    pub opensm: Option<Opensm>,
}

/// Echo requests of ours, one after another.
pub struct Traffic {
    bytes: usize,
    next: Time,
    under_way: Option<EchoId>,
    pub answered: u32,
    pub lost: u32,
}

impl Traffic {
    pub const fn of(bytes: usize) -> Option<Self> {
        Some(Self { bytes, next: Time::START, under_way: None, answered: 0, lost: 0 })
    }

    fn turn(&mut self, hosts: &mut Hosts) {
        let now = hosts.now();
        let ours = &mut hosts.hosts[0];
        let Some(id) = self.under_way else {
            if now < self.next {
                return;
            }
            self.next = now + PAUSE;
            let linux = "10.0.0.2".parse().expect("an address");
            // While the interface is down there is nothing to send by.
            self.under_way = ours.ping(now, linux, self.bytes, SOON).ok();
            return;
        };
        match ours.echo(id) {
            Some(EchoOutcome::Answered { .. }) => self.answered += 1,
            // An output that was not asked for in time is not kept.
            None if now < self.next + 2 * SOON => return,
            _ => self.lost += 1,
        }
        self.under_way = None;
    }
}

impl Meeting {
    /// With our mode and that of Linux; `None` with a printed reason, if `test` is skipped.
    pub fn arrange(test: &str, manager: Manager, [ours, theirs]: [&str; 2]) -> Option<Self> {
        Self::with(test, manager, [&format!("mode = {ours:?}"), theirs], "")
    }

    /// With keys of our configuration, and parameters of the guest's adapter.
    pub fn with(
        test: &str,
        manager: Manager,
        [keys, theirs]: [&str; 2],
        params: &str,
    ) -> Option<Self> {
        let fabric = Running::start(test, 2, manager);
        let opensm = match manager {
            Manager::Umad => Some(Opensm::start(test, &fabric)?),
            _ => None,
        };
        let mut guest = Guest::with(test, &fabric.wire(1), 1, params)?;
        if manager == Manager::Guest {
            guest.begin("sm_start && wait_active");
            assert_eq!(guest.answer(), (0, String::new()));
        }
        let hosts = Hosts::with(&[(fabric.port(1), "10.0.0.1/24")], keys);
        let mut meeting = Self { fabric, guest, hosts, traffic: None, opensm };
        meeting.hosts.come_up();
        meeting.linux(&format!("ipoib_up 10.0.0.2/24 {theirs}"));
        meeting.linux("wait_for 10 ping -c1 -W1 10.0.0.1");
        Some(meeting)
    }

    /// In place of our interface comes another one, of other keys, and Linux has another mode.
    pub fn change(&mut self, [keys, theirs]: [&str; 2]) {
        self.leave();
        self.hosts = Hosts::with(&[(self.fabric.port(1), "10.0.0.1/24")], keys);
        self.hosts.come_up();
        self.linux("ip link set ib0 down");
        self.linux(&format!("ipoib_up 10.0.0.2/24 {theirs}; ip neigh flush dev ib0"));
        self.linux("wait_for 10 ping -c1 -W1 10.0.0.1");
    }

    /// Our interface goes, in good order.
    pub fn leave(&mut self) {
        let now = self.hosts.now();
        self.hosts.hosts[0].leave(now);
        self.hosts.until("left", |hosts| hosts.hosts[0].has_left());
        self.hosts.hosts.clear();
    }

    /// Has the guest do something, which must succeed, while our side goes on.
    pub fn linux(&mut self, command: &str) -> String {
        let (status, output) = self.linux_says(command);
        assert_eq!(status, 0, "{command}: {output}");
        output
    }

    pub fn linux_says(&mut self, command: &str) -> (i64, String) {
        self.guest.begin(command);
        self.answer(command)
    }

    /// Pulls the guest's cable at both ends, or plugs it in.
    pub fn cable(&mut self, is_in: bool) {
        self.guest.begin_cable(is_in);
        self.answer("the cable");
    }

    fn answer(&mut self, what: &str) -> (i64, String) {
        let Self { guest, hosts, traffic, .. } = self;
        std::thread::scope(|scope| {
            let answer = scope.spawn(|| guest.answer());
            let begun = hosts.now();
            while !answer.is_finished() {
                assert!(hosts.now() < begun + 3 * TIMEOUT, "{what} does not end");
                if let Some(traffic) = traffic {
                    traffic.turn(hosts);
                }
                hosts.step();
            }
            answer.join().expect("it answers")
        })
    }

    /// Another guest in the place of this one, which has ended by itself.
    pub fn reboot(&mut self, test: &str, mode: &str) {
        self.guest.kill();
        self.guest = Guest::start(test, &self.fabric.wire(1)).expect("there was one before");
        self.linux(&format!("ipoib_up 10.0.0.2/24 {mode}"));
    }

    /// Both ask each other with packets of so many bytes, which must be answered.
    pub fn ping(&mut self, bytes: usize) {
        self.hosts.must_answer(0, "10.0.0.2", bytes);
        self.linux(&format!("ping -c3 -i0.2 -W2 -s{bytes} 10.0.0.1"));
    }

    /// Waits until each gets answers from the other, to packets of so many bytes.
    pub fn must_reach_each_other(&mut self, bytes: usize) {
        let begun = self.hosts.now();
        while !matches!(self.hosts.ping(0, "10.0.0.2", bytes), EchoOutcome::Answered { .. }) {
            assert!(self.hosts.now() < begun + TIMEOUT, "no answer from Linux");
        }
        self.linux(&format!("wait_for 30 ping -c1 -W1 -s{bytes} 10.0.0.1"));
    }

    /// Open connections of ours.
    pub fn connections(&self) -> Vec<ConnectionRow> {
        self.hosts.connections(0)
    }

    /// How often something of ours was not done for this reason.
    pub fn count(&self, of: &str, why: &str) -> u64 {
        let mut rows = self.hosts.hosts[0].control().drop_rows();
        let row = rows.find(|row| (row.0, row.1) == (of, why));
        row.expect("it is counted").2
    }

    /// The address that Linux has of its port.
    pub fn link_local(&mut self) -> String {
        let shown = self.linux("ip -6 -o addr show dev ib0 scope link");
        let address = shown.split_whitespace().find(|word| word.starts_with("fe80::"));
        let (address, _) = address.and_then(|word| word.split_once('/')).expect("it has one");
        address.into()
    }

    /// Either has the other's addresses in its cache.
    pub fn must_know_each_other(&mut self, ours: [&str; 2], theirs: [&str; 2]) {
        let control = self.hosts.hosts[0].control();
        for ip in theirs {
            let row = control.neighbor_rows().find(|row| row.ip.to_string() == ip);
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

    /// Ends it. Neither Linux nor tshark may have found anything wrong with what was on the wire;
    /// the values of `fields` in every packet, if there is tshark.
    pub fn end(mut self, test: &str, fields: &[&str]) -> Option<Vec<PacketRow>> {
        assert_eq!(self.linux("counter port_rcv_errors").trim(), "0");
        let warnings = "dmesg | grep -E 'WARNING: |BUG: |Oops|general protection'";
        assert_eq!(self.linux_says(warnings), (1, String::new()));
        let Self { fabric, guest, hosts, .. } = self;
        drop((guest, hosts));
        let packets = fabric.end();
        let bytes: Vec<_> = packets.iter().map(Vec::as_slice).collect();
        let rows = dissect(test, &bytes, fields)?;
        let malformed: Vec<_> = rows.iter().filter(|row| !row.malformed.is_empty()).collect();
        assert!(
            malformed.is_empty(),
            "{} of {}: {}",
            malformed.len(),
            rows.len(),
            malformed[0].malformed
        );
        Some(rows)
    }
}
