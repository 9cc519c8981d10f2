//! The channel between the control plane of an interface and one of its workers: a ring each way,
//! and a few atomics that both ends share.
//!
//! ```text
//!   control: WorkerEnds  --commands: actions, frames, deliveries, state--> worker
//!                         <--events: connections, packets, punts, drops----
//! ```
//!
//! Actions and connection events are never dropped. If the ring is full, they wait in order; if
//! more than 65,536 wait, the other end counts as lost. A packet that finds no space is dropped and
//! counted, unless a socket has sent it: then the packet waits for space, and the socket with it.
//!
//! An end that finds a ring full sets a flag, and may sleep. The other end reads the flag after it
//! has made space, and then wakes the first.
//!
//! Packets without a route are punted to control, which sends them. Once the worker has the route,
//! packets that it sends itself may overtake punted ones.

use pollux_control::beyond::TransitHop;
use pollux_control::ipoib::{
    Action, ConnectionKey, Delivery, InterfaceSnapshot, NeighborChange, OutgoingPacket,
    PacketSource, QueuePairEvent,
};
use pollux_dataplane::capture::CaptureTap;
use pollux_dataplane::port::TransitError;
use pollux_mem::mpsc::{self, Receiver, Sender};
use pollux_verbs::VerbsError;
use pollux_wire::ethernet::EtherType;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

const COMMANDS_MAX: usize = 1024;
const EVENTS_MAX: usize = 1024;
/// Maximum number of commands or events that wait for space in a ring. All peers and connections at
/// once cause fewer.
const WAITING_MAX: usize = 65_536;
/// Maximum number of frames and deliveries that wait for space in a ring. Actions are not counted:
/// a new neighbor table causes more of them, and packets should not be dropped for that.
const PACKETS_MAX: usize = 1024;

#[derive(Debug)]
pub(super) enum WorkerCommand {
    Act(Action),
    SetState(Arc<InterfaceSnapshot>),
    Send(OutgoingPacket),
    Deliver(Delivery),
    Report(NeighborChange),
    Tap(Box<CaptureTap>),
}

impl WorkerCommand {
    const fn is_packet(&self) -> bool {
        matches!(self, Self::Send(_) | Self::Deliver(_))
    }
}

#[derive(Debug)]
pub(super) enum WorkerEvent {
    Connection(ConnectionKey, QueuePairEvent),
    /// A received packet that was punted to control (ARP, neighbor discovery, membership), or a
    /// packet to our addresses that no socket took.
    Packet(EtherType, Vec<u8>, PacketSource),
    /// A packet to a port without a socket.
    NoListener(Vec<u8>),
    /// A packet to send that has no adjacency: control resolves the next hop.
    Punt(Vec<u8>),
    /// A packet in transit. Control resolves its next hop, or the packet is longer than this MTU.
    Transit(Vec<u8>, TransitHop, Option<u32>),
    /// A packet longer than the MTU of its route, and that MTU.
    TooBig(Vec<u8>, u32),
    /// A packet in transit that cannot be forwarded.
    Rejected(Vec<u8>, TransitError),
    Use(IpAddr),
    /// TCP made progress with this destination.
    Progress(IpAddr),
}

#[derive(Debug, Default)]
struct Shared {
    /// The worker is to end, or the interface has been dropped.
    is_over: AtomicBool,
    /// The worker has been dropped, with all its objects at the device.
    is_gone: AtomicBool,
    failure: OnceLock<VerbsError>,
    /// Control waits for space in the ring of commands, or the worker in the ring of events.
    control_waits: AtomicBool,
    worker_waits: AtomicBool,
    /// The number of commands carried out. It is written after the two flags below, and read before
    /// them.
    done: AtomicU64,
    is_idle: AtomicBool,
    has_sent: AtomicBool,
}

