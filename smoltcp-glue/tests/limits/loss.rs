//! What links that lose packets leave of a stream.
//!
//! Megabits a second in virtual time, of 10 MB over links of 100 Gb/s of which one loses, seed 1:
//!
//! | packets of the link lost | none | 0.1 % | 1 % | 5 % |
//! |---|---|---|---|---|
//! | datagrams (packets of 2,044 bytes) | 88,399 | 88,590 | 35,738 | 11,134 |
//! | unreliable connection (65,520 bytes) | 94,651 | 87,593 | 70,977 | 1,231 |
//!
//! By smoltcp alone it was 66 and 14 where one packet in a hundred is lost: of several losses in a
//! window it sends the first again, and for all others its clock runs, for a fifth of a second.
//! What is left of that here is a SYN that is lost, and with it a fifth of a second once, and the
//! first silence of a connection, which is waited for as long as any peer keeps an acknowledgment
//! back. Seeds differ by that, by a factor of ten and more. So bounds are a fraction of what the
//! first seed reaches, but for a link that loses nothing: its stream waits for no clock, and has
//! what headers leave of the link but for a tenth.
//!
//! Of a message of an unreliable connection all 32 packets have to come. With 5 % of these lost
//! four messages in five are, so segments become as short as a datagram's.

use crate::traffic::{Client, Plan, STREAMS, Server, Shared};
use crate::world::{World, at};
use pollux::Mode;
use pollux::stack::StackConfig;
use pollux_fabric::link::Wire;
use pollux_fabric::link::fault::Faults;
use std::time::Duration;

const BYTES: usize = 10_000_000;
/// How long is looked at, at the most.
const LONGEST: Duration = Duration::from_secs(60);
/// What a stream reaches at the least at each of them, in megabits a second.
const BOUNDS: [(Mode, [f64; 4]); 2] = [
    (Mode::Ud, [80_000.0, 40_000.0, 10_000.0, 1_000.0]),
    (Mode::Uc, [85_000.0, 40_000.0, 20_000.0, 300.0]),
];
/// Packets of the link that are lost, of a million: none, 0.1 %, 1 %, 5 %.
const LOSSES: [u32; 4] = [0, 1_000, 10_000, 50_000];

/// Megabits a second of a stream, in virtual time, over links with a rate of which that of the
/// sender loses so many packets of a million.
fn goodput(mode: Mode, loss: u32) -> f64 {
    let wire = Wire { latency: Duration::from_micros(2), ..Wire::default() };
    let mut world = World::new(1, &[mode, mode], wire, &StackConfig::default());
    let counters = Shared::default();
    world.run(1, Server::new(&counters));
    let plan = |there| Plan::new(1, at(1, STREAMS), there, 0);
    // Until both know each other, and are connected.
    world.run(0, Client::new(plan(1), &counters));
    world.pass(Duration::from_secs(5));
    assert_eq!(counters.borrow().done, 1);
    {
        let mut net = world.net.net_mut();
        net.set_paced(true);
        let faults = Faults { loss, ..Faults::default() };
        let link = world.slots[0].link(&net);
        net.set_wire(link, Wire { faults, packets_only: true, ..wire });
    }
    let begin = world.now();
    world.run(0, Client::new(plan(BYTES), &counters));
    let end = begin + LONGEST;
    while counters.borrow().bytes <= BYTES as u64 && world.step(end) {}
    let took = world.now().since_start() - begin.since_start();
    counters.borrow().bytes as f64 * 8.0 / took.as_secs_f64() / 1e6
}

#[test]
fn a_stream_goes_on_over_links_that_lose() {
    for (mode, bounds) in BOUNDS {
        let all = LOSSES.map(|loss| goodput(mode, loss));
        println!("{mode:?}: {all:.1?} Mb/s at {LOSSES:?} lost of a million");
        let are_within = all.iter().zip(bounds).all(|(reached, bound)| *reached >= bound);
        assert!(are_within, "{mode:?}: {all:?} Mb/s, and not {bounds:?}");
    }
}
