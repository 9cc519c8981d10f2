//! Tests of two interfaces on a link, in virtual time.

use super::*;
use crate::address::{AddressEvent, Lifetimes, Origin};
use pollux_wire::ip::arp::{ArpOperation, ArpPacket};
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::ipv6::Ipv6Header;
use std::time::Duration;

const OURS: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const THEIRS: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

/// Two interfaces on a link.
struct Link {
    now: Time,
    ends: [(EthernetNeighbors, Addresses); 2],
    /// Frames for other hosts.
    astray: Vec<OutgoingFrame>,
    /// Packets that arrived.
    arrived: Vec<Vec<u8>>,
}

impl Link {
    fn new(ips: [&str; 2]) -> Self {
        let now = Time::START;
        let mut ends = [OURS, THEIRS].map(|mac| {
            (EthernetNeighbors::new(now, EthernetConfig::new(mac), 7), Addresses::default())
        });
        for ((neighbors, addresses), ip) in ends.iter_mut().zip(ips) {
            let ip: IpAddr = ip.parse().unwrap();
            let len = if ip.is_ipv4() { 24 } else { 64 };
            addresses.add(now, ip, len, Origin::Configured, Lifetimes::default());
            neighbors.set_up(now, true, addresses);
        }
        Self { now, ends, astray: Vec::new(), arrived: Vec::new() }
    }

    /// Runs for `duration`: carries frames, and handles timeouts.
    fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        loop {
            self.exchange();
            let due = self.ends.iter().filter_map(|(one, _)| one.poll_timeout()).min();
            let Some(due) = due.filter(|due| *due <= end) else { break };
            self.now = self.now.max(due);
            for (one, ours) in &mut self.ends {
                one.handle_timeout(self.now, ours);
            }
        }
        self.now = end;
    }

    fn exchange(&mut self) {
        while self.ends.iter_mut().enumerate().any(|(at, (one, ours))| {
            while let Some(event) = one.poll_event() {
                match event {
                    EthernetEvent::Assigned(ip) => ours.handle_assigned(self.now, ip),
                    EthernetEvent::Duplicate(ip, by) => ours.handle_duplicate(self.now, ip, by),
                    EthernetEvent::Unreachable(_) => {}
                }
            }
            let Some(frame) = one.poll_frame() else { return false };
            self.astray.push(OutgoingFrame { to: frame.to, ..frame });
            let last = self.astray.last_mut().unwrap();
            last.packet.push(at as u8);
            true
        }) {
            let mut frame = self.astray.pop().unwrap();
            let from = frame.packet.pop().unwrap();
            let (other, ours) = &mut self.ends[1 - usize::from(from)];
            let is_for_it = frame.to.is_group() || frame.to == other.address();
            match frame.ether_type {
                _ if !is_for_it => self.astray.push(frame),
                EtherType::ARP => other.handle_arp(self.now, &frame.packet, ours),
                EtherType::IPV6 if frame.packet[6] == 58 => {
                    other.handle_discovery(self.now, &frame.packet, ours);
                }
                _ => self.arrived.push(frame.packet),
            }
        }
    }

    fn send(&mut self, to: &str) -> Vec<u8> {
        let to: IpAddr = to.parse().unwrap();
        let mut packet = vec![0; 64];
        match to {
            IpAddr::V4(destination) => {
                let header = Ipv4Header { destination, ..Ipv4Header::default() };
                _ = header.write_packet(&[], 44, &mut packet).unwrap();
            }
            IpAddr::V6(destination) => {
                let header = Ipv6Header { destination, ..Ipv6Header::default() };
                _ = header.write_packet(24, &mut packet).unwrap();
            }
        }
        let (one, ours) = &mut self.ends[0];
        one.send(self.now, to, packet.clone(), ours);
        packet
    }
}

#[test]
fn packets_wait_for_an_answer_and_arrive() {
    for (ours, theirs) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        let mut link = Link::new([ours, theirs]);
        link.run(Duration::from_secs(10));
        for (_, addresses) in &mut link.ends {
            assert!(addresses.iter().all(|one| one.state.may_be_source()), "{ours}");
            while addresses.poll_event().is_some() {}
        }
        let packet = link.send(theirs);
        link.run(Duration::from_millis(10));
        assert_eq!(link.arrived.last(), Some(&packet));
        let ip: IpAddr = theirs.parse().unwrap();
        let changes: Vec<_> = std::iter::from_fn(|| link.ends[0].0.poll_change()).collect();
        assert_eq!(changes, [(ip, Some(THEIRS))]);
        assert_eq!(link.ends[0].0.rows_after(None).count(), 1);
    }
}

#[test]
fn the_same_address_twice_is_given_up_by_one_that_claims_it_later() {
    for ip in ["10.0.0.1", "fd00::1"] {
        let mut link = Link::new([ip, ip]);
        link.run(Duration::from_secs(20));
        let duplicates = link.ends.iter_mut().filter_map(|(_, addresses)| {
            std::iter::from_fn(|| addresses.poll_event())
                .find(|event| matches!(event, AddressEvent::Duplicate(_)))
        });
        assert!(duplicates.count() >= 1, "{ip}");
    }
}

#[test]
fn unanswered_packets_are_reported_and_groups_need_no_resolution() {
    let mut link = Link::new(["10.0.0.1", "10.0.0.2"]);
    link.run(Duration::from_secs(10));
    link.send("10.0.0.9");
    link.send("10.0.0.255");
    let (one, _) = &mut link.ends[0];
    let frames: Vec<_> = std::iter::from_fn(|| one.poll_frame()).collect();
    assert!(frames.iter().all(|frame| frame.to == MacAddress::BROADCAST), "{frames:?}");
    assert_eq!(frames.iter().filter(|one| one.ether_type == EtherType::IPV4).count(), 1);
    let asked = frames.iter().find(|one| one.ether_type == EtherType::ARP).expect("a request");
    let asked = ArpPacket::<MacAddress>::parse(&asked.packet).unwrap();
    assert_eq!(asked.operation, ArpOperation::REQUEST);
    for _ in 0..10 {
        let Some(due) = one.poll_timeout() else { break };
        one.handle_timeout(due, &Addresses::default());
    }
    let events: Vec<_> = std::iter::from_fn(|| one.poll_event()).collect();
    assert!(matches!(events[..], [EthernetEvent::Unreachable(_)]), "{events:?}");
}

#[test]
fn what_was_learned_is_forgotten_with_the_link_and_static_neighbors_come_back() {
    let mut link = Link::new(["10.0.0.1", "10.0.0.2"]);
    link.run(Duration::from_secs(10));
    let ip = "10.0.0.7".parse().unwrap();
    let (one, ours) = &mut link.ends[0];
    assert!(one.set_neighbor(link.now, ip, THEIRS, ours));
    assert_eq!(one.poll_change(), Some((ip, Some(THEIRS))));
    one.set_up(link.now, false, ours);
    assert_eq!(one.poll_change(), Some((ip, None)));
    assert_eq!((one.poll_timeout(), one.rows_after(None).count()), (None, 0));
    one.set_up(link.now, true, ours);
    assert_eq!(one.poll_change(), Some((ip, Some(THEIRS))));
    one.remove_neighbor(link.now, ip, ours);
    assert_eq!(one.poll_change(), Some((ip, None)));
}
