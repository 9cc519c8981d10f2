//! The channel between the primary worker of an interface and one of its secondary workers: a ring
//! each way, and a few atomics that both ends share.
//!
//! ```text
//!   primary worker: WorkerGroup  --commands: actions of control, its state------> secondary worker
//!                                <--events: connections, packets, punts, drops---
//! ```
//!
//! No command and no connection event is lost. A full ring makes them wait in order, up to a limit;
//! beyond the limit the other end counts as lost. A packet that finds no space is a counted drop.
//!
//! Packets without a route are punted to the primary worker, which sends them. When a route of the
//! secondary worker changes, packets that it sends by the new route may overtake punted ones.

use pollux_control::interface::{Action, ConnectionKey, From, InterfaceSnapshot, QueuePairEvent};
use pollux_mem::spsc::{self, Consumer, Producer};
use pollux_verbs::VerbsError;
use pollux_wire::ip::ipoib::EtherType;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Commands in the ring down.
const COMMANDS_MAX: usize = 1024;
/// Events in the ring up.
const EVENTS_MAX: usize = 256;
/// Commands or events that wait for space in a ring: more than all peers and connections cause at
/// once.
const WAITING_MAX: usize = 65_536;

/// A control message to a secondary worker.
#[derive(Debug)]
pub(super) enum WorkerCommand {
    /// Carry out an action of control.
    Act(Action),
    /// Replace the state of the interface.
    SetState(Arc<InterfaceSnapshot>),
}

/// A control message from a secondary worker.
#[derive(Debug)]
pub(super) enum WorkerEvent {
    Connection(ConnectionKey, QueuePairEvent),
    /// A packet to one of our addresses that no socket took, or one for control.
    Packet(EtherType, Vec<u8>, From),
    /// A packet to a port without a socket.
    NoListener(Vec<u8>),
    /// A packet without a route.
    Punt(Vec<u8>),
    /// A packet longer than the MTU of its route, and that MTU.
    TooBig(Vec<u8>, u32),
    /// A next hop is in use.
    Use(IpAddr),
    /// TCP made progress with this destination.
    Progress(IpAddr),
}

/// State that both ends share.
#[derive(Debug, Default)]
struct Shared {
    /// The secondary worker is to end, or the primary worker has been dropped.
    is_over: AtomicBool,
    /// The secondary worker has been dropped, with all its objects at the device.
    is_gone: AtomicBool,
    failure: OnceLock<VerbsError>,
    /// Commands that were carried out. Written after the two flags below, and read before them.
    done: AtomicU64,
    is_idle: AtomicBool,
    has_sent: AtomicBool,
}

/// The primary worker's end.
pub(super) struct PrimaryEnd {
    commands: Producer<WorkerCommand>,
    waiting: VecDeque<WorkerCommand>,
    events: Consumer<WorkerEvent>,
    sent: u64,
    /// The number of the last command whose completion something waits for.
    urgent: u64,
    /// Commands were sent since the last [`PrimaryEnd::take_has_commands`].
    has_commands: bool,
    shared: Arc<Shared>,
}

/// The secondary worker's end.
pub(super) struct SecondaryEnd {
    commands: Consumer<WorkerCommand>,
    events: Producer<WorkerEvent>,
    waiting: VecDeque<(ConnectionKey, QueuePairEvent)>,
    done: u64,
    /// What was published last. Publishing the same again would only move the cache line.
    shown: Option<(bool, bool, u64)>,
    /// Events were sent since the last [`SecondaryEnd::take_has_events`].
    has_events: bool,
    shared: Arc<Shared>,
}

/// Both ends.
pub(super) fn channel() -> (PrimaryEnd, SecondaryEnd) {
    let (commands, command_receiver) = spsc::ring(COMMANDS_MAX).expect("a power of two");
    let (event_sender, events) = spsc::ring(EVENTS_MAX).expect("a power of two");
    let shared = Arc::new(Shared::default());
    let waiting = VecDeque::new();
    let primary = PrimaryEnd {
        commands,
        waiting,
        events,
        sent: 0,
        urgent: 0,
        has_commands: false,
        shared: Arc::clone(&shared),
    };
    let secondary = SecondaryEnd {
        commands: command_receiver,
        events: event_sender,
        waiting: VecDeque::new(),
        done: 0,
        shown: None,
        has_events: false,
        shared,
    };
    (primary, secondary)
}

