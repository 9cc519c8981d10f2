//! Linux and we by datagram, and what both modes share: resolution, partitions, addresses.

use crate::fabric::{Manager, Running};
use crate::guest::Guest;
use crate::host::Hosts;
use crate::meeting::Meeting;
use crate::nodes::PARTITIONS;
use pollux_control::ipoib::InterfaceState;
use std::net::IpAddr;

/// Both ask each other, of both families, with packets from short to as long as the link takes.
fn ping_by_datagram(meeting: &mut Meeting) {
    // Linux has asked for us first; now it is for us to ask.
    meeting.linux("ip neigh flush all");
    for bytes in [56, 1000, 2044 - 28] {
        meeting.ping(bytes);
    }
    let (ours, theirs) = (meeting.hosts.link_local(0), meeting.link_local());
    meeting.linux(&format!("wait_for 10 ping -c1 -W1 {ours}%ib0"));
    for bytes in [56, 2044 - 48] {
        meeting.hosts.must_answer(0, &theirs, bytes);
        meeting.linux(&format!("ping -c3 -i0.2 -W2 -s{bytes} {ours}%ib0"));
    }
    meeting.must_know_each_other(["10.0.0.1", &ours], ["10.0.0.2", &theirs]);
}

/// With packets that only fit connections.
fn ping_by_connection(meeting: &mut Meeting) {
    for bytes in [56, 2044, 65_000, 65_520 - 28] {
        meeting.ping(bytes);
    }
    let (ours, theirs) = (meeting.hosts.link_local(0), meeting.link_local());
    meeting.hosts.must_answer(0, &theirs, 65_000);
    meeting.linux(&format!("ping -c3 -i0.2 -W2 -s65000 {ours}%ib0"));
}

/// Calls that have to work with any subnet manager.
fn core(test: &str, manager: Manager) {
    let Some(mut meeting) = Meeting::arrange(test, manager, ["ud", "datagram"]) else { return };
    ping_by_datagram(&mut meeting);
    meeting.change(["mode = 'rc'", "connected"]);
    ping_by_connection(&mut meeting);
    meeting.end(test, &[]);
}

// req: ud-arp, ud-nd-option, ud-encapsulation
#[test]
fn our_manager_brings_linux_and_us_together() {
    core("our_manager_brings_linux_and_us_together", Manager::Ours);
}

#[test]
fn opensm_in_the_guest_brings_both_together() {
    core("opensm_in_the_guest_brings_both_together", Manager::Guest);
}

#[test]
fn opensm_at_our_fabric_brings_both_together() {
    core("opensm_at_our_fabric_brings_both_together", Manager::Umad);
}

#[test]
fn linux_and_we_meet_in_another_partition_unless_we_are_limited() {
    let test = "linux_and_we_meet_in_another_partition";
    let fabric = Running::partitioned(test, 2, PARTITIONS);
    let Some(guest) = Guest::start(test, &fabric.wire(1)) else { return };
    let device = [(fabric.port(1), "10.0.1.1/24")];
    let hosts = Hosts::with(&device, "mode = 'rc'\npkey = 0x8001");
    let mut meeting = Meeting { fabric, guest, hosts, traffic: None, opensm: None };
    meeting.hosts.come_up();
    meeting.linux("wait_active; ip link set ib0 up; echo 0x8001 > /sys/class/net/ib0/create_child");
    meeting.linux("ipoib_up 10.0.1.2/24 connected ib0.8001");
    meeting.linux("wait_for 10 ping -c1 -W1 10.0.1.1");
    for bytes in [56, 65_000] {
        meeting.hosts.must_answer(0, "10.0.1.2", bytes);
        meeting.linux(&format!("ping -c3 -i0.2 -W2 -s{bytes} 10.0.1.1"));
    }

    // Of the other partition both are limited members. Linux would use it all the same.
    let device = [(meeting.fabric.port(2), "10.0.2.1/24")];
    meeting.hosts.join(Hosts::with(&device, "pkey = 0x8002"));
    meeting.linux("echo 0x8002 > /sys/class/net/ib0/create_child");
    meeting.linux("ip addr add 10.0.2.2/24 dev ib0.8002; ip link set ib0.8002 up");
    let (status, output) = meeting.linux_says("ping -c3 -i0.2 -W1 10.0.2.1");
    assert_ne!(status, 0, "{output}");
    let limited = meeting.hosts.hosts[1].control();
    assert_eq!(*limited.state(), InterfaceState::LimitedMember);
    meeting.end(test, &[]);
}

/// The announcements of Linux.
const ANNOUNCEMENT: &str = "interface ib0 { AdvSendAdvert on; MinRtrAdvInterval 3;
    MaxRtrAdvInterval 4; AdvSourceLLAddress off; prefix 2001:db8:1::/64 {}; };";

#[test]
fn we_take_an_address_from_a_prefix_that_linux_announces() {
    let test = "we_take_an_address_from_a_prefix";
    let modes = ["rc", "connected"];
    let Some(mut meeting) = Meeting::arrange(test, Manager::Ours, modes) else { return };
    meeting.linux("sysctl -qw net.ipv6.conf.all.forwarding=1");
    meeting.linux("ip addr add 2001:db8:1::2/64 dev ib0 nodad");
    meeting.linux(&format!("echo '{ANNOUNCEMENT}' > /tmp/radvd.conf"));
    // With -d1 it runs though the guest has no users.
    meeting.linux("radvd -n -d1 -m stderr -C /tmp/radvd.conf > /tmp/radvd.log 2>&1 &");
    let announced = |ip: &IpAddr| ip.to_string().starts_with("2001:db8:1:");
    let mut ours = None;
    meeting.hosts.until("an address", |hosts| {
        let addresses = hosts.hosts[0].control().addresses();
        let usable = addresses.iter().filter(|one| one.state.may_be_source());
        ours = usable.map(|one| one.ip).find(announced);
        ours.is_some()
    });
    let ours = ours.expect("waited for");
    for bytes in [56, 65_000] {
        meeting.hosts.must_answer(0, "2001:db8:1::2", bytes);
        meeting.linux(&format!("ping -c3 -i0.2 -W2 -s{bytes} {ours}"));
    }
    meeting.end(test, &[]);
}
