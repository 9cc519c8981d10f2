//! The frames of a device of Ethernet as a port of a worker.
//!
//! ```text
//!   frame --> address, VLAN, type, length --> a buffer --> verdict: transit, or control
//!   batch --> address of the next hop --> a header before the packet --> frames
//!                 +-- unknown --> control, which asks for it
//! ```
//!
//! A frame is copied once, between the memory of its socket and a buffer.

use super::channel::PlainEvent;
use super::frame_queue::{FrameQueue, FramesUnsent};
use super::port::PortCore;
use crate::interface::Reported;
use pollux_control::beyond::TransitHop;
use pollux_dataplane::acl::AclFilter;
use pollux_dataplane::headers::{Form, PacketHeaders};
use pollux_dataplane::neighbor::Routes;
use pollux_dataplane::offload::complete_checksum;
use pollux_dataplane::port::{
    BATCH_MAX, PacketPort, PortId, TransitError, TransitPacket, TxPacket,
};
use pollux_dataplane::reason::ForwardDrop;
use pollux_mem::Buf;
use pollux_mem::packet_socket::SocketFrame;
use pollux_mem::snapshot::Snapshot;
use pollux_verbs::WakeSource;
use pollux_verbs::time::Time;
use pollux_wire::ethernet::{EtherType, EthernetFrame, MacAddress};
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::vnet_header::PartialChecksum;
use std::net::IpAddr;
use std::time::Duration;

/// The interval between looks at a queue that was empty, since a look may be a system call.
const LOOK_EVERY: Duration = Duration::from_micros(2);

/// The addresses of next hops, as workers look them up.
pub(super) type NextHopAddresses = Snapshot<Routes<Option<MacAddress>>>;

/// The names of an interface at its link.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkNames {
    pub(super) address: MacAddress,
    pub(super) vlan: Option<u16>,
}

/// The frames of one worker.
pub(crate) struct EthernetPort {
    // Dropped before `core`, which tells control that the sockets are closed.
    frames: FrameQueue,
    names: LinkNames,
    next_hops: NextHopAddresses,
    used: Reported,
    core: PortCore,
    look_at: Time,
}

impl EthernetPort {
    pub(super) fn new(
        frames: FrameQueue,
        names: LinkNames,
        next_hops: NextHopAddresses,
        core: PortCore,
    ) -> Self {
        let used = Reported::default();
        Self { frames, names, next_hops, used, core, look_at: Time::START }
    }

    pub(crate) const fn port(&self) -> PortId {
        self.core.id
    }

    pub(crate) const fn set_port(&mut self, id: PortId) {
        self.core.id = id;
    }

    pub(crate) const fn number(&self) -> u8 {
        self.core.number()
    }

    pub(crate) const fn has_failed(&self) -> bool {
        self.core.has_failed()
    }

    pub(crate) const fn take_has_events(&mut self) -> bool {
        self.core.take_has_events()
    }

    /// Receives packets, in a node that does not forward.
    pub(crate) fn breathe(&mut self, now: Time) -> bool {
        self.receive(now, None)
    }

    fn receive(&mut self, now: Time, mut transit: Option<&mut Vec<TransitPacket>>) -> bool {
        if self.core.is_publication_due(now) {
            self.core.counters.frames.kernel_full = self.frames.dropped();
        }
        let mut busy = self.core.begins_turn(now) && self.send_frames();
        self.frames.send_rest();
        if self.core.has_failed() {
            return true;
        }
        if now < self.look_at {
            return busy;
        }
        let Self { frames, names, core, .. } = self;
        let received = frames.receive(BATCH_MAX, |frame| {
            take(core, *names, &frame, transit.as_deref_mut());
        });
        match received {
            Ok(0) => self.look_at = now + LOOK_EVERY,
            Ok(_) => busy = true,
            // The socket tells once that its device is down; control sees it, too.
            Err(_) => self.core.counters.frames.device_errors += 1,
        }
        busy
    }

    /// Sends the packets of control. Returns whether there were any.
    fn send_frames(&mut self) -> bool {
        let mut busy = false;
        let mut unsent = FramesUnsent::default();
        while let Some(frame) = self.core.poll_frame() {
            busy = true;
            let Some((to, ether_type)) = frame.link else { continue };
            let Some(mut packet) = self.core.buffer(frame.packet.len()) else {
                self.core.counters.counts.starved += 1;
                continue;
            };
            packet.bytes_mut().copy_from_slice(&frame.packet);
            self.stage(to, ether_type, packet, &mut unsent);
        }
        if busy {
            self.flush(unsent);
        }
        busy
    }

    /// Puts a packet behind a header into the next batch.
    fn stage(
        &mut self,
        to: MacAddress,
        ether_type: EtherType,
        mut packet: Buf,
        unsent: &mut FramesUnsent,
    ) {
        let LinkNames { address, vlan } = self.names;
        let header =
            EthernetFrame { destination: to, source: address, vlan, ether_type, payload: &[] };
        let space = packet.push_front(EthernetFrame::header_len(vlan));
        let Self { frames, core, .. } = self;
        if space.is_some_and(|space| header.write_header(space).is_ok()) {
            frames.stage(packet, unsent, &mut |frame, is_sent| finish(core, vlan, frame, is_sent));
        } else {
            unsent.refused += 1;
            core.free(packet);
        }
    }

