//! Captures at a port driver. Without a capture, a batch costs one test.

use super::PortDriver;
use pollux_dataplane::capture::CaptureEvent;
use pollux_dataplane::ipoib::{Outgoing, Received, Refused};
use pollux_wire::ethernet::EtherType;

impl PortDriver {
    #[inline]
    pub(super) fn tap_received(&mut self, packets: &[Received]) {
        if !self.taps.is_empty() {
            self.copy_received(packets);
        }
    }

    #[cold]
    fn copy_received(&mut self, packets: &[Received]) {
        for Received { packet, headers, .. } in packets.iter().filter(is_ip) {
            let bytes = packet.bytes();
            let bytes = &bytes[..headers.packet_bytes().min(bytes.len())];
            self.taps.record(CaptureEvent::Received, bytes);
        }
    }

    /// Sends a batch; `refused` gets the packets that the netdev refuses.
    #[inline]
    pub(super) fn post(&mut self, batch: &mut Vec<Outgoing>, refused: &mut Vec<Refused>) {
        if self.taps.is_empty() {
            return self.netdev.send(&mut *self.device, batch, refused);
        }
        self.post_tapped(batch, refused);
    }

    #[cold]
    fn post_tapped(&mut self, batch: &mut Vec<Outgoing>, refused: &mut Vec<Refused>) {
        let is_ip = |one: &&Outgoing| [EtherType::IPV4, EtherType::IPV6].contains(&one.ether_type);
        for one in batch.iter().filter(is_ip) {
            self.taps.offer(one.packet.bytes());
        }
        self.netdev.send(&mut *self.device, batch, refused);
        let address = |one: &Refused| one.outgoing.packet.bytes().as_ptr().addr();
        let is_refused = |at: usize| refused.iter().any(|one| address(one) == at);
        self.taps.finish_offers(is_refused);
    }
}

fn is_ip(received: &&Received) -> bool {
    [EtherType::IPV4, EtherType::IPV6].contains(&received.headers.ether_type)
}
