//! What links that lose packets leave of a stream.

use crate::traffic::{Client, Plan, STREAMS, Server, Shared};
use crate::world::{World, at};
use pollux::Mode;
use pollux::stack::StackConfig;
use pollux_fabric::link::fault::Faults;
use pollux_fabric::link::world::Wire;
use std::time::Duration;

const OCTETS: usize = 10_000_000;
/// How long is looked at, at the most.
const LONGEST: Duration = Duration::from_secs(120);
/// Packets of the link that are lost, of a million: none, 0.1 %, 1 %, 5 %.
const LOSSES: [u32; 4] = [0, 1_000, 10_000, 50_000];

/// Megabits a second of a stream, in virtual time, over links with a rate of which that of the
/// sender loses so many packets of a million.
fn goodput(mode: Mode, loss: u32) -> f64 {
    let wire = Wire { latency: Duration::from_micros(2), ..Wire::default() };
    let mut world = World::new(1, &[mode, mode], wire, &StackConfig::default());
    let tally = Shared::default();
    world.run(1, Server::new(&tally));
    let plan = |there| Plan::new(1, at(1, STREAMS), there, 0);
    // Until both know each other, and are connected.
    world.run(0, Client::new(plan(1), &tally));
    world.pass(Duration::from_secs(5));
    assert_eq!(tally.borrow().done, 1);
    {
        let mut net = world.net.net_mut();
        net.set_paced(true);
        let faults = Faults { loss, ..Faults::default() };
        let link = world.seats[0].link(&net);
        net.set_wire(link, Wire { faults, packets_only: true, ..wire });
    }
    let begin = world.now();
    world.run(0, Client::new(plan(OCTETS), &tally));
    let end = begin + LONGEST;
    while tally.borrow().octets <= OCTETS as u64 && world.step(end) {}
    let took = world.now().since_start() - begin.since_start();
    println!("  {mode:?} {loss} {:?} {:?}", tally.borrow(), world.now());
    tally.borrow().octets as f64 * 8.0 / took.as_secs_f64() / 1e6
}

#[test]
fn a_stream_goes_on_over_links_that_lose() {
    for mode in [Mode::Ud, Mode::Uc] {
        let all = LOSSES.map(|loss| goodput(mode, loss));
        println!("{mode:?}: {all:.1?} Mb/s at {LOSSES:?} lost of a million");
    }
}
