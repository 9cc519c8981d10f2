//! A router between two null ports, and a source that offers packets to it at a given rate.
//!
//! An offered packet waits in a queue, like the receive queue of an adapter, until the router
//! polls. A packet that arrives at a full queue is lost. The queue is only a counter: the null port
//! writes the packets on the router's core when it is polled, so the rates include the cost of the
//! source.

use crate::error::PerfError;
use crate::samples::histogram;
use hdrhistogram::Histogram;
use pollux_dataplane::fib::{Fib, FibBuilder, FibHop, FibTarget};
use pollux_dataplane::forward::Forwarder;
use pollux_dataplane::null_port::NullPort;
use pollux_dataplane::packet_memory::PacketMemory;
use pollux_dataplane::port::{BATCH_MAX, PortId};
use pollux_mem::snapshot::{Publisher, Snapshot};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use serde::Serialize;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Groups with one next hop each. Half of the next hops are at each port.
const GROUPS: usize = 64;
/// Buffers of the router, enough for two batches to each port.
const BUFFERS: u32 = 1024;
/// Breaths between two checks of the duration.
const BREATHS: u32 = 1000;
pub const ROUTES_MAX: usize = 2_000_000;
/// The latency of one packet in this many is measured.
const TAGGED: u64 = 64;

/// Prefix lengths and their shares in percent, similar to the routing tables of the Internet.
const LENGTHS_V4: [(u8, u64); 6] = [(24, 62), (22, 14), (23, 10), (20, 7), (19, 4), (16, 3)];
const LENGTHS_V6: [(u8, u64); 6] = [(48, 49), (44, 14), (32, 14), (40, 10), (36, 8), (64, 5)];

#[derive(Clone, Debug, Serialize)]
pub struct ForwardPlan {
    pub routes: usize,
    /// Destinations of the packets that each port receives.
    pub flows: usize,
    pub bytes: u16,
    pub ipv6: bool,
    pub core: usize,
    pub duration: Duration,
}

pub struct NullRouter {
    forwarder: Forwarder,
    ports: [NullPort; 2],
    fib: Snapshot<Fib>,
    start: Instant,
    // Dropped after the fields that use them.
    _publisher: Publisher<Fib>,
    _packets: PacketMemory,
}

/// The packets that are offered to a port.
#[derive(Clone, Copy, Debug)]
pub struct OfferedLoad {
    pub per_second: f64,
    /// The load ends after this number of packets.
    pub packets_max: u64,
    /// Packets in the queue at the start, in addition.
    pub backlog: u64,
    /// The capacity of the queue in packets.
    pub queue_max: u64,
}

struct Queue {
    load: OfferedLoad,
    received: u64,
    lost: u64,
    last_loss: Duration,
    empty_at: Duration,
}

#[derive(Clone, Debug)]
pub struct Trial {
    pub forwarded: u64,
    pub lost: u64,
    /// The time from the start to the last loss, or until both queues have been empty once, if that
    /// is later.
    pub recovered: Duration,
    /// Nanoseconds from the arrival of a packet to the end of the breath that sent it.
    pub latency: Histogram<u64>,
    /// The longest breath. If the queue fills up within a breath, packets are lost.
    pub breath_max: Duration,
}

impl ForwardPlan {
    /// IPv4 packets of 64 bytes. With one route they have one destination, otherwise about a
    /// million, which do not fit in a cache.
    pub const fn new(routes: usize, core: usize, duration: Duration) -> Self {
        let flows = if routes == 1 { 1 } else { 1 << 20 };
        Self { routes, flows, bytes: 64, ipv6: false, core, duration }
    }
}

impl OfferedLoad {
    /// A load without an end and without a backlog.
    pub const fn new(per_second: f64, queue_max: u64) -> Self {
        Self { per_second, packets_max: u64::MAX, backlog: 0, queue_max }
    }
}

impl Queue {
    const fn new(load: OfferedLoad) -> Self {
        let never = Duration::ZERO;
        Self { load, received: 0, lost: 0, last_loss: never, empty_at: never }
    }

    /// Packets that have arrived by `at`, the backlog included.
    fn arrivals(&self, at: Duration) -> u64 {
        let OfferedLoad { per_second, packets_max, backlog, .. } = self.load;
        backlog + ((at.as_secs_f64() * per_second) as u64).min(packets_max)
    }

    /// Receives a batch at the time `at`. Returns the number of packets; and the arrival time of
    /// the tagged packet, if the batch contains one.
    fn poll(&mut self, at: Duration) -> (usize, Option<Duration>) {
        let gone = self.received + self.lost;
        let waiting = self.arrivals(at).saturating_sub(gone);
        let over = waiting.saturating_sub(self.load.queue_max);
        if over > 0 {
            self.lost += over;
            self.last_loss = at;
        }
        let count = (waiting - over).min(BATCH_MAX as u64);
        if count == waiting && self.empty_at.is_zero() {
            self.empty_at = at;
        }
        self.received += count;
        let tag = gone.next_multiple_of(TAGGED);
        let OfferedLoad { per_second, backlog, .. } = self.load;
        let due =
            || Duration::from_secs_f64(tag.saturating_sub(backlog) as f64 / per_second.max(1.0));
        (count as usize, (tag < gone + count).then(due))
    }

