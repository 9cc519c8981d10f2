//! A router with one port in trouble: packets to it are dropped and counted there, and a stream
//! by its other ports loses nothing.

use crate::running::TIMEOUT;
use crate::stream::{FROM, Host, Site, Stream, TO};
use pollux::Mode;
use pollux_node::admin::rows::DropCount;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

/// A router between three partitions.
const R: &str = "[interface.ib0]\ndevice = \"soft:socket@host3\"\nmode = \"rc\"\n\
    address = [\"10.1.0.254/24\"]\n\
    [interface.ib1]\ndevice = \"soft:socket@host3\"\npkey = 0x8001\nmode = \"rc\"\n\
    address = [\"10.2.0.254/24\"]\n\
    [interface.ib2]\ndevice = \"soft:socket@host3\"\npkey = 0x8002\nmode = \"rc\"\n\
    address = [\"10.3.255.254/16\"]\n[router]\n";

/// A node in the third partition.
const THIRD: &str = "[interface.ib0]\ndevice = \"soft:socket@host5\"\npkey = 0x8002\n\
    mode = \"rc\"\naddress = [\"10.3.0.1/16\"]\nrouter = [\"10.3.255.254\"]\n";

/// The sender of what has no end.
const FLOOD: Host = Host {
    host: 4,
    partition: 0xffff,
    mode: Mode::Ud,
    address: "10.1.0.4/24",
    router: "10.1.0.254",
};

/// Its address.
const THIRD_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 3, 0, 1);

/// Datagrams of a flood in a millisecond.
const BURST: u32 = 4;
/// Bytes of each.
const BYTES: usize = 1000;

/// Sends a flood by the router to the addresses that `to` gives, until it is over. Returns the
/// number of datagrams.
fn flood(site: &Site, is_over: &AtomicBool, to: impl Fn(u32) -> Ipv4Addr) -> u32 {
    let interface = site.open(&FLOOD);
    let socket = interface.udp_bind("0.0.0.0:0").expect("a port is free");
    let mut sent = 0;
    while !is_over.load(Ordering::Relaxed) {
        for _ in 0..BURST {
            socket.send_to(&[0; BYTES], (to(sent), 9)).expect("it is sent");
            sent += 1;
        }
        sleep(Duration::from_millis(1));
    }
    sent
}

/// Ends the flood, also when a test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Drops of these reasons at the third interface.
fn dropped(site: &Site, reasons: &[(&str, &str)]) -> u64 {
    let rows = site.rows::<DropCount>("r");
    let is_it = |row: &&DropCount| {
        row.interface == "ib2" && reasons.contains(&(row.of.as_str(), row.why.as_str()))
    };
    rows.iter().filter(is_it).map(|row| row.count).sum()
}

/// Runs a stream beside a flood until so many of it are dropped for these reasons. Returns the
/// number of datagrams of the flood.
fn none_is_lost_beside_a_flood(
    site: &Site,
    to: impl Fn(u32) -> Ipv4Addr + Send,
    reasons: &[(&str, &str)],
    least: u64,
) -> u32 {
    let is_over = AtomicBool::new(false);
    let (flood, outcome) = site.stream(&FROM, &TO, |stream: &Stream| {
        scope(|scope| {
            let flood = scope.spawn(|| flood(site, &is_over, to));
            let end = End(&is_over);
            let before = dropped(site, reasons);
            stream.wait("drops are counted", |_| dropped(site, reasons) >= before + least);
            stream.go_on(1000);
            drop(end);
            flood.join().expect("it sends")
        })
    });
    println!("{} datagrams beside {flood} of a flood", outcome.sent);
    assert_eq!(outcome.lost, [0; 0], "of {}", outcome.sent);
    flood
}

#[test]
fn a_full_table_of_neighbors_is_counted_and_leaves_other_flows_alone() {
    let site = Site::new("flood-table");
    site.write("r", R);
    site.start("r");
    // Nobody has any of these addresses.
    let to = |nth| Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 3, 1, 0)) + nth % 60_000);
    let reasons = [("neighbor", "table_full"), ("neighbor", "evicted")];
    none_is_lost_beside_a_flood(&site, to, &reasons, 1);
}

#[test]
fn a_stopped_peer_costs_only_packets_to_it() {
    let site = Site::new("flood-stopped");
    for (name, text) in [("r", R), ("third", THIRD)] {
        site.write(name, text);
        site.start(name);
    }
    let signal = |signal: &str| {
        let id = site.id("third").to_string();
        assert!(Command::new("kill").args([signal, &id]).status().expect("kill").success());
    };
    let reach = || {
        let begun = Instant::now();
        while !site.run("r", &["ping", "10.3.0.1", "--count", "1"]).contains("1 received") {
            assert!(begun.elapsed() < TIMEOUT, "no reply");
        }
    };
    reach();
    signal("-STOP");
    let reasons =
        [("port_driver", "no_room"), ("interface", "unreachable"), ("interface", "pending_full")];
    let flood = none_is_lost_beside_a_flood(&site, |_| THIRD_ADDRESS, &reasons, 1000);
    // A packet that waits is not tried in each breath.
    let tried = dropped(&site, &[("refused", "full")]);
    assert!(tried < 2 * u64::from(flood), "{tried} attempts for {flood} datagrams");
    signal("-CONT");
    reach();
}