impl PrimaryEnd {
    /// Sends a command.
    pub(super) fn send(&mut self, command: WorkerCommand) {
        self.waiting.push_back(command);
        self.sent += 1;
        self.has_commands = true;
        self.fill_ring();
    }

    /// Sends a command whose completion [`PrimaryEnd::is_urgent`] reports.
    pub(super) fn send_urgent(&mut self, command: WorkerCommand) {
        self.send(command);
        self.urgent = self.sent;
    }

    /// Whether an urgent command is not carried out yet.
    pub(super) fn is_urgent(&self) -> bool {
        self.shared.done.load(Ordering::Acquire) < self.urgent && !self.is_gone()
    }

    /// Whether commands were sent since the last call: the secondary worker may sleep.
    pub(super) const fn take_has_commands(&mut self) -> bool {
        std::mem::replace(&mut self.has_commands, false)
    }

    /// Moves waiting commands into the ring, as far as it has space.
    pub(super) fn fill_ring(&mut self) {
        while let Some(command) = self.waiting.pop_front() {
            if let Err(command) = self.commands.push(command) {
                return self.waiting.push_front(command);
            }
        }
    }

    /// The next event.
    pub(super) fn poll(&mut self) -> Option<WorkerEvent> {
        self.events.pop()
    }

    /// The reason for which the secondary worker has ended, if it has.
    pub(super) fn check(&self) -> Result<(), VerbsError> {
        let lost = |why| Err(VerbsError::Lost { what: "worker", why });
        match self.shared.failure.get() {
            Some(failure) => Err(failure.clone()),
            None if self.is_gone() && !self.is_ended() => lost("it has ended before the interface"),
            None if self.waiting.len() > WAITING_MAX => lost("it does not carry out its commands"),
            None => Ok(()),
        }
    }

    /// Whether all commands are carried out and its netdev is stopped.
    pub(super) fn is_idle(&self) -> bool {
        self.has_done() && self.shared.is_idle.load(Ordering::Relaxed) || self.is_gone()
    }

    /// Whether all packets that it was given are sent, or were punted to control.
    pub(super) fn has_sent(&self) -> bool {
        self.has_done() && self.shared.has_sent.load(Ordering::Relaxed) && self.has_no_events()
    }

    /// Whether all its events have been polled.
    pub(super) fn has_no_events(&self) -> bool {
        self.events.is_empty()
    }

    /// Whether it has no objects left at the device.
    pub(super) fn is_gone(&self) -> bool {
        self.shared.is_gone.load(Ordering::Acquire)
    }

    /// Tells the secondary worker to end.
    pub(super) fn end(&self) {
        self.shared.is_over.store(true, Ordering::Release);
    }

    fn is_ended(&self) -> bool {
        self.shared.is_over.load(Ordering::Relaxed)
    }

    fn has_done(&self) -> bool {
        self.shared.done.load(Ordering::Acquire) == self.sent
    }
}

impl Drop for PrimaryEnd {
    fn drop(&mut self) {
        self.end();
    }
}

impl SecondaryEnd {
    /// The next command. It counts as carried out with the next [`SecondaryEnd::show`].
    pub(super) fn poll(&mut self) -> Option<WorkerCommand> {
        let command = self.commands.pop()?;
        self.done += 1;
        Some(command)
    }

    /// Sends events of connections. They reach control in order.
    pub(super) fn send_connection_events(
        &mut self,
        events: impl Iterator<Item = (ConnectionKey, QueuePairEvent)>,
    ) {
        self.waiting.extend(events);
        while let Some((key, event)) = self.waiting.pop_front() {
            if let Err(WorkerEvent::Connection(key, event)) =
                self.events.push(WorkerEvent::Connection(key, event))
            {
                return self.waiting.push_front((key, event));
            }
            self.has_events = true;
        }
    }

    /// Whether events were sent since the last call: the primary worker may sleep.
    pub(super) const fn take_has_events(&mut self) -> bool {
        std::mem::replace(&mut self.has_events, false)
    }

    /// Sends an event; `false` if the ring has no space for it.
    pub(super) fn send(&mut self, event: WorkerEvent) -> bool {
        let is_sent = self.waiting.is_empty() && self.events.push(event).is_ok();
        self.has_events |= is_sent;
        is_sent
    }

