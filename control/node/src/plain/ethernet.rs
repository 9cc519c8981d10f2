//! The driver of a port at an Ethernet device.
//!
//! ```text
//!   frame --> address, VLAN, type, length --> a buffer --> verdict: transit, or control
//!   batch --> address of the next hop --> a header before the packet --> frames
//!                 +-- unknown --> control, which asks for it
//! ```
//!
//! A frame is copied once, between the memory of its socket and a buffer.

use super::channel::PlainEvent;
use super::counters::{FrameDrop, PortDrop};
use super::frame_queue::{FrameQueue, FramesUnsent};
use super::port::{PlainDriver, PortCore};
use crate::interface::Reported;
use pollux_control::beyond::TransitHop;
use pollux_control::plain::FrameTo;
use pollux_dataplane::headers::{Form, PacketHeaders};
use pollux_dataplane::neighbor::Routes;
use pollux_dataplane::offload::complete_checksum;
use pollux_dataplane::port::{BATCH_MAX, TransitPacket, TxPacket};
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

/// Pause before an empty queue is polled again, since a poll may be a system call.
const LOOK_EVERY: Duration = Duration::from_micros(2);

/// The addresses of next hops, as workers look them up.
pub(super) type NextHopAddresses = Snapshot<Routes<Option<MacAddress>>>;

/// The address and the VLAN of an interface at its link.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkNames {
    pub(super) address: MacAddress,
    pub(super) vlan: Option<u16>,
}

/// The driver of a port, with the frames of one worker.
pub(super) struct EthernetDriver {
    frames: FrameQueue,
    names: LinkNames,
    next_hops: NextHopAddresses,
    used: Reported,
    look_at: Time,
}

impl EthernetDriver {
    pub(super) fn new(frames: FrameQueue, names: LinkNames, next_hops: NextHopAddresses) -> Self {
        Self { frames, names, next_hops, used: Reported::default(), look_at: Time::START }
    }

    /// Sends the packets of control. Returns whether there were any.
    fn send_frames(&mut self, core: &mut PortCore) -> bool {
        let mut busy = false;
        let mut unsent = FramesUnsent::default();
        while let Some(frame) = core.poll_frame() {
            busy = true;
            let FrameTo::Ethernet(to, ether_type) = frame.to else { continue };
            let Some(mut packet) = core.buffer(frame.packet.len()) else {
                core.counters.port_drops.count(PortDrop::NoReceiveBuffer);
                continue;
            };
            packet.bytes_mut().copy_from_slice(&frame.packet);
            self.stage(core, to, ether_type, packet, &mut unsent);
        }
        if busy {
            self.flush(core, unsent);
        }
        busy
    }

    /// Adds an Ethernet header to a packet, and the frame to the next batch.
    fn stage(
        &mut self,
        core: &mut PortCore,
        to: MacAddress,
        ether_type: EtherType,
        mut packet: Buf,
        unsent: &mut FramesUnsent,
    ) {
        let LinkNames { address, vlan } = self.names;
        let header =
            EthernetFrame { destination: to, source: address, vlan, ether_type, payload: &[] };
        let space = packet.push_front(EthernetFrame::header_len(vlan));
        let frames = &mut self.frames;
        if space.is_some_and(|space| header.write_header(space).is_ok()) {
            frames.stage(packet, unsent, &mut |frame, is_sent| finish(core, vlan, frame, is_sent));
        } else {
            unsent.refused += 1;
            core.free(packet);
        }
    }

    fn flush(&mut self, core: &mut PortCore, mut unsent: FramesUnsent) {
        let vlan = self.names.vlan;
        self.frames.flush(&mut unsent, &mut |frame, is_sent| finish(core, vlan, frame, is_sent));
        let FramesUnsent { full, refused } = unsent;
        core.counters.port_drops.add(PortDrop::Full, full);
        core.counters.port_drops.add(PortDrop::Refused, refused);
    }
}

