//! Connections between two stacks.

use crate::world::{LinkFaults, World, at, byte, ip};
use pollux::stack::{BindError, StackConfig, TcpConfig, TcpError, TcpId};
use pollux_verbs::time::Time;
use std::net::SocketAddr;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

pub fn config(mtu: u32) -> StackConfig {
    StackConfig { mtu, ..StackConfig::default() }
}

fn without_faults(mtu: u32) -> World {
    World::new(1, &config(mtu), LinkFaults::default())
}

/// Transfers a stream in each direction at the same time, and checks every byte.
pub fn bulk(world: &mut World, ids: [TcpId; 2], bytes: usize) {
    let (mut sent, mut received) = ([0; 2], [0; 2]);
    let mut buffer = vec![0; 100_000];
    world.until("all is received", 60 * MINUTE, |world| {
        for host in 0..2 {
            let end = bytes.min(sent[host] + 30_000);
            let part: Vec<u8> = (sent[host]..end).map(|at| byte(host, at)).collect();
            let taken = world.hosts[host].tcp_send(ids[host], &part).expect("it is open");
            sent[host] += taken.unwrap_or(0);
            let recv = |world: &mut World, buffer: &mut [u8]| {
                world.hosts[host].tcp_recv(ids[host], buffer).expect("it is open")
            };
            while let Some(len) = recv(world, &mut buffer) {
                for (at, got) in (received[host]..).zip(&buffer[..len]) {
                    assert_eq!(*got, byte(1 - host, at), "byte {at} of host {}", 1 - host);
                }
                received[host] += len;
            }
        }
        received == [bytes; 2]
    });
}

#[test]
fn streams_in_both_directions_survive_losses_and_reordering() {
    for seed in 0..6 {
        let lost = [0, 10_000, 50_000][seed as usize % 3];
        let faults =
            LinkFaults { lost, late: lost * 2, duplicated: lost / 2, ..LinkFaults::default() };
        for (mtu, bytes) in [(65_520, 3_000_000), (2044, 300_000)] {
            println!("seed {seed}, {faults:?}, MTU {mtu}");
            let mut world = World::new(seed, &config(mtu), faults);
            let ids = world.connected(80, seed % 2 == 1);
            bulk(&mut world, ids, bytes);
            assert!(world.longest <= mtu as usize && world.longest > mtu as usize - 100);
        }
    }
}

/// The number of packets that the receiver of so many bytes sends at once.
fn answers_at_once(bytes: usize) -> usize {
    let mut world = without_faults(2044);
    let [client, _] = world.connected(80, false);
    world.pass(SECOND);
    let now = world.now;
    let [first, second] = &mut world.hosts;
    assert_eq!(first.tcp_send(client, &vec![1; bytes]), Ok(Some(bytes)));
    while let Some(packet) = first.poll_transmit(now) {
        second.handle_packet(now, packet);
    }
    std::iter::from_fn(|| second.poll_transmit(now).map(drop)).count()
}

#[test]
fn more_than_a_segment_is_acknowledged_at_once() {
    assert_eq!([64, 2000, 2100, 10_000].map(answers_at_once), [0, 0, 1, 1]);
}

fn round_trips_since(world: &World, start: Time) -> u128 {
    let took = world.now.since_start() - start.since_start();
    took.as_nanos().div_ceil((2 * world.delay).as_nanos())
}

/// A new connection's window doubles each round trip, from 2 KiB on, without a wait for a delayed
/// acknowledgment.
#[test]
fn the_first_write_of_a_connection_waits_for_no_timer() {
    let limits = [(1000, 1), (2048, 1), (2049, 2), (8192, 3), (65_000, 6), (131_072, 7)];
    for mtu in [65_520, 2044] {
        for (bytes, limit) in limits {
            let mut world = without_faults(mtu);
            let [client, server] = world.connected(80, false);
            let (start, mut received, mut buffer) = (world.now, 0, vec![0; bytes]);
            assert_eq!(world.hosts[0].tcp_send(client, &vec![7; bytes]), Ok(Some(bytes)));
            world.until("it is received", MINUTE, |world| {
                received +=
                    world.hosts[1].tcp_recv(server, &mut buffer).expect("open").unwrap_or(0);
                received == bytes
            });
            let round_trips = round_trips_since(&world, start);
            let what = format!("{bytes} bytes at MTU {mtu}");
            assert!(round_trips <= limit, "{what}: {round_trips} round trips, and not {limit}");
        }
    }
}

