//! Initial sequence numbers (RFC 6528): a clock, and a keyed hash of both addresses.

use crate::segment::{header_of, segment};
use crate::world::{LinkFaults, World, at};
use pollux::stack::{StackConfig, TcpConfig};
use pollux_wire::ip::tcp::TcpHeader;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// The clock's tick.
const TICK_NANOS: u64 = 64;
const BACKLOG: usize = 4096;

fn listening(seed: u64) -> World {
    // Small buffers, for many connections.
    let tcp = TcpConfig { receive_bytes: 2048, send_bytes: 2048, ..TcpConfig::default() };
    let config = StackConfig { tcp, ..StackConfig::default() };
    let mut world = World::new(seed, &config, LinkFaults::default());
    world.hosts[1].tcp_listen(at(1, 80), BACKLOG).expect("the port is free");
    world
}

/// The initial sequence number of the second host for a connection, which is reset then.
fn isn(world: &mut World, from: SocketAddr) -> u32 {
    let ends = (from, at(1, 80));
    let syn = TcpHeader { syn: true, sequence_number: 1, window: 1000, ..TcpHeader::default() };
    let now = world.now;
    world.hosts[1].handle_packet(now, &segment(ends, syn, &[], &[]));
    let answer = world.hosts[1].poll_transmit(now).map(header_of).expect("it answers");
    assert!(answer.syn && answer.destination_port == from.port(), "{answer:?}");
    let reset = TcpHeader { rst: true, sequence_number: 2, ..TcpHeader::default() };
    world.hosts[1].handle_packet(now, &segment(ends, reset, &[], &[]));
    answer.sequence_number
}

fn stranger(host: u8, port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(10, 0, 1, host).into(), port)
}

/// A number does not depend on the numbers of earlier connections.
#[test]
fn numbers_of_an_address_pair_do_not_depend_on_those_of_other_pairs() {
    let number_after = |others: u16| {
        let mut world = listening(7);
        (0..others).for_each(|port| {
            isn(&mut world, stranger(66, 1000 + port));
        });
        isn(&mut world, stranger(7, 4711))
    };
    assert_eq!([0, 1, 4, 100].map(number_after), [number_after(0); 4]);
}

#[test]
fn numbers_of_an_address_pair_grow_with_the_clock() {
    let mut world = listening(7);
    let mut before = isn(&mut world, stranger(7, 4711));
    for time in [1, 10, 1000, 100_000].map(Duration::from_micros) {
        world.pass(time);
        let number = isn(&mut world, stranger(7, 4711));
        let ticks = time.as_nanos() as u64 / TICK_NANOS;
        let grown = u64::from(number.wrapping_sub(before));
        assert!((ticks..=ticks + 1).contains(&grown), "{grown} in {time:?}");
        before = number;
    }
}

/// Numbers of 4,096 consecutive ports, their differences, and the differences to those of another
/// secret are distributed like random numbers.
#[test]
fn numbers_of_different_address_pairs_look_random() {
    let all = |seed: u64| -> Vec<u32> {
        let mut world = listening(seed);
        (0..4096).map(|port| isn(&mut world, stranger(7, 1000 + port))).collect()
    };
    let (one, other) = (all(7), all(8));
    let differences: Vec<u32> = one.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    let across: Vec<u32> = one.iter().zip(&other).map(|(a, b)| a.wrapping_sub(*b)).collect();
    for numbers in [one, differences, across] {
        for shift in [0, 10, 20] {
            let values: BTreeSet<u32> = numbers.iter().map(|it| it >> shift & 0xfff).collect();
            // Random numbers have 2,589 of 4,096 values; 2,500 is 5 standard deviations less.
            assert!(values.len() > 2500, "{} values at bit {shift}", values.len());
        }
        for bit in 0..32 {
            let set = numbers.iter().filter(|it| *it >> bit & 1 == 1).count();
            let share = numbers.len() / 2;
            assert!(set.abs_diff(share) < 160, "bit {bit} is set in {set}: 5 deviations");
        }
    }
}

/// The same for connections that this host opens.
#[test]
fn outgoing_connections_have_numbers_of_the_same_rule() {
    let first = |world: &mut World, port: u16| {
        let now = world.now;
        let id = world.hosts[0].tcp_connect(now, at(0, port), at(1, 80)).expect("it is free");
        let syn = world.hosts[0].poll_transmit(now).map(header_of).expect("a SYN");
        world.hosts[0].tcp_abort(now, id);
        while world.hosts[0].poll_transmit(now).is_some() {}
        syn.sequence_number
    };
    let mut world = listening(7);
    let [one, other] = [5000, 5001].map(|port| first(&mut world, port));
    assert_eq!([first(&mut world, 5000), first(&mut world, 5001)], [one, other]);
    world.pass(Duration::from_millis(64));
    assert_eq!(first(&mut world, 5000), one.wrapping_add(1_000_000));
}
