//! A host without clock or thread: an interface and its sockets.
//!
//! ```text
//!   step: device --> HostPort --> Stack --> HostPort --> device
//!                       \--> others' stacks
//! ```
//!
//! With several workers each has a host: the primary worker's has the interface itself, the others
//! have a secondary port. Packets of flows that belong to another worker are handed off to it.
//!
//! The driver passes the time in. It calls [`Host::step`] again if the last step did something,
//! when a packet arrives, and at [`Host::poll_timeout`].

use crate::error::UpError;
use crate::hand_off::{HandOff, HandOffCounts, among};
use crate::host_port::HostPort;
use crate::stack::{FlowShard, PacketSink, Stack, StackConfig, UdpError, UdpId};
use pollux_control::interface::{self as control, Adjacency};
use pollux_dataplane::flow::FlowSteering;
use pollux_node::config::{InterfaceSettings, Mode};
use pollux_node::interface::echo::{EchoId, Outcome};
use pollux_node::interface::port_driver::DeviceError;
use pollux_node::interface::sending::{NotSent, destination};
use pollux_node::interface::{self as node, PingError, WorkerPort};
use pollux_node::port::PortAccess;
use pollux_verbs::QpType;
use pollux_verbs::time::Time;
use pollux_wire::ip::link_address::LinkAddress;
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Packets sent before the device is polled again.
const BURST_MAX: usize = 64;
/// Loopback packets that wait for the next step.
const LOOPED_MAX: usize = 256;
/// After so long without a step, received packets are handled before timers.
const LATE: Duration = Duration::from_millis(1);
/// How often addresses and route MTUs are read from the control plane.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// An interface and its sockets. Time is passed in.
pub struct Host {
    pub(crate) node: HostPort,
    /// The sockets.
    pub stack: Stack,
    /// A packet that waits for space in the send queue; and the memory for packets while the
    /// device has no free buffer.
    held: Option<Vec<u8>>,
    overflow: Vec<u8>,
    /// Loopback packets.
    looped: Vec<Vec<u8>>,
    /// The rings to other workers, if there are any.
    hand_off: Option<HandOff>,
    /// Groups that the sockets of a secondary worker left; the primary worker leaves them.
    left_groups: Vec<IpAddr>,
    pub(crate) own: BTreeSet<IpAddr>,
    connects: bool,
    look_at: Time,
    stepped_at: Time,
}

/// A neighbor, and how packets reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbor {
    /// Its addresses, and the groups that are sent to it.
    pub addresses: Vec<IpAddr>,
    /// Its link address.
    pub link: LinkAddress,
    /// The queue pair type of its connection; `None` if packets go by UD.
    pub connection: Option<QpType>,
    /// The MTU, in bytes.
    pub mtu: u32,
}

impl Host {
    /// Opens an interface on a port; it comes up over the next steps. The seeds have to be secret.
    pub fn new(
        now: Time,
        place: impl Into<PortAccess>,
        settings: &InterfaceSettings,
        config: StackConfig,
        [seed, stack_seed]: [u64; 2],
    ) -> Result<Self, DeviceError> {
        let node = node::Interface::new(now, place, settings, seed)?;
        let connects = settings.mode != Mode::Ud;
        Ok(Self::at(now, HostPort::primary_of(node), connects, Stack::new(config, stack_seed)))
    }

    fn at(now: Time, node: HostPort, connects: bool, stack: Stack) -> Self {
        Self {
            node,
            stack,
            held: None,
            overflow: Vec::new(),
            looped: Vec::new(),
            hand_off: None,
            left_groups: Vec::new(),
            own: BTreeSet::new(),
            connects,
            look_at: now,
            stepped_at: now,
        }
    }

    /// The port of the interface, for reports.
    pub const fn node(&self) -> &HostPort {
        &self.node
    }

    /// The error that ended the device, if any.
    pub fn failed(&self) -> Option<String> {
        self.node.failed().map(ToString::to_string)
    }