#[test]
fn a_stream_without_losses_waits_for_no_timer() {
    for mtu in [65_520, 2044] {
        let mut world = without_faults(mtu);
        let ids = world.connected(80, false);
        let (start, packets) = (world.now, world.packets);
        bulk(&mut world, ids, 4_000_000);
        let round_trips = round_trips_since(&world, start);
        let least = 2 * 4_000_000 / (mtu as usize - 40);
        let packets = (world.packets - packets) as usize;
        // 8 windows, and as many doublings until the first is full. A delayed acknowledgment or
        // a late window update would take 200 round trips.
        assert!(round_trips < 40, "{round_trips} round trips at MTU {mtu}");
        assert!(packets < 3 * least + 100, "{packets} packets, {least} at least, at MTU {mtu}");
    }
}

#[test]
fn each_half_of_a_connection_is_closed_separately() {
    let mut world = without_faults(2044);
    let [client, server] = world.connected(80, false);
    let now = world.now;
    assert_eq!(world.hosts[0].tcp_send(client, b"question"), Ok(Some(8)));
    world.hosts[0].tcp_shut_down(now, client).expect("it is open");
    assert_eq!(world.hosts[0].tcp_send(client, b"more"), Err(TcpError::ShutDown));
    let mut buffer = [0; 100];
    world.pass(SECOND);
    assert_eq!(world.hosts[1].tcp_recv(server, &mut buffer), Ok(Some(8)));
    assert_eq!(world.hosts[1].tcp_recv(server, &mut buffer), Ok(Some(0)), "end of file");
    // The other half stays open beyond the user timeout.
    world.pass(10 * MINUTE);
    assert_eq!(world.hosts[1].tcp_send(server, b"answer"), Ok(Some(6)));
    let now = world.now;
    world.hosts[1].tcp_close(now, server);
    world.pass(SECOND);
    assert_eq!(world.hosts[0].tcp_recv(client, &mut buffer), Ok(Some(6)));
    assert_eq!(world.hosts[0].tcp_recv(client, &mut buffer), Ok(Some(0)));
    let now = world.now;
    world.hosts[0].tcp_close(now, client);
    world.pass(MINUTE);
    assert_eq!([world.hosts[0].tcp_len(), world.hosts[1].tcp_len()], [0, 0]);
}

#[test]
fn received_data_are_kept_for_a_late_reader() {
    let mut world = without_faults(2044);
    let [client, server] = world.connected(80, false);
    world.hosts[1].tcp_send(server, b"last words").expect("it is open");
    let now = world.now;
    world.hosts[0].tcp_shut_down(now, client).expect("it is open");
    world.hosts[1].tcp_close(now, server);
    world.pass(10 * MINUTE);
    let mut buffer = [0; 100];
    assert_eq!(world.hosts[0].tcp_recv(client, &mut buffer), Ok(Some(10)));
    world.pass(MINUTE);
    assert_eq!(world.hosts[0].tcp_recv(client, &mut buffer), Ok(Some(0)));
}