impl PlainDriver for EthernetDriver {
    fn receive(
        &mut self,
        core: &mut PortCore,
        now: Time,
        mut transit: Option<&mut Vec<TransitPacket>>,
    ) -> bool {
        if core.is_publication_due(now) {
            core.counters.kernel_full = self.frames.dropped();
        }
        let mut busy = core.begins_turn(now) && self.send_frames(core);
        self.frames.send_rest();
        if core.has_failed {
            return true;
        }
        if now < self.look_at {
            return busy;
        }
        let Self { frames, names, .. } = self;
        let received = frames.receive(BATCH_MAX, |frame| {
            take(core, *names, &frame, transit.as_deref_mut());
        });
        match received {
            Ok(0) => self.look_at = now + LOOK_EVERY,
            Ok(_) => busy = true,
            // The socket reports once that its device is down; control sees it, too.
            Err(_) => core.counters.frame_drops.count(FrameDrop::DeviceError),
        }
        busy
    }

    fn send(&mut self, core: &mut PortCore, now: Time, batch: &mut Vec<TxPacket>) {
        let mtu = core.mtu();
        let mut unsent = FramesUnsent::default();
        let mut last: Option<(IpAddr, Option<MacAddress>)> = None;
        for TxPacket { packet, ether_type, next_hop, from } in batch.drain(..) {
            if core.has_failed {
                core.free(packet);
                continue;
            }
            if packet.len() > mtu {
                core.too_big(packet, TransitHop { from: from.0, next_hop });
                continue;
            }
            let address = match last {
                Some((hop, address)) if hop == next_hop => address,
                _ if next_hop.is_multicast() => MacAddress::of_ip_group(next_hop),
                _ => {
                    if self.used.is_due(now, next_hop) {
                        core.event(PlainEvent::Use(next_hop));
                    }
                    self.next_hops.refresh().route(next_hop)
                }
            };
            last = Some((next_hop, address));
            match address {
                Some(to) => self.stage(core, to, ether_type, packet, &mut unsent),
                None => core.unresolved(packet, next_hop),
            }
        }
        self.flush(core, unsent);
    }

    /// The descriptor is readable as long as there is a frame.
    fn arm(&mut self, core: &mut PortCore) -> bool {
        core.counters.kernel_full = self.frames.dropped();
        core.prepare_sleep();
        self.look_at = Time::START;
        self.frames.send_rest()
    }

    fn wake_source(&self) -> Option<WakeSource<'_>> {
        self.frames.descriptor().map(|fd| WakeSource { fd, longest: Duration::MAX })
    }
}

/// Frees the buffer of a frame. A sent IP packet is counted and captured.
fn finish(core: &mut PortCore, vlan: Option<u16>, frame: Buf, is_sent: bool) {
    let (header, packet) = frame.bytes().split_at(EthernetFrame::header_len(vlan));
    if is_sent && !header.ends_with(&EtherType::ARP.0.to_be_bytes()) {
        core.note_sent(packet);
    }
    core.free(frame);
}

/// Handles a received frame.
fn take(
    core: &mut PortCore,
    names: LinkNames,
    received: &SocketFrame<'_>,
    transit: Option<&mut Vec<TransitPacket>>,
) {
    let drops = &mut core.counters.frame_drops;
    let Ok(frame) = EthernetFrame::parse(received.bytes) else {
        return drops.count(FrameDrop::Runt);
    };
    // For packet sockets, the kernel removes the tag, and its filter passes only frames of this
    // VLAN.
    if frame.vlan.is_some() && frame.vlan != names.vlan {
        return drops.count(FrameDrop::OtherVlan);
    }
    let is_group = frame.destination.is_group();
    if !is_group && frame.destination != names.address {
        return drops.count(FrameDrop::NotOurs);
    }
    match frame.ether_type {
        EtherType::ARP => core.event(PlainEvent::Arp(frame.payload.to_vec())),
        EtherType::IPV4 | EtherType::IPV6 => {
            if received.is_truncated || frame.payload.len() > core.mtu() {
                return core.counters.frame_drops.count(FrameDrop::TooLong);
            }
            let Some(mut packet) = core.buffer(frame.payload.len()) else {
                return core.counters.port_drops.count(PortDrop::NoReceiveBuffer);
            };
            packet.bytes_mut().copy_from_slice(frame.payload);
            if received.has_partial_checksum {
                complete_transport_checksum(packet.bytes_mut());
            }
            core.receive(packet, is_group, transit);
        }
        _ => drops.count(FrameDrop::UnknownType),
    }
}

/// Completes the TCP or UDP checksum that a sender on this machine left to its device.
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
