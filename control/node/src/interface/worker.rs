//! A worker of an interface. It has its own device context and queue pairs, and moves packets
//! between them and the sockets of its thread, without control.
//!
//! ```text
//!   device --> breathe --> take: a packet of a socket? --no--> events --ring--> control
//!   draft: a packet is written where the device reads it --> send_draft --> flush: one doorbell
//!              port driver <-- actions, frames of control -------------ring---- control
//! ```
//!
//! All workers are alike, except that worker 0 has the UD queue pair of the link address. That
//! queue pair is attached to the multicast groups, receives the datagrams of other hosts, and sends
//! the frames of control. A worker receives all packets that arrive at its queue pairs, of any
//! flow, and sends by them.
//!
//! A worker may move to any thread. When its interface ends, [`InterfaceWorker::failed`] returns an
//! error, and the caller drops the worker. Commands and events of the device are polled every 20
//! µs, and at once after a packet for control: such a poll costs as much as several packets.

use super::port_driver::counters::DriverCounters;
use super::port_driver::sending::{PuntReason, destination};
use super::port_driver::{Arrived, NotSent, PortDriver, Take, take_if_for_socket};
use super::reported::Reported;
use super::worker_channel::{WorkerCommand, WorkerEnd, WorkerEvent};
use pollux_control::bounded::BoundedQueue;
use pollux_control::ipoib::{Delivery, InterfaceSnapshot, NeighborChange, WorkerId};
use pollux_dataplane::acl::AclFilter;
use pollux_dataplane::capture::CaptureEvent;
use pollux_dataplane::ipoib::{Received, Traffic};
use pollux_dataplane::port::{PacketPort, PortId, TransitError, TransitPacket, TxPacket};
use pollux_dataplane::reason::ForwardDrop;
use pollux_mem::Buf;
use pollux_mem::snapshot::Publisher;
use pollux_verbs::time::Time;
use pollux_verbs::{VerbsError, WakeSource};
use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// The longest interval between polls of commands.
const TURN_EVERY: Duration = Duration::from_micros(20);
/// Interval of reports of the use of connections, and of retries of refused actions.
const USES_EVERY: Duration = Duration::from_secs(1);
/// Interval of publications of counters.
const COUNTERS_EVERY: Duration = Duration::from_millis(100);
/// Maximum number of queued packets that control has passed on to sockets.
const DELIVERIES_MAX: usize = 4096;

/// The part of an interface that runs in a worker thread.
pub struct InterfaceWorker {
    number: WorkerId,
    port: PortId,
    // Dropped before `end`: the drop of `end` reports that no objects are left at the device.
    driver: PortDriver,
    arrived: Arrived,
    snapshot: Arc<InterfaceSnapshot>,
    deliveries: BoundedQueue<Delivery>,
    /// Not limited: there are only a few changes of each neighbor.
    neighbor_changes: VecDeque<NeighborChange>,
    /// Reports to control: neighbors in use, and neighbors with TCP progress.
    used: Reported,
    progressed: Reported,
    /// The latest time of the next poll of commands.
    turn_at: Time,
    uses_due: Time,
    counters: Publisher<DriverCounters>,
    counters_due: Time,
    failed: Option<VerbsError>,
    end: WorkerEnd,
}

impl InterfaceWorker {
    pub(super) fn new(
        now: Time,
        number: WorkerId,
        driver: PortDriver,
        counters: Publisher<DriverCounters>,
        end: WorkerEnd,
    ) -> Self {
        Self {
            number,
            port: PortId(0),
            driver,
            arrived: Arrived::default(),
            snapshot: Arc::default(),
            deliveries: BoundedQueue::new(DELIVERIES_MAX),
            neighbor_changes: VecDeque::new(),
            used: Reported::default(),
            progressed: Reported::default(),
            turn_at: now,
            uses_due: now + USES_EVERY,
            counters,
            counters_due: now,
            failed: None,
            end,
        }
    }

    pub const fn port(&self) -> PortId {
        self.port
    }

    pub const fn set_port(&mut self, port: PortId) {
        self.port = port;
    }

    pub const fn number(&self) -> WorkerId {
        self.number
    }

