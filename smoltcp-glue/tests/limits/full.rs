//! More packets than there is space for: in buffers of the device, in queues of sockets and of
//! unresolved neighbors. Drops are counted, and other traffic continues.

use crate::many::syn;
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

/// Transfers a stream in both directions between two hosts, within a time limit.
fn stream(world: &mut World, from: usize, to: usize, limit: Duration) {
    let counters = Shared::default();
    world.run(from, Client::new(Plan::new(1, at(to, STREAMS), 200_000, 200_000), &counters));
    world.until("another stream", limit, |_| counters.borrow().done == 1);
}

/// Sends datagrams to a host; returns the number that were accepted.
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

/// No peer can use up the buffers. But packets for a connection that is stuck delay those for
/// others until its retries are over.
#[test]
fn peers_that_receive_nothing_hold_few_buffers_and_free_them() {
    const UNPLUGGED: std::ops::Range<usize> = 1..6;
    const LIVE: usize = 6;
    let mut world = world(7, Mode::Rc, &StackConfig::default());
    let counters = Shared::default();
    (1..=LIVE).for_each(|host| world.run(host, Server::new(&counters)));
    (1..=LIVE).for_each(|host| stream(&mut world, 0, host, 10 * SECOND));
    let held =
        |world: &mut World| world.slots[0].host().node().worker.driver().netdev().buffers_in_use();
    assert_eq!(held(&mut world), 0);
    UNPLUGGED.for_each(|host| world.set_cable(host, false));
    for host in UNPLUGGED {
        blast(&mut world, 0, at(host, 9), 200, 60_000);
        let most = held(&mut world);
        assert!((1..=128).contains(&most), "{most} buffers for peers that receive nothing");
    }
    let begin = world.now();
    stream(&mut world, 0, LIVE, 10 * SECOND);
    println!("others waited {:?}", world.now().since_start() - begin.since_start());
    world.until("all buffers are free", 30 * SECOND, |world| held(world) == 0);
    UNPLUGGED.for_each(|host| world.set_cable(host, true));
    world.pass(60 * SECOND);
    (1..=LIVE).for_each(|host| stream(&mut world, 0, host, 30 * SECOND));
}

#[test]
fn a_full_socket_drops_datagrams_and_does_not_delay_others() {
    let config = StackConfig { udp_queue_bytes_max: 100_000, ..StackConfig::default() };
    let mut world = world(2, Mode::Ud, &config);
    let counters = Shared::default();
    world.run(1, Server::new(&counters));
    stream(&mut world, 0, 1, 10 * SECOND);
    let any_address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 9);
    let socket = world.slots[1].host().stack.udp_bind(any_address).expect("the port is free");
    let mut sent = 0;
    for _ in 0..100 {
        sent += blast(&mut world, 0, at(1, 9), 200, 1000);
        world.pass(Duration::from_millis(1));
    }
    stream(&mut world, 0, 1, 10 * SECOND);
    let read = |world: &mut World| {
        let stack = &mut world.slots[1].host().stack;
        let mut buffer = [0; 2000];
        std::iter::from_fn(|| stack.udp_recv(socket, &mut buffer).expect("no error")).count()
    };
    let kept = read(&mut world);
    let lost = world.slots[1].host().stack.counts().udp_queue_full as usize;
    assert_eq!(kept + lost, sent, "every datagram is received or counted");
    assert!((50..=100).contains(&kept) && lost > 1000, "{kept} kept, {lost} lost");
    blast(&mut world, 0, at(1, 9), 10, 1000);
    world.pass(SECOND);
    assert_eq!(read(&mut world), 10, "the queue has space again");
}

#[test]
fn answers_to_a_flood_of_closed_ports_hold_up_no_datagrams() {
    let mut world = world(2, Mode::Ud, &StackConfig::default());
    let counters = Shared::default();
    world.run(1, Server::new(&counters));
    stream(&mut world, 0, 1, 10 * SECOND);
    let now = world.now();
    for number in 0..1000 {
        world.slots[1].host().stack.handle_packet(now, &syn(number));
    }
    assert_eq!(blast(&mut world, 1, at(0, 9), 10, 1000), 10, "small ones are accepted");
    assert_eq!(blast(&mut world, 1, at(0, 9), 10, 60_000), 1, "fragments wait for each other");
}

#[test]
fn packets_to_absent_neighbors_wait_in_a_bounded_queue() {
    let mut world = world(2, Mode::Auto, &StackConfig::default());
    let counters = Shared::default();
    world.run(1, Server::new(&counters));
    for absent in 10..40 {
        blast(&mut world, 0, at(absent, 9), 1000, 1000);
    }
    let pending = |world: &mut World| {
        let control = world.slots[0].host().control();
        control.expect("worker 0 has it").load().pending
    };
    let held = pending(&mut world);
    assert!(held < 4096, "{held} packets wait for absent neighbors");
    stream(&mut world, 0, 1, 10 * SECOND);
    world.pass(60 * SECOND);
    assert_eq!(pending(&mut world), 0);
    let host = world.slots[0].host();
    assert_eq!(host.node().worker.driver().netdev().buffers_in_use(), 0);
    stream(&mut world, 0, 1, 10 * SECOND);
}
