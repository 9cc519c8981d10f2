//! Connections over a lossy link: which segments are retransmitted, when, and their length.

use crate::tcp::{bulk, config};
use crate::world::{LinkFaults, World, byte};
use pollux::stack::{StackConfig, TcpConfig, TcpId};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const ALL: u32 = 1_000_000;

/// Transfers a stream in one direction and checks every byte; returns the duration.
pub fn stream(world: &mut World, [from, to]: [TcpId; 2], bytes: usize) -> Duration {
    let (mut sent, mut received, mut buffer) = (0, 0, vec![0; 100_000]);
    let start = world.now;
    world.until("all is received", MINUTE, |world| {
        let end = bytes.min(sent + 100_000);
        let part: Vec<u8> = (sent..end).map(|at| byte(0, at)).collect();
        sent += world.hosts[0].tcp_send(from, &part).expect("it is open").unwrap_or(0);
        while let Some(len) = world.hosts[1].tcp_recv(to, &mut buffer).expect("it is open") {
            let is_right = (received..).zip(&buffer[..len]).all(|(at, got)| *got == byte(0, at));
            assert!(is_right, "a wrong byte in {received}..{}", received + len);
            received += len;
        }
        received == bytes
    });
    world.now.since_start() - start.since_start()
}

#[test]
fn streams_survive_all_faults_at_the_same_time() {
    let faults = LinkFaults {
        lost: 50_000,
        late: 50_000,
        duplicated: 50_000,
        reordered: 50_000,
        len_max: 0,
    };
    for seed in 0..50 {
        let (mtu, bytes) = if seed % 2 == 0 { (2044, 150_000) } else { (65_520, 600_000) };
        println!("seed {seed}, MTU {mtu}");
        let mut world = World::new(seed, &config(mtu), faults);
        let ids = world.connected(80, seed % 4 > 1);
        let start = world.now;
        bulk(&mut world, ids, bytes);
        let took = world.now.since_start() - start.since_start();
        assert!(took < SECOND, "seed {seed}: {took:?}");
    }
}

#[test]
fn reordering_causes_no_retransmission() {
    let mut bytes = Vec::new();
    for reordered in [0, 100_000] {
        let faults = LinkFaults { reordered, ..LinkFaults::default() };
        let mut world = World::new(1, &config(2044), faults);
        let ids = world.connected(80, false);
        stream(&mut world, ids, 1_000_000);
        bytes.push(world.bytes);
    }
    let most = bytes[0] + bytes[0] / 100;
    assert!(bytes[1] < most, "{bytes:?}: more headers, but no retransmission");
}