    /// Sends the batch.
    fn flush(&mut self, mut unsent: FramesUnsent) {
        let Self { frames, core, names, .. } = self;
        let vlan = names.vlan;
        frames.flush(&mut unsent, &mut |frame, is_sent| finish(core, vlan, frame, is_sent));
        let FramesUnsent { full, refused } = unsent;
        self.core.counters.counts.full += full;
        self.core.counters.counts.refused += refused;
    }
}

/// The buffer of a frame is free. What was sent of IP is counted and captured.
fn finish(core: &mut PortCore, vlan: Option<u16>, frame: Buf, is_sent: bool) {
    let (header, packet) = frame.bytes().split_at(EthernetFrame::header_len(vlan));
    if is_sent && !header.ends_with(&EtherType::ARP.0.to_be_bytes()) {
        core.note_sent(packet);
    }
    core.free(frame);
}

/// A frame came.
fn take(
    core: &mut PortCore,
    names: LinkNames,
    received: &SocketFrame<'_>,
    transit: Option<&mut Vec<TransitPacket>>,
) {
    let counts = &mut core.counters.frames;
    let Ok(frame) = EthernetFrame::parse(received.bytes) else {
        return counts.runt += 1;
    };
    // The kernel takes tags off for packet sockets, and lets no other ones through.
    if frame.vlan.is_some() && frame.vlan != names.vlan {
        return counts.other_vlan += 1;
    }
    let is_group = frame.destination.is_group();
    if !is_group && frame.destination != names.address {
        return counts.not_ours += 1;
    }
    match frame.ether_type {
        EtherType::ARP => core.event(PlainEvent::Arp(frame.payload.to_vec())),
        EtherType::IPV4 | EtherType::IPV6 => {
            if received.is_truncated || frame.payload.len() > core.mtu() {
                return core.counters.frames.too_long += 1;
            }
            let Some(mut packet) = core.buffer(frame.payload.len()) else {
                return core.counters.counts.starved += 1;
            };
            packet.bytes_mut().copy_from_slice(frame.payload);
            if received.has_partial_checksum {
                complete_transport_checksum(packet.bytes_mut());
            }
            core.receive(packet, is_group, transit);
        }
        _ => counts.unknown_type += 1,
    }
}

/// Completes the checksum of TCP or UDP that a sender on this machine left to its device.
fn complete_transport_checksum(packet: &mut [u8]) {
    let Ok(headers) = PacketHeaders::parse_ip(packet) else { return };
    let offset = match headers.protocol {
        IpProtocol::TCP => 16,
        IpProtocol::UDP => 6,
        _ => return,
    };
    let end = headers.packet_bytes();
    let start = end - headers.payload(packet).len();
    if matches!(headers.form, Form::Plain | Form::Extended) {
        let partial = PartialChecksum { start: start as u16, offset };
        complete_checksum(&mut packet[..end], partial);
    }
}

impl PacketPort for EthernetPort {
    fn poll(&mut self, now: Time, transit: &mut Vec<TransitPacket>) -> bool {
        self.receive(now, Some(transit))
    }

    fn send(&mut self, now: Time, batch: &mut Vec<TxPacket>) {
        let mtu = self.core.mtu();
        let mut unsent = FramesUnsent::default();
        let mut last: Option<(IpAddr, Option<MacAddress>)> = None;
        for TxPacket { packet, ether_type, next_hop, from } in batch.drain(..) {
            if self.core.has_failed() {
                self.core.free(packet);
                continue;
            }
            if packet.len() > mtu {
                self.core.too_big(packet, TransitHop { from: from.0, next_hop });
                continue;
            }
            let address = match last {
                Some((hop, address)) if hop == next_hop => address,
                _ if next_hop.is_multicast() => MacAddress::of_ip_group(next_hop),
                _ => {
                    if self.used.is_due(now, next_hop) {
                        self.core.event(PlainEvent::Use(next_hop));
                    }
                    self.next_hops.refresh().route(next_hop)
                }
            };
            last = Some((next_hop, address));
            match address {
                Some(to) => self.stage(to, ether_type, packet, &mut unsent),
                None => self.core.unresolved(packet, next_hop),
            }
        }
        self.flush(unsent);
    }

    fn set_filter(&mut self, filter: Option<AclFilter>) {
        self.core.filter = filter;
    }

    fn reject(&mut self, packet: Buf, why: TransitError) {
        self.core.reject(packet, why);
    }

    fn drop_transit(&mut self, packet: Buf, why: ForwardDrop) {
        self.core.drop_transit(packet, why);
    }

    fn copy(&mut self, packet: &Buf) -> Option<Buf> {
        self.core.copy(packet)
    }

    fn packets(&self) -> u64 {
        self.core.counters.received + self.core.counters.sent
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// The descriptor is readable as long as there is a frame.
    fn arm(&mut self) -> bool {
        self.core.counters.frames.kernel_full = self.frames.dropped();
        self.core.prepare_sleep();
        self.look_at = Time::START;
        self.frames.send_rest()
    }

    fn wake_source(&mut self) -> Option<WakeSource<'_>> {
        self.frames.descriptor().map(|fd| WakeSource { fd, longest: Duration::MAX })
    }

    fn woken(&mut self) {}
}
