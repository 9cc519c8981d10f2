//! Events of the device and the netdev, and timeouts of requests that the device does not return.
//!
//! Every wait for the device has a timeout. If the device loses an object that the interface needs,
//! the port driver fails, and the interface is opened again.

use super::{BACK_MAX, PortDriver};
use pollux_control::ipoib::{ConnectionKey, QueuePairEvent};
use pollux_dataplane::ipoib::{NetdevEvent, Received, RxSource};
use pollux_verbs::time::Time;
use pollux_verbs::*;
use std::time::Duration;

impl PortDriver {
    /// Arms the device to end a sleep at the next completion; `false` if it cannot.
    pub(in crate::interface) fn arm(&mut self) -> bool {
        let is_armed = self.device.arm(self.netdev.cq(), Arm::Any).is_ok();
        is_armed && self.device.attributes().can.sleep
    }

    pub(in crate::interface) fn wake_source(&mut self) -> Option<WakeSource<'_>> {
        self.device.wake_source()
    }

    /// Takes the notification that ended a sleep. If the device fails here, the next poll returns
    /// the error.
    pub(in crate::interface) fn take_notification(&mut self) {
        let _ = self.device.wait(Duration::ZERO);
    }

    /// Handles the events of queue pairs. Control handles those of the port.
    pub(super) fn poll_device_events(&mut self) -> Result<bool, VerbsError> {
        let mut busy = false;
        while let Some(event) = self.device.async_event() {
            busy = true;
            self.netdev.handle_event(&event);
            self.check_loss(&event)?;
            match event {
                AsyncEvent::ConnectionEstablished(qp) => {
                    self.add_connection_event(qp, QueuePairEvent::DataCame);
                }
                AsyncEvent::PathMigrated(qp) => {
                    self.add_connection_event(qp, QueuePairEvent::Migrated);
                }
                _ => {}
            }
        }
        Ok(busy)
    }

    fn add_connection_event(&mut self, qp: Qp, event: QueuePairEvent) {
        let key = self.netdev.connection_of(qp).and_then(|id| self.key(id));
        self.connection_events.extend(key.map(|key| (key, event)));
    }

    /// The first packet of a connection counts as an RTU: a queue pair in RTS has no event for it
    /// (IBA 12.9.7.2).
    pub(super) fn note_first_packets(&mut self, packets: &[Received]) {
        if self.awaiting_first_packet.is_empty() {
            return;
        }
        for packet in packets {
            if let RxSource::Connection(id) = packet.from
                && self.awaiting_first_packet.remove(&id)
                && let Some(key) = self.key(id)
            {
                self.connection_events.push((key, QueuePairEvent::DataCame));
            }
        }
    }

    pub(super) fn handle_netdev_event(&mut self, event: NetdevEvent) {
        let (key, event) = match event {
            NetdevEvent::ConnectionFailed { peering, .. } => (peering.key, QueuePairEvent::Failed),
            NetdevEvent::ConnectionEnded { connection, peering } => {
                self.awaiting_first_packet.remove(&connection);
                self.connections.remove(&ConnectionKey(peering.key));
                (peering.key, QueuePairEvent::Ended)
            }
            // `start_again` starts the netdev once it has stopped.
            NetdevEvent::DatagramsFailed { .. } => return,
        };
        self.connection_events.push((ConnectionKey(key), event));
    }

    /// Fails if the device has lost an object that the interface needs.
    pub(super) fn check_loss(&self, event: &AsyncEvent) -> Result<(), VerbsError> {
        let lost = |what, why| Err(VerbsError::Lost { what, why });
        match *event {
            AsyncEvent::DeviceFatal => lost("adapter", "it reports a fatal error"),
            AsyncEvent::CqError(cq) if cq == self.netdev.cq() => {
                lost("completion queue", "it overran")
            }
            AsyncEvent::SrqError(srq) if Some(srq) == self.netdev.srq() => {
                lost("shared receive queue", "it failed")
            }
            AsyncEvent::QpFatal(qp) if qp == self.netdev.datagram_qp() => {
                lost("queue pair of datagrams", "it failed")
            }
            _ => Ok(()),
        }
    }

    /// Gives up ending connections after a timeout. Fails if a connection that was given up does
    /// not end either, or if the device keeps buffers of datagrams.
    pub(super) fn check_timeouts(&mut self, now: Time) -> Result<(), VerbsError> {
        const LATE: VerbsError =
            VerbsError::Lost { what: "queue pair", why: "the device does not return its requests" };
        while let Some(&(until, key)) = self.leaving.front() {
            let known = self.connections.get(&key).map(|connection| connection.id);
            if known.is_some() && now < until {
                break;
            }
            self.leaving.pop_front();
            let Some(id) = known else { continue };
            if !self.netdev.give_up(id) {
                return Err(LATE);
            }
            self.counts.given_up += 1;
            self.leaving.push_back((now + BACK_MAX, key));
        }
        if self.netdev.is_settled() {
            self.settled_by = None;
            return Ok(());
        }
        let by = *self.settled_by.get_or_insert(now + BACK_MAX);
        if now < by { Ok(()) } else { Err(LATE) }
    }
}
