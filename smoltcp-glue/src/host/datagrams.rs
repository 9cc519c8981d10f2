//! Sends datagrams of UDP sockets: unfragmented or in fragments, and looped back to local members
//! of a group.

use super::{Host, TxFrame};
use crate::stack::{UdpError, UdpId, has_no_source};
use pollux_verbs::time::Time;
use std::io;
use std::net::SocketAddr;

impl Host {
    /// Sends a datagram of a socket. Fails with `UdpError::Full` while the send queue is full, or
    /// while fragments of another datagram wait.
    pub fn udp_send(
        &mut self,
        now: Time,
        id: UdpId,
        to: SocketAddr,
        payload: &[u8],
    ) -> io::Result<()> {
        if !self.can_send() || self.stack.has_fragments() {
            return Err(UdpError::Full.into());
        }
        let local = self.stack.udp_local(id);
        let from = match local.is_some_and(has_no_source) {
            true => self.source_for(to.ip()).ok(),
            false => None,
        };
        let Self { node, overflow, .. } = self;
        let mut frame = TxFrame { node: &mut node.worker, overflow, has_overflowed: false };
        let mtu = self.stack.udp_send_to(now, id, (from, to), payload, &mut frame)?;
        let has_overflowed = frame.has_overflowed;
        if to.ip().is_multicast() && !self.loop_back(id, to, has_overflowed) {
            return Ok(());
        }
        match self.written(has_overflowed).len() > mtu as usize && !self.own.contains(&to.ip()) {
            true => self.fragment(has_overflowed, mtu),
            false => self.dispatch(now, has_overflowed),
        }
        if self.stack.has_fragments() {
            self.transmit(now);
        }
        Ok(())
    }

    /// Queues the fragments of the packet that was just written.
    #[cold]
    pub(super) fn fragment(&mut self, has_overflowed: bool, mtu: u32) {
        let Self { node, stack, overflow, .. } = self;
        stack.fragment(if has_overflowed { overflow } else { node.worker.drafted() }, mtu);
    }

    /// Queues a copy of the multicast datagram that was just written for local members. Returns
    /// whether the datagram is also sent to the link.
    fn loop_back(&mut self, id: UdpId, to: SocketAddr, has_overflowed: bool) -> bool {
        let has_listeners = self.node.worker.is_destination(to.ip());
        if self.stack.udp_loops(id, to, has_listeners) {
            self.looped.push(self.written(has_overflowed).to_vec());
        }
        self.stack.udp_options(id).is_ok_and(|options| options.multicast_ttl > 0)
    }
}
