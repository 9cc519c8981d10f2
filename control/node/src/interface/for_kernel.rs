//! Packets between an interface and the kernel, by the shadow of the interface.

use super::IpoibLink;
use pollux_control::bounded::BoundedQueue;
use pollux_control::ipoib::WorkerId;
use pollux_verbs::time::Time;
use std::net::IpAddr;

/// Maximum number of packets that wait for the kernel.
const FOR_KERNEL_MAX: usize = 1024;

/// Dropped packets from and to the kernel, by reason.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KernelDrops {
    /// The queue to the kernel is full.
    pub(crate) full: u64,
    /// The kernel refused them: the shadow is down.
    pub(crate) refused: u64,
    /// The kernel sent a packet that is not IP, or a membership report that cannot be read.
    pub(crate) malformed: u64,
}

impl IpoibLink {
    /// Sets whether packets to local addresses and groups are kept for the kernel. The interface
    /// itself answers echo requests.
    pub fn keep_for_kernel(&mut self, keeps: bool) {
        if keeps != self.for_kernel.is_some() {
            self.for_kernel = keeps.then(|| BoundedQueue::new(FOR_KERNEL_MAX));
        }
    }

    pub fn poll_for_kernel(&mut self) -> Option<Vec<u8>> {
        self.for_kernel.as_mut()?.pop()
    }

    pub(crate) fn kernel_drops(&self) -> KernelDrops {
        let full = self.for_kernel.as_ref().map_or(0, BoundedQueue::lost);
        KernelDrops { full: self.kernel_drops.full + full, ..self.kernel_drops }
    }

    /// Resolves a gateway again. Routes avoid a gateway that does not answer, so no packet does
    /// this.
    pub(crate) fn ask_for(&mut self, now: Time, gateway: IpAddr) {
        self.control_mut().handle_use(now, gateway);
    }

    /// Sends an IP packet of this host.
    pub fn send_packet(&mut self, now: Time, packet: Vec<u8>) {
        self.control_mut().handle_miss(now, WorkerId::PRIMARY, packet);
    }
}