    /// Whether the interface is up and has all configured addresses.
    pub(crate) fn is_up(&self, settings: &InterfaceSettings) -> bool {
        let Some(control) = self.node.control() else { return false };
        let has_lease = control.has_lease() || !settings.asks_for_address();
        let has = |ip: &IpAddr| self.own.contains(ip);
        control.is_up() && has_lease && settings.fixed_addresses().all(|one| has(&one.ip))
    }

    /// Why it does not come up.
    pub(crate) fn not_up(&self) -> UpError {
        let row = self.node.control().map(control::Interface::row);
        UpError::NotUp(row.map_or_else(String::new, |row| format!("{}: {}", row.state, row.why)))
    }

    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.own.iter().copied().collect()
    }

    pub(crate) fn neighbors(&self) -> Vec<Neighbor> {
        let Some(control) = self.node.control() else { return Vec::new() };
        let connections: Vec<_> = control.connection_rows().collect();
        let connection = |key| connections.iter().find(|row| row.connection == key);
        let rows = control.peer_rows().filter_map(|row| {
            let (connection, mtu) = match row.adjacency {
                Adjacency::Datagram(adjacency) => (None, adjacency.mtu),
                Adjacency::Connected { connection: key, mtu, .. } => {
                    (connection(key).map(|row| row.qp_type), mtu)
                }
                _ => return None,
            };
            Some(Neighbor { addresses: row.ips, link: row.link, connection, mtu })
        });
        rows.collect()
    }

    pub(crate) fn begin_ping(
        &mut self,
        now: Time,
        to: IpAddr,
        bytes: usize,
        timeout: Duration,
    ) -> io::Result<EchoId> {
        let primary = self.node.primary().ok_or(io::ErrorKind::Unsupported)?;
        let asked = primary.ping(now, to, bytes, timeout);
        asked.map_err(|why| match why {
            PingError::TooMany => io::ErrorKind::QuotaExceeded.into(),
            PingError::TooLong => io::ErrorKind::InvalidInput.into(),
            PingError::Down => io::ErrorKind::NetworkDown.into(),
            _ => io::ErrorKind::AddrNotAvailable.into(),
        })
    }

    /// The result of an echo request, once it is known.
    pub(crate) fn ping_outcome(&mut self, id: EchoId) -> Option<io::Result<Duration>> {
        let failed = match self.node.primary()?.echo(id)? {
            Outcome::Answered { after, .. } => return Some(Ok(after)),
            Outcome::Silence => io::ErrorKind::TimedOut,
            Outcome::NotSent(NotSent::TooBig(_)) => io::ErrorKind::InvalidInput,
            Outcome::NotSent(_) | Outcome::Unreachable => io::ErrorKind::HostUnreachable,
        };
        Some(Err(failed.into()))
    }

    /// The source address for packets to a destination.
    pub fn source_for(&self, to: IpAddr) -> io::Result<IpAddr> {
        let source = self.node.source_for(to);
        source.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// Joins a multicast group. `false` if the address is not a group, there are too many groups,
    /// or this is not the primary worker.
    pub fn join_group(&mut self, now: Time, group: IpAddr) -> bool {
        self.node.primary().is_some_and(|primary| primary.join_group(now, group))
    }

    /// Leaves a multicast group.
    pub fn leave_group(&mut self, now: Time, group: IpAddr) {
        match self.node.primary() {
            Some(primary) => primary.leave_group(now, group),
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
            self.do_what_is_due(now);
        }
        let Self { node, stack, hand_off, .. } = self;
        let mut busy = node.breathe(now, &mut |packet| {
            let is_sockets = stack.wants_packet(packet);
            if is_sockets {
                deliver(now, stack, hand_off, packet);
            }
            is_sockets
        });
        if let Some(hand_off) = hand_off {
            busy |= hand_off.receive(|packet| stack.handle_packet(now, packet));
        }
        if self.look_at <= now {
            self.look(now);
            self.look_at = now + LOOK_EVERY;
        }
        while let Some(delivery) = self.node.poll_delivery() {
            deliver(now, &mut self.stack, &mut self.hand_off, &delivery.packet);
        }
        for packet in self.looped.drain(..) {
            deliver(now, &mut self.stack, &mut self.hand_off, &packet);
            busy = true;
        }
        while let Some(packet) = self.stack.poll_port_unreachable() {
            self.node.refuse(now, &packet);
        }
        if is_late {
            self.do_what_is_due(now);
        }
        self.transmit(now) | busy
    }

    fn do_what_is_due(&mut self, now: Time) {
        if self.stack.poll_timeout().is_some_and(|due| due <= now) {
            self.stack.handle_timeout(now);
        }
    }

    /// Sends a datagram of a socket; `UdpError::Full` while another packet waits.
    pub fn udp_send(
        &mut self,
        now: Time,
        id: UdpId,
        to: SocketAddr,
        payload: &[u8],
    ) -> io::Result<()> {
        if !self.has_room() {
            return Err(UdpError::Full.into());
        }
        let local = self.stack.udp_local(id);
        let from = match local.is_some_and(|local| local.ip().is_unspecified()) {
            true => self.source_for(to.ip()).ok(),
            false => None,
        };
        let mut frame =
            TxFrame { node: &mut self.node, overflow: &mut self.overflow, has_overflowed: false };
        self.stack.udp_send_to(now, id, (from, to), payload, &mut frame)?;
        let has_overflowed = frame.has_overflowed;
        self.dispatch(now, has_overflowed);
        Ok(())
    }

    /// The next deadline.
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.node.poll_timeout(), self.stack.poll_timeout()].into_iter().flatten().min()
    }

    /// Whether a step is overdue.
    pub fn is_due(&self, now: Time) -> bool {
        self.node.is_due(now)
    }

    /// Whether all data of closed connections was acknowledged or given up.
    pub fn has_sent(&self, now: Time) -> bool {
        let has_sent = self.held.is_none() && self.node.has_sent(now);
        self.node.failed().is_some() || has_sent && self.stack.tcp_is_flushed()
    }

    /// Disconnects from all peers. [`Host::is_disconnected`] tells when that is complete.
    pub fn disconnect(&mut self, now: Time) {
        if let Some(primary) = self.node.primary() {
            primary.leave(now);
        }
    }

    /// Whether all peers were told; on a secondary worker, whether the primary has ended the port.
    pub fn is_disconnected(&self) -> bool {
        match &self.node {
            HostPort::Primary(primary) => primary.has_left(),
            HostPort::Secondary(secondary) => secondary.failed().is_some(),
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.held.is_none() && self.looped.len() < LOOPED_MAX && self.node.has_room()
    }

    /// Sends what sockets have to send; returns whether there was anything.
    pub fn transmit(&mut self, now: Time) -> bool {
        if let Some(packet) = self.held.take()
            && self.node.send(now, &packet) == Err(NotSent::Full)
        {
            self.held = Some(packet);
            return false;
        }
        let mut sent = 0;
        while sent < BURST_MAX && self.has_room() {
            let mut frame = TxFrame {
                node: &mut self.node,
                overflow: &mut self.overflow,
                has_overflowed: false,
            };
            if !self.stack.transmit_to(now, &mut frame) {
                break;
            }
            let has_overflowed = frame.has_overflowed;
            self.dispatch(now, has_overflowed);
            sent += 1;
        }
        self.node.flush();
        sent > 0
    }

    /// Sends the packet that was just written: to the loopback queue, or by the device.
    fn dispatch(&mut self, now: Time, has_overflowed: bool) {
        let packet = if has_overflowed { &self.overflow[..] } else { self.node.drafted() };
        let Some((_, to)) = destination(packet) else { return };
        if self.own.contains(&to) {
            self.looped.push(packet.to_vec());
            return;
        }
        let sent = match has_overflowed {
            true => self.node.send(now, &self.overflow),
            false => self.node.send_draft(now),
        };
        match sent {
            Err(NotSent::Full) if has_overflowed => self.held = Some(self.overflow.clone()),
            Err(NotSent::TooBig(mtu)) => self.stack.handle_too_big(now, to, mtu),
            // Neighbor resolution reports unreachable destinations itself.
            Ok(()) | Err(_) => {}
        }
    }

    /// Reads addresses and MTUs from the control plane, and reports the progress of TCP to it.
    fn look(&mut self, now: Time) {
        let own = self.node.own();
        if own != self.own {
            self.stack.set_addresses(own.iter().copied());
            self.own = own;
        }
        while let Some(peer) = self.stack.poll_progress() {
            self.node.report_progress(now, peer);
        }
        // A connected-mode path has a larger MTU than the datagram link; its route has the value.
        if let (Some(mtu), false) = (self.node.datagram_mtu(), self.connects) {
            self.stack.set_mtu(mtu);
        }
        for to in self.stack.path_mtus() {
            let mtu = self.node.route_mtu(to);
            // A neighbor without a route may get one with a larger MTU, once packets ask for it.
            if mtu.is_some() || self.node.is_on_link(now, to) {
                self.stack.set_path_mtu(now, to, mtu);
            }
        }
    }
}

