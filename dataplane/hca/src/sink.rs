//! The part of a link that an adapter needs to send frames. Sends return whether there was space.

use pollux_verbs::LKey;

pub trait FrameSink {
    /// Sends a packet, LRH to VCRC.
    fn send_packet(&mut self, bytes: &[u8]) -> bool;
    /// Sends a message: the words of its head, and bytes, which `fill` writes part by part.
    fn send_message(&mut self, head: &[u64], bytes: usize, fill: impl FnMut(&mut [u8])) -> bool;
    /// Sends a message of contiguous bytes.
    fn send_bytes(&mut self, head: &[u64], bytes: &[u8]) -> bool {
        let mut rest = bytes;
        self.send_message(head, bytes.len(), |part| {
            let (now, later) = rest.split_at(part.len());
            part.copy_from_slice(now);
            rest = later;
        })
    }
    /// Whether the receiver of a message with this head can copy it out of the regions of these
    /// keys. If not, it is sent packet by packet, by copy.
    fn can_lease(&mut self, _head: [u64; 2], _keys: &mut dyn Iterator<Item = LKey>) -> bool {
        true
    }
    /// Whether management agents are behind this link: they get management datagrams to the
    /// adapter's own port.
    fn has_agents(&self) -> bool {
        false
    }
}