    pub const fn driver(&self) -> &PortDriver {
        &self.driver
    }

    pub const fn failed(&self) -> Option<&VerbsError> {
        self.failed.as_ref()
    }

    /// Receives packets. `take` gets each first; those that it refuses go to control. Returns
    /// whether there was anything to do.
    #[inline]
    pub fn breathe(&mut self, now: Time, take: Take<'_>) -> bool {
        self.receive(now, take, None)
    }

    /// Receives packets. `take` gets those to local addresses first, and `transit` those in
    /// transit.
    #[inline]
    fn receive(
        &mut self,
        now: Time,
        take: Take<'_>,
        mut transit: Option<&mut Vec<TransitPacket>>,
    ) -> bool {
        if self.failed.is_some() {
            return false;
        }
        self.driver.taps.set_time(now);
        let packets = &mut self.arrived.packets;
        let busy = match self.driver.poll_packets(packets, take, transit.as_deref_mut()) {
            Ok(busy) => busy,
            Err(error) => {
                self.fail(error);
                return true;
            }
        };
        if packets.is_empty() && now < self.turn_at {
            return busy;
        }
        self.turn(now, take, transit) | busy
    }

    /// Polls commands and events at once, without sockets.
    pub fn step(&mut self, now: Time) -> bool {
        self.failed.is_none() && self.turn(now, &mut |_, _| false, None)
    }

    pub fn is_due(&self, now: Time) -> bool {
        self.turn_at <= now
    }

    /// Whether the worker polled commands at `now`.
    pub(super) fn has_turned(&self, now: Time) -> bool {
        self.turn_at == now + TURN_EVERY
    }

    /// Polls commands, the device and its events. `take` and `transit` get packets first. Returns
    /// whether there was anything to do.
    fn turn(
        &mut self,
        now: Time,
        take: Take<'_>,
        transit: Option<&mut Vec<TransitPacket>>,
    ) -> bool {
        self.turn_at = now + TURN_EVERY;
        self.driver.taps.set_time(now);
        let before = self.arrived.packets.len();
        if self.end.is_over() {
            let (what, why) = ("interface", "its control plane has ended");
            self.failed = Some(VerbsError::Lost { what, why });
            return true;
        }
        let mut busy = self.carry_out_commands(now);
        match self.driver.poll(now, &mut self.arrived) {
            Ok(polled) => busy |= polled,
            Err(error) => {
                self.fail(error);
                return true;
            }
        }
        if let Some(transit) = transit {
            self.driver.take_transit(&mut self.arrived.packets, before, transit);
        }
        if self.uses_due <= now {
            self.driver.taps.drop_over();
            self.driver.report_uses();
            self.driver.retry(now);
            self.uses_due = now + USES_EVERY;
        }
        busy |= self.send_events(take);
        self.show_progress();
        if self.counters_due <= now {
            self.publish();
            self.counters_due = now + COUNTERS_EVERY;
        }
        busy
    }

    /// Carries out the commands of control. Returns whether there were any.
    pub(super) fn carry_out_commands(&mut self, now: Time) -> bool {
        let mut has_acted = false;
        let mut has_changed = false;
        while let Some(command) = self.end.poll() {
            // Frames use the routes of earlier actions, which are published first.
            if has_changed && !matches!(command, WorkerCommand::Act(_)) {
                self.driver.show_changes();
                has_changed = false;
            }
            match command {
                WorkerCommand::Act(action) => {
                    self.driver.carry_out(now, action);
                    has_changed = true;
                }
                WorkerCommand::SetState(snapshot) => self.snapshot = snapshot,
                WorkerCommand::Send(frame) => self.driver.send(frame),
                WorkerCommand::Deliver(delivery) => self.deliveries.push(delivery),
                WorkerCommand::Report(change) => self.neighbor_changes.push_back(change),
                WorkerCommand::Tap(tap) => self.driver.taps.add(*tap),
            }
            has_acted = true;
        }
        if has_changed {
            self.driver.show_changes();
        }
        if has_acted {
            self.end.show_space();
            self.show_progress();
        }
        has_acted
    }

