//! The fast path between a socket stack and an interface: packets both ways without control.
//!
//! ```text
//!   device --> breathe --> take: a socket's?  --no--> control, with all else that has come
//!   draft: a packet is written where the device reads it --> send_draft --> flush: one doorbell
//! ```
//!
//! Every worker of an interface has a [`WorkerPort`]: the primary worker has the [`Interface`],
//! each other one a [`SecondaryWorker`](super::SecondaryWorker). A port takes all packets that come
//! to it, of any flow, and sends by its own queue pairs.
//!
//! Control and the device's events are polled every few microseconds, and at once when a packet for
//! control has come. Such a poll costs as much as several packets.

use super::Interface;
use super::port_driver::PortDriver;
use super::sending::{NotSent, destination};
use pollux_control::address::NextHop;
use pollux_control::interface::Delivery;
use pollux_dataplane::ipoib::{Outgoing, Received};
use pollux_dataplane::neighbor::Route;
use pollux_verbs::VerbsError;
use pollux_verbs::time::Time;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

/// How long control is not looked at, at the most, as long as somebody calls.
pub(super) const LOOK_EVERY: Duration = Duration::from_micros(20);
/// Packets that leave with one doorbell, at the most.
const BATCH_MAX: usize = 32;
/// How often control is told that a neighbor is in use: states of neighbors last for seconds.
const USE_EVERY: Duration = Duration::from_millis(100);
/// Neighbors that are remembered to have been told of.
const USED_MAX: usize = 1024;

/// Takes a packet, if it is a socket's.
pub type Take<'a> = &'a mut dyn FnMut(&[u8]) -> bool;

/// What a worker has of an interface.
pub trait WorkerPort {
    /// What moves its packets.
    fn driver(&self) -> &PortDriver;

    /// The same, to be moved.
    fn driver_mut(&mut self) -> &mut PortDriver;

    /// Packets go to a neighbor, which control is to know now and then.
    fn report_use(&mut self, now: Time, next_hop: IpAddr);

    /// A peer acknowledged or sent something new (RFC 4861 7.3.1), which control is to know now
    /// and then.
    fn report_progress(&mut self, now: Time, to: IpAddr);

    /// Why it does not run any more, if that is so.
    fn failed(&self) -> Option<&VerbsError>;

    /// Takes what has come, for sockets first; says whether anything was done.
    fn breathe(&mut self, now: Time, take: Take<'_>) -> bool;

    /// Whether control is to be looked at again.
    fn is_due(&self, now: Time) -> bool;

    /// When there is something to do though nothing comes.
    fn poll_timeout(&self) -> Option<Time>;

    /// The next packet for sockets that control has seen.
    fn poll_delivery(&mut self) -> Option<Delivery>;

    /// There is no socket for a packet that came.
    fn refuse(&mut self, now: Time, packet: &[u8]);

    /// Whether another packet can leave now.
    fn has_room(&self) -> bool {
        self.driver().waiting.is_empty()
    }

    /// Workers of the interface that have to hear something since this was asked, a bit each: they
    /// may sleep.
    fn take_notified(&mut self) -> u32;

    /// Room for a packet of so many bytes; none if the device has no buffer for it now. It takes
    /// the place of an earlier one that was not sent.
    #[inline]
    fn draft(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.driver_mut().draft(bytes)
    }

    /// The packet that was written there.
    #[inline]
    fn drafted(&self) -> &[u8] {
        self.driver().drafted()
    }

    /// Sends it, at the latest with [`WorkerPort::flush`].
    #[inline]
    fn send_draft(&mut self, now: Time) -> Result<(), NotSent> {
        let next_hop = self.driver_mut().send_draft()?;
        self.report_use(now, next_hop);
        Ok(())
    }

    /// Lets go what was sent.
    fn flush(&mut self) {
        self.driver_mut().flush();
    }

    /// Sends a packet of this host.
    fn send(&mut self, now: Time, packet: &[u8]) -> Result<(), NotSent> {
        let sent = self.driver_mut().send_packet(packet);
        if let (Ok(()), Some((_, next_hop))) = (sent, destination(packet)) {
            self.report_use(now, next_hop);
        }
        sent
    }

    /// Whether all accepted packets have left: none waits for space, for a neighbor to resolve or
    /// for a connection. Punts of a secondary worker count at the primary worker.
    fn has_sent(&self, now: Time) -> bool;

    /// The longest packet that goes to a neighbor now, if it is known.
    fn route_mtu(&mut self, neighbor: IpAddr) -> Option<u32> {
        self.driver_mut().route_mtu(neighbor)
    }

    /// Our addresses that packets may be sent from.
    fn own(&self) -> BTreeSet<IpAddr>;

    /// Which of them packets are sent from that go there.
    fn source_for(&self, to: IpAddr) -> Option<IpAddr>;

    /// Whether it is a neighbor's address.
    fn is_on_link(&self, now: Time, to: IpAddr) -> bool;

    /// The longest packet of a datagram, once the interface is up.
    fn datagram_mtu(&self) -> Option<u32>;
}

impl WorkerPort for Interface {
    fn driver(&self) -> &PortDriver {
        &self.driver
    }

    fn driver_mut(&mut self) -> &mut PortDriver {
        &mut self.driver
    }