/// Announces that this end waits for space in a full ring. The caller tries the ring once more
/// after that.
///
/// The fences here and in [`take_waits`] guarantee that this end sees the new space, or the other
/// end sees the announcement, or both.
fn wait_for_space(waits: &AtomicBool) {
    waits.store(true, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Takes the announcement of the other end that it waits for the space that this end has made.
fn take_waits(waits: &AtomicBool) -> bool {
    fence(Ordering::SeqCst);
    waits.load(Ordering::Relaxed) && waits.swap(false, Ordering::Relaxed)
}

pub(super) struct ControlEnd {
    commands: Sender<WorkerCommand>,
    waiting: VecDeque<WorkerCommand>,
    /// Frames and deliveries in `waiting`.
    packets_waiting: usize,
    events: Receiver<WorkerEvent>,
    sent: u64,
    /// The number of the last urgent command.
    urgent: u64,
    /// Whether commands were sent since the last [`ControlEnd::take_has_commands`].
    has_commands: bool,
    shared: Arc<Shared>,
}

pub(super) struct WorkerEnd {
    commands: Receiver<WorkerCommand>,
    events: Sender<WorkerEvent>,
    waiting: VecDeque<(ConnectionKey, QueuePairEvent)>,
    done: u64,
    /// The values published last. Writing equal values again would only move the cache line between
    /// cores.
    shown: Option<(bool, bool, u64)>,
    /// Whether events were sent since the last [`WorkerEnd::take_has_events`].
    has_events: bool,
    shared: Arc<Shared>,
}

pub(super) fn channel() -> (ControlEnd, WorkerEnd) {
    let (commands, command_receiver) = mpsc::ring(COMMANDS_MAX).expect("a power of two");
    let (event_sender, events) = mpsc::ring(EVENTS_MAX).expect("a power of two");
    let shared = Arc::new(Shared::default());
    let waiting = VecDeque::new();
    let control = ControlEnd {
        commands,
        waiting,
        packets_waiting: 0,
        events,
        sent: 0,
        urgent: 0,
        has_commands: false,
        shared: Arc::clone(&shared),
    };
    let worker = WorkerEnd {
        commands: command_receiver,
        events: event_sender,
        waiting: VecDeque::new(),
        done: 0,
        shown: None,
        has_events: false,
        shared,
    };
    (control, worker)
}

impl ControlEnd {
    /// Queues a command. Commands are carried out in order.
    pub(super) fn send(&mut self, command: WorkerCommand) {
        self.packets_waiting += usize::from(command.is_packet());
        self.waiting.push_back(command);
        self.sent += 1;
        self.has_commands = true;
        self.fill_ring();
    }

    /// Sends a command whose completion [`ControlEnd::is_urgent`] reports.
    pub(super) fn send_urgent(&mut self, command: WorkerCommand) {
        self.send(command);
        self.urgent = self.sent;
    }

    /// Whether an urgent command is not carried out yet.
    pub(super) fn is_urgent(&self) -> bool {
        self.shared.done.load(Ordering::Acquire) < self.urgent && !self.is_gone()
    }

    /// Whether commands were sent since the last call. The worker may sleep, so the caller wakes
    /// it.
    pub(super) const fn take_has_commands(&mut self) -> bool {
        std::mem::replace(&mut self.has_commands, false)
    }

    /// Sends a packet of control, or a packet for a socket; `false` if too many packets wait.
    pub(super) fn send_packet(&mut self, command: WorkerCommand) -> bool {
        let has_room = self.packets_waiting < PACKETS_MAX;
        if has_room {
            self.send(command);
        }
        has_room
    }

    /// Moves waiting commands into the ring, as far as it has space.
    pub(super) fn fill_ring(&mut self) {
        let mut has_announced = false;
        while let Some(command) = self.waiting.pop_front() {
            let is_packet = command.is_packet();
            match self.commands.push(command) {
                Ok(()) => {
                    self.packets_waiting -= usize::from(is_packet);
                    self.has_commands = true;
                }
                Err(command) => {
                    self.waiting.push_front(command);
                    if std::mem::replace(&mut has_announced, true) {
                        return;
                    }
                    wait_for_space(&self.shared.control_waits);
                }
            }
        }
    }

    pub(super) fn poll(&mut self) -> Option<WorkerEvent> {
        self.events.pop()
    }

    /// Has the worker woken if it waits for space in the ring of events, after some were polled.
    pub(super) fn show_space(&mut self) {
        self.has_commands |= take_waits(&self.shared.worker_waits);
    }

    /// Fails with the reason if the worker has ended too early, or does not carry out its commands.
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

    /// Whether all packets that the worker got are sent, and all that it punted are polled.
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

impl Drop for ControlEnd {
    fn drop(&mut self) {
        self.end();
    }
}

impl WorkerEnd {
    /// The next command. It counts as carried out with the next [`WorkerEnd::show`].
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
        let mut has_announced = false;
        while let Some((key, event)) = self.waiting.pop_front() {
            if let Err(WorkerEvent::Connection(key, event)) =
                self.events.push(WorkerEvent::Connection(key, event))
            {
                self.waiting.push_front((key, event));
                if std::mem::replace(&mut has_announced, true) {
                    return;
                }
                wait_for_space(&self.shared.worker_waits);
                continue;
            }
            self.has_events = true;
        }
    }

    /// Whether events were sent since the last call. Control may sleep, so the caller wakes it.
    pub(super) const fn take_has_events(&mut self) -> bool {
        std::mem::replace(&mut self.has_events, false)
    }

    /// Sends an event; `false` if the ring has no space for it.
    pub(super) fn send(&mut self, event: WorkerEvent) -> bool {
        let is_sent = self.waiting.is_empty() && self.events.push(event).is_ok();
        self.has_events |= is_sent;
        is_sent
    }

    /// Whether the ring has space for an event. If not, control wakes the worker once there is
    /// space.
    pub(super) fn wait_for_room(&mut self) -> bool {
        if !self.waiting.is_empty() {
            return false;
        }
        if !self.events.has_room() {
            wait_for_space(&self.shared.worker_waits);
        }
        self.events.has_room()
    }

    /// Has control woken if it waits for space in the ring of commands, after some were polled.
    pub(super) fn show_space(&mut self) {
        self.has_events |= take_waits(&self.shared.control_waits);
    }

    /// Whether no connection event waits for space in the ring.
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

    /// Publishes the reason for which the worker ends.
    pub(super) fn fail(&self, why: &VerbsError) {
        let _ = self.shared.failure.set(why.clone());
    }

    /// Whether the worker has to end: control has requested it, is gone, or does not poll events.
    pub(super) fn is_over(&self) -> bool {
        self.shared.is_over.load(Ordering::Acquire) || self.waiting.len() > WAITING_MAX
    }
}

impl Drop for WorkerEnd {
    fn drop(&mut self) {
        self.shared.is_gone.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_control::ipoib::WorkerId;
    use std::net::Ipv4Addr;

    const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

    fn key(command: &WorkerCommand) -> ConnectionKey {
        match command {
            WorkerCommand::Act(Action::Disconnect { connection, .. }) => *connection,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn commands_and_events_are_complete_and_in_order_however_full_the_rings_are() {
        let (mut control, mut worker) = channel();
        let count = 3 * COMMANDS_MAX as u64;
        for connection in (0..count).map(ConnectionKey) {
            let ended = Action::Disconnect { worker: WorkerId::PRIMARY, connection };
            control.send(WorkerCommand::Act(ended));
            worker.send_connection_events([(connection, QueuePairEvent::Ended)].into_iter());
        }
        assert!(!worker.send(WorkerEvent::Use(NOBODY)), "it finds no space, and overtakes nothing");
        let (mut commands, mut events) = (Vec::new(), Vec::new());
        while (commands.len() as u64) < count {
            control.fill_ring();
            commands.extend(worker.poll().as_ref().map(key));
            worker.send_connection_events(std::iter::empty());
            while let Some(event) = control.poll() {
                let WorkerEvent::Connection(key, QueuePairEvent::Ended) = event else {
                    panic!("{event:?}")
                };
                events.push(key);
            }
        }
        let all: Vec<_> = (0..count).map(ConnectionKey).collect();
        assert_eq!((&commands, &events), (&all, &all));
        assert!(worker.send(WorkerEvent::Use(NOBODY)) && control.check().is_ok());
    }

    #[test]
    fn a_worker_is_idle_when_it_has_carried_out_all_commands() {
        let (mut control, mut worker) = channel();
        worker.show(true, true);
        assert!(control.is_idle() && control.has_sent());
        control.send(WorkerCommand::SetState(Arc::default()));
        assert!(!control.is_idle() && !control.has_sent(), "it was idle before that command");
        assert!(worker.poll().is_some());
        worker.show(false, true);
        assert!(!control.is_idle() && control.has_sent());
        assert!(
            worker.send(WorkerEvent::Use(NOBODY)) && !control.has_sent(),
            "something is on its way here"
        );
    }

    #[test]
    fn an_end_that_polls_nothing_for_too_long_is_lost() {
        let (mut control, mut worker) = channel();
        let commands = COMMANDS_MAX + WAITING_MAX;
        (0..commands).for_each(|_| control.send(WorkerCommand::SetState(Arc::default())));
        assert!(control.check().is_ok());
        control.send(WorkerCommand::SetState(Arc::default()));
        assert!(control.check().unwrap_err().to_string().contains("not carry out its commands"));
        let used = |_| (ConnectionKey(1), QueuePairEvent::Used { received: true });
        worker.send_connection_events((0..EVENTS_MAX + WAITING_MAX).map(used));
        assert!(!worker.is_over());
        worker.send_connection_events([used(0)].into_iter());
        assert!(worker.is_over());
    }

    #[test]
    fn packets_are_limited_by_those_that_wait_and_not_by_actions() {
        let (mut control, mut worker) = channel();
        let packet =
            || WorkerCommand::Deliver(Delivery { ether_type: EtherType::IPV4, packet: Vec::new() });
        (0..3 * COMMANDS_MAX).for_each(|_| control.send(WorkerCommand::SetState(Arc::default())));
        assert!((0..PACKETS_MAX).all(|_| control.send_packet(packet())));
        assert!(!control.send_packet(packet()));
        for _ in 0..3 {
            while worker.poll().is_some() {}
            control.fill_ring();
        }
        assert!(control.send_packet(packet()), "they are on their way");
    }

    #[test]
    fn an_end_that_waits_for_space_is_woken_once_there_is_some() {
        let (mut control, mut worker) = channel();
        let command = || WorkerCommand::SetState(Arc::default());
        (0..COMMANDS_MAX).for_each(|_| control.send(command()));
        assert!(worker.poll().is_some());
        worker.show_space();
        assert!(!worker.take_has_events(), "control waits for nothing");
        (0..2).for_each(|_| control.send(command()));
        assert!(control.take_has_commands() && worker.poll().is_some());
        worker.show_space();
        assert!(worker.take_has_events() && !worker.take_has_events());
        control.fill_ring();
        assert!(control.take_has_commands(), "there are more for the worker");

        while worker.send(WorkerEvent::Use(NOBODY)) {}
        assert!(!worker.wait_for_room() && control.poll().is_some());
        control.show_space();
        assert!(control.take_has_commands() && worker.wait_for_room());
        assert!(control.poll().is_some());
        control.show_space();
        assert!(!control.take_has_commands(), "the worker waits for nothing");
    }

    #[test]
    fn each_end_sees_that_the_other_was_dropped() {
        let (control, worker) = channel();
        drop(worker);
        assert!(control.is_gone() && control.check().is_err());
        control.end();
        assert!(control.check().is_ok(), "it was to end");
        let (control, worker) = channel();
        assert!(!worker.is_over());
        drop(control);
        assert!(worker.is_over());
        let (control, worker) = channel();
        worker.fail(&VerbsError::Lost { what: "adapter", why: "it is broken" });
        drop(worker);
        assert!(matches!(control.check(), Err(VerbsError::Lost { what: "adapter", .. })));
    }
}
