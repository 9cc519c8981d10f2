//! Two stacks and a link between them, in virtual time. Faults of the link depend on a seed.

use pollux::stack::{Stack, StackConfig, TcpError, TcpId};
use pollux_dataplane::headers::PacketHeaders;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::tcp::TcpSegment;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Faults of the link, in packets per million.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkFaults {
    pub lost: u32,
    pub late: u32,
    pub duplicated: u32,
    /// Delivered after the next two packets.
    pub reordered: u32,
    /// Longer packets are lost; 0 is no limit.
    pub len_max: usize,
}

/// The default delay of a packet.
const DELAY: Duration = Duration::from_micros(5);
/// The delay of a late packet, which many others overtake.
const LATE: Duration = Duration::from_micros(40);

/// The longest TCP packet without data.
const DATALESS_MAX: usize = 100;

pub struct World {
    pub now: Time,
    pub hosts: [Stack; 2],
    pub faults: LinkFaults,
    /// The delay of packets that are not late.
    pub delay: Duration,
    pub packets: u64,
    /// Length of the longest packet.
    pub longest: usize,
    /// Bytes of packets with data.
    pub bytes: u64,
    /// Bytes of data of TCP segments.
    pub payload: u64,
    /// For each host, a reordered packet and how many others are to overtake it.
    held: [Option<(u32, Vec<u8>)>; 2],
    rng: SeededRng,
    flight: BTreeMap<(Time, u64), (usize, Vec<u8>)>,
}

/// The bytes of data of a TCP segment.
fn payload_len(packet: &[u8]) -> Option<usize> {
    let headers = PacketHeaders::parse_ip(packet).ok()?;
    let is_tcp = headers.is_plain_transport() && headers.protocol == IpProtocol::TCP;
    let segment = TcpSegment::parse(headers.payload(packet)).ok().filter(|_| is_tcp)?;
    Some(segment.payload().len())
}

/// The address of a host.
pub fn ip(host: usize, is_v6: bool) -> IpAddr {
    match is_v6 {
        false => IpAddr::from([10, 0, 0, host as u8 + 1]),
        true => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, host as u16 + 1]),
    }
}

/// A port of a host, in IPv4.
pub fn at(host: usize, port: u16) -> SocketAddr {
    SocketAddr::new(ip(host, false), port)
}

impl World {
    pub fn new(seed: u64, config: &StackConfig, faults: LinkFaults) -> Self {
        let mut rng = SeededRng::new(seed);
        let hosts = [0, 1].map(|host| {
            let mut stack = Stack::new(config.clone(), rng.next_u64());
            stack.set_addresses([ip(host, false), ip(host, true)]);
            stack
        });
        let (now, flight) = (Time::START + Duration::from_secs(1), BTreeMap::new());
        Self {
            now,
            hosts,
            faults,
            delay: DELAY,
            packets: 0,
            longest: 0,
            bytes: 0,
            payload: 0,
            held: [None, None],
            rng,
            flight,
        }
    }

    /// Puts a packet on the link.
    pub fn send(&mut self, to: usize, packet: Vec<u8>) {
        self.packets += 1;
        self.longest = self.longest.max(packet.len());
        self.payload += payload_len(&packet).unwrap_or(0) as u64;
        if packet.len() > DATALESS_MAX {
            self.bytes += packet.len() as u64;
        }
        let is_too_long = (1..packet.len()).contains(&self.faults.len_max);
        if is_too_long || self.rng.happens(self.faults.lost) {
            return;
        }
        if self.rng.happens(self.faults.duplicated) {
            self.launch(to, packet.clone());
        }
        self.launch(to, packet);
    }

    /// Delivers a packet, or holds it until two others have overtaken it.
    fn launch(&mut self, to: usize, packet: Vec<u8>) {
        if self.held[to].is_none() && self.rng.happens(self.faults.reordered) {
            self.held[to] = Some((2, packet));
            return;
        }
        self.fly(to, packet);
        let due = self.held[to].take_if(|(overtaken_by, _)| {
            *overtaken_by -= 1;
            *overtaken_by == 0
        });
        if let Some((_, packet)) = due {
            self.fly(to, packet);
        }
    }

    fn fly(&mut self, to: usize, packet: Vec<u8>) {
        let delay = if self.rng.happens(self.faults.late) { LATE } else { self.delay };
        let number = self.packets * 2 + u64::from(self.flight.len() as u32 & 1);
        let mut key = (self.now + delay, number);
        while self.flight.contains_key(&key) {
            key.1 += 1;
        }
        self.flight.insert(key, (to, packet));
    }

    /// Puts all packets that the hosts have to send on the link.
    pub fn drain(&mut self) {
        for host in 0..2 {
            while let Some(packet) = self.hosts[host].poll_transmit(self.now) {
                let packet = packet.to_vec();
                self.send(1 - host, packet);
            }
        }
    }

    /// Advances to the next arrival or timer; returns whether there is one.
    pub fn step(&mut self) -> bool {
        let Some(next) = self.next() else { return false };
        self.now = self.now.max(next);
        if let Some(entry) = self.flight.first_entry()
            && entry.key().0 <= self.now
        {
            let (to, packet) = entry.remove();
            self.hosts[to].handle_packet(self.now, &packet);
        }
        for host in &mut self.hosts {
            host.handle_timeout(self.now);
        }
        true
    }

    /// The time of the next arrival or timer.
    fn next(&mut self) -> Option<Time> {
        self.drain();
        for to in 0..2 {
            // No other packet can overtake it.
            let held = self.held[to].take_if(|_| self.flight.is_empty());
            if let Some((_, packet)) = held {
                self.fly(to, packet);
            }
        }
        let arrival = self.flight.first_key_value().map(|((time, _), _)| *time);
        let due = self.hosts.iter().filter_map(Stack::poll_timeout).min();
        [arrival, due].into_iter().flatten().min()
    }

    /// Steps until `is` holds, within `limit`.
    pub fn until(&mut self, what: &str, limit: Duration, mut is: impl FnMut(&mut Self) -> bool) {
        let end = self.now + limit;
        while !is(self) {
            assert!(self.step(), "{what}: no timer and no packet is left");
            assert!(self.now <= end, "{what}: not within {limit:?}");
        }
        self.drain();
    }

    /// Advances the time, and handles all arrivals and timers until then.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.next().is_some_and(|next| next <= end) {
            self.step();
        }
        self.now = end;
    }

    /// Opens a connection from the first host to a new listener of the second.
    pub fn connected(&mut self, port: u16, is_v6: bool) -> [TcpId; 2] {
        let there = SocketAddr::new(ip(1, is_v6), port);
        let listener = self.hosts[1].tcp_listen(there, 1).expect("the port is free");
        let here = SocketAddr::new(ip(0, is_v6), 0);
        let now = self.now;
        let client = self.hosts[0].tcp_connect(now, here, there).expect("a port is free");
        let mut server = None;
        self.until("connected", Duration::from_secs(60), |world| {
            server = server.or(world.hosts[1].tcp_accept(listener).expect("it listens"));
            server.is_some() && world.hosts[0].tcp_is_open(client) == Ok(true)
        });
        self.hosts[1].tcp_unlisten(listener);
        [client, server.expect("waited for")]
    }

    /// The error that ended a connection, if it has ended.
    pub fn end_of(&self, host: usize, id: TcpId) -> Option<TcpError> {
        self.hosts[host].tcp_is_open(id).err()
    }
}

/// The byte at an offset of a stream.
pub const fn byte(stream: usize, at: usize) -> u8 {
    let mixed = (at as u64 ^ (stream as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}
