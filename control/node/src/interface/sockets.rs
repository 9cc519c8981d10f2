//! The quick way for whoever serves sockets at an interface: packets both ways without control.
//!
//! ```text
//!   device --> breathe --> take: a socket's?  --no--> control, with all else that has come
//!   draft: a packet is written where the device reads it --> send_draft --> flush: one doorbell
//! ```
//!
//! Control and the device's events are looked at every few microseconds, and at once when a packet
//! came that is control's. To look costs as much as several packets do.

use super::Interface;
use super::mover::Mover;
use super::sending::{NotSent, destination};
use pollux_dataplane::ipoib::{Outgoing, Received};
use pollux_dataplane::neighbour::Route;
use pollux_verbs::VerbsError;
use pollux_verbs::time::Time;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

/// How long control is not looked at, at the most, as long as somebody calls.
const LOOK_EVERY: Duration = Duration::from_micros(20);
/// Packets that leave with one doorbell, at the most.
const BATCH_MAX: usize = 32;
/// How often control is told that a neighbour is in use: states of neighbours last for seconds.
const USE_EVERY: Duration = Duration::from_millis(100);
/// Neighbours that are remembered to have been told of.
const USED_MAX: usize = 1024;

/// Takes a packet, if it is a socket's.
pub type Take<'a> = &'a mut dyn FnMut(&[u8]) -> bool;

/// Neighbours that control was told of.
#[derive(Debug)]
pub(super) struct Used {
    told: BTreeSet<IpAddr>,
    until: Time,
}

impl Used {
    pub(super) const fn new() -> Self {
        Self { told: BTreeSet::new(), until: Time::START }
    }

    /// Whether control is to be told of a use.
    fn is_news(&mut self, now: Time, next_hop: IpAddr) -> bool {
        if self.until <= now {
            self.told.clear();
            self.until = now + USE_EVERY;
        }
        self.told.len() == USED_MAX || self.told.insert(next_hop)
    }
}

impl Interface {
    /// Takes what has come, for sockets first; says whether anything was done.
    pub fn breathe(&mut self, now: Time, take: Take<'_>) -> bool {
        if self.failed.is_some() {
            return false;
        }
        let packets = &mut self.arrived.packets;
        let busy = match self.mover.poll_packets(packets) {
            Ok(busy) => busy,
            Err(error) => {
                self.failed = Some(error);
                return true;
            }
        };
        for received in packets.extract_if(.., |one| take(one.packet.octets())) {
            self.mover.recycle(received);
        }
        if packets.is_empty() && now < self.look_at {
            return busy;
        }
        self.look_at = now + LOOK_EVERY;
        self.turn(now, take) | busy
    }

    /// Whether control is to be looked at again.
    pub fn is_due(&self, now: Time) -> bool {
        self.look_at <= now
    }

    /// Whether another packet can leave now.
    pub fn has_room(&self) -> bool {
        self.mover.waiting.is_empty()
    }

    /// Room for a packet of so many octets; none if the device has no buffer for it now. It takes
    /// the place of an earlier one that was not sent.
    pub fn draft(&mut self, octets: usize) -> Option<&mut [u8]> {
        self.mover.draft(octets)
    }

    /// The packet that was written there.
    pub fn drafted(&self) -> &[u8] {
        self.mover.draft.as_ref().map_or(&[], |draft| draft.octets())
    }

    /// Sends it, at the latest with [`Interface::flush`].
    pub fn send_draft(&mut self, now: Time) -> Result<(), NotSent> {
        let next_hop = self.mover.send_draft()?;
        self.tell_use(now, next_hop);
        Ok(())
    }

    /// Lets go what was sent.
    pub fn flush(&mut self) {
        self.mover.flush();
    }

    /// Whether nothing is left that was given to it to be sent: nothing waits for room, for a
    /// neighbour to be found or for a connection.
    pub fn has_sent(&self, now: Time) -> bool {
        let (mover, control) = (&self.mover, &self.control);
        let is_moved = mover.waiting.is_empty() && mover.batch.is_empty();
        let has_ways = mover.misses.is_empty() && mover.too_big.is_empty();
        is_moved
            && has_ways
            && control.neighbour_rows(now).all(|row| row.pending == 0)
            && control.peer_rows().all(|row| row.pending == 0)
            && control.group_rows().all(|row| row.pending == 0)
    }

    pub(super) fn tell_use(&mut self, now: Time, next_hop: IpAddr) {
        if self.used.is_news(now, next_hop) {
            self.tell().handle_use(now, next_hop);
        }
    }
}

impl Mover {
    /// Takes packets that have come, and lets go those that waited.
    fn poll_packets(&mut self, packets: &mut Vec<Received>) -> Result<bool, VerbsError> {
        let before = packets.len();
        let busy = self.station.poll(&mut *self.device, packets)? > 0;
        self.hear_first(&packets[before..]);
        Ok(busy | (!self.waiting.is_empty() && self.send_waiting()))
    }

    fn draft(&mut self, octets: usize) -> Option<&mut [u8]> {
        if let Some(old) = self.draft.take() {
            self.station.recycle(old);
        }
        let mut buf = self.station.buffer(octets)?;
        buf.push_back(octets)?;
        Some(self.draft.insert(buf).octets_mut())
    }

    /// Puts the draft into the batch; says whom it is for.
    fn send_draft(&mut self) -> Result<IpAddr, NotSent> {
        let packet = self.draft.take().ok_or(NotSent::NoIp)?;
        let Some((ether_type, to)) = destination(packet.octets()) else {
            self.station.recycle(packet);
            return Err(NotSent::NoIp);
        };
        let route = self.reader.refresh().route(to);
        if matches!(route, Route::Unknown | Route::Pending) {
            // What was written before leaves before.
            self.flush();
            let missed = self.miss(packet.octets());
            self.station.recycle(packet);
            return missed.map(|()| to);
        }
        self.batch.push(Outgoing { packet, ether_type, route });
        if self.batch.len() >= BATCH_MAX {
            self.flush();
        }
        Ok(to)
    }

    /// Sends the batch. What has no room waits; what has no place to wait is counted.
    pub(super) fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        if !self.waiting.is_empty() {
            self.queue_behind_others();
        }
        let mut refused = std::mem::take(&mut self.refused);
        self.station.send(&mut *self.device, &mut self.batch, &mut refused);
        for one in refused.drain(..) {
            self.counts.no_room += u64::from(self.take_back(one).is_err());
        }
        self.refused = refused;
    }
}