    fn send_events(&mut self, take: Take<'_>) -> bool {
        let Self { driver, arrived, end, .. } = self;
        let mut busy = !arrived.is_empty();
        end.send_connection_events(arrived.connection_events.drain(..));
        let mut punts_dropped = 0;
        for received in arrived.packets.drain(..) {
            if !take_if_for_socket(&received, take)
                && driver.is_for_us(&received)
                && let Some(event) = to_event(driver, &received)
            {
                punts_dropped += u64::from(!end.send(event));
            }
            driver.recycle(received);
        }
        for packet in driver.filtered.drain(..) {
            let is_sent = end.send(WorkerEvent::Rejected(packet, TransitError::Filtered));
            punts_dropped += u64::from(!is_sent);
        }
        driver.counts.punts_dropped += punts_dropped;
        // A sender has handed these packets over, so they are not dropped: they wait for space.
        while !driver.punts.is_empty()
            && end.wait_for_room()
            && let Some((packet, why)) = driver.punts.pop_front()
        {
            busy = true;
            end.send(match why {
                PuntReason::NoRoute => WorkerEvent::Punt(packet),
                PuntReason::Transit(hop, mtu) => WorkerEvent::Transit(packet, hop, mtu),
                PuntReason::TooBig(mtu) => WorkerEvent::TooBig(packet, mtu),
            });
        }
        busy
    }

    fn show_progress(&mut self) {
        let has_sent = self.end.has_sent_events() && self.driver.has_moved();
        self.end.show(self.driver.is_idle(), has_sent && self.driver.netdev().has_sent());
    }

    /// Publishes the counters for control now, without waiting for the next interval.
    pub fn publish(&mut self) {
        let counters = self.driver.counters();
        if *self.counters.current() != counters {
            self.counters.publish(counters);
        }
    }

    /// Ends the worker with this error, and reports the error to control.
    fn fail(&mut self, why: VerbsError) {
        self.end.fail(&why);
        self.failed = Some(why);
    }
}

fn to_event(driver: &PortDriver, received: &Received) -> Option<WorkerEvent> {
    let from = driver.from(received)?;
    Some(WorkerEvent::Packet(received.headers.ether_type, received.packet.bytes().to_vec(), from))
}

impl PacketPort for InterfaceWorker {
    #[inline]
    fn poll(&mut self, now: Time, transit: &mut Vec<TransitPacket>) -> bool {
        self.receive(now, &mut |_, _| false, Some(transit))
    }

    fn set_filter(&mut self, filter: Option<AclFilter>) {
        self.driver.set_filter(filter);
    }

    fn send(&mut self, now: Time, batch: &mut Vec<TxPacket>) {
        let Self { driver, used, end, failed, .. } = self;
        if failed.is_some() {
            return batch.drain(..).for_each(|one| driver.recycle_buf(one.packet));
        }
        driver.taps.set_time(now);
        driver.forward(batch, |next_hop| {
            if used.is_due(now, next_hop) {
                let _ = end.send(WorkerEvent::Use(next_hop));
            }
        });
    }

    #[cold]
    fn reject(&mut self, packet: Buf, why: TransitError) {
        let is_sent = self.end.send(WorkerEvent::Rejected(packet.bytes().to_vec(), why));
        self.driver.counts.punts_dropped += u64::from(!is_sent);
        self.drop_transit(packet, why.reason());
    }

    #[cold]
    fn drop_transit(&mut self, packet: Buf, why: ForwardDrop) {
        self.driver.forward_drops.count(why);
        self.driver.taps.record(CaptureEvent::Dropped(why.name()), packet.bytes());
        self.driver.recycle_buf(packet);
    }

    fn copy(&mut self, packet: &Buf) -> Option<Buf> {
        self.driver.copy(packet)
    }

    fn packets(&self) -> u64 {
        let Traffic {
            datagrams_sent, datagrams_received, connected_sent, connected_received, ..
        } = self.driver.netdev().traffic();
        datagrams_sent + datagrams_received + connected_sent + connected_received
    }

    fn poll_timeout(&self) -> Option<Time> {
        let due = self.uses_due.min(self.counters_due);
        self.failed.is_none().then_some(due)
    }

