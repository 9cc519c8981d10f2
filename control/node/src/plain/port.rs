//! Ports of plain interfaces: packet memory, the verdict on received packets, and the channel to
//! control. The device of a port is a [`PlainDriver`].

use super::channel::{PlainEvent, PortSide};
use super::counters::{PlainCounters, PortDrop};
use crate::interface::port_driver::memory::WorkerMemory;
use crate::kernel::KernelError;
use pollux_control::beyond::TransitHop;
use pollux_control::plain::PlainFrame;
use pollux_dataplane::acl::{AclAction, AclFilter};
use pollux_dataplane::capture::{CaptureEvent, CaptureTaps, TRANSIT};
use pollux_dataplane::forward::is_routed_group;
use pollux_dataplane::headers::PacketHeaders;
use pollux_dataplane::packet_memory::{PACKET_OFFSET, STOCK_MAX};
use pollux_dataplane::port::{PacketPort, PortId, TransitError, TransitPacket, TxPacket};
use pollux_dataplane::reason::ForwardDrop;
use pollux_dataplane::verdict::Verdict;
use pollux_mem::{Buf, Cache};
use pollux_verbs::WakeSource;
use pollux_verbs::time::Time;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// The longest interval between polls of commands.
const TURN_EVERY: Duration = Duration::from_micros(20);
/// Interval of publications of counters.
const COUNTERS_EVERY: Duration = Duration::from_millis(100);

/// The device of a port: it moves packets between the kernel and the buffers of the port.
pub(super) trait PlainDriver: Send {
    /// Receives packets. In a node that forwards, packets in transit are added to `transit`.
    /// Returns whether there was anything to do.
    fn receive(
        &mut self,
        core: &mut PortCore,
        now: Time,
        transit: Option<&mut Vec<TransitPacket>>,
    ) -> bool;

    fn send(&mut self, core: &mut PortCore, now: Time, batch: &mut Vec<TxPacket>);

    /// See [`PacketPort::arm`].
    fn arm(&mut self, core: &mut PortCore) -> bool;

    fn wake_source(&self) -> Option<WakeSource<'_>>;
}

pub(crate) struct PlainPort {
    // Dropped before `core`: the drop of `core` reports to control that the descriptors are closed.
    driver: Box<dyn PlainDriver>,
    core: PortCore,
}

impl PlainPort {
    pub(super) fn new(driver: impl PlainDriver + 'static, core: PortCore) -> Self {
        Self { driver: Box::new(driver), core }
    }

    pub(crate) const fn port(&self) -> PortId {
        self.core.id
    }

    pub(crate) const fn set_port(&mut self, id: PortId) {
        self.core.id = id;
    }

    pub(crate) const fn number(&self) -> u8 {
        self.core.number
    }

    pub(crate) const fn has_failed(&self) -> bool {
        self.core.has_failed
    }

    pub(crate) const fn take_has_events(&mut self) -> bool {
        self.core.side.take_has_events()
    }

    pub(crate) fn breathe(&mut self, now: Time) -> bool {
        self.driver.receive(&mut self.core, now, None)
    }
}

impl PacketPort for PlainPort {
    fn poll(&mut self, now: Time, transit: &mut Vec<TransitPacket>) -> bool {
        self.driver.receive(&mut self.core, now, Some(transit))
    }

    fn set_filter(&mut self, filter: Option<AclFilter>) {
        self.core.filter = filter;
    }

    fn send(&mut self, now: Time, batch: &mut Vec<TxPacket>) {
        self.driver.send(&mut self.core, now, batch);
    }

    /// Passes a packet to control, which reports to its sender why it cannot be forwarded.
    fn reject(&mut self, packet: Buf, why: TransitError) {
        let core = &mut self.core;
        core.counters.forward_drops.count(why.reason());
        core.taps.record(CaptureEvent::Dropped(why.reason().name()), packet.bytes());
        core.punt(packet, |packet| PlainEvent::Rejected(packet, why));
    }

    fn drop_transit(&mut self, packet: Buf, why: ForwardDrop) {
        self.core.drop_transit(packet, why);
    }

    fn copy(&mut self, packet: &Buf) -> Option<Buf> {
        let copy = self.core.buffer(packet.len());
        match copy {
            Some(mut copy) => {
                copy.bytes_mut().copy_from_slice(packet.bytes());
                Some(copy)
            }
            None => {
                self.core.counters.forward_drops.count(ForwardDrop::NoBuffer);
                None
            }
        }
    }