    /// Whether all packets of a trial of this duration have been received or lost.
    fn is_over(&self, duration: Duration) -> bool {
        self.received + self.lost >= self.arrivals(duration)
    }
}

impl NullRouter {
    #[expect(clippy::disallowed_methods, reason = "packets are measured by its clock")]
    pub fn new(plan: &ForwardPlan) -> Result<Self, PerfError> {
        let mut rng = SeededRng::new(1);
        let prefixes = prefixes(plan, &mut rng);
        let publisher = Publisher::new(fib(&prefixes));
        let packets = PacketMemory::new(BUFFERS, 2048);
        let packets = packets.map_err(|error| PerfError::Local(error.to_string()))?;
        let mut port = || {
            let destinations = destinations(&prefixes, plan.flows, &mut rng);
            let port = NullPort::new(&packets, plan.bytes, destinations);
            let why = format!("packets of {} bytes are not possible; write 40 to 2048", plan.bytes);
            port.ok_or(PerfError::Plan(why))
        };
        let ports = [port()?, port()?];
        let mut forwarder = Forwarder::new(7);
        forwarder.set_ports([PortId(0), PortId(1)].into_iter());
        let (fib, start) = (publisher.reader(), Instant::now());
        Ok(Self { forwarder, ports, fib, start, _publisher: publisher, _packets: packets })
    }

    fn breathe(&mut self) {
        let now = Time::START + self.start.elapsed();
        self.forwarder.breathe(now, &mut self.ports, self.fib.refresh());
    }

    fn sent(&self) -> u64 {
        self.ports.iter().map(NullPort::sent).sum()
    }

    /// Forwarded packets per second, with a full batch in each poll.
    #[expect(clippy::disallowed_methods, reason = "this is what is measured")]
    pub fn rate_max(&mut self, duration: Duration) -> f64 {
        self.ports.iter_mut().for_each(|port| port.set_batch(BATCH_MAX));
        let (begun, before) = (Instant::now(), self.sent());
        while begun.elapsed() < duration {
            (0..BREATHS).for_each(|_| self.breathe());
        }
        (self.sent() - before) as f64 / begun.elapsed().as_secs_f64()
    }

    /// Offers packets to both ports for a duration, then forwards the packets left in the queues.
    #[expect(clippy::disallowed_methods, reason = "this is what is measured")]
    pub fn offer(&mut self, load: OfferedLoad, duration: Duration) -> Trial {
        let mut queues = [Queue::new(load), Queue::new(load)];
        let (mut latency, mut breath_max) = (histogram(), Duration::ZERO);
        let (begun, before) = (Instant::now(), self.sent());
        let mut now = Duration::ZERO;
        loop {
            let arrived = now.min(duration);
            let mut tagged = [None; 2];
            for ((port, queue), tagged) in self.ports.iter_mut().zip(&mut queues).zip(&mut tagged) {
                let (count, tag) = queue.poll(arrived);
                port.set_batch(count);
                *tagged = tag;
            }
            self.forwarder.breathe(Time::START + now, &mut self.ports, self.fib.refresh());
            let end = begun.elapsed();
            breath_max = breath_max.max(end - now);
            for due in tagged.into_iter().flatten() {
                latency.saturating_record(end.saturating_sub(due).as_nanos() as u64);
            }
            now = end;
            if queues.iter().all(|queue| queue.is_over(duration)) {
                break;
            }
        }
        let last = |of: fn(&Queue) -> Duration| queues.iter().map(of).max();
        Trial {
            forwarded: self.sent() - before,
            lost: queues.iter().map(|queue| queue.lost).sum(),
            recovered: last(|queue| queue.last_loss.max(queue.empty_at)).unwrap_or_default(),
            latency,
            breath_max,
        }
    }

    /// Fails if the router dropped packets. It has a route for every packet, so a drop is an error.
    pub fn check_drops(&self) -> Result<(), PerfError> {
        match self.ports.iter().map(|port| port.drops().total()).sum() {
            0 => Ok(()),
            drops => Err(PerfError::Local(format!("the router dropped {drops} packets"))),
        }
    }
}

type Prefix = (IpAddr, u8);

