//! More packets than there is room for: in buffers of the device, in queues of sockets and of
//! neighbors that are not there. Each is a counted answer, and others are served meanwhile.

use crate::traffic::{Client, Plan, STREAMS, Server, Shared};
use crate::world::{World, at, ip};
use pollux::Mode;
use pollux::stack::StackConfig;
use pollux_fabric::link::Wire;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn world(hosts: usize, mode: Mode, config: &StackConfig) -> World {
    let wire = Wire { latency: Duration::from_micros(2), ..Wire::default() };
    World::new(1, &vec![mode; hosts], wire, config)
}

/// A stream both ways between two hosts, which may take so long.
fn stream(world: &mut World, from: usize, to: usize, limit: Duration) {
    let counters = Shared::default();
    world.run(from, Client::new(Plan::new(1, at(to, STREAMS), 200_000, 200_000), &counters));
    world.until("a stream beside", limit, |_| counters.borrow().done == 1);
}

/// Sends so many datagrams to a host; says how many were taken.
fn blast(world: &mut World, from: usize, to: SocketAddr, count: usize, bytes: usize) -> usize {
    let now = world.now();
    let host = world.slots[from].host();
    let socket = host.stack.udp_bind(SocketAddr::new(ip(from), 0)).expect("a port is free");
    let payload = vec![7; bytes];
    let mut taken = 0;
    for _ in 0..count {
        match host.udp_send(now, socket, to, &payload) {
            Ok(()) => taken += 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
    }
    host.transmit(now);
    host.stack.udp_close(socket);
    taken
}

/// Packets for a connection that is stuck wait in front of all others, so no peer can use up the
/// buffers; but whoever else there is waits until it is given up, which takes its retries.
#[test]
fn peers_that_take_nothing_keep_few_buffers_and_give_them_back() {
    const GONE: std::ops::Range<usize> = 1..6;
    const LIVE: usize = 6;
    let mut world = world(7, Mode::Rc, &StackConfig::default());
    let counters = Shared::default();
    (1..=LIVE).for_each(|host| world.run(host, Server::new(&counters)));
    (1..=LIVE).for_each(|host| stream(&mut world, 0, host, 10 * SECOND));
    let held =
        |world: &mut World| world.slots[0].host().node().worker.driver().netdev().buffers_in_use();
    assert_eq!(held(&mut world), 0);
    GONE.for_each(|host| world.set_cable(host, false));
    for host in GONE {
        blast(&mut world, 0, at(host, 9), 200, 60_000);
        let most = held(&mut world);
        assert!((1..=128).contains(&most), "{most} buffers for peers that take nothing");
    }
    let begin = world.now();
    stream(&mut world, 0, LIVE, 10 * SECOND);
    println!("others waited {:?}", world.now().since_start() - begin.since_start());
    world.until("all buffers are back", 30 * SECOND, |world| held(world) == 0);
    GONE.for_each(|host| world.set_cable(host, true));
    world.pass(60 * SECOND);
    (1..=LIVE).for_each(|host| stream(&mut world, 0, host, 30 * SECOND));
}

#[test]
fn a_socket_that_nobody_reads_is_full_and_costs_others_nothing() {
    let config = StackConfig { udp_queue_bytes_max: 100_000, ..StackConfig::default() };
    let mut world = world(2, Mode::Ud, &config);
    let counters = Shared::default();
    world.run(1, Server::new(&counters));
    stream(&mut world, 0, 1, 10 * SECOND);
    let anywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 9);
    let socket = world.slots[1].host().stack.udp_bind(anywhere).expect("the port is free");
    let mut sent = 0;
    for _ in 0..100 {
        sent += blast(&mut world, 0, at(1, 9), 200, 1000);
        world.pass(Duration::from_millis(1));
    }
    stream(&mut world, 0, 1, 10 * SECOND);
    let read = |world: &mut World| {
        let stack = &mut world.slots[1].host().stack;
        let mut buffer = [0; 2000];
        std::iter::from_fn(|| stack.udp_recv(socket, &mut buffer).expect("nobody complains"))
            .count()
    };
    let kept = read(&mut world);
    let lost = world.slots[1].host().stack.counts().udp_queue_full as usize;
    assert_eq!(kept + lost, sent, "every datagram is there or counted");
    assert!((50..=100).contains(&kept) && lost > 1000, "{kept} kept, {lost} lost");
    blast(&mut world, 0, at(1, 9), 10, 1000);
    world.pass(SECOND);
    assert_eq!(read(&mut world), 10, "there is room again");
}

#[test]
fn packets_to_nobody_wait_in_a_queue_with_an_end() {
    let mut world = world(2, Mode::Auto, &StackConfig::default());
    let counters = Shared::default();
    world.run(1, Server::new(&counters));
    for nobody in 10..40 {
        blast(&mut world, 0, at(nobody, 9), 1000, 1000);
    }
    let pending = |world: &mut World| {
        let control = world.slots[0].host().control();
        control.expect("worker 0 has it").load().pending
    };
    let held = pending(&mut world);
    assert!(held < 4096, "{held} packets wait for neighbors that are not there");
    stream(&mut world, 0, 1, 10 * SECOND);
    world.pass(60 * SECOND);
    assert_eq!(pending(&mut world), 0);
    let host = world.slots[0].host();
    assert_eq!(host.node().worker.driver().netdev().buffers_in_use(), 0);
    stream(&mut world, 0, 1, 10 * SECOND);
}
