//! The part of a link that an adapter needs to send frames. Each send returns whether the link had
//! space.

use pollux_verbs::LKey;

pub trait FrameSink {
    /// Sends a packet, LRH to VCRC.
    fn send_packet(&mut self, bytes: &[u8]) -> bool;
    /// Sends a message with the head words `head` and a payload of `bytes` bytes, which `fill`
    /// writes part by part, in order.
    fn send_message(&mut self, head: &[u64], bytes: usize, fill: impl FnMut(&mut [u8])) -> bool;
    /// Sends a message with a contiguous payload.
    fn send_bytes(&mut self, head: &[u64], bytes: &[u8]) -> bool {
        let mut rest = bytes;
        self.send_message(head, bytes.len(), |part| {
            let (now, later) = rest.split_at(part.len());
            part.copy_from_slice(now);
            rest = later;
        })
    }
    /// Whether the receiver of a message with these first two head words can read the regions with
    /// these keys. If not, the message is sent by copy.
    fn can_lease(&mut self, _head: [u64; 2], _keys: &mut dyn Iterator<Item = LKey>) -> bool {
        true
    }
    /// Whether management agents are behind this link. MADs to the adapter's own port then go to
    /// the link instead of back to the adapter.
    fn has_agents(&self) -> bool {
        false
    }
}
