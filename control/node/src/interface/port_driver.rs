//! The port driver of an interface: its device, and everything that a worker has there.
//!
//! A port driver takes what has come, for control to see ([`Arrived`]), and carries out control's
//! actions (`actions`, `sending`). It decides nothing. A refusal by the device is a counted drop,
//! or a state with a reason; the loss of the device ends the port driver.

use super::actions::Subject;
use super::handles::Handles;
use super::seen::Seen;
use crate::fabric::Embedded;
use crate::port::{Management, PortAccess, PortResources};
use pollux_control::interface::{
    Action, By, ConnectionKey, From, Link, Outgoing as Frame, PeerKey, PortView, QueuePairEvent,
};
use pollux_control::mad::Envelope;
use pollux_control::peer::PeerConfig;
use pollux_dataplane::ipoib::{
    Config, ConnectionId, ConnectionUse, Netdev, NetdevEvent, Outgoing, Received, Refused, RxSource,
};
use pollux_dataplane::neighbor::{Peer, Route, RouteTable, Routes};
use pollux_dataplane::packet_memory::PacketMemory;
use pollux_dataplane::verdict::{Destinations, Verdict};
use pollux_mem::Buf;
use pollux_mem::snapshot::Snapshot;
use pollux_verbs::time::Time;
use pollux_verbs::*;
use pollux_wire::address::{Gid, Guid, Lid, Qpn, Scope};
use pollux_wire::ip::ipoib::{EtherType, ip_mtu};
use pollux_wire::keys::PKey;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

/// The longest packet in a buffer for datagrams: that of a link with the largest MTU.
const SMALL_BYTES: u32 = 4092;
/// Buffers: receives, sends and the stock.
const SMALL_BUFFERS: u32 = 1024;
const LARGE_BUFFERS: u32 = 512;
/// Receives that connections share. What has come in one is copied at once, so a peer keeps only
/// those from others that it has begun to fill: one for each of its connections.
const CONNECTED_RECEIVES: u32 = 256;
/// No port keeps more than a sixteenth of the receives, nor, by taking nothing of what it is sent,
/// more than a third of the buffers for sends.
const _: () = {
    let of_port = PeerConfig::of(Guid(0)).connections_per_port_max as u32;
    assert!(16 * of_port <= CONNECTED_RECEIVES);
    assert!(3 * CONNECTED_SENDS <= LARGE_BUFFERS - CONNECTED_RECEIVES);
};
/// Sends that may be outstanding at a connection. A peer is sent to by one.
const CONNECTED_SENDS: u32 = 64;
/// Address handles for answers to single packets.
const HANDLES_MAX: usize = 64;
/// Packets that wait for room in a send queue.
pub(super) const WAITING_MAX: usize = 256;

/// Why an interface has no device, or not any more.
#[derive(Debug)]
#[non_exhaustive]
pub enum DeviceError {
    /// No memory for its packets.
    Memory(pollux_mem::pool::PoolError),
    /// What the device refused.
    Verbs(VerbsError),
    /// It has no place for another worker.
    NoWorkerContext(VerbsError),
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(error) => error.fmt(f),
            Self::Verbs(error) => error.fmt(f),
            Self::NoWorkerContext(error) => write!(
                f,
                "no space at the device for another worker: {error}; lower `workers` of the \
                 interface, or use another device"
            ),
        }
    }
}

impl std::error::Error for DeviceError {}

impl std::convert::From<VerbsError> for DeviceError {
    fn from(error: VerbsError) -> Self {
        Self::Verbs(error)
    }
}

/// What has come, for control to see.
#[derive(Debug, Default)]
pub struct Arrived {
    /// By queue pair 1.
    pub mads: Vec<Envelope>,
    /// By any other, whosever they are.
    pub packets: Vec<Received>,
    /// What became of connections.
    pub connection_events: Vec<(ConnectionKey, QueuePairEvent)>,
    /// Packets that control has to find a way for.
    pub punts: Vec<Vec<u8>>,
    /// Packets that are longer than their way takes, and how long that is.
    pub too_big: Vec<(Vec<u8>, u32)>,
    /// The port is not what it was.
    pub port_changed: bool,
    /// The subnet manager has forgotten who joined what.
    pub reregister: bool,
}

impl Arrived {
    /// Whether nothing has come.
    pub fn is_empty(&self) -> bool {
        let is_silent =
            self.mads.is_empty() && self.packets.is_empty() && self.connection_events.is_empty();
        let no_packets = self.punts.is_empty() && self.too_big.is_empty();
        is_silent && no_packets && !self.port_changed && !self.reregister
    }
}

