//! Faults between Linux and us, and the recovery of both.

use crate::fabric::Manager;
use crate::meeting::{Meeting, Traffic};
use pollux_control::cm::Role;
use pollux_node::admin::request::AdminRequest;
use std::time::Duration;

const CONNECTED: [&str; 2] = ["rc", "connected"];

/// Traffic both ways, of packets that go by either mode, while `trouble` goes on; and again
/// afterwards.
fn survive(meeting: &mut Meeting, what: &str, trouble: impl FnOnce(&mut Meeting)) {
    meeting.linux("ping -q -i0.05 -s1000 10.0.0.1 > /tmp/ping 2>&1 &");
    meeting.traffic = Traffic::of(1000);
    meeting.linux("sleep 0.5");
    trouble(meeting);
    let answered = |meeting: &Meeting| meeting.traffic.as_ref().map_or(0, |it| it.answered);
    let before = answered(meeting);
    meeting.must_reach_each_other(1000);
    // A request that was lost is given up first.
    let goes_on = (0..20).any(|_| {
        meeting.linux("sleep 0.5");
        answered(meeting) > before
    });
    assert!(goes_on, "{what}: no answers afterwards");
    meeting.linux("killall -INT ping; sleep 0.1");
    let traffic = meeting.traffic.take().expect("begun above");
    let message = meeting.linux("tail -n2 /tmp/ping | head -n1");
    let (answered, lost) = (traffic.answered, traffic.lost);
    println!("{what}: of ours {answered} answered, {lost} not; of Linux: {}", message.trim());
    assert!(!message.contains(" 0 received"), "{what}: {message}");
}

#[test]
fn modes_interfaces_and_links_may_change_under_traffic() {
    let test = "modes_interfaces_and_links_may_change";
    let Some(mut meeting) = Meeting::arrange(test, Manager::Ours, CONNECTED) else { return };
    meeting.must_reach_each_other(65_000);
    survive(&mut meeting, "modes", |meeting| {
        for mode in ["datagram", "connected", "datagram", "connected"] {
            meeting.linux(&format!("echo {mode} > /sys/class/net/ib0/mode; sleep 0.5"));
        }
        meeting.linux("ip link set ib0 mtu 65520");
    });
    survive(&mut meeting, "Linux's interface", |meeting| {
        meeting.linux("ip link set ib0 down; sleep 0.5; ip link set ib0 up; wait_carrier ib0");
    });
    survive(&mut meeting, "our link", |meeting| {
        meeting.fabric.ask(&AdminRequest::AddFault("host1:1/down".into()));
        meeting.hosts.until("down", |hosts| !hosts.hosts[0].control().is_up());
        meeting.fabric.ask(&AdminRequest::RemoveFault(1));
        meeting.hosts.come_up();
    });
    survive(&mut meeting, "Linux's link", |meeting| {
        meeting.cable(false);
        let down = "grep -q DOWN /sys/class/infiniband/vhca0/ports/1/state";
        meeting.linux(&format!("wait_for 10 {down}"));
        meeting.cable(true);
        meeting.linux("wait_active; wait_carrier ib0");
    });
    // Connections are back where they were given up.
    meeting.hosts.skip(Duration::from_secs(600));
    meeting.must_reach_each_other(65_000);
    meeting.end(test, &[]);
}

// req: cm-linux-dialect
#[test]
fn a_connection_that_one_lost_packet_killed_is_made_again() {
    let test = "a_connection_that_one_lost_packet_killed";
    let Some(mut meeting) = Meeting::arrange(test, Manager::Ours, CONNECTED) else { return };
    meeting.must_reach_each_other(10_000);
    let active_of = |meeting: &Meeting| {
        let rows = meeting.connections();
        let ours = rows.iter().find(|row| row.role == Role::Active);
        ours.expect("it is open").connection
    };
    let ours = active_of(&meeting);
    // Linux tries nothing twice, so an acknowledgement that is lost, and none after it, ends its
    // connection. Ours tries again, and stays.
    meeting.linux("echo 2 > /sys/module/vhca/parameters/drop_rc");
    meeting.linux("ping -c5 -i1 -s1000 10.0.0.1");
    meeting.linux("echo 0 > /sys/module/vhca/parameters/drop_rc");
    assert!(meeting.count("connection", "peer_ended") >= 1);
    assert_eq!(active_of(&meeting), ours);
    meeting.must_reach_each_other(65_000);
    meeting.end(test, &[]);
}

