//! Two stacks and a link between them. What the link does to packets comes from a seed.

use pollux::stack::{Stack, StackConfig, TcpError, TcpId};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// What happens to packets on the link, so many times in a million.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    pub lost: u32,
    pub late: u32,
    pub doubled: u32,
    /// The two after it come before it.
    pub swapped: u32,
    /// Packets that are longer are lost, if this is not 0.
    pub longest: usize,
}

/// How long a packet is on its way where nothing else is said.
const DELAY: Duration = Duration::from_micros(5);
/// And one that is late, so that many overtake it.
const LATE: Duration = Duration::from_micros(40);

/// The longest packet of TCP without data.
const ACKNOWLEDGES: usize = 100;

pub struct World {
    pub now: Time,
    pub hosts: [Stack; 2],
    pub weather: Weather,
    /// How long packets are on their way that are not late.
    pub delay: Duration,
    pub packets: u64,
    /// How long the longest packet was.
    pub longest: usize,
    /// Bytes of packets with data.
    pub bytes: u64,
    /// A packet for each host that others are to overtake, and how many.
    held: [Option<(u32, Vec<u8>)>; 2],
    rng: SeededRng,
    flight: BTreeMap<(Time, u64), (usize, Vec<u8>)>,
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
    pub fn new(seed: u64, config: &StackConfig, weather: Weather) -> Self {
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
            weather,
            delay: DELAY,
            packets: 0,
            longest: 0,
            bytes: 0,
            held: [None, None],
            rng,
            flight,
        }
    }

    /// Puts a packet on the link.
    pub fn send(&mut self, to: usize, packet: Vec<u8>) {
        self.packets += 1;
        self.longest = self.longest.max(packet.len());
        if packet.len() > ACKNOWLEDGES {
            self.bytes += packet.len() as u64;
        }
        let is_too_long = (1..packet.len()).contains(&self.weather.longest);
        if is_too_long || self.rng.happens(self.weather.lost) {
            return;
        }
        if self.rng.happens(self.weather.doubled) {
            self.launch(to, packet.clone());
        }
        self.launch(to, packet);
    }

    /// Puts a packet on its way, unless the next two are to come before it.
    fn launch(&mut self, to: usize, packet: Vec<u8>) {
        if self.held[to].is_none() && self.rng.happens(self.weather.swapped) {
            self.held[to] = Some((2, packet));
            return;
        }
        self.fly(to, packet);
        let goes = self.held[to].take_if(|(overtaken_by, _)| {
            *overtaken_by -= 1;
            *overtaken_by == 0
        });
        if let Some((_, packet)) = goes {
            self.fly(to, packet);
        }
    }

    fn fly(&mut self, to: usize, packet: Vec<u8>) {
        let delay = if self.rng.happens(self.weather.late) { LATE } else { self.delay };
        let number = self.packets * 2 + u64::from(self.flight.len() as u32 & 1);
        let mut key = (self.now + delay, number);
        while self.flight.contains_key(&key) {
            key.1 += 1;
        }
        self.flight.insert(key, (to, packet));
    }

    /// Lets both send what they have.
    pub fn drain(&mut self) {
        for host in 0..2 {
            while let Some(packet) = self.hosts[host].poll_transmit(self.now) {
                let packet = packet.to_vec();
                self.send(1 - host, packet);
            }
        }
    }

    /// Goes on to whatever happens next; says whether anything ever will.
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

    /// When anything happens next.
    fn next(&mut self) -> Option<Time> {
        self.drain();
        for to in 0..2 {
            // Nothing else comes before it.
            let held = self.held[to].take_if(|_| self.flight.is_empty());
            if let Some((_, packet)) = held {
                self.fly(to, packet);
            }
        }
        let arrival = self.flight.first_key_value().map(|((time, _), _)| *time);
        let due = self.hosts.iter().filter_map(Stack::poll_timeout).min();
        [arrival, due].into_iter().flatten().min()
    }

    /// Goes on until something is so, which may take so long.
    pub fn until(&mut self, what: &str, limit: Duration, mut is: impl FnMut(&mut Self) -> bool) {
        let end = self.now + limit;
        while !is(self) {
            assert!(self.step(), "{what}: nothing will ever happen any more");
            assert!(self.now <= end, "{what}: not within {limit:?}");
        }
        self.drain();
    }

    /// Lets so much time pass.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.next().is_some_and(|next| next <= end) {
            self.step();
        }
        self.now = end;
    }

    /// A connection from the first host to a new listener of the second.
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

    /// How a connection ended.
    pub fn end_of(&self, host: usize, id: TcpId) -> Option<TcpError> {
        self.hosts[host].tcp_is_open(id).err()
    }
}

/// The byte at a place of a stream, which depends on whose it is and where.
pub const fn byte(stream: usize, at: usize) -> u8 {
    let mixed = (at as u64 ^ (stream as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}
