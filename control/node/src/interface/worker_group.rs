//! The secondary workers of an interface, as its primary worker sees them: it distributes actions
//! of control to them, and polls their events.

use super::counters::DriverCounters;
use super::worker_channel::{PrimaryEnd, WorkerCommand, WorkerEvent};
use pollux_control::interface::{Action, ConnectionKey, InterfaceSnapshot, Worker};
use pollux_mem::snapshot::Snapshot;
use pollux_verbs::VerbsError;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is heard of a secondary worker before the primary worker looks after its own packets again.
const EVENTS_PER_TURN: usize = 64;

/// The secondary workers of an interface: none, where one worker moves it.
#[derive(Default)]
pub(super) struct WorkerGroup {
    secondaries: Vec<(PrimaryEnd, Snapshot<DriverCounters>)>,
    /// Whose connections are, if they are not the primary worker's.
    owners: BTreeMap<ConnectionKey, Worker>,
    facts: Arc<InterfaceSnapshot>,
}

impl WorkerGroup {
    /// One more secondary worker: the next worker.
    pub(super) fn join(&mut self, end: PrimaryEnd, counters: Snapshot<DriverCounters>) {
        self.secondaries.push((end, counters));
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.secondaries.is_empty()
    }

    /// Tells secondary workers what they are to do; gives back what the primary worker is to.
    pub(super) fn assign(&mut self, action: Action) -> Option<Action> {
        if self.is_empty() {
            return Some(action);
        }
        let worker = match &action {
            Action::Attach { .. } | Action::Detach { .. } => Worker::LEAD,
            Action::SetPeer { worker, .. } => *worker,
            Action::Connect { worker, connection, .. } => {
                self.owners.insert(*connection, *worker);
                *worker
            }
            Action::Modify { connection, .. } => self.owner(*connection),
            Action::Disconnect { connection } => {
                self.owners.remove(connection).unwrap_or(Worker::LEAD)
            }
            _ => {
                self.ends().for_each(|end| end.send(WorkerCommand::Act(action.clone())));
                return Some(action);
            }
        };
        let Some(secondary) = usize::from(worker.0).checked_sub(1) else { return Some(action) };
        let (end, _) = self.secondaries.get_mut(secondary)?;
        match action {
            Action::Modify { .. } => end.send_urgent(WorkerCommand::Act(action)),
            _ => end.send(WorkerCommand::Act(action)),
        }
        None
    }

    /// Whether a queue pair is still to be made what it was to be: its peer is to hear of it after
    /// that, or what it sends is lost.
    pub(super) fn is_modifying(&self) -> bool {
        self.secondaries.iter().any(|(end, _)| end.is_urgent())
    }

    /// Workers that were given something since this was asked, a bit each.
    pub(super) fn take_notified(&mut self) -> u32 {
        let notified = self
            .ends()
            .zip(1..)
            .filter_map(|(end, number)| end.take_has_commands().then_some(1 << number));
        notified.sum()
    }

    /// Lets them know what they have to of the interface.
    pub(super) fn publish(&mut self, facts: impl FnOnce() -> InterfaceSnapshot) {
        if self.is_empty() {
            return;
        }
        let facts = facts();
        if *self.facts != facts {
            self.facts = Arc::new(facts);
            let facts = Arc::clone(&self.facts);
            self.ends().for_each(|end| end.send(WorkerCommand::SetState(Arc::clone(&facts))));
        }
    }

    /// What secondary workers have told, with their names; and whether they still can.
    pub(super) fn poll_events(
        &mut self,
        mut handle: impl FnMut(Worker, WorkerEvent),
    ) -> Result<(), VerbsError> {
        for ((end, _), number) in self.secondaries.iter_mut().zip(1..) {
            end.fill_ring();
            // What it told before it failed is told.
            let checked = end.check();
            for _ in 0..EVENTS_PER_TURN {
                let Some(event) = end.poll() else { break };
                handle(Worker(number), event);
            }
            checked?;
        }
        Ok(())
    }

    /// What they have moved.
    pub(super) fn counters(&self) -> impl Iterator<Item = (Worker, DriverCounters)> {
        let read = |counters: &Snapshot<DriverCounters>| counters.clone().refresh().clone();
        self.secondaries
            .iter()
            .zip(1..)
            .map(move |((_, counters), number)| (Worker(number), read(counters)))
    }

    /// Whether all have done what they were told, and have stopped.
    pub(super) fn is_idle(&self) -> bool {
        self.secondaries.iter().all(|(end, _)| end.is_idle())
    }

    /// Whether all have sent what they were given.
    pub(super) fn has_sent(&self) -> bool {
        self.secondaries.iter().all(|(end, _)| end.has_sent())
    }

    /// Whether all that they have told was heard.
    pub(super) fn has_no_events(&self) -> bool {
        self.secondaries.iter().all(|(end, _)| end.has_no_events())
    }

    /// Whether nothing is left of any at the device.
    pub(super) fn is_gone(&self) -> bool {
        self.secondaries.iter().all(|(end, _)| end.is_gone())
    }

    /// They are to end.
    pub(super) fn end(&self) {
        self.secondaries.iter().for_each(|(end, _)| end.end());
    }

    fn ends(&mut self) -> impl Iterator<Item = &mut PrimaryEnd> {
        self.secondaries.iter_mut().map(|(end, _)| end)
    }

    fn owner(&self, connection: ConnectionKey) -> Worker {
        self.owners.get(&connection).copied().unwrap_or(Worker::LEAD)
    }
}