// req: cm-linux-dialect
#[test]
fn linux_is_reached_again_after_it_rebooted() {
    let test = "linux_is_reached_again_after_it_rebooted";
    let Some(mut meeting) = Meeting::arrange(test, Manager::Ours, CONNECTED) else { return };
    meeting.hosts.must_answer(0, "10.0.0.2", 65_000);
    // It reboots: the new one has the same names.
    meeting.reboot(test, "connected");
    meeting.must_reach_each_other(65_000);
}

/// Queue pairs of connections that Linux has.
fn queue_pairs(meeting: &mut Meeting) -> usize {
    meeting.linux("rdma resource show qp").matches("type RC").count()
}

#[test]
fn either_side_ends_an_idle_connection() {
    let test = "either_side_ends_what_nobody_used";
    let Some(mut meeting) = Meeting::arrange(test, Manager::Ours, CONNECTED) else { return };
    meeting.must_reach_each_other(65_000);
    // Linux always connects. If it does so first, we send by its connection and make none; it
    // depends on which side is slower.
    let open = meeting.connections().len();
    assert!((1..=2).contains(&open), "{open}");
    assert_eq!(queue_pairs(&mut meeting), open);
    // Linux looks for such every 768 s, and its neighbors are forgotten sooner.
    meeting.linux("echo 1300 > /sys/module/vhca/parameters/age");
    meeting.hosts.until("ended by Linux", |hosts| hosts.connections(0).is_empty());
    assert_eq!(meeting.count("connection", "peer_ended"), open as u64);
    meeting.hosts.skip(Duration::from_secs(10));
    meeting.must_reach_each_other(65_000);

    meeting.hosts.until("ended by us", |hosts| {
        hosts.skip(Duration::from_secs(1));
        hosts.connections(0).is_empty()
    });
    meeting.linux("wait_for 10 no_connections");
    meeting.must_reach_each_other(65_000);
    meeting.end(test, &[]);
}

/// A manager that waits for another one to die, and notices soon.
const STANDBY: &str = "sminfo_polling_timeout 500\npolling_retry_number 2\nsm_priority 1\n";

#[test]
fn the_manager_dies_and_another_takes_over() {
    let test = "the_manager_dies_and_another_takes_over";
    let Some(mut meeting) = Meeting::arrange(test, Manager::Umad, CONNECTED) else { return };
    meeting.must_reach_each_other(65_000);
    meeting.linux(&format!("printf '{STANDBY}' > /tmp/osm.conf; sm_start -F /tmp/osm.conf"));
    meeting.linux("wait_for 20 grep -q STANDBY /tmp/opensm.log");
    meeting.opensm = None;
    let port = "/sys/class/infiniband/vhca0/ports/1";
    meeting.traffic = Traffic::of(1000);
    meeting.linux(&format!(
        "same() {{ [ $(($(cat {port}/lid))) = $(($(cat {port}/sm_lid))) ]; }}; wait_for 40 same"
    ));
    let traffic = meeting.traffic.take().expect("begun above");
    assert!(traffic.answered > 0 && traffic.lost == 0, "{} lost", traffic.lost);
    // The SA is at the new subnet manager from now on.
    let linux_lid = meeting.linux(&format!("cat {port}/lid"));
    let linux_lid = u16::from_str_radix(linux_lid.trim().trim_start_matches("0x"), 16);
    let linux_lid = linux_lid.expect("a number");
    meeting.hosts.until("another administrator", |hosts| {
        hosts.hosts[0].interface().port().is_ok_and(|port| port.sm_lid.0 == linux_lid)
    });
    meeting.linux("ip neigh flush dev ib0; ip link set ib0 down; ip link set ib0 up");
    meeting.linux("wait_carrier ib0");
    meeting.must_reach_each_other(65_000);
    meeting.end(test, &[]);
}