/// A peer of control's, in the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) peer: Peer,
    pub(super) route: Route,
    /// The handle that its route names, and what of.
    pub(super) handle: Option<(AddressVector, Ah)>,
}

/// What a port driver is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The partition.
    pub p_key: PKey,
    /// How far its groups reach.
    pub scope: Scope,
    /// The longest message of a connection, if there are to be any.
    pub message_bytes: Option<u32>,
}

/// A device and all that a worker of an interface has there.
pub struct PortDriver {
    pub(super) device: Box<dyn Device + Send>,
    pub(super) port: u8,
    pub(super) pd: Pd,
    pub(super) netdev: Netdev,
    pub(super) routes: RouteTable,
    pub(super) reader: Snapshot<Routes>,
    pub(super) own: Destinations,
    pub(super) peers: BTreeMap<PeerKey, Known>,
    pub(super) connections: BTreeMap<ConnectionKey, ConnectionId>,
    pub(super) keys: BTreeMap<ConnectionId, ConnectionKey>,
    /// Connections by which nothing has come yet.
    pub(super) awaiting_first_packet: BTreeSet<ConnectionId>,
    /// Groups that datagrams come of.
    pub(super) attached: BTreeSet<(Gid, Lid)>,
    /// What control wanted and was refused, until it is done or something else is wanted; and why.
    pub(super) undone: BTreeMap<Subject, (Action, VerbsError)>,
    /// The device refused what the interface cannot be without.
    pub(super) broken: Option<VerbsError>,
    /// Connections that end, and until when that may take, the first first.
    pub(super) leaving: VecDeque<(Time, ConnectionKey)>,
    /// Until when datagrams may take to stop, or to go on.
    pub(super) settled_by: Option<Time>,
    pub(super) seen: Seen,
    /// For single packets.
    pub(super) handles: Handles,
    /// Handles that no route names, but perhaps one that was read.
    pub(super) retired: Vec<Ah>,
    /// What the netdev is to be started with, if it is.
    pub(super) link: Option<Link>,
    pub(super) connection_events: Vec<(ConnectionKey, QueuePairEvent)>,
    pub(super) punts: Vec<Vec<u8>>,
    pub(super) too_big: Vec<(Vec<u8>, u32)>,
    pub(super) waiting: VecDeque<Outgoing>,
    /// What leaves with the next doorbell, and what is being written to leave with it.
    pub(super) batch: Vec<Outgoing>,
    pub(super) draft: Option<Buf>,
    pub(super) refused: Vec<Refused>,
    pub(super) counts: Counts,
    pub(super) management: Management,
    // Buffers go back to pools, which must still be there.
    _memories: [PacketMemory; 2],
    // And the device leaves a fabric that still runs.
    fabric: Option<Arc<Embedded>>,
}

/// What was not moved, beside what the netdev counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets for somebody else: nothing is forwarded.
    pub transit: u64,
    /// Packets without a buffer, or without room to wait.
    pub no_room: u64,
    /// What control asked for and the device or a table refused.
    pub refused_actions: u64,
    /// Connections that ended though the device did not give all of their buffers back.
    pub given_up: u64,
    /// Packets for control that the primary worker had no room for.
    pub punts_dropped: u64,
}

impl PortDriver {
    /// All that an interface needs at a device, stopped. The seed is to be unknown to others.
    pub fn new(access: PortAccess, terms: Terms, seed: u64) -> Result<Self, DeviceError> {
        Self::at(access.acquire()?, terms, seed)
    }

    /// The same at the same device, for another worker: all but management.
    pub(super) fn for_worker(&mut self, terms: Terms, seed: u64) -> Result<Self, DeviceError> {
        let resources =
            PortResources::for_worker(&mut *self.device, self.port, self.fabric.clone());
        Self::at(resources.map_err(DeviceError::NoWorkerContext)?, terms, seed)
    }

