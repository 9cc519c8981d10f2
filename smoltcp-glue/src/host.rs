//! An interface and its sockets, without clock or thread.
//!
//! ```text
//!   step: device --> Worker --> Stack --> Worker --> device
//!                       \--> hand-off to the stacks of other workers
//! ```
//!
//! A host made by [`Host::new`] has the only worker of its interface, and steps the control plane
//! too. `Host::for_workers` makes a host for each of several workers, whose control plane is in
//! another thread. A host hands packets of another worker's flows off to that worker.
//!
//! The driver passes the time in. It calls [`Host::step`] again if the last step did something,
//! when a packet arrives, and at [`Host::poll_timeout`]. In between, it sleeps (module `sleep`).

mod datagrams;
mod sleep;

use crate::admin::SocketsRequest;
use crate::arrivals::Arrivals;
use crate::hand_off::{HandOff, HandOffCounts, among};
use crate::stack::{PacketSink, Stack, StackConfig};
use pollux_control::ipoib::{self as control, NeighborChange};
use pollux_dataplane::flow::FlowSteering;
use pollux_dataplane::headers::{Form, PacketHeaders};
use pollux_node::config::{InterfaceSettings, Mode};
use pollux_node::interface::DeviceError;
use pollux_node::interface::{self as node, Inline};
use pollux_node::interface::{NotSent, destination};
use pollux_node::port::PortAccess;
use pollux_verbs::time::Time;
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// Maximum number of packets sent before the device is polled again.
const BURST_MAX: usize = 64;
/// Nothing is sent while this many loopback packets wait for the next step.
const LOOPED_MAX: usize = 256;
/// If no step was made for longer than this, received packets are handled before timers.
const LATE: Duration = Duration::from_millis(1);
/// How often addresses and route MTUs are read from the control plane.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// An interface and its sockets. The caller passes the time in.
pub struct Host {
    pub(crate) node: Inline,
    /// The sockets.
    pub stack: Stack,
    /// A packet that waits for space in the send queue.
    held: Option<Vec<u8>>,
    /// The buffer for a packet while the device has no free buffer.
    overflow: Vec<u8>,
    /// Packets to deliver in the next step: loopback packets, and reassembled packets.
    looped: Vec<Vec<u8>>,
    /// The rings to other workers, if there are any.
    hand_off: Option<HandOff>,
    /// Received packets for the application's own IP stack, which replaces the sockets.
    pub(crate) arrivals: Option<Arrivals>,
    /// Requests of the control thread to the thread that steps this host.
    pub(crate) requests: Option<Receiver<SocketsRequest>>,
    /// Packets that exceeded the path MTU of their destination.
    pub(crate) too_big: u64,
    /// Groups that sockets have left, while the control plane is in another thread: the driver
    /// passes them on.
    left_groups: Vec<IpAddr>,
    pub(crate) own: BTreeSet<IpAddr>,
    connects: bool,
    look_at: Time,
    stepped_at: Time,
}

impl Host {
    /// Opens an interface on a port. It comes up during the next steps. The seeds must be secret.
    pub fn new(
        now: Time,
        access: impl Into<PortAccess>,
        settings: &InterfaceSettings,
        config: StackConfig,
        [seed, stack_seed]: [u64; 2],
    ) -> Result<Self, DeviceError> {
        let alone = InterfaceSettings { workers: 1, ..settings.clone() };
        let (mut interface, workers) = node::IpoibLink::new(now, access, &alone, seed)?;
        interface.serve_sockets(now);
        let [worker] = <[_; 1]>::try_from(workers).ok().expect("there is one");
        let connects = settings.mode != Mode::Ud;
        let node = Inline { worker, interface: Some(interface) };
        Ok(Self::at(now, node, connects, Stack::new(config, stack_seed)))
    }

    fn at(now: Time, node: Inline, connects: bool, stack: Stack) -> Self {
        Self {
            node,
            stack,
            held: None,
            overflow: Vec::new(),
            looped: Vec::new(),
            hand_off: None,
            arrivals: None,
            requests: None,
            too_big: 0,
            left_groups: Vec::new(),
            own: BTreeSet::new(),
            connects,
            look_at: now,
            stepped_at: now,
        }
    }

    /// The worker of the interface, and the control plane if this host has it, for reports.
    pub const fn node(&self) -> &Inline {
        &self.node
    }

    /// The control plane, for reports; `None` if it is in another thread.
    pub fn control(&self) -> Option<&control::IpoibInterface> {
        self.node.interface.as_ref().map(node::IpoibLink::control)
    }

