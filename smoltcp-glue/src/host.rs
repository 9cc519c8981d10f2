//! A host without clock or thread: an interface, and the sockets there.
//!
//! ```text
//!   step: device --> node::Interface --> Stack --> node::Interface --> device
//! ```
//!
//! Whoever runs it says what time it is, and calls [`Host::step`] again when that did something,
//! when something comes, and when [`Host::poll_timeout`] says so.

use crate::stack::{Exit, Stack, StackConfig, UdpError, UdpId};
use pollux_control::address::NextHop;
use pollux_control::interface::Way;
use pollux_node::config::{InterfaceSettings, Mode};
use pollux_node::interface::echo::{EchoId, Outcome};
use pollux_node::interface::mover::DeviceError;
use pollux_node::interface::sending::{NotSent, destination};
use pollux_node::interface::{self as node, PingError, Side};
use pollux_node::port::Place;
use pollux_verbs::QpType;
use pollux_verbs::time::Time;
use pollux_wire::ip::link_address::LinkAddress;
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Packets that are sent before the device is looked at again.
const BURST_MAX: usize = 64;
/// Packets to ourselves that wait for the next step.
const LOOPED_MAX: usize = 256;
/// How often addresses and ways are asked for anew.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What all sockets of an interface share. Time is passed in.
pub struct Host {
    pub(crate) node: node::Interface,
    /// Its sockets.
    pub stack: Stack,
    /// A packet that the device had no room for, and where those are written that it has no
    /// buffers for.
    held: Option<Vec<u8>>,
    spill: Vec<u8>,
    /// Packets to ourselves.
    looped: Vec<Vec<u8>>,
    pub(crate) own: BTreeSet<IpAddr>,
    connects: bool,
    look_at: Time,
}

/// Somebody on the link, and how packets go there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its addresses, and groups that it stands for.
    pub addresses: Vec<IpAddr>,
    /// Where it is on the link.
    pub link: LinkAddress,
    /// The kind of connection that packets go by; none if they go by datagram.
    pub connection: Option<QpType>,
    /// The longest packet.
    pub mtu: u32,
}

impl Host {
    /// A host with an interface at a device, which comes up as soon as it can. The seeds are to be
    /// unknown to others.
    pub fn new(
        now: Time,
        place: impl Into<Place>,
        settings: &InterfaceSettings,
        config: StackConfig,
        [seed, stack_seed]: [u64; 2],
    ) -> Result<Self, DeviceError> {
        let mut node = node::Interface::new(now, place, settings, seed)?;
        node.keep_deliveries();
        Ok(Self {
            node,
            stack: Stack::new(config, stack_seed),
            held: None,
            spill: Vec::new(),
            looped: Vec::new(),
            own: BTreeSet::new(),
            connects: settings.mode != Mode::Ud,
            look_at: now,
        })
    }

    /// The interface, to be shown.
    pub const fn node(&self) -> &node::Interface {
        &self.node
    }