/// A late acknowledgment of a busy peer starts recovery like a loss.
#[test]
fn recovery_ends_after_a_time_without_losses() {
    let mut world = World::new(1, &config(65_520), LinkFaults::default());
    let ids = world.connected(80, false);
    stream(&mut world, ids, 1_000_000);
    assert!(!world.hosts[0].tcp_is_in_loss_recovery(ids[0]));
    for _ in 0..2 {
        world.faults.lost = ALL;
        assert_eq!(world.hosts[0].tcp_send(ids[0], b"?"), Ok(Some(1)));
        world.drain();
        world.faults.lost = 0;
        let mut buffer = [0; 9];
        world.until("it is received", MINUTE, |world| {
            world.hosts[1].tcp_recv(ids[1], &mut buffer).expect("it is open").is_some()
        });
        stream(&mut world, ids, 1_000_000);
        assert!(world.hosts[0].tcp_is_in_loss_recovery(ids[0]));
        let mut exchanges = 0;
        while world.hosts[0].tcp_is_in_loss_recovery(ids[0]) {
            exchanges += 1;
            assert!(exchanges < 20_000, "there was no loss for long");
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
fn a_tail_loss_is_retransmitted_soon() {
    for (mtu, bytes) in [(65_520, 100), (65_520, 400_000), (2044, 100_000)] {
        let mut world = World::new(1, &config(mtu), LinkFaults::default());
        let ids = world.connected(80, false);
        stream(&mut world, ids, 1_000_000);
        // All segments of the first transmission are lost.
        world.faults.lost = ALL;
        let all: Vec<u8> = vec![7; bytes];
        assert_eq!(world.hosts[0].tcp_send(ids[0], &all), Ok(Some(bytes)));
        world.drain();
        world.faults.lost = 0;
        let (mut received, mut buffer, start) = (0, vec![0; bytes], world.now);
        world.until("it is received", MINUTE, |world| {
            let more = world.hosts[1].tcp_recv(ids[1], &mut buffer).expect("it is open");
            received += more.unwrap_or(0);
            received == bytes
        });
        let took = world.now.since_start() - start.since_start();
        assert!(took < Duration::from_millis(55), "{bytes} bytes at MTU {mtu}: {took:?}");
    }
}

#[test]
fn segments_are_shortened_while_long_ones_are_lost() {
    let mut world =
        World::new(1, &config(65_520), LinkFaults { len_max: 20_000, ..LinkFaults::default() });
    let ids = world.connected(80, false);
    let took = stream(&mut world, ids, 2_000_000);
    assert!(took < SECOND, "{took:?}");
    world.longest = 0;
    stream(&mut world, ids, 2_000_000);
    assert!((8000..=20_000).contains(&world.longest), "{}", world.longest);
    // They are lengthened when long segments arrive again.
    world.faults.len_max = 0;
    stream(&mut world, ids, 20_000_000);
    assert!(world.longest > 65_000, "{}", world.longest);
}

/// Fills both buffers of a connection without a reader.
fn fill(world: &mut World, from: TcpId) -> usize {
    let (mut sent, chunk) = (0, vec![7; 100_000]);
    for _ in 0..100 {
        sent += world.hosts[0].tcp_send(from, &chunk).expect("it is open").unwrap_or(0);
        world.pass(Duration::from_millis(100));
    }
    let tcp = StackConfig::default().tcp;
    let both = tcp.receive_bytes + tcp.send_bytes;
    assert!((both - 16..=both).contains(&sent), "{sent}: windows are multiples of 16");
    sent
}

#[test]
fn a_closed_window_opens_again_although_its_update_is_lost() {
    for lost in [0, 50_000] {
        let mut world = World::new(1, &config(2044), LinkFaults { lost, ..LinkFaults::default() });
        let ids = world.connected(80, false);
        stream(&mut world, ids, 1_000_000);
        let sent = fill(&mut world, ids[0]);
        let (packets, bytes) = (world.packets, world.bytes);
        world.pass(MINUTE);
        assert!(world.packets - packets < 400, "{} to a closed window", world.packets - packets);
        assert_eq!(world.bytes, bytes, "only window probes of a byte");
        // The window opens, and all updates are lost.
        world.faults.lost = ALL;
        let (mut received, mut buffer) = (0, vec![0; 50_000]);
        let mut read = |world: &mut World| {
            while let Some(len) = world.hosts[1].tcp_recv(ids[1], &mut buffer).expect("open") {
                received += len;
            }
            received == sent
        };
        read(&mut world);
        world.drain();
        world.faults.lost = lost;
        world.until("all is received", 15 * SECOND, read);
    }
}

#[test]
fn a_fin_is_retransmitted_until_it_is_acknowledged() {
    for (in_recovery, is_answered) in [(false, false), (true, false), (false, true), (true, true)] {
        let lost = if in_recovery { 20_000 } else { 0 };
        let mut world = World::new(1, &config(2044), LinkFaults { lost, ..LinkFaults::default() });
        let [client, server] = world.connected(80, false);
        stream(&mut world, [client, server], 1_000_000);
        world.faults.lost = 0;
        world.pass(SECOND);
        let now = world.now;
        if is_answered {
            // The FIN of the first host is the second of the two then.
            world.hosts[1].tcp_shut_down(now, server).expect("it is open");
            world.pass(SECOND);
        }
        let (now, packets) = (world.now, world.packets);
        world.faults.lost = ALL;
        world.hosts[0].tcp_shut_down(now, client).expect("it is open");
        world.pass(5 * SECOND);
        assert!(world.packets - packets >= 5, "{} were lost", world.packets - packets);
        world.faults.lost = 0;
        world.until("end of file", 10 * SECOND, |world| {
            world.hosts[1].tcp_recv(server, &mut [0; 9]) == Ok(Some(0))
        });
        world.pass(SECOND);
    }
}

#[test]
fn a_long_delay_causes_no_retransmission() {
    for delay in [5, 20, 50].map(Duration::from_millis) {
        let mut world = World::new(1, &config(2044), LinkFaults::default());
        world.delay = delay;
        let ids = world.connected(80, false);
        stream(&mut world, ids, 2_000_000);
        let most = 2_000_000 / 2004 * 2044 * 101 / 100;
        assert!(world.bytes < most, "{} at {delay:?}", world.bytes);
        // Also after a loss.
        world.faults.lost = ALL;
        assert_eq!(world.hosts[0].tcp_send(ids[0], &vec![7; 20_000]), Ok(Some(20_000)));
        world.drain();
        world.faults.lost = 0;
        let (mut received, mut buffer) = (0, vec![0; 100_000]);
        world.until("it is received", MINUTE, |world| {
            received += world.hosts[1].tcp_recv(ids[1], &mut buffer).expect("open").unwrap_or(0);
            received == 20_000
        });
        let bytes = world.bytes;
        let took = stream(&mut world, ids, 2_000_000);
        assert!(world.bytes - bytes < most, "{} at {delay:?}", world.bytes - bytes);
        println!("{took:?} at {delay:?}");
        assert!(took < 200 * delay, "{took:?} at {delay:?}");
    }
}

#[test]
fn small_messages_after_an_outage_are_sent_in_full_segments() {
    let mut world = World::new(1, &config(65_520), LinkFaults::default());
    let ids = world.connected(80, false);
    stream(&mut world, ids, 1_000_000);
    world.faults.lost = ALL;
    assert_eq!(world.hosts[0].tcp_send(ids[0], &[7; 100]), Ok(Some(100)));
    world.pass(2 * SECOND);
    world.faults.lost = 0;
    let (mut received, mut buffer) = (0, vec![0; 100_000]);
    for _ in 0..3000 {
        world.pass(Duration::from_millis(5));
        received += world.hosts[1].tcp_recv(ids[1], &mut buffer).expect("it is open").unwrap_or(0);
        assert_eq!(world.hosts[0].tcp_send(ids[0], &[7; 100]), Ok(Some(100)));
    }
    let (mut sent, packets) = (0, world.packets);
    world.until("all is received", MINUTE, |world| {
        let chunk = vec![7; 10_000];
        let left = &chunk[..chunk.len().min(1_000_000 - sent)];
        sent += world.hosts[0].tcp_send(ids[0], left).expect("it is open").unwrap_or(0);
        received += world.hosts[1].tcp_recv(ids[1], &mut buffer).expect("it is open").unwrap_or(0);
        received == 100 * 3001 + 1_000_000
    });
    assert!(world.packets - packets < 1500, "{} packets", world.packets - packets);
}

#[test]
fn a_closing_connection_sends_its_rest_within_the_congestion_window() {
    let mut world = World::new(1, &config(2044), LinkFaults::default());
    let [client, server] = world.connected(80, false);
    let now = world.now;
    world.hosts[0].tcp_shut_down(now, client).expect("it is open");
    world.pass(SECOND);
    // The congestion window is small after an idle time.
    world.faults.lost = ALL;
    assert_eq!(world.hosts[1].tcp_send(server, &[7; 10_000]), Ok(Some(10_000)));
    world.pass(SECOND);
    assert_eq!(world.hosts[1].tcp_send(server, &vec![7; 400_000]), Ok(Some(400_000)));
    let now = world.now;
    world.hosts[1].tcp_close(now, server);
    world.drain();
    world.pass(4 * SECOND);
    world.faults.lost = 0;
    let (mut received, mut most, mut buffer) = (0, 0, vec![0; 100_000]);
    let mut sent = world.packets;
    world.until("all is received", 20 * SECOND, |world| {
        most = most.max(world.packets - sent);
        sent = world.packets;
        received += world.hosts[0].tcp_recv(client, &mut buffer).expect("it is open").unwrap_or(0);
        received == 410_000
    });
    assert!(most < 16, "{most} packets at once");
}

/// RFC 5681 4.1: the restart window applies after a recovery that has ended, too.
#[test]
fn an_idle_connection_restarts_with_a_small_window_after_a_recovery() {
    let bytes = 4 << 20;
    let tcp = TcpConfig { receive_bytes: bytes, send_bytes: bytes, ..TcpConfig::default() };
    let config = StackConfig { mtu: 2044, tcp, ..StackConfig::default() };
    let mut world = World::new(1, &config, LinkFaults::default());
    let ids = world.connected(80, false);
    world.faults.lost = ALL;
    assert_eq!(world.hosts[0].tcp_send(ids[0], b"?"), Ok(Some(1)));
    world.drain();
    world.faults.lost = 0;
    world.until("it is received", MINUTE, |world| {
        world.hosts[1].tcp_recv(ids[1], &mut [0; 9]).expect("it is open").is_some()
    });
    stream(&mut world, ids, 20_000_000);
    world.until("the recovery has ended", MINUTE, |world| {
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
    // The window grows from there.
    let (mut received, mut buffer, start) = (0, vec![0; 100_000], world.now);
    world.until("all is received", MINUTE, |world| {
        received += world.hosts[1].tcp_recv(ids[1], &mut buffer).expect("open").unwrap_or(0);
        received == bytes
    });
    let took = world.now.since_start() - start.since_start();
    let round_trips = took.as_nanos() / (2 * world.delay).as_nanos();
    assert!(round_trips < 40, "{round_trips} round trips");
}

/// A new connection knows nothing of the path of another one, so it starts with its own window,
/// although it may have the buffers of the other one.
#[test]
fn a_new_connection_has_no_congestion_window_of_an_ended_one() {
    let bytes = 4 << 20;
    let tcp = TcpConfig { receive_bytes: bytes, send_bytes: bytes, ..TcpConfig::default() };
    let config = StackConfig { mtu: 2044, tcp, ..StackConfig::default() };
    let mut world = World::new(1, &config, LinkFaults::default());
    let sent_at_once = [80, 81].map(|port| {
        let ids = world.connected(port, false);
        assert_eq!(world.hosts[0].tcp_send(ids[0], &vec![7; bytes]), Ok(Some(bytes)));
        let before = world.bytes;
        world.drain();
        let at_once = world.bytes - before;
        let (mut received, mut buffer) = (0, vec![0; 100_000]);
        world.until("all is received", MINUTE, |world| {
            received += world.hosts[1].tcp_recv(ids[1], &mut buffer).expect("open").unwrap_or(0);
            received == bytes
        });
        let now = world.now;
        (0..2).for_each(|host| world.hosts[host].tcp_close(now, ids[host]));
        world.pass(MINUTE);
        at_once
    });
    assert_eq!(sent_at_once[0], sent_at_once[1]);
}
