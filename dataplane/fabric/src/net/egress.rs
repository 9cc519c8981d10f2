//! Egress of a port whose link has a rate: virtual lanes, flow control by credits, and arbitration
//! (IBA 7.9).
//!
//! Each data lane has a queue and the credits that the next port grants, in blocks of 64 bytes. A
//! packet leaves when the link is free, arbitration selects its lane, and there are credits for the
//! whole packet. Until then it waits; data packets are not dropped. Its credits return when it
//! leaves the next node. VL 15 has no flow control: its packets are dropped if the queue is full.

use super::arbiter::Arbiter;
use super::flight::Flight;
use crate::time::Time;
use pollux_wire::mad::smp::VlArbitrationTable;
use std::collections::VecDeque;

/// The lane of subnet management.
const MANAGEMENT: usize = 15;
/// Credits of a port on each lane, in blocks of 64 bytes.
const BLOCKS: u32 = 512;
/// Subnet management packets that may wait at a port.
const MANAGEMENT_MAX: usize = 256;

#[derive(Default)]
pub(super) struct Egress {
    /// No other egress of the fabric has or had this number.
    pub(super) number: u64,
    queues: [VecDeque<Flight>; 16],
    /// Blocks of credit in use at the next port, by lane.
    used: [u32; 15],
    pub(super) free_at: Time,
    arbiter: Arbiter,
    /// When packets began to wait although the link is free.
    waits_since: Option<Time>,
}

impl Egress {
    pub(super) fn new(number: u64) -> Self {
        Self { number, ..Self::default() }
    }

    /// Whether this lane has space for one more packet; only VL 15 has a limit.
    pub(super) fn has_space(&self, lane: u8) -> bool {
        let lane = usize::from(lane);
        lane != MANAGEMENT || self.queues[lane].len() < MANAGEMENT_MAX
    }

    pub(super) fn push(&mut self, lane: u8, flight: Flight) {
        self.queues[usize::from(lane & 15)].push_back(flight);
    }

    /// Takes the next frame that may be sent now, with its lane. Also returns the nanoseconds for
    /// which packets have waited although the link was free.
    pub(super) fn pop(
        &mut self,
        now: Time,
        tables: Option<&[VlArbitrationTable; 4]>,
        high_limit: u8,
    ) -> (Option<(u8, Flight)>, u64) {
        if now < self.free_at {
            return (None, 0);
        }
        let lane = if self.queues[MANAGEMENT].is_empty() {
            let fits = |lane: u8| {
                let lane = usize::from(lane);
                let flight = self.queues.get(lane)?.front()?;
                let bytes = flight.bytes();
                (self.used.get(lane)? + blocks(bytes) <= BLOCKS).then_some(bytes)
            };
            self.arbiter.choose(tables, high_limit, fits)
        } else {
            Some(MANAGEMENT as u8)
        };
        let Some(lane) = lane else {
            if !self.is_empty() {
                self.waits_since.get_or_insert(now);
            }
            return (None, 0);
        };
        let waited = self.waits_since.take().map_or(0, |since| now.since(since).as_nanos() as u64);
        let flight = self.queues[usize::from(lane)].pop_front();
        if let (Some(used), Some(flight)) = (self.used.get_mut(usize::from(lane)), &flight) {
            *used += blocks(flight.bytes());
        }
        (flight.map(|flight| (lane, flight)), waited)
    }

    pub(super) fn return_credits(&mut self, lane: u8, bytes: u64) {
        if let Some(used) = self.used.get_mut(usize::from(lane)) {
            *used = used.saturating_sub(blocks(bytes));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(VecDeque::is_empty)
    }

    /// All waiting frames.
    pub(super) fn into_flights(self) -> Vec<Flight> {
        self.queues.into_iter().flatten().collect()
    }
}

fn blocks(bytes: u64) -> u32 {
    bytes.div_ceil(64) as u32
}
