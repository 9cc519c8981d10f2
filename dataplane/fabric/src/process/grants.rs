//! The assignment of direct rings to clients: decisions without memory, sockets or time.
//!
//! ```text
//!            the route has traffic                            SWITCH
//!   no ring ---------------------------> granted to both ends --------> open to the receiver
//!      ^                                        |                           |
//!      |         CLOSED by the sender           |  taken back: least used   |
//!      +------------------------------------- closing <---------------------+
//!      |    or two counter readings without CLOSED
//!      |                                                                    |
//!      +---- another path, or none; a client has ended: ended at once <-----+
//! ```

use crate::net::bypass::BypassPath;
use std::collections::BTreeMap;

/// Direct rings of a client in each direction. If a receiver has this many, a new sender gets a
/// ring at the expense of the sender that has most of the receiver's rings.
pub const DIRECT_RINGS_MAX: usize = 64;

/// Counter readings, about a second apart, for which the server waits for the sender to close a
/// ring that is taken back.
const CLOSING_READINGS_MAX: u32 = 2;

#[derive(Clone, Debug)]
pub struct Grant {
    pub from: u32,
    pub to: u32,
    /// The route of its messages, as [`route_bits`](pollux_hca::head::route_bits).
    pub route: u64,
    pub path: BypassPath,
    /// Whether the receiver polls it.
    pub is_open: bool,
    /// Whether it was taken back from the sender.
    is_closing: bool,
    /// Counter readings since it was taken back.
    closing_readings: u32,
    /// The packets of recent readings; older readings have less weight.
    used: u64,
    /// How often its counters were read.
    readings: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingDecision {
    Grant,
    /// The client has a ring for the route, needs none, or no slot is free now.
    Refuse,
    /// A slot will be free when this ring has ended.
    TakeBack(u64),
}

#[derive(Debug, Default)]
pub struct Grants {
    rings: BTreeMap<u64, Grant>,
    by_route: BTreeMap<(u32, u64), u64>,
    last: u64,
}

impl Grants {
    pub fn has(&self, from: u32, route: u64) -> bool {
        self.by_route.contains_key(&(from, route))
    }

    /// Whether a client gets a direct ring for a route.
    pub fn decide(&self, from: u32, to: u32, route: u64) -> RingDecision {
        if self.has(from, route) || from == to {
            return RingDecision::Refuse;
        }
        let of_sender = self.rings.values().filter(|grant| grant.from == from).count();
        if of_sender >= DIRECT_RINGS_MAX {
            return self.ring_to_take_back(|grant| grant.from == from);
        }
        let mut senders = BTreeMap::<u32, usize>::new();
        for grant in self.rings.values().filter(|grant| grant.to == to) {
            *senders.entry(grant.from).or_default() += 1;
        }
        if senders.values().sum::<usize>() < DIRECT_RINGS_MAX {
            return RingDecision::Grant;
        }
        let most = senders.values().max().copied();
        self.ring_to_take_back(|grant| grant.to == to && senders.get(&grant.from).copied() == most)
    }

    /// The ring to take back. A new ring is not taken back, and only one ring at a time.
    fn ring_to_take_back(&self, is: impl Fn(&Grant) -> bool) -> RingDecision {
        let mut rings = self.rings.iter().filter(|(_, grant)| is(grant));
        if rings.clone().any(|(_, grant)| grant.is_closing) {
            return RingDecision::Refuse;
        }
        let old = rings.by_ref().filter(|(_, grant)| grant.readings > 1);
        let least = old.min_by_key(|(_, grant)| grant.used);
        least.map_or(RingDecision::Refuse, |(number, _)| RingDecision::TakeBack(*number))
    }

    /// Assigns a new direct ring; returns its number.
    pub fn grant(&mut self, from: u32, to: u32, route: u64, path: BypassPath) -> u64 {
        self.last += 1;
        let (is_open, is_closing, closing_readings, used, readings) = (false, false, 0, 0, 0);
        let grant =
            Grant { from, to, route, path, is_open, is_closing, closing_readings, used, readings };
        self.rings.insert(self.last, grant);
        self.by_route.insert((from, route), self.last);
        self.last
    }

    pub fn ring(&self, number: u64) -> Option<&Grant> {
        self.rings.get(&number)
    }

    /// Opens a ring that its sender starts to use. The first call returns the receiver.
    pub fn open(&mut self, from: u32, number: u64) -> Option<u32> {
        let grant = self.rings.get_mut(&number)?;
        let begins = grant.from == from && !grant.is_open;
        grant.is_open |= begins;
        begins.then_some(grant.to)
    }

    pub fn take_back(&mut self, number: u64) {
        if let Some(grant) = self.rings.get_mut(&number) {
            grant.is_closing = true;
        }
    }

    pub fn end(&mut self, number: u64) -> Option<Grant> {
        let grant = self.rings.remove(&number)?;
        self.by_route.remove(&(grant.from, grant.route));
        Some(grant)
    }

    /// Counts a reading of all rings. Returns those that their senders have not closed in time.
    pub fn overdue(&mut self) -> Vec<u64> {
        for grant in self.rings.values_mut().filter(|grant| grant.is_closing) {
            grant.closing_readings += 1;
        }
        self.numbers_where(|grant| grant.closing_readings > CLOSING_READINGS_MAX)
    }

