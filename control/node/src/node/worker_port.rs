//! A port of a worker thread: the part of one interface, of any kind, that runs in the thread.

use super::kinds::at_kind;
use crate::interface::InterfaceWorker;
use crate::plain::port::PlainPort;
use pollux_dataplane::acl::AclFilter;
use pollux_dataplane::port::{PacketPort, PortId, TransitError, TransitPacket, TxPacket};
use pollux_dataplane::reason::ForwardDrop;
use pollux_mem::Buf;
use pollux_verbs::WakeSource;
use pollux_verbs::time::Time;

/// A port of a worker thread. `poll` and `send` match the kind once for a batch, not for each
/// packet.
#[expect(clippy::large_enum_variant, reason = "a worker has few ports, and uses each in a loop")]
pub(super) enum WorkerPort {
    Ipoib(InterfaceWorker),
    Plain(PlainPort),
}

impl WorkerPort {
    pub(super) fn port(&self) -> PortId {
        at_kind!(self, port => port.port())
    }

    /// Sets the identifier by which routes name the port.
    pub(super) fn set_port(&mut self, id: PortId) {
        at_kind!(self, port => port.set_port(id));
    }

    pub(super) fn number(&self) -> u8 {
        match self {
            Self::Ipoib(worker) => worker.number().0,
            Self::Plain(port) => port.number(),
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        match self {
            Self::Ipoib(worker) => worker.failed().is_some(),
            Self::Plain(port) => port.has_failed(),
        }
    }

    /// Receives packets, in a node that does not forward. Returns whether there was anything to do.
    pub(super) fn breathe(&mut self, now: Time) -> bool {
        match self {
            Self::Ipoib(worker) => worker.breathe(now, &mut |_, _| false),
            Self::Plain(port) => port.breathe(now),
        }
    }

    /// Whether events were sent to control since the last call. Control may sleep, so the caller
    /// wakes it.
    pub(super) fn take_has_events(&mut self) -> bool {
        at_kind!(self, port => port.take_has_events())
    }
}

impl PacketPort for WorkerPort {
    #[inline]
    fn poll(&mut self, now: Time, transit: &mut Vec<TransitPacket>) -> bool {
        at_kind!(self, port => port.poll(now, transit))
    }

    fn set_filter(&mut self, filter: Option<AclFilter>) {
        at_kind!(self, port => port.set_filter(filter));
    }

    #[inline]
    fn send(&mut self, now: Time, batch: &mut Vec<TxPacket>) {
        at_kind!(self, port => PacketPort::send(port, now, batch));
    }

    fn reject(&mut self, packet: Buf, why: TransitError) {
        at_kind!(self, port => port.reject(packet, why));
    }

    fn drop_transit(&mut self, packet: Buf, why: ForwardDrop) {
        at_kind!(self, port => port.drop_transit(packet, why));
    }

    fn copy(&mut self, packet: &Buf) -> Option<Buf> {
        at_kind!(self, port => port.copy(packet))
    }

    fn packets(&self) -> u64 {
        at_kind!(self, port => port.packets())
    }

    fn poll_timeout(&self) -> Option<Time> {
        at_kind!(self, port => PacketPort::poll_timeout(port))
    }

    fn arm(&mut self) -> bool {
        at_kind!(self, port => port.arm())
    }

    fn wake_source(&mut self) -> Option<WakeSource<'_>> {
        at_kind!(self, port => port.wake_source())
    }

    fn woken(&mut self) {
        at_kind!(self, port => port.woken());
    }
}
