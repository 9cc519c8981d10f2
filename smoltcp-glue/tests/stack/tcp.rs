//! Connections between two stacks.

use crate::world::{Weather, World, at, byte, ip};
use pollux::stack::{BindError, StackConfig, TcpConfig, TcpError, TcpId};
use pollux_verbs::time::Time;
use std::net::SocketAddr;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

pub fn config(mtu: u32) -> StackConfig {
    StackConfig { mtu, ..StackConfig::default() }
}

fn calm(mtu: u32) -> World {
    World::new(1, &config(mtu), Weather::default())
}

/// Moves a stream each way at once, and looks at every byte.
pub fn bulk(world: &mut World, ids: [TcpId; 2], bytes: usize) {
    let (mut sent, mut received) = ([0; 2], [0; 2]);
    let mut buffer = vec![0; 100_000];
    world.until("all is there", 60 * MINUTE, |world| {
        for host in 0..2 {
            let end = bytes.min(sent[host] + 30_000);
            let part: Vec<u8> = (sent[host]..end).map(|at| byte(host, at)).collect();
            let taken = world.hosts[host].tcp_send(ids[host], &part).expect("it is open");
            sent[host] += taken.unwrap_or(0);
            let recv = |world: &mut World, buffer: &mut [u8]| {
                world.hosts[host].tcp_recv(ids[host], buffer).expect("it is open")
            };
            while let Some(came) = recv(world, &mut buffer) {
                for (at, got) in (received[host]..).zip(&buffer[..came]) {
                    assert_eq!(*got, byte(1 - host, at), "byte {at} of host {}", 1 - host);
                }
                received[host] += came;
            }
        }
        received == [bytes; 2]
    });
}

#[test]
fn streams_both_ways_arrive_whole_whatever_the_link_loses() {
    for seed in 0..6 {
        let lost = [0, 10_000, 50_000][seed as usize % 3];
        let weather = Weather { lost, late: lost * 2, doubled: lost / 2, ..Weather::default() };
        for (mtu, bytes) in [(65_520, 3_000_000), (2044, 300_000)] {
            println!("seed {seed}, {weather:?}, MTU {mtu}");
            let mut world = World::new(seed, &config(mtu), weather);
            let ids = world.connected(80, seed % 2 == 1);
            bulk(&mut world, ids, bytes);
            assert!(world.longest <= mtu as usize && world.longest > mtu as usize - 100);
        }
    }
}