    fn packets(&self) -> u64 {
        self.core.counters.received + self.core.counters.sent
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    fn arm(&mut self) -> bool {
        self.driver.arm(&mut self.core)
    }

    fn wake_source(&mut self) -> Option<WakeSource<'_>> {
        self.driver.wake_source()
    }

    fn woken(&mut self) {}
}

/// The part of a port that does not depend on the device.
pub(super) struct PortCore {
    id: PortId,
    number: u8,
    side: PortSide,
    small: Cache,
    large: Cache,
    small_bytes: usize,
    /// Keeps the memory of the buffers.
    _memory: Arc<WorkerMemory>,
    pub(super) counters: PlainCounters,
    /// The access control list of arriving packets.
    filter: Option<AclFilter>,
    pub(super) taps: CaptureTaps,
    turn_at: Time,
    counters_due: Time,
    pub(super) has_failed: bool,
}

impl PortCore {
    pub(super) fn new(now: Time, number: u8, side: PortSide, memory: Arc<WorkerMemory>) -> Self {
        let (small, large) = (memory.small(), memory.large());
        Self {
            id: PortId(0),
            number,
            side,
            small: small.pool().cache(STOCK_MAX),
            large: large.pool().cache(STOCK_MAX),
            small_bytes: small.packet_bytes_max() as usize,
            _memory: memory,
            counters: PlainCounters::default(),
            filter: None,
            taps: CaptureTaps::new(now),
            turn_at: now,
            counters_due: now,
            has_failed: false,
        }
    }

    /// The longest packet of the link.
    pub(super) fn mtu(&mut self) -> usize {
        self.side.state().mtu
    }

    /// Whether it is time to publish the counters to control.
    pub(super) fn is_publication_due(&self, now: Time) -> bool {
        self.counters_due <= now
    }

    /// Begins a turn if one is due. Returns whether commands are to be polled. Ends the port if its
    /// interface has left.
    pub(super) fn begins_turn(&mut self, now: Time) -> bool {
        self.taps.set_time(now);
        if self.has_failed || now < self.turn_at {
            return false;
        }
        self.turn_at = now + TURN_EVERY;
        self.has_failed = self.side.is_over();
        while let Some(tap) = self.side.poll_tap() {
            self.taps.add(tap);
        }
        if self.counters_due <= now {
            self.publish();
            self.taps.drop_over();
            self.counters_due = now + COUNTERS_EVERY;
        }
        !self.has_failed
    }

    /// The next packet of control.
    pub(super) fn poll_frame(&mut self) -> Option<PlainFrame> {
        self.side.poll()
    }

    /// Prepares for a sleep: publishes counters, and makes the next poll read commands.
    pub(super) fn prepare_sleep(&mut self) {
        self.turn_at = Time::START;
        self.publish();
    }

    fn publish(&mut self) {
        self.side.publish(&self.counters);
    }

    #[cold]
    pub(super) fn fail(&mut self, why: &KernelError) {
        self.side.fail(why);
        self.has_failed = true;
    }

    /// A buffer that already has the length of the packet.
    pub(super) fn buffer(&mut self, bytes: usize) -> Option<Buf> {
        let cache = if bytes <= self.small_bytes { &mut self.small } else { &mut self.large };
        let mut buf = cache.alloc()?;
        match buf.set_window(PACKET_OFFSET, bytes) {
            Some(_) => Some(buf),
            None => {
                cache.free(buf);
                None
            }
        }
    }

    /// A buffer that already has the length of the longest packet.
    pub(super) fn longest_buffer(&mut self) -> Option<Buf> {
        let bytes = self.large.pool().config().buffer_bytes as usize - PACKET_OFFSET;
        self.buffer(bytes.max(self.small_bytes + 1))
    }

    pub(super) const fn is_small(&self, bytes: usize) -> bool {
        bytes <= self.small_bytes
    }

    pub(super) fn free(&mut self, buf: Buf) {
        let cache = if self.small.is_of(&buf) { &mut self.small } else { &mut self.large };
        cache.free(buf);
    }