    /// The error that ended the device, if any.
    pub fn failed(&self) -> Option<String> {
        self.node.failed().map(ToString::to_string)
    }

    pub(crate) fn owns(&self, ip: IpAddr) -> bool {
        self.own.contains(&ip)
    }

    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.own.iter().copied().collect()
    }

    /// The source address for packets to a destination.
    pub fn source_for(&self, to: IpAddr) -> io::Result<IpAddr> {
        if to.is_loopback() {
            let why = format!("{to} is the kernel's loopback; use an address of the interface");
            return Err(io::Error::new(io::ErrorKind::HostUnreachable, why));
        }
        let source = self.node.worker.source_for(to);
        source.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// Joins a multicast group. `false` if the address is not a group, there are too many groups,
    /// or the control plane is in another thread.
    pub fn join_group(&mut self, now: Time, group: IpAddr) -> bool {
        self.node.interface.as_mut().is_some_and(|one| one.join_group(now, group))
    }

    /// Leaves a multicast group.
    pub fn leave_group(&mut self, now: Time, group: IpAddr) {
        match &mut self.node.interface {
            Some(interface) => interface.leave_group(now, group),
            None => self.left_groups.push(group),
        }
    }

    /// Serves all sockets once. Returns whether there was anything to do: then call it again soon,
    /// otherwise when a packet arrives or at [`Host::poll_timeout`].
    pub fn step(&mut self, now: Time) -> bool {
        // Timers run before received packets, unless the last step was so long ago that received
        // packets may cancel timers.
        let is_late = now > self.stepped_at + LATE;
        self.stepped_at = now;
        if !is_late {
            self.handle_due_timers(now);
        }
        let Self { node, stack, hand_off, arrivals, looped, .. } = self;
        let mut busy = node.breathe(now, &mut |headers, packet| {
            if let Some(arrivals) = arrivals {
                return arrivals.take(headers, packet);
            }
            let is_sockets = stack.wants(headers, packet);
            if is_sockets {
                deliver(now, stack, (hand_off, looped), headers, packet);
            }
            is_sockets
        });
        if let Some(hand_off) = hand_off {
            busy |= hand_off.receive(|packet| match PacketHeaders::parse_ip(packet) {
                Ok(headers) if headers.form == Form::Fragment => {
                    looped.extend(stack.reassemble(now, packet));
                }
                _ => stack.handle_packet(now, packet),
            });
        }
        if self.look_at <= now {
            self.look(now);
            self.look_at = now + LOOK_EVERY;
        }
        while let Some(delivery) = self.node.worker.poll_delivery() {
            self.deliver_raw(now, &delivery.packet);
        }
        while let Some(change) = self.node.worker.poll_neighbor_change() {
            match change {
                NeighborChange::Gone(ip) => self.stack.handle_peer_gone(ip),
                NeighborChange::Moved(ip) => self.stack.handle_peer_moved(ip),
            }
        }
        let mut looped = std::mem::take(&mut self.looped);
        busy |= !looped.is_empty();
        for packet in looped.drain(..) {
            self.deliver_raw(now, &packet);
        }
        self.looped = looped;
        while let Some(packet) = self.stack.poll_port_unreachable() {
            self.node.worker.refuse(&packet);
        }
        if is_late {
            self.handle_due_timers(now);
        }
        self.transmit(now) | busy
    }

    /// Delivers a packet whose headers are not parsed.
    fn deliver_raw(&mut self, now: Time, packet: &[u8]) {
        let Self { stack, hand_off, arrivals, looped, .. } = self;
        match (arrivals, PacketHeaders::parse_ip(packet)) {
            (Some(arrivals), _) => arrivals.push(packet),
            (None, Ok(headers)) => deliver(now, stack, (hand_off, looped), &headers, packet),
            // The stack counts the packet.
            (None, Err(_)) => stack.handle_packet(now, packet),
        }
    }

    /// Steps the control plane at once, if this host has it; [`Host::step`] does so periodically.
    /// Returns whether there was anything to do.
    pub fn step_control(&mut self, now: Time) -> bool {
        self.node.step_control(now)
    }

    fn handle_due_timers(&mut self, now: Time) {
        if self.stack.poll_timeout().is_some_and(|due| due <= now) {
            self.stack.handle_timeout(now);
        }
    }

    /// The next deadline.
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.node.poll_timeout(), self.stack.poll_timeout()].into_iter().flatten().min()
    }

    /// Whether a step is overdue.
    pub fn is_due(&self, now: Time) -> bool {
        self.node.worker.is_due(now)
    }

    /// Whether all packets are sent, and all data of closed connections is acknowledged or given
    /// up. Also `true` if the device has failed.
    pub fn has_sent(&self) -> bool {
        let Inline { worker, interface } = &self.node;
        let has_sent = self.held.is_none()
            && worker.has_sent()
            && interface.as_ref().is_none_or(|interface| interface.has_sent());
        self.node.failed().is_some() || has_sent && self.stack.tcp_is_flushed()
    }

    /// Disconnects from all peers. [`Host::is_disconnected`] reports when that is complete.
    pub fn disconnect(&mut self, now: Time) {
        if let Some(interface) = &mut self.node.interface {
            interface.leave(now);
        }
    }

    /// Whether all peers are disconnected. If the control plane is in another thread: whether the
    /// worker has ended.
    pub fn is_disconnected(&self) -> bool {
        match &self.node.interface {
            Some(interface) => interface.has_disconnected(),
            None => self.node.worker.failed().is_some(),
        }
    }

    pub(crate) fn can_send(&self) -> bool {
        self.held.is_none() && self.looped.len() < LOOPED_MAX && self.node.worker.has_room()
    }

    /// Sends the packets of sockets; returns whether there were any.
    pub fn transmit(&mut self, now: Time) -> bool {
        if let Some(packet) = self.held.take()
            && self.node.worker.send(now, &packet) == Err(NotSent::Full)
        {
            self.held = Some(packet);
            return false;
        }
        let mut sent = 0;
        while sent < BURST_MAX && self.can_send() {
            let Self { node, overflow, .. } = self;
            let mut frame = TxFrame { node: &mut node.worker, overflow, has_overflowed: false };
            if !self.stack.transmit_to(now, &mut frame) {
                break;
            }
            let has_overflowed = frame.has_overflowed;
            self.dispatch(now, has_overflowed);
            sent += 1;
        }
        self.node.worker.flush();
        sent > 0
    }

    /// The packet that was just written.
    fn written(&self, has_overflowed: bool) -> &[u8] {
        if has_overflowed { &self.overflow } else { self.node.worker.drafted() }
    }

    /// Sends the packet that was just written: to the loopback queue, or by the device.
    fn dispatch(&mut self, now: Time, has_overflowed: bool) {
        let packet = self.written(has_overflowed);
        let Some((_, to)) = destination(packet) else { return };
        if self.own.contains(&to) {
            self.looped.push(packet.to_vec());
            return;
        }
        let sent = match has_overflowed {
            true => self.node.worker.send(now, &self.overflow),
            false => self.node.worker.send_draft(now),
        };
        match sent {
            Err(NotSent::Full) if has_overflowed => self.held = Some(self.overflow.clone()),
            Err(NotSent::TooBig(mtu)) => {
                self.too_big += 1;
                self.stack.handle_too_big(now, to, mtu);
                self.fragment(has_overflowed, mtu);
            }
            // Neighbor resolution reports unreachable destinations itself.
            Ok(()) | Err(_) => {}
        }
    }

    /// Reads addresses and MTUs from the control plane, and reports the progress of TCP to it.
    fn look(&mut self, now: Time) {
        let worker = &mut self.node.worker;
        let own = worker.own();
        if own != self.own {
            self.stack.set_addresses(own.iter().copied());
            self.own = own;
        }
        while let Some(peer) = self.stack.poll_progress() {
            worker.report_progress(now, peer);
        }
        // In connected mode, the route of a destination has the MTU, which may be larger.
        if let Some(mtu) = worker.datagram_mtu() {
            self.stack.set_group_mtu(mtu);
            if !self.connects {
                self.stack.set_mtu(mtu);
            }
        }
        for to in self.stack.path_mtus() {
            let mtu = worker.route_mtu(to);
            // An on-link neighbor without a route gets the MTU of the link again: its next route
            // may have a larger MTU, and packets have to be sent to resolve it.
            if mtu.is_some() || worker.is_on_link(to) {
                self.stack.set_path_mtu(now, to, mtu);
            }
        }
        self.answer_requests(now);
    }

    fn answer_requests(&self, now: Time) {
        for request in self.requests.iter().flat_map(Receiver::try_iter) {
            request.answer(now, &self.stack, |_| (0, 0));
        }
    }
}

