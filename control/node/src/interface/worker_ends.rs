//! The workers of an interface, as its control plane sees them: distributes actions of control to
//! workers, and polls their events.

use super::port_driver::counters::DriverCounters;
use super::worker_channel::{ControlEnd, WorkerCommand, WorkerEvent};
use pollux_control::ipoib::{
    Action, Delivery, InterfaceSnapshot, NeighborChange, OutgoingPacket, WorkerId,
};
use pollux_dataplane::capture::{CaptureReader, CaptureTerms, capture};
use pollux_mem::snapshot::Snapshot;
use pollux_verbs::VerbsError;
use std::sync::Arc;

/// Maximum number of events of a worker that are handled in one turn.
const EVENTS_PER_TURN: usize = 256;

#[derive(Default)]
pub(super) struct WorkerEnds {
    workers: Vec<(ControlEnd, Snapshot<DriverCounters>)>,
    snapshot: Arc<InterfaceSnapshot>,
    /// Packets for which the ring of a worker had no space.
    pub(super) packets_dropped: u64,
}

impl WorkerEnds {
    /// Adds a worker, with the next number.
    pub(super) fn join(&mut self, end: ControlEnd, counters: Snapshot<DriverCounters>) {
        self.workers.push((end, counters));
    }

    /// Sends an action to the worker that has the connection or peer, to worker 0 if only the queue
    /// pair of the link address can do it, or else to all workers.
    pub(super) fn assign(&mut self, action: Action) {
        let worker = match &action {
            Action::Attach { .. } | Action::Detach { .. } => WorkerId::PRIMARY,
            Action::SetPeer { worker, .. }
            | Action::Connect { worker, .. }
            | Action::Modify { worker, .. }
            | Action::Disconnect { worker, .. } => *worker,
            _ => {
                return self.ends().for_each(|end| end.send(WorkerCommand::Act(action.clone())));
            }
        };
        let Some((end, _)) = self.workers.get_mut(usize::from(worker.0)) else { return };
        match action {
            Action::Modify { .. } => end.send_urgent(WorkerCommand::Act(action)),
            _ => end.send(WorkerCommand::Act(action)),
        }
    }

    pub(super) fn report(&mut self, change: NeighborChange) {
        self.ends().for_each(|end| end.send(WorkerCommand::Report(change)));
    }

    pub(super) fn capture(&mut self, terms: &CaptureTerms) -> Vec<CaptureReader> {
        let begin = |end: &mut ControlEnd| {
            let (tap, reader) = capture(terms.clone());
            end.send(WorkerCommand::Tap(Box::new(tap)));
            reader
        };
        self.ends().map(begin).collect()
    }

    /// Sends a packet of control by worker 0.
    pub(super) fn send(&mut self, frame: OutgoingPacket) {
        self.pass(WorkerCommand::Send(frame));
    }

    /// Passes a packet for a socket to worker 0.
    pub(super) fn deliver(&mut self, delivery: Delivery) {
        self.pass(WorkerCommand::Deliver(delivery));
    }

    fn pass(&mut self, command: WorkerCommand) {
        let is_sent = self.ends().next().is_some_and(|end| end.send_packet(command));
        self.packets_dropped += u64::from(!is_sent);
    }

    /// Whether a queue pair is being modified. Until then, it would lose packets of the peer, so
    /// the reply to the peer waits.
    pub(super) fn is_modifying(&self) -> bool {
        self.workers.iter().any(|(end, _)| end.is_urgent())
    }

    /// Workers that got commands since the last call, one bit each.
    pub(super) fn take_notified(&mut self) -> u32 {
        let bit =
            |(number, end): (u32, &mut ControlEnd)| u32::from(end.take_has_commands()) << number;
        (0..).zip(self.ends()).map(bit).sum()
    }

    /// Sends the state of the interface to all workers, if it has changed.
    pub(super) fn publish(&mut self, snapshot: InterfaceSnapshot) {
        if *self.snapshot != snapshot {
            self.snapshot = Arc::new(snapshot);
            let snapshot = Arc::clone(&self.snapshot);
            self.ends().for_each(|end| end.send(WorkerCommand::SetState(Arc::clone(&snapshot))));
        }
    }

    /// Polls events of all workers. Fails if one has ended.
    pub(super) fn poll_events(
        &mut self,
        mut handle: impl FnMut(WorkerId, WorkerEvent),
    ) -> Result<(), VerbsError> {
        for ((end, _), number) in self.workers.iter_mut().zip(0..) {
            end.fill_ring();
            // Checked first, so that events from before a failure are still handled.
            let checked = end.check();
            let mut has_polled = false;
            for _ in 0..EVENTS_PER_TURN {
                let Some(event) = end.poll() else { break };
                handle(WorkerId(number), event);
                has_polled = true;
            }
            if has_polled {
                end.show_space();
            }
            checked?;
        }
        Ok(())
    }

    pub(super) fn counters(&self) -> impl Iterator<Item = (WorkerId, DriverCounters)> {
        let read = |counters: &Snapshot<DriverCounters>| counters.clone().refresh().clone();
        self.workers
            .iter()
            .zip(0..)
            .map(move |((_, counters), number)| (WorkerId(number), read(counters)))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.workers.iter().all(|(end, _)| end.is_idle())
    }

    pub(super) fn has_sent(&self) -> bool {
        self.workers.iter().all(|(end, _)| end.has_sent())
    }

    pub(super) fn has_no_events(&self) -> bool {
        self.workers.iter().all(|(end, _)| end.has_no_events())
    }

    pub(super) fn is_gone(&self) -> bool {
        self.workers.iter().all(|(end, _)| end.is_gone())
    }

    pub(super) fn end(&self) {
        self.workers.iter().for_each(|(end, _)| end.end());
    }

    fn ends(&mut self) -> impl Iterator<Item = &mut ControlEnd> {
        self.workers.iter_mut().map(|(end, _)| end)
    }
}
