//! Connections over a link that loses: what is sent again, when, and how long it is.

use crate::tcp::{bulk, config};
use crate::world::{Weather, World, byte};
use pollux::stack::{StackConfig, TcpConfig, TcpId};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const ALL: u32 = 1_000_000;

/// Moves a stream one way, looks at every byte, and says how long it took.
fn stream(world: &mut World, [from, to]: [TcpId; 2], bytes: usize) -> Duration {
    let (mut sent, mut received, mut buffer) = (0, 0, vec![0; 100_000]);
    let start = world.now;
    world.until("all is there", MINUTE, |world| {
        let end = bytes.min(sent + 100_000);
        let part: Vec<u8> = (sent..end).map(|at| byte(0, at)).collect();
        sent += world.hosts[0].tcp_send(from, &part).expect("it is open").unwrap_or(0);
        while let Some(came) = world.hosts[1].tcp_recv(to, &mut buffer).expect("it is open") {
            let is_right = (received..).zip(&buffer[..came]).all(|(at, got)| *got == byte(0, at));
            assert!(is_right, "a wrong byte in {received}..{}", received + came);
            received += came;
        }
        received == bytes
    });
    world.now.since_start() - start.since_start()
}

#[test]
fn streams_are_whole_over_a_link_that_does_everything_at_once() {
    let weather =
        Weather { lost: 50_000, late: 50_000, doubled: 50_000, swapped: 50_000, longest: 0 };
    for seed in 0..50 {
        let (mtu, bytes) = if seed % 2 == 0 { (2044, 150_000) } else { (65_520, 600_000) };
        println!("seed {seed}, MTU {mtu}");
        let mut world = World::new(seed, &config(mtu), weather);
        let ids = world.connected(80, seed % 4 > 1);
        let start = world.now;
        bulk(&mut world, ids, bytes);
        let took = world.now.since_start() - start.since_start();
        assert!(took < SECOND, "seed {seed}: {took:?}");
    }
}

#[test]
fn another_order_is_no_loss() {
    let mut bytes = Vec::new();
    for swapped in [0, 100_000] {
        let weather = Weather { swapped, ..Weather::default() };
        let mut world = World::new(1, &config(2044), weather);
        let ids = world.connected(80, false);
        stream(&mut world, ids, 1_000_000);
        bytes.push(world.bytes);
    }
    let most = bytes[0] + bytes[0] / 100;
    assert!(bytes[1] < most, "{bytes:?}: headers of a few more, but nothing twice");
}

/// A peer that was busy for a while begins a repair as a loss does.
#[test]
fn a_connection_is_in_repair_until_nothing_was_lost_for_long() {
    let mut world = World::new(1, &config(65_520), Weather::default());
    let ids = world.connected(80, false);
    stream(&mut world, ids, 1_000_000);
    assert!(!world.hosts[0].tcp_is_in_loss_recovery(ids[0]));
    for _ in 0..2 {
        world.weather.lost = ALL;
        assert_eq!(world.hosts[0].tcp_send(ids[0], b"?"), Ok(Some(1)));
        world.drain();
        world.weather.lost = 0;
        let mut buffer = [0; 9];
        world.until("it is there", MINUTE, |world| {
            world.hosts[1].tcp_recv(ids[1], &mut buffer).expect("it is open").is_some()
        });
        stream(&mut world, ids, 1_000_000);
        assert!(world.hosts[0].tcp_is_in_loss_recovery(ids[0]));
        let mut exchanges = 0;
        while world.hosts[0].tcp_is_in_loss_recovery(ids[0]) {
            exchanges += 1;
            assert!(exchanges < 20_000, "it has been calm for long");
            stream(&mut world, ids, 1);
            world.until("it is acknowledged", MINUTE, |world| {
                world.hosts[0].tcp_unacknowledged(ids[0]) == 0
            });
        }
        assert!(exchanges > 1000, "{exchanges}");
        let took = stream(&mut world, ids, 10_000_000);
        assert!(took < SECOND / 10, "{took:?}");
    }
}

#[test]
fn what_is_lost_at_the_end_is_sent_again_soon() {
    for (mtu, bytes) in [(65_520, 100), (65_520, 400_000), (2044, 100_000)] {
        let mut world = World::new(1, &config(mtu), Weather::default());
        let ids = world.connected(80, false);
        stream(&mut world, ids, 1_000_000);
        // All that is sent now is lost at first.
        world.weather.lost = ALL;
        let all: Vec<u8> = vec![7; bytes];
        assert_eq!(world.hosts[0].tcp_send(ids[0], &all), Ok(Some(bytes)));
        world.drain();
        world.weather.lost = 0;
        let (mut came, mut buffer, start) = (0, vec![0; bytes], world.now);
        world.until("it is there", MINUTE, |world| {
            let more = world.hosts[1].tcp_recv(ids[1], &mut buffer).expect("it is open");
            came += more.unwrap_or(0);
            came == bytes
        });
        let took = world.now.since_start() - start.since_start();
        assert!(took < Duration::from_millis(55), "{bytes} bytes at MTU {mtu}: {took:?}");
    }
}