/// What the second of two hosts sends at once when the first has sent so much.
fn answers_at_once(bytes: usize) -> usize {
    let mut world = calm(2044);
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
fn more_than_a_segment_is_acknowledged_at_once_and_less_is_not() {
    assert_eq!([64, 2000, 2100, 10_000].map(answers_at_once), [0, 0, 1, 1]);
}

fn round_trips_since(world: &World, start: Time) -> u128 {
    let took = world.now.since_start() - start.since_start();
    took.as_nanos().div_ceil((2 * world.delay).as_nanos())
}

/// A new connection's window doubles each round trip, from 2 KiB on: nothing waits for a delayed
/// acknowledgment meanwhile.
#[test]
fn the_first_write_of_a_connection_waits_for_no_clock() {
    let limits = [(1000, 1), (2048, 1), (2049, 2), (8192, 3), (65_000, 6), (131_072, 7)];
    for mtu in [65_520, 2044] {
        for (bytes, limit) in limits {
            let mut world = calm(mtu);
            let [client, server] = world.connected(80, false);
            let (start, mut came, mut buffer) = (world.now, 0, vec![0; bytes]);
            assert_eq!(world.hosts[0].tcp_send(client, &vec![7; bytes]), Ok(Some(bytes)));
            world.until("it is there", MINUTE, |world| {
                came += world.hosts[1].tcp_recv(server, &mut buffer).expect("open").unwrap_or(0);
                came == bytes
            });
            let round_trips = round_trips_since(&world, start);
            let what = format!("{bytes} bytes at MTU {mtu}");
            assert!(round_trips <= limit, "{what}: {round_trips} round trips, and not {limit}");
        }
    }
}

#[test]
fn a_stream_on_a_calm_link_waits_for_no_clock() {
    for mtu in [65_520, 2044] {
        let mut world = calm(mtu);
        let ids = world.connected(80, false);
        let (start, packets) = (world.now, world.packets);
        bulk(&mut world, ids, 4_000_000);
        let round_trips = round_trips_since(&world, start);
        let least = 2 * 4_000_000 / (mtu as usize - 40);
        let packets = (world.packets - packets) as usize;
        // 8 windows, and as many doublings until the first is full. An acknowledgment that is
        // delayed, or a window that opens late, would be 200 round trips each time.
        assert!(round_trips < 40, "{round_trips} round trips at MTU {mtu}");
        assert!(packets < 3 * least + 100, "{packets} packets, {least} at least, at MTU {mtu}");
    }
}

#[test]
fn each_half_is_closed_alone() {
    let mut world = calm(2044);
    let [client, server] = world.connected(80, false);
    let now = world.now;
    assert_eq!(world.hosts[0].tcp_send(client, b"question"), Ok(Some(8)));
    world.hosts[0].tcp_shut_down(now, client).expect("it is open");
    assert_eq!(world.hosts[0].tcp_send(client, b"more"), Err(TcpError::ShutDown));
    let mut buffer = [0; 100];
    world.pass(SECOND);
    assert_eq!(world.hosts[1].tcp_recv(server, &mut buffer), Ok(Some(8)));
    assert_eq!(world.hosts[1].tcp_recv(server, &mut buffer), Ok(Some(0)), "it has said all");
    // The other half lives on, for longer than anybody is patient.
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
fn what_came_is_kept_for_who_reads_late() {
    let mut world = calm(2044);
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
fn nobody_listening_is_a_refusal_and_an_abort_a_reset() {
    for is_v6 in [false, true] {
        let mut world = calm(2044);
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
fn closing_before_all_is_read_is_a_reset() {
    let mut world = calm(2044);
    let [client, server] = world.connected(80, false);
    world.hosts[0].tcp_send(client, b"nobody reads this").expect("it is open");
    world.pass(SECOND);
    let now = world.now;
    world.hosts[1].tcp_close(now, server);
    world.pass(SECOND);
    assert_eq!(world.end_of(0, client), Some(TcpError::Reset));
}

#[test]
fn a_silent_peer_is_given_up_and_an_idle_one_is_not() {
    let mut world = calm(2044);
    let [client, server] = world.connected(80, false);
    world.pass(120 * MINUTE);
    assert_eq!((world.end_of(0, client), world.end_of(1, server)), (None, None));
    world.weather.lost = 1_000_000;
    world.hosts[0].tcp_send(client, b"hello?").expect("it is open");
    world.pass(3 * MINUTE);
    assert_eq!(world.end_of(0, client), Some(TcpError::TimedOut));
    // A close that nobody answers ends as well.
    let now = world.now;
    world.hosts[1].tcp_close(now, server);
    world.pass(3 * MINUTE);
    assert_eq!(world.hosts[1].tcp_len(), 0);
    // And so does a SYN.
    let now = world.now;
    let lonely = world.hosts[0].tcp_connect(now, at(0, 0), at(1, 80)).expect("a port is free");
    world.pass(3 * MINUTE);
    assert_eq!(world.end_of(0, lonely), Some(TcpError::TimedOut));
}

#[test]
fn a_reader_that_pauses_stops_the_writer_and_lets_it_go_on() {
    let mut world = calm(2044);
    let [client, server] = world.connected(80, false);
    let mut sent = 0;
    let whole = vec![7; 100_000];
    for _ in 0..600 {
        sent += world.hosts[0].tcp_send(client, &whole).expect("it is open").unwrap_or(0);
        world.pass(Duration::from_millis(100));
    }
    let both = StackConfig::default().tcp.receive_bytes + StackConfig::default().tcp.send_bytes;
    assert_eq!(sent, both, "buffers are full after a minute, and nobody has given up");
    let (mut received, mut buffer) = (0, vec![0; 50_000]);
    world.until("all is there", 10 * MINUTE, |world| {
        while let Some(came) = world.hosts[1].tcp_recv(server, &mut buffer).expect("it is open") {
            received += came;
        }
        received == sent
    });
}

#[test]
fn both_ends_of_a_connection_may_be_used_again() {
    let mut world = calm(2044);
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
fn a_shorter_way_makes_segments_shorter() {
    let mut world = calm(65_520);
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

#[test]
fn connections_have_a_limit() {
    let tcp = TcpConfig { connections_max: 3, ..TcpConfig::default() };
    let mut world =
        World::new(1, &StackConfig { tcp, ..StackConfig::default() }, Weather::default());
    let now = world.now;
    let connect = |world: &mut World| world.hosts[0].tcp_connect(now, at(0, 0), at(1, 80));
    let ids: Vec<_> = (0..3).map(|_| connect(&mut world).expect("there is room")).collect();
    for id in ids {
        assert_eq!(connect(&mut world), Err(BindError::Full));
        world.hosts[0].tcp_abort(now, id);
        world.drain();
        assert!(connect(&mut world).is_ok(), "one has gone");
    }
}
