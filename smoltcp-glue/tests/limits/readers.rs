//! Readers that are slow, or pause.

use crate::traffic::{Client, Pace, Plan, STREAMS, Server, Shared};
use crate::world::{World, at};
use pollux::Mode;
use pollux::stack::{StackConfig, TcpConfig};
use pollux_fabric::link::Wire;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const SLOW: u16 = 81;
/// Bytes of both buffers of a stream.
const BUFFERS_BYTES: usize = 128 << 10;

fn world(mode: Mode) -> World {
    let half = BUFFERS_BYTES / 2;
    let tcp = TcpConfig { receive_bytes: half, send_bytes: half, ..TcpConfig::default() };
    let config = StackConfig { tcp, ..StackConfig::default() };
    let wire = Wire { latency: Duration::from_micros(2), ..Wire::default() };
    World::new(1, &[mode, mode], wire, &config)
}

/// Polls of the connections of a host.
fn polls(world: &World, host: usize) -> u64 {
    world.slots[host].host.as_ref().map_or(0, |host| host.stack.counts().tcp_polls)
}

#[test]
fn a_slow_reader_does_not_delay_other_streams() {
    for mode in [Mode::Ud, Mode::Rc] {
        let mut world = world(mode);
        let [slow, quick] = [Shared::default(), Shared::default()];
        let pace = Pace { from: world.now(), bytes: 1000, every: SECOND / 10 };
        world.run(1, Server::slow(&slow, SLOW, pace));
        world.run(1, Server::new(&quick));
        let served = world.programs();
        world.run(0, Client::new(Plan::new(1, at(1, SLOW), 400_000, 1000), &slow));
        world.pass(5 * SECOND);
        // Fast streams are not delayed by the slow one.
        for stream in 2..12 {
            let plan = Plan::new(stream, at(1, STREAMS), 300_000, 300_000);
            world.run(0, Client::new(plan, &quick));
        }
        world.until("quick streams", SECOND, |_| quick.borrow().done == 10);
        assert!(slow.borrow().bytes < 100_000, "it is slow");
        // 10,000 bytes a second.
        world.until("the slow stream", 60 * SECOND, |world| world.programs() == served);
        assert_eq!((slow.borrow().done, &slow.borrow().failed), (1, &Default::default()));
    }
}

#[test]
fn a_closed_window_is_probed_and_opens_again() {
    for loses_the_update in [false, true] {
        let mut world = world(Mode::Ud);
        let counters = Shared::default();
        // For longer than the user timeout of TCP.
        let closed = 300 * SECOND;
        let from = world.now() + closed;
        let pace = Pace { from, bytes: usize::MAX, every: Duration::from_millis(1) };
        world.run(1, Server::slow(&counters, SLOW, pace));
        let served = world.programs();
        let plan = Plan::new(1, at(1, SLOW), 4 * BUFFERS_BYTES, 0);
        world.run(0, Client::new(Plan { timeout: 2 * closed, ..plan }, &counters));
        world.pass(10 * SECOND);
        let before = polls(&world, 0);
        world.pass(closed - 20 * SECOND);
        let probes = polls(&world, 0) - before;
        assert!((1..1000).contains(&probes), "{probes} probes of a closed window");
        assert_eq!(counters.borrow().bytes, 0);
        if loses_the_update {
            world.pass(10 * SECOND - Duration::from_millis(1));
            world.set_cable(1, false);
            world.pass(2 * SECOND);
            world.set_cable(1, true);
        }
        // smoltcp sends a window probe every minute at least.
        world.until("the rest", 90 * SECOND, |world| world.programs() == served);
        assert_eq!((counters.borrow().done, &counters.borrow().failed), (1, &Default::default()));
    }
}