#[test]
fn a_closed_port_refuses_and_an_abort_resets() {
    for is_v6 in [false, true] {
        let mut world = without_faults(2044);
        let there = SocketAddr::new(ip(1, is_v6), 81);
        let now = world.now;
        let here = SocketAddr::new(ip(0, is_v6), 0);
        let client = world.hosts[0].tcp_connect(now, here, there).expect("a port is free");
        world.pass(SECOND);
        assert_eq!(world.end_of(0, client), Some(TcpError::Refused));
        assert_eq!(world.hosts[1].counts().tcp_refused, 1);

        let [client, server] = world.connected(80, is_v6);
        let now = world.now;
        world.hosts[1].tcp_abort(now, server);
        world.pass(SECOND);
        assert_eq!(world.hosts[0].tcp_recv(client, &mut [0; 9]), Err(TcpError::Reset));
        assert_eq!(world.hosts[0].tcp_send(client, b"more"), Err(TcpError::Reset));
        assert_eq!(world.hosts[1].tcp_len(), 0);
    }
}

#[test]
fn a_close_with_unread_data_is_a_reset() {
    let mut world = without_faults(2044);
    let [client, server] = world.connected(80, false);
    world.hosts[0].tcp_send(client, b"never read").expect("it is open");
    world.pass(SECOND);
    let now = world.now;
    world.hosts[1].tcp_close(now, server);
    world.pass(SECOND);
    assert_eq!(world.end_of(0, client), Some(TcpError::Reset));
}

#[test]
fn a_silent_peer_times_out_and_an_idle_one_does_not() {
    let mut world = without_faults(2044);
    let [client, server] = world.connected(80, false);
    world.pass(120 * MINUTE);
    assert_eq!((world.end_of(0, client), world.end_of(1, server)), (None, None));
    world.faults.lost = 1_000_000;
    world.hosts[0].tcp_send(client, b"hello?").expect("it is open");
    world.pass(3 * MINUTE);
    assert_eq!(world.end_of(0, client), Some(TcpError::TimedOut));
    // An unanswered FIN times out, too.
    let now = world.now;
    world.hosts[1].tcp_close(now, server);
    world.pass(3 * MINUTE);
    assert_eq!(world.hosts[1].tcp_len(), 0);
    // So does a SYN.
    let now = world.now;
    let opening = world.hosts[0].tcp_connect(now, at(0, 0), at(1, 80)).expect("a port is free");
    world.pass(3 * MINUTE);
    assert_eq!(world.end_of(0, opening), Some(TcpError::TimedOut));
}

#[test]
fn a_writer_stops_while_its_reader_pauses() {
    let mut world = without_faults(2044);
    let [client, server] = world.connected(80, false);
    let mut sent = 0;
    let chunk = vec![7; 100_000];
    for _ in 0..600 {
        sent += world.hosts[0].tcp_send(client, &chunk).expect("it is open").unwrap_or(0);
        world.pass(Duration::from_millis(100));
    }
    let both = StackConfig::default().tcp.receive_bytes + StackConfig::default().tcp.send_bytes;
    assert_eq!(sent, both, "buffers are full after a minute, and the connection is open");
    let (mut received, mut buffer) = (0, vec![0; 50_000]);
    world.until("all is received", 10 * MINUTE, |world| {
        while let Some(len) = world.hosts[1].tcp_recv(server, &mut buffer).expect("it is open") {
            received += len;
        }
        received == sent
    });
}

#[test]
fn addresses_of_a_closed_connection_can_be_reused() {
    let mut world = without_faults(2044);
    let listener = world.hosts[1].tcp_listen(at(1, 80), 4).expect("the port is free");
    assert_eq!(world.hosts[1].tcp_listen(at(1, 80), 4), Err(BindError::InUse));
    for round in 0..5 {
        let now = world.now;
        let connect = world.hosts[0].tcp_connect(now, at(0, 5000), at(1, 80));
        let client = connect.unwrap_or_else(|error| panic!("round {round}: {error:?}"));
        let mut server = None;
        world.until("accepted", SECOND, |world| {
            server = world.hosts[1].tcp_accept(listener).expect("it listens");
            server.is_some()
        });
        let again = world.hosts[0].tcp_connect(now, at(0, 5000), at(1, 80));
        assert_eq!(again, Err(BindError::InUse));
        // The listening side closes first, so it has the TIME-WAIT state.
        let now = world.now;
        world.hosts[1].tcp_close(now, server.expect("waited for"));
        world.pass(Duration::from_millis(100));
        let now = world.now;
        world.hosts[0].tcp_close(now, client);
        world.pass(Duration::from_millis(100));
    }
}