#[test]
fn segments_are_shorter_where_long_ones_do_not_arrive() {
    let mut world =
        World::new(1, &config(65_520), Weather { longest: 20_000, ..Weather::default() });
    let ids = world.connected(80, false);
    let took = stream(&mut world, ids, 2_000_000);
    assert!(took < SECOND, "{took:?}");
    world.longest = 0;
    stream(&mut world, ids, 2_000_000);
    assert!((8000..=20_000).contains(&world.longest), "{}", world.longest);
    // When long ones arrive again, they are sent again.
    world.weather.longest = 0;
    stream(&mut world, ids, 20_000_000);
    assert!(world.longest > 65_000, "{}", world.longest);
}

/// Fills a connection whose reader does not read.
fn fill(world: &mut World, from: TcpId) -> usize {
    let (mut sent, whole) = (0, vec![7; 100_000]);
    for _ in 0..100 {
        sent += world.hosts[0].tcp_send(from, &whole).expect("it is open").unwrap_or(0);
        world.pass(Duration::from_millis(100));
    }
    let tcp = StackConfig::default().tcp;
    let both = tcp.receive_bytes + tcp.send_bytes;
    assert!((both - 16..=both).contains(&sent), "{sent}: windows are said in parts of 16");
    sent
}

#[test]
fn a_closed_window_is_respected_and_opens_again_also_when_it_is_not_heard_to() {
    for lost in [0, 50_000] {
        let mut world = World::new(1, &config(2044), Weather { lost, ..Weather::default() });
        let ids = world.connected(80, false);
        stream(&mut world, ids, 1_000_000);
        let sent = fill(&mut world, ids[0]);
        let (packets, bytes) = (world.packets, world.bytes);
        world.pass(MINUTE);
        assert!(world.packets - packets < 400, "{} to a closed window", world.packets - packets);
        assert_eq!(world.bytes, bytes, "nothing but a few single bytes");
        // The window opens, and all words of that are lost.
        world.weather.lost = ALL;
        let (mut received, mut buffer) = (0, vec![0; 50_000]);
        let mut read = |world: &mut World| {
            while let Some(came) = world.hosts[1].tcp_recv(ids[1], &mut buffer).expect("open") {
                received += came;
            }
            received == sent
        };
        read(&mut world);
        world.drain();
        world.weather.lost = lost;
        world.until("all is there", 15 * SECOND, read);
    }
}

#[test]
fn a_fin_is_said_until_it_is_heard() {
    for (is_repaired, is_answered) in [(false, false), (true, false), (false, true), (true, true)] {
        let lost = if is_repaired { 20_000 } else { 0 };
        let mut world = World::new(1, &config(2044), Weather { lost, ..Weather::default() });
        let [client, server] = world.connected(80, false);
        stream(&mut world, [client, server], 1_000_000);
        world.weather.lost = 0;
        world.pass(SECOND);
        let now = world.now;
        if is_answered {
            // So that ours is the last of two.
            world.hosts[1].tcp_shut_down(now, server).expect("it is open");
            world.pass(SECOND);
        }
        let (now, packets) = (world.now, world.packets);
        world.weather.lost = ALL;
        world.hosts[0].tcp_shut_down(now, client).expect("it is open");
        world.pass(5 * SECOND);
        assert!(world.packets - packets >= 5, "{} were lost", world.packets - packets);
        world.weather.lost = 0;
        world.until("the end of all", 10 * SECOND, |world| {
            world.hosts[1].tcp_recv(server, &mut [0; 9]) == Ok(Some(0))
        });
        world.pass(SECOND);
    }
}

#[test]
fn what_takes_long_is_not_sent_twice() {
    for delay in [5, 20, 50].map(Duration::from_millis) {
        let mut world = World::new(1, &config(2044), Weather::default());
        world.delay = delay;
        let ids = world.connected(80, false);
        stream(&mut world, ids, 2_000_000);
        let most = 2_000_000 / 2004 * 2044 * 101 / 100;
        assert!(world.bytes < most, "{} at {delay:?}", world.bytes);
        // After a loss as well.
        world.weather.lost = ALL;
        assert_eq!(world.hosts[0].tcp_send(ids[0], &vec![7; 20_000]), Ok(Some(20_000)));
        world.drain();
        world.weather.lost = 0;
        let (mut came, mut buffer) = (0, vec![0; 100_000]);
        world.until("it is there", MINUTE, |world| {
            came += world.hosts[1].tcp_recv(ids[1], &mut buffer).expect("open").unwrap_or(0);
            came == 20_000
        });
        let bytes = world.bytes;
        let took = stream(&mut world, ids, 2_000_000);
        assert!(world.bytes - bytes < most, "{} at {delay:?}", world.bytes - bytes);
        println!("{took:?} at {delay:?}");
        assert!(took < 200 * delay, "{took:?} at {delay:?}");
    }
}

