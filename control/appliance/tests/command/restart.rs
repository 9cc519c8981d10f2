//! A router that is killed under a stream, and started again: forwarding is back.

use crate::stream::{FROM, Site, TO};
use pollux_node::admin::rows::ConnectionStatus;
use std::time::Instant;

/// A router between two partitions, with connections in both.
const R: &str = "[interface.ib0]\ndevice = \"soft:socket@host3\"\nmode = \"rc\"\n\
    address = [\"10.1.0.254/24\"]\n\
    [interface.ib1]\ndevice = \"soft:socket@host3\"\npkey = 0x8001\nmode = \"rc\"\n\
    address = [\"10.2.0.254/24\"]\n[router]\n";

/// Whether there is an open connection at both interfaces.
fn is_connected(site: &Site) -> bool {
    let rows = site.rows::<ConnectionStatus>("r");
    let is_open =
        |interface: &str| rows.iter().any(|row| row.interface == interface && row.state == "open");
    is_open("ib0") && is_open("ib1")
}

#[test]
fn forwarding_is_back_when_a_killed_router_runs_again() {
    let site = Site::new("restart");
    site.write("r", R);
    site.start("r");
    let ((), outcome) = site.stream(&FROM, &TO, |stream| {
        stream.wait("connections", |_| is_connected(&site));
        let before = stream.sent();
        stream.go_on(500);
        stream.arrive_from(before);
        site.kill("r");
        // The last ones that it has sent.
        stream.go_on(100);
        let received = stream.received();
        let begun = Instant::now();
        site.start("r");
        stream.wait("a datagram after the restart", |stream| stream.received() > received);
        println!("the first datagram comes {:?} after the start", begun.elapsed());
        stream.wait("connections after the restart", |_| is_connected(&site));
        println!("both connections are open {:?} after the start", begun.elapsed());
        // Those that waited for them.
        stream.go_on(200);
        let back = stream.sent();
        stream.go_on(1000);
        stream.arrive_from(back);
    });
    println!("{} datagrams, {} lost", outcome.sent, outcome.lost.len());
}