#[test]
fn segments_fit_the_path_mtu() {
    let mut world = without_faults(65_520);
    let now = world.now;
    world.hosts[0].set_path_mtu(now, ip(1, false), Some(2044));
    let ids = world.connected(80, false);
    bulk(&mut world, ids, 200_000);
    assert!(world.longest <= 2044, "{}", world.longest);
    for host in 0..2 {
        let now = world.now;
        world.hosts[host].handle_too_big(now, ip(1 - host, false), 1500);
    }
    world.longest = 0;
    bulk(&mut world, ids, 200_000);
    assert!(world.longest <= 1500, "{}", world.longest);
}

/// More connections than there are ports, in less than the time of TIME-WAIT.
#[test]
fn ports_in_time_wait_are_used_again_when_there_are_no_others() {
    let mut world = without_faults(1500);
    let listener = world.hosts[1].tcp_listen(at(1, 80), 4).expect("the port is free");
    let begun = world.now;
    for round in 0..20_000 {
        let now = world.now;
        let connect = world.hosts[0].tcp_connect(now, at(0, 0), at(1, 80));
        let client = connect.unwrap_or_else(|error| panic!("round {round}: {error:?}"));
        world.pass(Duration::from_micros(20));
        let server = world.hosts[1].tcp_accept(listener).expect("it listens").expect("accepted");
        let now = world.now;
        world.hosts[0].tcp_close(now, client);
        world.pass(Duration::from_micros(20));
        let now = world.now;
        world.hosts[1].tcp_close(now, server);
        world.pass(Duration::from_micros(20));
    }
    assert!(world.now < begun + 2 * SECOND);
    assert_eq!(world.hosts[1].tcp_len(), 0);
}

/// Whoever closes first, and whether the application closes before the peer's FIN or after it.
#[test]
fn connections_in_time_wait_take_no_place_of_others() {
    let tcp = TcpConfig { connections_max: 1, ..TcpConfig::default() };
    let config = StackConfig { tcp, ..StackConfig::default() };
    for (first, shuts_down) in [(0, false), (0, true), (1, false), (1, true)] {
        let mut world = World::new(1, &config, LinkFaults::default());
        for round in 0..5 {
            let ids = world.connected(80, false);
            bulk(&mut world, ids, 100_000);
            let now = world.now;
            match shuts_down {
                true => drop(world.hosts[first].tcp_shut_down(now, ids[first])),
                false => world.hosts[first].tcp_close(now, ids[first]),
            }
            for host in [1 - first, first] {
                world.pass(Duration::from_millis(10));
                let now = world.now;
                world.hosts[host].tcp_close(now, ids[host]);
            }
            world.pass(Duration::from_millis(10));
            let left = [0, 1].map(|host| world.hosts[host].tcp_len());
            assert_eq!(left[1 - first], 0, "round {round}");
            assert_eq!(left[first], 1, "round {round}");
        }
    }
}

#[test]
fn connections_have_a_limit() {
    let tcp = TcpConfig { connections_max: 3, ..TcpConfig::default() };
    let mut world =
        World::new(1, &StackConfig { tcp, ..StackConfig::default() }, LinkFaults::default());
    let now = world.now;
    let connect = |world: &mut World| world.hosts[0].tcp_connect(now, at(0, 0), at(1, 80));
    let ids: Vec<_> = (0..3).map(|_| connect(&mut world).expect("there is space")).collect();
    for id in ids {
        assert_eq!(connect(&mut world), Err(BindError::Full));
        world.hosts[0].tcp_abort(now, id);
        world.drain();
        assert!(connect(&mut world).is_ok(), "one has ended");
    }
}