    /// Arms the device to end a sleep at the next completion. The next poll reads commands, too.
    fn arm(&mut self) -> bool {
        self.turn_at = Time::START;
        self.driver.arm()
    }

    fn wake_source(&mut self) -> Option<WakeSource<'_>> {
        self.driver.wake_source()
    }

    fn woken(&mut self) {
        self.driver.take_notification();
    }
}

/// Reports to control.
impl InterfaceWorker {
    /// Reports the use of a neighbor, with a rate limit. If the ring is full, the report is lost,
    /// and a later use is reported.
    #[inline]
    fn report_use(&mut self, now: Time, next_hop: IpAddr) {
        if self.used.is_due(now, next_hop) {
            let _ = self.end.send(WorkerEvent::Use(next_hop));
        }
    }

    /// Reports TCP progress with a peer, with a rate limit (RFC 4861 7.3.1).
    pub fn report_progress(&mut self, now: Time, to: IpAddr) {
        if self.progressed.is_due(now, to) {
            let _ = self.end.send(WorkerEvent::Progress(to));
        }
    }

    pub fn refuse(&mut self, packet: &[u8]) {
        let is_sent = self.end.send(WorkerEvent::NoListener(packet.to_vec()));
        self.driver.counts.punts_dropped += u64::from(!is_sent);
    }

    /// Whether events were sent since the last call. Control may sleep, so the caller wakes it.
    pub const fn take_has_events(&mut self) -> bool {
        self.end.take_has_events()
    }
}

/// Sending.
impl InterfaceWorker {
    pub fn has_room(&self) -> bool {
        self.driver.has_room()
    }

    /// Returns a buffer for a packet of this length; `None` if no buffer is free. Discards an
    /// earlier draft that was not sent.
    #[inline]
    pub fn draft(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.driver.draft(bytes)
    }

    #[inline]
    pub fn drafted(&self) -> &[u8] {
        self.driver.drafted()
    }

    /// Queues the draft, which is sent with the next [`InterfaceWorker::flush`] at the latest.
    #[inline]
    pub fn send_draft(&mut self, now: Time) -> Result<(), NotSent> {
        let next_hop = self.driver.send_draft()?;
        self.report_use(now, next_hop);
        Ok(())
    }

    pub fn flush(&mut self) {
        self.driver.flush();
    }

    pub fn send(&mut self, now: Time, packet: &[u8]) -> Result<(), NotSent> {
        let sent = self.driver.send_packet(packet);
        if let (Ok(()), Some((_, next_hop))) = (sent, destination(packet)) {
            self.report_use(now, next_hop);
        }
        sent
    }

    /// Whether all accepted packets are at the device or at control.
    pub fn has_sent(&self) -> bool {
        self.driver.has_moved() && self.end.has_sent_events()
    }
}

/// The state of the interface, as control published it.
impl InterfaceWorker {
    pub fn own(&self) -> BTreeSet<IpAddr> {
        self.snapshot.own().collect()
    }

    /// Whether packets to an address are for this host: it is an address of the interface, or a
    /// group with listeners.
    pub fn is_destination(&self, address: IpAddr) -> bool {
        self.driver.is_destination(address)
    }

    pub fn source_for(&self, to: IpAddr) -> Option<IpAddr> {
        self.snapshot.source_for(to)
    }

    pub fn is_on_link(&self, to: IpAddr) -> bool {
        self.snapshot.is_on_link(to)
    }

    pub fn datagram_mtu(&self) -> Option<u32> {
        self.snapshot.datagram_mtu()
    }

    pub fn route_mtu(&mut self, neighbor: IpAddr) -> Option<u32> {
        self.driver.route_mtu(neighbor)
    }

    /// The next packet that control has passed on to sockets.
    pub fn poll_delivery(&mut self) -> Option<Delivery> {
        self.deliveries.pop()
    }

    /// The next change of a neighbor, for the connections to it.
    #[inline]
    pub fn poll_neighbor_change(&mut self) -> Option<NeighborChange> {
        self.neighbor_changes.pop_front()
    }
}