    fn at(resources: PortResources, terms: Terms, seed: u64) -> Result<Self, DeviceError> {
        let Terms { p_key, scope, message_bytes } = terms;
        let PortResources { mut device, port, pd, management, fabric } = resources;
        let memory =
            |buffers, bytes| PacketMemory::new(buffers, bytes).map_err(DeviceError::Memory);
        let small = memory(SMALL_BUFFERS, SMALL_BYTES)?;
        let (large, connected_receives) = match message_bytes {
            Some(bytes) => (memory(LARGE_BUFFERS, ip_mtu(bytes))?, CONNECTED_RECEIVES),
            None => (memory(1, SMALL_BYTES)?, 0),
        };
        let receive_mtu = message_bytes.unwrap_or_default();
        let connected_sends = CONNECTED_SENDS;
        let config =
            Config { port, connected_receives, connected_sends, receive_mtu, ..Config::default() };
        let netdev = Netdev::new(&mut *device, pd, config, &small, &large)?;
        let routes = RouteTable::new(p_key, scope, seed);
        Ok(Self {
            port,
            pd,
            netdev,
            reader: routes.reader(),
            routes,
            own: Destinations::new(),
            peers: BTreeMap::new(),
            connections: BTreeMap::new(),
            keys: BTreeMap::new(),
            awaiting_first_packet: BTreeSet::new(),
            attached: BTreeSet::new(),
            undone: BTreeMap::new(),
            broken: None,
            handles: Handles::new(pd, HANDLES_MAX),
            retired: Vec::new(),
            link: None,
            connection_events: Vec::new(),
            punts: Vec::new(),
            too_big: Vec::new(),
            leaving: VecDeque::new(),
            settled_by: None,
            seen: Seen::default(),
            waiting: VecDeque::new(),
            batch: Vec::new(),
            draft: None,
            refused: Vec::new(),
            counts: Counts::default(),
            management,
            _memories: [small, large],
            fabric,
            device,
        })
    }

    /// The UD queue pair's number.
    pub fn qpn(&self) -> Qpn {
        self.netdev.qpn()
    }

    /// The node's name.
    pub fn node_guid(&self) -> Guid {
        self.device.attributes().node_guid
    }

    /// Whether connections can go on by a second path.
    pub fn migrates(&self) -> bool {
        self.device.attributes().can.migration
    }

    /// Whether the adapter acknowledges only when it is polled.
    pub fn acks_when_polled(&self) -> bool {
        self.device.attributes().can.acks_when_polled
    }

    /// The netdev, for its counters.
    pub fn netdev(&self) -> &Netdev {
        &self.netdev
    }

    /// How much a connection was used.
    pub fn connection_use(&self, connection: ConnectionKey) -> Option<ConnectionUse> {
        self.netdev.connection_use(*self.connections.get(&connection)?)
    }

    /// Whether the netdev is stopped, and all management datagrams are sent.
    pub fn is_idle(&self) -> bool {
        self.netdev.is_stopped() && self.management.is_idle()
    }

    /// What was not moved.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What control wanted and was refused the last time, and why; it is tried again.
    pub fn undone(&self) -> impl Iterator<Item = (&Action, &VerbsError)> {
        self.undone.values().map(|(action, why)| (action, why))
    }

    /// Management datagrams that could not be sent.
    pub fn mads_unsent(&self) -> u64 {
        self.management.unsent()
    }

    /// The port as it is now.
    pub fn port(&self) -> Result<PortView, VerbsError> {
        let port = self.device.port(self.port)?;
        let gid = |index| self.device.gid(self.port, index);
        let p_key = |index| self.device.pkey(self.port, index);
        let view = PortView {
            number: self.port,
            state: port.state,
            lid: port.lid,
            lmc: port.lmc,
            sm_lid: port.sm_lid,
            sm_sl: port.sm_sl,
            mtu: port.mtu,
            gids: (0..port.gids).map(gid).collect::<Result<_, _>>()?,
            pkeys: (0..port.pkeys).map(p_key).collect::<Result<_, _>>()?,
        };
        Ok(self.management.view(view))
    }

    /// Takes what has come; says whether anything was done.
    pub fn poll(&mut self, now: Time, arrived: &mut Arrived) -> Result<bool, VerbsError> {
        let mut busy = self.poll_device_events(arrived)?;
        busy |= self.management.poll(now, &mut *self.device, &mut arrived.mads)?;
        let before = arrived.packets.len();
        busy |= self.netdev.poll(&mut *self.device, &mut arrived.packets)? > 0;
        self.note_first_packets(&arrived.packets[before..]);
        while let Some(event) = self.netdev.poll_event() {
            self.handle_netdev_event(event);
            busy = true;
        }
        self.broken.take().map_or(Ok(()), Err)?;
        self.start_again()?;
        self.check_patience(now)?;
        self.flush();
        busy |= self.send_waiting();
        arrived.connection_events.append(&mut self.connection_events);
        arrived.punts.append(&mut self.punts);
        arrived.too_big.append(&mut self.too_big);
        Ok(busy)
    }

    /// Whose a packet is; those of nobody here are counted.
    pub fn is_for_us(&mut self, received: &Received) -> bool {
        let verdict = self.own.verdict(received.ether_type, received.packet.bytes());
        let is_for_us = verdict != Verdict::Transit || self.is_group(received);
        self.counts.transit += u64::from(!is_for_us);
        is_for_us
    }