/// Random distinct prefixes. A single prefix is the default route.
fn prefixes(plan: &ForwardPlan, rng: &mut SeededRng) -> Vec<Prefix> {
    if plan.routes == 1 {
        return vec![match plan.ipv6 {
            true => (Ipv6Addr::UNSPECIFIED.into(), 0),
            false => (Ipv4Addr::UNSPECIFIED.into(), 0),
        }];
    }
    let lengths = if plan.ipv6 { &LENGTHS_V6 } else { &LENGTHS_V4 };
    let mut all = BTreeSet::new();
    while all.len() < plan.routes {
        let mut percent = rng.below(100);
        let is_drawn = |(_, share): &&(u8, u64)| {
            let is_below = percent < *share;
            percent = percent.saturating_sub(*share);
            is_below
        };
        let len = lengths.iter().find(is_drawn).map_or(24, |(len, _)| *len);
        all.insert(match plan.ipv6 {
            true => {
                let bits = 0x2000 << 112 | u128::from(rng.next_u64() >> 3) << 64;
                let bits = bits >> (128 - len) << (128 - len);
                (IpAddr::from(Ipv6Addr::from(bits)), len)
            }
            false => {
                // First bytes 11 to 99: no loopback, private or multicast addresses.
                let bits = ((11 + rng.below(89)) << 24 | rng.below(1 << 24)) as u32;
                (IpAddr::from(Ipv4Addr::from(bits >> (32 - len) << (32 - len))), len)
            }
        });
    }
    all.into_iter().collect()
}

fn fib(prefixes: &[Prefix]) -> Fib {
    let mut fib = FibBuilder::new(ROUTES_MAX);
    let hop = |nth: usize| {
        let gateway = Ipv4Addr::new(10, 0, (nth % 2) as u8, nth as u8).into();
        FibHop { port: PortId((nth % 2) as u16), gateway: Some(gateway), weight: 1 }
    };
    let groups: Vec<_> = (0..GROUPS).map(|nth| fib.add_group(&[hop(nth)])).collect();
    for (nth, (ip, len)) in prefixes.iter().enumerate() {
        let target = FibTarget::Group(groups[nth % GROUPS]);
        fib.insert(*ip, *len, target).expect("a plan has fewer routes");
    }
    fib.publish()
}

/// One destination per flow, each in a randomly chosen prefix.
fn destinations(prefixes: &[Prefix], flows: usize, rng: &mut SeededRng) -> Vec<IpAddr> {
    let destination = |nth: usize, rng: &mut SeededRng| match prefixes[nth] {
        (IpAddr::V4(_), 0) => {
            let net = 198 << 24 | 18 << 16;
            IpAddr::V4(Ipv4Addr::from(net | if flows > 1 { rng.below(1 << 17) as u32 } else { 0 }))
        }
        (IpAddr::V6(_), 0) => {
            let host = if flows > 1 { rng.next_u64() } else { 9 };
            IpAddr::V6(Ipv6Addr::from(0x2001_0002 << 96 | u128::from(host)))
        }
        (IpAddr::V4(ip), _) => IpAddr::V4(Ipv4Addr::from(ip.to_bits() | 1)),
        (IpAddr::V6(ip), _) => IpAddr::V6(Ipv6Addr::from(ip.to_bits() | 1)),
    };
    let nth = |rng: &mut SeededRng| rng.below(prefixes.len() as u64) as usize;
    (0..flows).map(|_| destination(nth(rng), rng)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn packets_arrive_at_their_rate_and_wait() {
        let mut queue = Queue::new(OfferedLoad::new(1e5, 1000));
        assert_eq!(queue.poll(Duration::ZERO), (0, None));
        assert_eq!(queue.poll(MS), (BATCH_MAX, Some(Duration::ZERO)), "100 wait");
        // The tagged packet is the 64th.
        assert_eq!(queue.poll(MS), (36, Some(Duration::from_micros(640))));
        assert_eq!((queue.poll(MS), queue.lost), ((0, None), 0));
        assert!(queue.is_over(MS) && !queue.is_over(2 * MS));
    }

    #[test]
    fn packets_that_exceed_the_queue_are_lost() {
        let load = OfferedLoad { backlog: 5, ..OfferedLoad::new(1e6, 100) };
        let mut queue = Queue::new(load);
        assert_eq!(queue.poll(MS).0, BATCH_MAX);
        assert_eq!((queue.lost, queue.last_loss), (905, MS));
        assert_eq!((queue.poll(MS).0, queue.lost), (36, 905));
        assert_eq!(queue.empty_at, MS);
    }

    #[test]
    fn a_burst_ends() {
        let load = OfferedLoad { packets_max: 70, ..OfferedLoad::new(1e9, 100) };
        let mut queue = Queue::new(load);
        assert_eq!((queue.poll(MS).0, queue.poll(MS).0, queue.poll(2 * MS).0), (64, 6, 0));
        assert!(queue.is_over(Duration::from_secs(3600)));
    }

    #[test]
    fn every_offered_packet_is_forwarded_or_lost() {
        let plan = ForwardPlan { flows: 100, ..ForwardPlan::new(100, 0, MS) };
        let mut router = NullRouter::new(&plan).expect("it is a router");
        let burst = OfferedLoad { packets_max: 500, ..OfferedLoad::new(1e9, 1000) };
        let trial = router.offer(burst, Duration::from_secs(1));
        assert_eq!((trial.forwarded, trial.lost), (1000, 0));
        router.check_drops().expect("there is a route for each packet");
        let burst = OfferedLoad { queue_max: 10, ..burst };
        let trial = router.offer(burst, Duration::from_secs(1));
        assert_eq!(trial.forwarded + trial.lost, 1000);
        assert!(!trial.latency.is_empty(), "some are tagged");
    }
}