/// Hosts of several workers of one interface.
impl Host {
    /// Hosts for the configured number of workers: the primary's, then the others in order.
    pub(crate) fn for_workers(
        now: Time,
        place: impl Into<PortAccess>,
        settings: &InterfaceSettings,
        config: &StackConfig,
        seed: impl Fn() -> u64,
    ) -> Result<(Self, Vec<Self>), DeviceError> {
        let (primary, secondaries) = node::Interface::with_workers(now, place, settings, seed())?;
        let mut hand_offs = among(FlowSteering::among(settings.workers)).into_iter();
        let mut host = |post| {
            let stack = Stack::new(config.clone(), seed());
            let mut host = Self::at(now, post, settings.mode != Mode::Ud, stack);
            host.hand_off = hand_offs.next();
            host.stack.set_shard(host.hand_off.as_ref().map_or(FlowShard::ALL, HandOff::shard));
            host
        };
        Ok((
            host(HostPort::primary_of(primary)),
            secondaries.into_iter().map(HostPort::Secondary).map(host).collect(),
        ))
    }

    /// Takes the set of workers with new hand-offs, one bit each; they may be asleep.
    pub(crate) fn take_to_wake(&mut self) -> u32 {
        self.hand_off
            .as_mut()
            .map_or(0, |hand_off| hand_off.take_to_wake() | self.node.take_notified())
    }