    /// Why there is no device any more, if that is so.
    pub(crate) fn failed(&self) -> Option<String> {
        self.node.failed().map(ToString::to_string)
    }

    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.own.iter().copied().collect()
    }

    pub(crate) fn neighbours(&self) -> Vec<Neighbour> {
        let control = self.node.control();
        let connections: Vec<_> = control.connection_rows().collect();
        let connection = |key| connections.iter().find(|row| row.connection == key);
        let rows = control.peer_rows().filter_map(|row| {
            let (connection, mtu) = match row.way {
                Way::Datagram(way) => (None, way.mtu),
                Way::Connected { connection: key, mtu, .. } => {
                    (connection(key).map(|row| row.qp_type), mtu)
                }
                _ => return None,
            };
            Some(Neighbour { addresses: row.ips, link: row.link, connection, mtu })
        });
        rows.collect()
    }

    pub(crate) fn begin_ping(
        &mut self,
        now: Time,
        to: IpAddr,
        octets: usize,
        patience: Duration,
    ) -> io::Result<EchoId> {
        let asked = self.node.ping(now, to, octets, patience);
        asked.map_err(|why| match why {
            PingError::TooMany => io::ErrorKind::QuotaExceeded.into(),
            PingError::Down => io::ErrorKind::NetworkDown.into(),
            _ => io::ErrorKind::AddrNotAvailable.into(),
        })
    }

    /// What became of a request, once that is known.
    pub(crate) fn ping_outcome(&mut self, id: EchoId) -> Option<io::Result<Duration>> {
        let failed = match self.node.echo(id)? {
            Outcome::Answered { after, .. } => return Some(Ok(after)),
            Outcome::Silence => io::ErrorKind::TimedOut,
            Outcome::NotSent(NotSent::TooBig(_)) => io::ErrorKind::InvalidInput,
            Outcome::NotSent(_) | Outcome::Unreachable => io::ErrorKind::HostUnreachable,
        };
        Some(Err(failed.into()))
    }

    /// An address of ours from which packets go there.
    pub fn source_for(&self, to: IpAddr) -> io::Result<IpAddr> {
        let source = self.node.control().addresses().source_for(to);
        source.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// A socket hears a group. `false` if it is none, or there are too many.
    pub fn join_group(&mut self, now: Time, group: IpAddr) -> bool {
        self.node.join_group(now, group)
    }

    /// A socket hears a group no more.
    pub fn leave_group(&mut self, now: Time, group: IpAddr) {
        self.node.leave_group(now, group);
    }

    /// Serves all sockets once; says whether there was anything to do. Then it is to be called
    /// again soon, and otherwise when something comes and when [`Host::poll_timeout`] says so.
    pub fn step(&mut self, now: Time) -> bool {
        // Now and not after what comes, which is urgent.
        if self.stack.poll_timeout().is_some_and(|due| due <= now) {
            self.stack.handle_timeout(now);
        }
        let stack = &mut self.stack;
        let mut busy = self.node.breathe(now, &mut |packet| stack.take_packet(now, packet));
        if self.look_at <= now {
            self.look(now);
            self.look_at = now + LOOK_EVERY;
        }
        while let Some(delivery) = self.node.poll_delivery() {
            self.stack.handle_packet(now, &delivery.packet);
        }
        for packet in self.looped.drain(..) {
            self.stack.handle_packet(now, &packet);
            busy = true;
        }
        while let Some(packet) = self.stack.poll_unheard() {
            self.node.refuse(now, &packet);
        }
        self.transmit(now) | busy
    }

    /// Sends a datagram of a socket. There is no room while others wait to leave.
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
        let mut sheet = Sheet { node: &mut self.node, spill: &mut self.spill, has_spilt: false };
        self.stack.udp_send_to(now, id, (from, to), payload, &mut sheet)?;
        let has_spilt = sheet.has_spilt;
        self.dispatch(now, has_spilt);
        Ok(())
    }

    /// When there is something to do though nothing comes.
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.node.poll_timeout(), self.stack.poll_timeout()].into_iter().flatten().min()
    }

    /// Whether nobody has looked for long at what has come.
    pub fn is_due(&self, now: Time) -> bool {
        self.node.is_due(now)
    }

    /// Whether all that sockets have sent is with their peers, or lost.
    pub fn has_sent(&self, now: Time) -> bool {
        let has_sent = self.held.is_none() && self.node.has_sent(now);
        self.node.failed().is_some() || has_sent && self.stack.tcp_is_flushed()
    }

    /// Takes leave of the link. [`Host::has_left`] tells when the others know.
    pub fn leave(&mut self, now: Time) {
        self.node.leave(now);
    }

    /// Whether all that the link is to know of our leaving is said.
    pub fn has_left(&self) -> bool {
        self.node.has_left()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.held.is_none() && self.looped.len() < LOOPED_MAX && self.node.has_room()
    }

    /// Hands what sockets have to the device; says whether there was anything.
    pub fn transmit(&mut self, now: Time) -> bool {
        if let Some(packet) = self.held.take()
            && self.node.send(now, &packet) == Err(NotSent::Full)
        {
            self.held = Some(packet);
            return false;
        }
        let mut sent = 0;
        while sent < BURST_MAX && self.has_room() {
            let mut sheet =
                Sheet { node: &mut self.node, spill: &mut self.spill, has_spilt: false };
            if !self.stack.transmit_to(now, &mut sheet) {
                break;
            }
            let has_spilt = sheet.has_spilt;
            self.dispatch(now, has_spilt);
            sent += 1;
        }
        self.node.flush();
        sent > 0
    }

    /// Sends the packet that was just written: to ourselves, or by the device.
    fn dispatch(&mut self, now: Time, has_spilt: bool) {
        let packet = if has_spilt { &self.spill[..] } else { self.node.drafted() };
        let Some((_, to)) = destination(packet) else { return };
        if self.own.contains(&to) {
            self.looped.push(packet.to_vec());
            return;
        }
        let sent = match has_spilt {
            true => self.node.send(now, &self.spill),
            false => self.node.send_draft(now),
        };
        match sent {
            Err(NotSent::Full) if has_spilt => self.held = Some(self.spill.clone()),
            Err(NotSent::TooBig(mtu)) => self.stack.handle_too_big(now, to, mtu),
            // Resolution complains, where there is a reason to.
            Ok(()) | Err(_) => {}
        }
    }

    fn is_on_link(&self, now: Time, to: IpAddr) -> bool {
        matches!(self.node.control().next_hop(now, to), Some(NextHop::OnLink(_)))
    }

    /// Looks at what control has decided since.
    fn look(&mut self, now: Time) {
        let control = self.node.control();
        let usable = control.addresses().iter().filter(|one| one.state.may_be_source());
        let own: BTreeSet<_> = usable.map(|one| one.ip).collect();
        if own != self.own {
            self.stack.set_addresses(own.iter().copied());
            self.own = own;
        }
        // A connection takes longer packets than the link; where there is none, a way says so.
        if let (Some(link), false) = (control.link(), self.connects) {
            self.stack.set_mtu(link.mtu);
        }
        for to in self.stack.path_mtus() {
            let mtu = self.node.route_mtu(to);
            // Whoever has no way now may have a wider one next, which packets have to ask for.
            if mtu.is_some() || self.is_on_link(now, to) {
                self.stack.set_path_mtu(now, to, mtu);
            }
        }
    }
}

/// Where a packet is written that leaves: a buffer of the device's, or else our own memory.
struct Sheet<'a> {
    node: &'a mut node::Interface,
    spill: &'a mut Vec<u8>,
    has_spilt: bool,
}

impl Exit for Sheet<'_> {
    fn room(&mut self, len: usize) -> &mut [u8] {
        match self.node.draft(len) {
            Some(room) => room,
            None => {
                self.has_spilt = true;
                self.spill.clear();
                self.spill.resize(len, 0);
                self.spill
            }
        }
    }
}