#[test]
fn small_messages_after_an_outage_are_not_sent_byte_by_byte() {
    let mut world = World::new(1, &config(65_520), Weather::default());
    let ids = world.connected(80, false);
    stream(&mut world, ids, 1_000_000);
    world.weather.lost = ALL;
    assert_eq!(world.hosts[0].tcp_send(ids[0], &[7; 100]), Ok(Some(100)));
    world.pass(2 * SECOND);
    world.weather.lost = 0;
    let (mut came, mut buffer) = (0, vec![0; 100_000]);
    for _ in 0..3000 {
        world.pass(Duration::from_millis(5));
        came += world.hosts[1].tcp_recv(ids[1], &mut buffer).expect("it is open").unwrap_or(0);
        assert_eq!(world.hosts[0].tcp_send(ids[0], &[7; 100]), Ok(Some(100)));
    }
    let (mut sent, packets) = (0, world.packets);
    world.until("all is there", MINUTE, |world| {
        let whole = vec![7; 10_000];
        let left = &whole[..whole.len().min(1_000_000 - sent)];
        sent += world.hosts[0].tcp_send(ids[0], left).expect("it is open").unwrap_or(0);
        came += world.hosts[1].tcp_recv(ids[1], &mut buffer).expect("it is open").unwrap_or(0);
        came == 100 * 3001 + 1_000_000
    });
    assert!(world.packets - packets < 1500, "{} packets", world.packets - packets);
}

#[test]
fn what_a_closing_server_has_left_is_sent_within_the_window() {
    let mut world = World::new(1, &config(2044), Weather::default());
    let [client, server] = world.connected(80, false);
    let now = world.now;
    world.hosts[0].tcp_shut_down(now, client).expect("it is open");
    world.pass(SECOND);
    // The window of one that was silent for long is small.
    world.weather.lost = ALL;
    assert_eq!(world.hosts[1].tcp_send(server, &[7; 10_000]), Ok(Some(10_000)));
    world.pass(SECOND);
    assert_eq!(world.hosts[1].tcp_send(server, &vec![7; 400_000]), Ok(Some(400_000)));
    let now = world.now;
    world.hosts[1].tcp_close(now, server);
    world.drain();
    world.pass(4 * SECOND);
    world.weather.lost = 0;
    let (mut came, mut most, mut buffer) = (0, 0, vec![0; 100_000]);
    let mut sent = world.packets;
    world.until("all is there", 20 * SECOND, |world| {
        most = most.max(world.packets - sent);
        sent = world.packets;
        came += world.hosts[0].tcp_recv(client, &mut buffer).expect("it is open").unwrap_or(0);
        came == 410_000
    });
    assert!(most < 16, "{most} packets at once");
}

/// RFC 5681 4.1: who was idle begins with a small window again, also if it has lost something and
/// its repair is over.
#[test]
fn an_idle_connection_has_a_small_window_after_a_repair_too() {
    let bytes = 4 << 20;
    let tcp = TcpConfig { receive_bytes: bytes, send_bytes: bytes, ..TcpConfig::default() };
    let config = StackConfig { mtu: 2044, tcp, ..StackConfig::default() };
    let mut world = World::new(1, &config, Weather::default());
    let ids = world.connected(80, false);
    world.weather.lost = ALL;
    assert_eq!(world.hosts[0].tcp_send(ids[0], b"?"), Ok(Some(1)));
    world.drain();
    world.weather.lost = 0;
    world.until("it is there", MINUTE, |world| {
        world.hosts[1].tcp_recv(ids[1], &mut [0; 9]).expect("it is open").is_some()
    });
    stream(&mut world, ids, 20_000_000);
    world.until("it is out of repair", MINUTE, |world| {
        stream(world, ids, 1);
        world.pass(Duration::from_millis(3));
        !world.hosts[0].tcp_is_in_loss_recovery(ids[0])
    });
    world.pass(10 * MINUTE);
    assert_eq!(world.hosts[0].tcp_send(ids[0], &vec![7; bytes]), Ok(Some(bytes)));
    let before = world.bytes;
    world.drain();
    let at_once = world.bytes - before;
    // RFC 6928 2.
    assert!((1..=10 * 2044).contains(&at_once), "{at_once} bytes at once");
    // And the window grows from there.
    let (mut came, mut buffer, start) = (0, vec![0; 100_000], world.now);
    world.until("all is there", MINUTE, |world| {
        came += world.hosts[1].tcp_recv(ids[1], &mut buffer).expect("open").unwrap_or(0);
        came == bytes
    });
    let took = world.now.since_start() - start.since_start();
    let round_trips = took.as_nanos() / (2 * world.delay).as_nanos();
    assert!(round_trips < 40, "{round_trips} round trips");
}
