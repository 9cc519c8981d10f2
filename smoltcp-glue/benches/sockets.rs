//! Instructions of a round trip of 64 bytes between the sockets of two stacks, without devices,
//! counted by callgrind. A count at or above the limit fails.
//!
//! ```text
//! cargo bench -p pollux --bench sockets
//! ```
//!
//! | benchmark | instructions | must be below |
//! |---|---|---|
//! | `udp_64` | 3,590 | 3,700 |
//! | `tcp_64` | 11,615 | 11,750 |
//!
//! The counts include the parsing of packet headers, which otherwise the netdev does.
#![expect(unused_qualifications, reason = "and name types in full")]

use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use pollux::stack::{Stack, StackConfig, TcpId, UdpId};
use pollux_dataplane::headers::PacketHeaders;
use pollux_verbs::time::Time;
use std::hint::black_box;
use std::net::SocketAddr;
use std::time::Duration;

const BYTES: usize = 64;

fn below(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, instructions - 1)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

/// Two stacks with a socket each, and the time.
struct Pair<S> {
    stacks: [Stack; 2],
    sockets: [S; 2],
    now: Time,
}

fn at(side: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, side as u8 + 1], 7000))
}

fn stacks() -> [Stack; 2] {
    [0, 1].map(|side| {
        let mut stack = Stack::new(StackConfig::default(), side as u64);
        stack.set_addresses([at(side).ip()]);
        stack
    })
}

/// Passes a packet to a stack if the stack wants it, as a netdev does.
#[inline(never)]
fn deliver(stack: &mut Stack, now: Time, packet: &[u8]) {
    let headers = PacketHeaders::parse_ip(packet).expect("it is of IP");
    if stack.wants(&headers, packet) {
        stack.handle(now, &headers, packet);
    }
}

impl<S: Copy> Pair<S> {
    /// Passes all packets that a stack has to send to the other stack.
    fn carry(&mut self, from: usize) {
        let (low, high) = self.stacks.split_at_mut(1);
        let [sender, receiver] = match from {
            0 => [&mut low[0], &mut high[0]],
            _ => [&mut high[0], &mut low[0]],
        };
        while let Some(packet) = sender.poll_transmit(self.now) {
            deliver(receiver, self.now, packet);
        }
    }

    /// Serves a stack as a host does in one step.
    fn step(&mut self, side: usize) {
        self.now = self.now + Duration::from_nanos(500);
        if self.stacks[side].poll_timeout().is_some_and(|due| due <= self.now) {
            self.stacks[side].handle_timeout(self.now);
        }
        self.carry(side);
    }
}

fn udp() -> Box<Pair<UdpId>> {
    let mut stacks = stacks();
    let sockets = [0, 1].map(|side| stacks[side].udp_bind(at(side)).expect("it is free"));
    let mut pair = Box::new(Pair { stacks, sockets, now: Time::START });
    (0..100).for_each(|_| udp_round(&mut pair));
    pair
}

fn udp_round(pair: &mut Pair<UdpId>) {
    for (from, to) in [(0, 1), (1, 0)] {
        let sent =
            pair.stacks[from].udp_send(pair.now, pair.sockets[from], (None, at(to)), &[7; BYTES]);
        assert!(sent.is_ok());
        pair.step(from);
        let mut message = [0; BYTES];
        let received = pair.stacks[to].udp_recv(pair.sockets[to], &mut message);
        assert!(received.is_ok_and(|received| received.is_some()));
        pair.step(to);
    }
}

fn tcp() -> Box<Pair<TcpId>> {
    let mut stacks = stacks();
    let listener = stacks[1].tcp_listen(at(1), 1).expect("it is free");
    let now = Time::START;
    let asking = stacks[0].tcp_connect(now, at(0), at(1)).expect("it is free");
    let mut pair = Box::new(Pair { stacks, sockets: [asking; 2], now });
    (0..4).for_each(|turn| pair.step(turn % 2));
    pair.sockets[1] =
        pair.stacks[1].tcp_accept(listener).expect("it is there").expect("it is open");
    (0..1000).for_each(|_| tcp_round(&mut pair));
    pair
}

fn tcp_round(pair: &mut Pair<TcpId>) {
    for (from, to) in [(0, 1), (1, 0)] {
        let sent = pair.stacks[from].tcp_send(pair.sockets[from], &[7; BYTES]);
        assert_eq!(sent, Ok(Some(BYTES)));
        pair.step(from);
        let mut message = [0; BYTES];
        let received = pair.stacks[to].tcp_recv(pair.sockets[to], &mut message);
        assert_eq!(received, Ok(Some(BYTES)));
        pair.step(to);
    }
}

#[library_benchmark(config = below(3_700))]
#[bench::there_and_back(udp())]
fn udp_64(mut pair: Box<Pair<UdpId>>) -> Box<impl Sized> {
    udp_round(black_box(&mut pair));
    pair
}

#[library_benchmark(config = below(11_750))]
#[bench::there_and_back(tcp())]
fn tcp_64(mut pair: Box<Pair<TcpId>>) -> Box<impl Sized> {
    tcp_round(black_box(&mut pair));
    pair
}

library_benchmark_group!(name = sockets, benchmarks = [udp_64, tcp_64]);
main!(library_benchmark_groups = sockets);