    fn report_use(&mut self, now: Time, next_hop: IpAddr) {
        if self.used.is_due(now, next_hop) {
            self.control_mut().handle_use(now, next_hop);
        }
    }

    fn report_progress(&mut self, now: Time, to: IpAddr) {
        if self.confirmed.is_due(now, to) {
            self.control_mut().handle_progress(now, to);
        }
    }

    fn failed(&self) -> Option<&VerbsError> {
        self.failed.as_ref()
    }

    fn breathe(&mut self, now: Time, take: Take<'_>) -> bool {
        if self.failed.is_some() {
            return false;
        }
        let packets = &mut self.arrived.packets;
        let busy = match self.driver.poll_packets(packets, take) {
            Ok(busy) => busy,
            Err(error) => return self.fail(error),
        };
        if packets.is_empty() && now < self.look_at {
            return busy;
        }
        self.look_at = now + LOOK_EVERY;
        self.turn(now, take) | busy
    }

    fn is_due(&self, now: Time) -> bool {
        self.look_at <= now
    }

    fn poll_timeout(&self) -> Option<Time> {
        Self::poll_timeout(self)
    }

    fn poll_delivery(&mut self) -> Option<Delivery> {
        Self::poll_delivery(self)
    }

    fn refuse(&mut self, now: Time, packet: &[u8]) {
        self.control_mut().handle_no_listener(now, packet);
        self.drain(now);
    }

    fn take_notified(&mut self) -> u32 {
        self.workers.take_notified()
    }

    fn has_sent(&self, now: Time) -> bool {
        let control = &self.control;
        self.driver.has_moved()
            && self.workers.has_no_events()
            && control.neighbor_rows(now).all(|row| row.pending == 0)
            && control.peer_rows().all(|row| row.pending == 0)
            && control.group_rows().all(|row| row.pending == 0)
    }

    fn own(&self) -> BTreeSet<IpAddr> {
        let usable = self.control.addresses().iter().filter(|one| one.state.may_be_source());
        usable.map(|one| one.ip).collect()
    }

    fn source_for(&self, to: IpAddr) -> Option<IpAddr> {
        self.control.addresses().source_for(to)
    }

    fn is_on_link(&self, now: Time, to: IpAddr) -> bool {
        matches!(self.control.next_hop(now, to), Some(NextHop::OnLink(_)))
    }

    fn datagram_mtu(&self) -> Option<u32> {
        self.control.link().map(|link| link.mtu)
    }
}

/// Neighbors that control was told of.
#[derive(Debug)]
pub(super) struct Used {
    reported: BTreeSet<IpAddr>,
    until: Time,
}

impl Used {
    pub(super) const fn new() -> Self {
        Self { reported: BTreeSet::new(), until: Time::START }
    }

    /// Whether control is to be told of a use.
    pub(super) fn is_due(&mut self, now: Time, next_hop: IpAddr) -> bool {
        if self.until <= now {
            self.reported.clear();
            self.until = now + USE_EVERY;
        }
        self.reported.len() == USED_MAX || self.reported.insert(next_hop)
    }
}

impl PortDriver {
    /// Takes packets that have come, for sockets first, and lets go those that waited.
    #[inline(always)]
    pub(super) fn poll_packets(
        &mut self,
        packets: &mut Vec<Received>,
        take: Take<'_>,
    ) -> Result<bool, VerbsError> {
        let before = packets.len();
        let mut busy = self.netdev.poll(&mut *self.device, packets)? > 0;
        self.note_first_packets(&packets[before..]);
        busy |= !self.waiting.is_empty() && self.send_waiting();
        for received in packets.extract_if(.., |one| take(one.packet.bytes())) {
            self.recycle(received);
        }
        Ok(busy)
    }

    /// Whether all that was given to it is the device's, or control's.
    pub(super) fn has_moved(&self) -> bool {
        let is_moved = self.waiting.is_empty() && self.batch.is_empty();
        is_moved && self.punts.is_empty() && self.too_big.is_empty()
    }

    #[inline(always)]
    pub(super) fn draft(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if let Some(old) = self.draft.take() {
            self.netdev.recycle(old);
        }
        let mut buf = self.netdev.buffer(bytes)?;
        buf.push_back(bytes)?;
        Some(self.draft.insert(buf).bytes_mut())
    }

    pub(super) fn drafted(&self) -> &[u8] {
        self.draft.as_ref().map_or(&[], |draft| draft.bytes())
    }

    /// Puts the draft into the batch; says whom it is for.
    #[inline(always)]
    pub(super) fn send_draft(&mut self) -> Result<IpAddr, NotSent> {
        let packet = self.draft.take().ok_or(NotSent::NoIp)?;
        let Some((ether_type, to)) = destination(packet.bytes()) else {
            self.netdev.recycle(packet);
            return Err(NotSent::NoIp);
        };
        let route = self.reader.refresh().route(to);
        if matches!(route, Route::Unknown | Route::Pending) {
            // What was written before leaves before.
            self.flush();
            let punted = self.punt(packet.bytes());
            self.netdev.recycle(packet);
            return punted.map(|()| to);
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
        self.netdev.send(&mut *self.device, &mut self.batch, &mut refused);
        for one in refused.drain(..) {
            self.counts.no_room += u64::from(self.take_back(one).is_err());
        }
        self.refused = refused;
    }
}