    /// Whether all events are in the ring.
    pub(super) fn has_sent_events(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Publishes the progress. All polled commands must have been carried out.
    pub(super) fn show(&mut self, is_idle: bool, has_sent: bool) {
        let shown = Some((is_idle, has_sent, self.done));
        if std::mem::replace(&mut self.shown, shown) == shown {
            return;
        }
        self.shared.is_idle.store(is_idle, Ordering::Relaxed);
        self.shared.has_sent.store(has_sent, Ordering::Relaxed);
        self.shared.done.store(self.done, Ordering::Release);
    }

    /// Publishes the reason for which the secondary worker ends.
    pub(super) fn fail(&self, why: &VerbsError) {
        let _ = self.shared.failure.set(why.clone());
    }

    /// Whether to end: on request, or since the primary worker is gone or does not poll.
    pub(super) fn is_over(&self) -> bool {
        self.shared.is_over.load(Ordering::Acquire) || self.waiting.len() > WAITING_MAX
    }
}

impl Drop for SecondaryEnd {
    fn drop(&mut self) {
        self.shared.is_gone.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

    fn key(command: &WorkerCommand) -> ConnectionKey {
        match command {
            WorkerCommand::Act(Action::Disconnect { connection }) => *connection,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn commands_and_events_are_complete_and_in_order_however_full_the_rings_are() {
        let (mut primary, mut secondary) = channel();
        let count = 3 * COMMANDS_MAX as u64;
        for connection in (0..count).map(ConnectionKey) {
            primary.send(WorkerCommand::Act(Action::Disconnect { connection }));
            secondary.send_connection_events([(connection, QueuePairEvent::Ended)].into_iter());
        }
        assert!(
            !secondary.send(WorkerEvent::Use(NOBODY)),
            "it finds no space, and overtakes nothing"
        );
        let (mut commands, mut events) = (Vec::new(), Vec::new());
        while (commands.len() as u64) < count {
            primary.fill_ring();
            commands.extend(secondary.poll().as_ref().map(key));
            secondary.send_connection_events(std::iter::empty());
            while let Some(event) = primary.poll() {
                let WorkerEvent::Connection(key, QueuePairEvent::Ended) = event else {
                    panic!("{event:?}")
                };
                events.push(key);
            }
        }
        let all: Vec<_> = (0..count).map(ConnectionKey).collect();
        assert_eq!((&commands, &events), (&all, &all));
        assert!(secondary.send(WorkerEvent::Use(NOBODY)) && primary.check().is_ok());
    }

    #[test]
    fn a_secondary_is_idle_when_it_has_carried_out_all_commands() {
        let (mut primary, mut secondary) = channel();
        secondary.show(true, true);
        assert!(primary.is_idle() && primary.has_sent());
        primary.send(WorkerCommand::SetState(Arc::default()));
        assert!(!primary.is_idle() && !primary.has_sent(), "it was idle before that command");
        assert!(secondary.poll().is_some());
        secondary.show(false, true);
        assert!(!primary.is_idle() && primary.has_sent());
        assert!(
            secondary.send(WorkerEvent::Use(NOBODY)) && !primary.has_sent(),
            "something is on its way here"
        );
    }

    #[test]
    fn an_end_that_polls_nothing_for_too_long_is_lost() {
        let (mut primary, mut secondary) = channel();
        let commands = COMMANDS_MAX + WAITING_MAX;
        (0..commands).for_each(|_| primary.send(WorkerCommand::SetState(Arc::default())));
        assert!(primary.check().is_ok());
        primary.send(WorkerCommand::SetState(Arc::default()));
        assert!(primary.check().unwrap_err().to_string().contains("not carry out its commands"));
        let used = |_| (ConnectionKey(1), QueuePairEvent::Used { received: true });
        secondary.send_connection_events((0..EVENTS_MAX + WAITING_MAX).map(used));
        assert!(!secondary.is_over());
        secondary.send_connection_events([used(0)].into_iter());
        assert!(secondary.is_over());
    }

    #[test]
    fn each_end_sees_that_the_other_is_gone() {
        let (primary, secondary) = channel();
        drop(secondary);
        assert!(primary.is_gone() && primary.check().is_err());
        primary.end();
        assert!(primary.check().is_ok(), "it was to end");
        let (primary, secondary) = channel();
        assert!(!secondary.is_over());
        drop(primary);
        assert!(secondary.is_over());
        let (primary, secondary) = channel();
        secondary.fail(&VerbsError::Lost { what: "adapter", why: "it is broken" });
        drop(secondary);
        assert!(matches!(primary.check(), Err(VerbsError::Lost { what: "adapter", .. })));
    }
}