    /// A group that a socket of this secondary worker has left.
    pub(crate) fn take_left_group(&mut self) -> Option<IpAddr> {
        self.left_groups.pop()
    }

    /// The counters of hand-offs.
    pub(crate) fn handed(&self) -> HandOffCounts {
        self.hand_off.as_ref().map_or_else(HandOffCounts::default, HandOff::counts)
    }
}

/// Delivers a packet to this stack, or hands it off to the worker of its flow.
fn deliver(now: Time, stack: &mut Stack, hand_off: &mut Option<HandOff>, packet: &[u8]) {
    let is_others = hand_off.as_mut().is_some_and(|hand_off| hand_off.steer(packet));
    if !is_others {
        stack.handle_packet(now, packet);
    }
}

/// Memory for a packet to send: a buffer of the device, or `overflow` if there is none.
struct TxFrame<'a> {
    node: &'a mut HostPort,
    overflow: &'a mut Vec<u8>,
    has_overflowed: bool,
}

impl PacketSink for TxFrame<'_> {
    fn buffer(&mut self, len: usize) -> &mut [u8] {
        match self.node.draft(len) {
            Some(room) => room,
            None => {
                self.has_overflowed = true;
                self.overflow.clear();
                self.overflow.resize(len, 0);
                self.overflow
            }
        }
    }
}