    /// Records the packets since the last reading.
    pub fn record_traffic(&mut self, number: u64, packets: u64) {
        if let Some(grant) = self.rings.get_mut(&number) {
            // The sender writes the counter and may write any value, so saturate.
            grant.used = (grant.used / 2).saturating_add(packets);
            grant.readings = grant.readings.saturating_add(1);
        }
    }

    /// The rings to and from a client.
    pub fn of_client(&self, client: u32) -> Vec<u64> {
        self.numbers_where(|grant| grant.from == client || grant.to == client)
    }

    /// The numbers of the rings for which `is` holds.
    pub fn numbers_where(&self, is: impl Fn(&Grant) -> bool) -> Vec<u64> {
        self.rings.iter().filter(|(_, grant)| is(grant)).map(|(number, _)| *number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Grants {
        let mut grants = Grants::default();
        for route in 0..DIRECT_RINGS_MAX as u64 {
            let number = grants.grant(1, 2 + route as u32, route, BypassPath::default());
            grants.record_traffic(number, 100 - route);
            grants.record_traffic(number, 100 - route);
        }
        grants
    }

    #[test]
    fn the_least_used_ring_is_taken_back_when_there_are_too_many() {
        let mut grants = full();
        let next = DIRECT_RINGS_MAX as u64;
        assert_eq!(grants.decide(1, 9, 0), RingDecision::Refuse, "there is one");
        assert_eq!(grants.decide(1, 9, next), RingDecision::TakeBack(next));
        grants.take_back(next);
        assert_eq!(grants.decide(1, 9, next), RingDecision::Refuse, "one at a time");
        assert_eq!(grants.end(next).map(|grant| grant.to), Some(DIRECT_RINGS_MAX as u32 + 1));
        assert_eq!(grants.decide(1, 9, next), RingDecision::Grant);
        assert_eq!(grants.decide(1, 1, next), RingDecision::Refuse, "what loops back needs none");
        assert_eq!(grants.decide(2, 1, 0), RingDecision::Grant, "another's");
    }

    #[test]
    fn new_rings_are_not_taken_back() {
        let mut grants = Grants::default();
        (0..DIRECT_RINGS_MAX as u64).for_each(|route| {
            grants.grant(1, 2, route, BypassPath::default());
        });
        assert_eq!(grants.decide(3, 2, 0), RingDecision::Refuse, "the receiver has enough");
        grants.numbers_where(|_| true).into_iter().for_each(|ring| grants.record_traffic(ring, 1));
        assert_eq!(grants.decide(3, 2, 0), RingDecision::Refuse);
        grants.numbers_where(|_| true).into_iter().for_each(|ring| grants.record_traffic(ring, 1));
        assert_eq!(grants.decide(3, 2, 0), RingDecision::TakeBack(1));
    }

    /// One sender has nearly all rings of a receiver and keeps them busy. A third one still gets a
    /// ring.
    #[test]
    fn a_receiver_makes_room_at_the_cost_of_the_sender_that_has_most() {
        let (mut grants, path) = (Grants::default(), BypassPath::default());
        let rings = DIRECT_RINGS_MAX as u64;
        let all: Vec<u64> =
            (1..rings).map(|route| grants.grant(1, 9, route, path.clone())).collect();
        let honest = grants.grant(2, 9, 0, path);
        for _ in 0..2 {
            all.iter().for_each(|ring| grants.record_traffic(*ring, 1000 - ring));
            grants.record_traffic(honest, 1);
        }
        let least = all[all.len() - 1];
        assert_eq!(grants.decide(3, 9, 0), RingDecision::TakeBack(least));
        grants.take_back(least);
        for _ in 0..CLOSING_READINGS_MAX {
            assert_eq!((grants.overdue(), grants.decide(3, 9, 0)), (vec![], RingDecision::Refuse));
        }
        assert_eq!(grants.overdue(), [least], "its sender does not give it up");
        assert!(grants.end(least).is_some());
        assert_eq!(grants.decide(3, 9, 0), RingDecision::Grant);
    }

    #[test]
    fn of_senders_with_equally_many_rings_the_least_used_one_makes_room() {
        let mut grants = Grants::default();
        let rings = 1..=DIRECT_RINGS_MAX as u32;
        let all: Vec<u64> =
            rings.map(|sender| grants.grant(sender, 99, 0, BypassPath::default())).collect();
        for _ in 0..2 {
            all.iter()
                .for_each(|ring| grants.record_traffic(*ring, if *ring == all[7] { 1 } else { 9 }));
        }
        assert_eq!(grants.decide(98, 99, 0), RingDecision::TakeBack(all[7]));
    }

    #[test]
    fn counts_of_any_size_are_taken() {
        let mut grants = full();
        (0..3).for_each(|_| grants.record_traffic(1, u64::MAX));
        assert_eq!(grants.ring(1).map(|grant| grant.used), Some(u64::MAX));
        assert_eq!(grants.decide(1, 9, u64::MAX), RingDecision::TakeBack(DIRECT_RINGS_MAX as u64));
    }

    #[test]
    fn only_its_sender_opens_a_ring_and_once() {
        let mut grants = Grants::default();
        let ring = grants.grant(1, 2, 5, BypassPath::default());
        assert_eq!((grants.open(2, ring), grants.open(1, 9)), (None, None));
        assert_eq!((grants.open(1, ring), grants.open(1, ring)), (Some(2), None));
        assert_eq!((grants.of_client(2), grants.of_client(3)), (vec![ring], vec![]));
        assert!(grants.end(ring).is_some() && !grants.has(1, 5));
    }
}