/// Packets of the application's own IP stack ([`crate::smoltcp`]).
impl Host {
    /// Receives the next packet, if there is space to send an answer to it.
    pub(crate) fn next_packet(&mut self, packet: &mut Vec<u8>) -> bool {
        self.can_send() && self.arrivals.as_mut().is_some_and(|arrivals| arrivals.next(packet))
    }

    /// Writes a packet in place, and sends it if `leaves` returns `true` for it.
    pub(crate) fn send_packet<R>(
        &mut self,
        now: Time,
        bytes: usize,
        write: impl FnOnce(&mut [u8]) -> R,
        leaves: impl FnOnce(&[u8]) -> bool,
    ) -> R {
        let Self { node, overflow, .. } = self;
        let mut frame = TxFrame { node: &mut node.worker, overflow, has_overflowed: false };
        let result = write(frame.buffer(bytes));
        let has_overflowed = frame.has_overflowed;
        if leaves(self.written(has_overflowed)) {
            self.dispatch(now, has_overflowed);
            self.node.worker.flush();
        }
        result
    }

    /// The MTU for all destinations: that of the settings, in datagram mode at most that of the
    /// link.
    pub(crate) fn mtu(&self, settings: u32) -> u32 {
        let datagram = self.node.worker.datagram_mtu().filter(|_| !self.connects);
        datagram.map_or(settings, |mtu| mtu.min(settings))
    }
}

