//! A next hop of several fails under a stream, and its flows move to another one.

use crate::stream::{Host, Outcome, Site};
use pollux::Mode;
use pollux_node::admin::rows::{NeighborState, NeighborStatus};
use std::net::Ipv4Addr;

/// A router with two next hops to the network of the receiver.
const R: &str = "[interface.ib0]\ndevice = \"soft:socket@host3\"\n\
    address = [\"10.1.0.254/24\"]\nipv6 = false\n\
    [interface.ib1]\ndevice = \"soft:socket@host3\"\npkey = 0x8001\nmode = \"rc\"\n\
    address = [\"10.2.0.254/24\"]\nipv6 = false\n\
    [router]\n[[route]]\nto = \"10.3.0.0/24\"\nvia = [\"10.2.0.1\", \"10.2.0.2\"]\n";

/// One of the two.
fn leg(nth: u32) -> String {
    format!(
        "[interface.ib0]\ndevice = \"soft:socket@host{}\"\npkey = 0x8001\nmode = \"rc\"\n\
         address = [\"10.2.0.{nth}/24\"]\nipv6 = false\n\
         [interface.ib1]\ndevice = \"soft:socket@host{0}\"\npkey = 0x8002\n\
         address = [\"10.3.0.{}/24\"]\nipv6 = false\n[router]\n",
        3 + nth,
        250 + nth
    )
}

const FROM: Host = Host {
    host: 1,
    partition: 0xffff,
    mode: Mode::Ud,
    address: "10.1.0.1/24",
    router: "10.1.0.254",
};
const TO: Host = Host {
    host: 2,
    partition: 0x8002,
    mode: Mode::Ud,
    address: "10.3.0.1/24",
    router: "10.3.0.251",
};

/// Datagrams that may be lost after a next hop is known to have failed: those of 50 ms. Usually
/// none is lost.
const LOST_MAX: usize = 50;

/// The states of both next hops at the router; of one that was never resolved, none.
fn states(site: &Site) -> [Option<NeighborState>; 2] {
    let rows = site.rows::<NeighborStatus>("r");
    [Ipv4Addr::new(10, 2, 0, 1), Ipv4Addr::new(10, 2, 0, 2)].map(|leg| {
        let row = rows.iter().find(|row| row.address == leg);
        row.map(|row| row.state)
    })
}

#[test]
fn flows_leave_a_next_hop_as_soon_as_it_is_known_to_be_dead() {
    let site = Site::new("failover");
    for (name, text) in [("r", R.into()), ("one", leg(1)), ("two", leg(2))] {
        site.write(name, &text);
        site.start(name);
    }
    let is_here = |state: &Option<NeighborState>| {
        !matches!(state, None | Some(NeighborState::Incomplete | NeighborState::Failed))
    };
    let ([killed, before, known], outcome) = site.stream(&FROM, &TO, |stream| {
        stream.wait("both are used", |_| states(&site).iter().all(is_here));
        // Those that waited for connections.
        stream.go_on(500);
        let begun = stream.sent();
        stream.go_on(500);
        stream.arrive_from(begun);
        let killed = stream.sent();
        site.kill("one");
        let mut before = killed;
        stream.wait("it is known to have failed", |stream| {
            let is_known = !is_here(&states(&site)[0]);
            before = if is_known { before } else { stream.sent() };
            is_known
        });
        let known = stream.sent();
        // Each flow has many of these.
        stream.go_on(1000);
        [killed, before, known]
    });
    let Outcome { sent, lost } = outcome;
    let after = |number: usize| lost.iter().filter(|lost| **lost >= number).count();
    println!(
        "{sent} datagrams, {} lost; killed at {killed}; known to be dead between {before} and \
         {known}, and {} lost after the former",
        lost.len(),
        after(before)
    );
    assert!(after(killed) > 0, "flows were at the next hop that died");
    assert!(after(known) <= LOST_MAX, "{known}: {lost:?}");
}