    /// Passes a received packet to control or to `transit`. A packet to a group of the link is not
    /// forwarded (RFC 1812 5.3.4), unless its destination is a routed group. Control decides
    /// whether it is for this node.
    pub(super) fn receive(
        &mut self,
        mut packet: Buf,
        is_to_group: bool,
        transit: Option<&mut Vec<TransitPacket>>,
    ) {
        self.counters.received += 1;
        let headers = match PacketHeaders::parse_ip(packet.bytes()) {
            Ok(headers) => headers,
            Err(why) => {
                self.counters.drops.count(why);
                return self.free(packet);
            }
        };
        // Short frames of Ethernet have padding.
        packet.truncate(headers.packet_bytes());
        self.counters.bytes_received += packet.len() as u64;
        if !self.taps.is_empty() {
            self.taps.record(CaptureEvent::Received, packet.bytes());
        }
        let own = &self.side.state().own;
        let verdict = own.verdict(&headers, packet.bytes());
        let is_spoofed = verdict == Verdict::Transit && own.is_spoofed(&headers, packet.bytes());
        if let Some(action) = self.refusal(verdict, &headers, packet.bytes()) {
            self.counters.forward_drops.count(ForwardDrop::AclIn);
            self.taps.record(CaptureEvent::Dropped(ForwardDrop::AclIn.name()), packet.bytes());
            return match action {
                AclAction::Reject => {
                    self.punt(packet, |packet| {
                        PlainEvent::Rejected(packet, TransitError::Filtered)
                    });
                }
                _ => self.free(packet),
            };
        }
        let is_to_group = is_to_group && !is_of_routed_group(&headers, packet.bytes());
        match (verdict, transit) {
            (Verdict::Transit, Some(_)) if is_spoofed && !is_to_group => {
                self.drop_transit(packet, ForwardDrop::MartianSource);
            }
            (Verdict::Transit, Some(transit)) if !is_to_group => {
                transit.push(TransitPacket { packet, headers });
            }
            (Verdict::Transit, None) if !is_to_group => {
                self.counters.port_drops.count(PortDrop::Transit);
                self.taps.record(CaptureEvent::Dropped(TRANSIT), packet.bytes());
                self.free(packet);
            }
            _ => self.punt(packet, PlainEvent::Packet),
        }
    }

    /// Counts and captures a packet that the device took.
    pub(super) fn note_sent(&mut self, packet: &[u8]) {
        self.counters.sent += 1;
        self.counters.bytes_sent += packet.len() as u64;
        if !self.taps.is_empty() {
            self.taps.record(CaptureEvent::Sent, packet);
        }
    }

    /// The action of the access control list; `None` if the packet passes. Protocols of the link,
    /// such as ARP, are exempt.
    fn refusal(
        &self,
        verdict: Verdict,
        headers: &PacketHeaders,
        packet: &[u8],
    ) -> Option<AclAction> {
        let filter = self.filter.as_ref().filter(|_| verdict != Verdict::Punt)?;
        Some(filter.decide(headers, packet)).filter(|action| *action != AclAction::Permit)
    }

    /// Passes a packet to control, which resolves the address of its next hop.
    pub(super) fn unresolved(&mut self, packet: Buf, next_hop: IpAddr) {
        self.punt(packet, |packet| PlainEvent::Unresolved(packet, next_hop));
    }

    pub(super) fn event(&mut self, event: PlainEvent) {
        if !self.side.send(event) {
            self.counters.port_drops.count(PortDrop::PuntsDropped);
        }
    }

    /// Passes a packet to control, which makes fragments of it or reports to its sender.
    pub(super) fn too_big(&mut self, packet: Buf, hop: TransitHop) {
        self.punt(packet, |packet| PlainEvent::TooBig(packet, hop));
    }

    #[cold]
    fn punt(&mut self, packet: Buf, event: impl FnOnce(Vec<u8>) -> PlainEvent) {
        self.event(event(packet.bytes().to_vec()));
        self.free(packet);
    }

    /// Counts a packet in transit that is not forwarded, and frees it.
    fn drop_transit(&mut self, packet: Buf, why: ForwardDrop) {
        self.counters.forward_drops.count(why);
        self.taps.record(CaptureEvent::Dropped(why.name()), packet.bytes());
        self.free(packet);
    }
}

/// Whether the destination is a multicast group beyond the link.
fn is_of_routed_group(headers: &PacketHeaders, packet: &[u8]) -> bool {
    headers.destination(packet).is_some_and(is_routed_group)
}