/// Hosts for the workers of an interface whose control plane is in another thread.
impl Host {
    /// The control plane of an interface, and a host for each of its workers, in order.
    pub(crate) fn for_workers(
        now: Time,
        access: impl Into<PortAccess>,
        settings: &InterfaceSettings,
        config: &StackConfig,
        seed: impl Fn() -> u64,
    ) -> Result<(node::IpoibLink, Vec<Self>), DeviceError> {
        let (mut interface, workers) = node::IpoibLink::new(now, access, settings, seed())?;
        interface.serve_sockets(now);
        let mut hand_offs = among(FlowSteering::among(settings.workers)).into_iter();
        let host = |worker| {
            let stack = Stack::new(config.clone(), seed());
            let node = Inline { worker, interface: None };
            let mut host = Self::at(now, node, settings.mode != Mode::Ud, stack);
            host.hand_off = hand_offs.next();
            if let Some(hand_off) = &host.hand_off {
                host.stack.set_shard(hand_off.shard);
            }
            host
        };
        let hosts = workers.into_iter().map(host).collect();
        Ok((interface, hosts))
    }

    pub(crate) fn take_to_wake(&mut self) -> u32 {
        self.hand_off.as_mut().map_or(0, HandOff::take_to_wake)
    }

    /// Whether events were sent to the control plane since the last call. The caller wakes it.
    pub(crate) const fn take_has_events(&mut self) -> bool {
        self.node.worker.take_has_events()
    }

    /// Takes a group that a socket has left, which the control plane has to leave.
    pub(crate) fn take_left_group(&mut self) -> Option<IpAddr> {
        self.left_groups.pop()
    }

    pub(crate) fn hand_off_counts(&self) -> HandOffCounts {
        self.hand_off.as_ref().map(|hand_off| hand_off.counts).unwrap_or_default()
    }
}

/// Delivers a packet to this stack, or hands it off to the worker of its flow. Fragments have no
/// flow: the primary worker reassembles them, and the packet is steered in the next step.
#[inline]
fn deliver(
    now: Time,
    stack: &mut Stack,
    (hand_off, looped): (&mut Option<HandOff>, &mut Vec<Vec<u8>>),
    headers: &PacketHeaders,
    packet: &[u8],
) {
    let is_others = hand_off.as_mut().is_some_and(|hand_off| hand_off.steer(headers, packet));
    match headers.form {
        _ if is_others => {}
        Form::Fragment => looped.extend(stack.reassemble(now, packet)),
        _ => stack.handle(now, headers, packet),
    }
}

/// Memory for a packet to send: a buffer of the device, or `overflow` if there is none.
struct TxFrame<'a> {
    node: &'a mut node::InterfaceWorker,
    overflow: &'a mut Vec<u8>,
    has_overflowed: bool,
}

impl PacketSink for TxFrame<'_> {
    fn buffer(&mut self, len: usize) -> &mut [u8] {
        match self.node.draft(len) {
            Some(buffer) => buffer,
            None => {
                self.has_overflowed = true;
                self.overflow.clear();
                self.overflow.resize(len, 0);
                self.overflow
            }
        }
    }
}