    /// Groups come because they were joined.
    fn is_group(&self, received: &Received) -> bool {
        matches!(received.from, RxSource::Datagram { group: Some(_), .. })
    }

    /// How a packet came, in control's words; none if its connection is gone.
    pub(super) fn from(&self, received: &Received) -> Option<From> {
        Some(match received.from {
            RxSource::Datagram { qpn, lid, gid, group } => From::Datagram { qpn, lid, gid, group },
            RxSource::Connection(id) => From::Connection(self.key(id)?),
        })
    }

    /// Takes a packet's buffer back.
    pub fn recycle(&mut self, received: Received) {
        self.netdev.recycle(received.packet);
    }

    /// The connection that control calls so.
    pub fn key(&self, connection: ConnectionId) -> Option<ConnectionKey> {
        self.keys.get(&connection).copied()
    }

    /// The management datagram that a packet is, where these go in band.
    pub fn management_in(&mut self, received: &Received) -> Option<Envelope> {
        let gid = self.link?.gid;
        self.management.in_band()?.receive(received, gid)
    }

    /// Sends a management datagram.
    pub fn send_mad(&mut self, envelope: &Envelope) {
        if let Some(adjacency) = self.management.send(&mut *self.device, envelope) {
            let (ether_type, packet) = (EtherType::IN_BAND_MAD, envelope.mad.to_vec());
            self.send(&Frame { ether_type, packet, by: By::Datagram(adjacency) });
        }
    }

    fn poll_device_events(&mut self, arrived: &mut Arrived) -> Result<bool, VerbsError> {
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
                AsyncEvent::ClientReregister(port) if port == self.port => {
                    arrived.reregister = true;
                }
                // It may be up again by now, and whoever manages the subnet may have taken us out
                // of groups meanwhile.
                AsyncEvent::PortError(port) if port == self.port => {
                    (arrived.port_changed, arrived.reregister) = (true, true);
                }
                AsyncEvent::PortActive(port)
                | AsyncEvent::LidChange(port)
                | AsyncEvent::PkeyChange(port)
                | AsyncEvent::GidChange(port)
                | AsyncEvent::SmChange(port) => arrived.port_changed |= port == self.port,
                _ => {}
            }
        }
        Ok(busy)
    }

    /// There is news of the connection with this queue pair, if there is one.
    fn add_connection_event(&mut self, qp: Qp, event: QueuePairEvent) {
        let key = self.netdev.connection_of(qp).and_then(|id| self.key(id));
        self.connection_events.extend(key.map(|key| (key, event)));
    }

    /// The first packet of a connection is as good as the peer's word that it stands: a queue pair
    /// that is ready to send before it hears that word tells no such event (IBA 12.9.7.2).
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

    fn handle_netdev_event(&mut self, event: NetdevEvent) {
        let (connection, event) = match event {
            NetdevEvent::ConnectionFailed { connection, .. } => {
                (connection, QueuePairEvent::Failed)
            }
            NetdevEvent::ConnectionEnded { connection, .. } => (connection, QueuePairEvent::Ended),
            // It starts again once it is stopped, as long as it is to be started.
            NetdevEvent::DatagramsFailed { .. } => return,
        };
        let Some(key) = self.key(connection) else { return };
        if matches!(event, QueuePairEvent::Ended) {
            self.keys.remove(&connection);
            self.awaiting_first_packet.remove(&connection);
            self.connections.remove(&key);
        }
        self.connection_events.push((key, event));
    }

    /// What a link says to a netdev.
    pub(super) fn netdev_link(link: &Link) -> pollux_dataplane::ipoib::Link {
        let Link { pkey_index, qkey, lid, lmc, gid, .. } = *link;
        pollux_dataplane::ipoib::Link { pkey_index, qkey, lid, lmc, gid }
    }

    /// A netdev that is to be started and has stopped starts.
    pub(super) fn start_again(&mut self) -> Result<(), VerbsError> {
        match &self.link {
            Some(link) if self.netdev.is_stopped() => {
                self.netdev.start(&mut *self.device, Self::netdev_link(link))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for PortDriver {
    /// As long as the device may write to buffers nobody gets them, and their memory stays. So it
    /// is told that all has come to an end; what it refuses stays as it is.
    fn drop(&mut self) {
        let qp = self.netdev.datagram_qp();
        for (mgid, mlid) in std::mem::take(&mut self.attached) {
            let _ = self.device.detach_multicast(qp, mgid, mlid);
        }
        let _ = self.netdev.close(&mut *self.device);
    }
}
