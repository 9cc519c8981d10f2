//! The port driver of a worker: a device, and all objects that the worker has there.
//!
//! A port driver collects input for control ([`Arrived`], `events`), carries out actions of control
//! (`actions`), and sends packets ([`sending`]). The ports of a worker thread share [`memory`]. It
//! makes no decisions. If the device refuses an action or a packet, the result is a counted drop,
//! or a state with a reason; if the device is lost, the port driver ends. Control itself handles
//! MADs and the state of the port ([`crate::port`]).

mod actions;
mod capturing;
pub mod counters;
mod events;
pub mod memory;
pub mod sending;

pub use sending::NotSent;

use crate::fabric::Embedded;
use crate::port::WorkerAccess;
use crate::port::address_handles::AddressHandles;
use actions::Subject;
use counters::DriverConnection;
use memory::WorkerMemory;
use pollux_control::ipoib::{
    self as control, Action, ConnectionKey, LinkProperties, PacketSource, PeerKey, QueuePairEvent,
};
use pollux_dataplane::acl::{AclAction, AclFilter};
use pollux_dataplane::capture::{CaptureEvent, CaptureTaps, TRANSIT};
use pollux_dataplane::forward::is_routed_group;
use pollux_dataplane::headers::PacketHeaders;
use pollux_dataplane::ipoib::{
    ConnectionId, ConnectionUse, Netdev, NetdevConfig, Outgoing, Received, Refused, RxSource,
};
use pollux_dataplane::neighbor::{Peer, Route, RouteTable, Routes};
use pollux_dataplane::port::TransitPacket;
use pollux_dataplane::reason::{ForwardDrop, ForwardDrops};
use pollux_dataplane::verdict::{Destinations, Verdict};
use pollux_mem::Buf;
use pollux_mem::snapshot::Snapshot;
use pollux_verbs::time::Time;
use pollux_verbs::*;
use pollux_wire::address::{Gid, Lid, Qpn, Scope};
use pollux_wire::keys::PKey;
use sending::PuntReason;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Receives in the SRQ of connections. A received message is copied at once, so a peer blocks only
/// the receives that its messages have begun to fill: one per connection.
const CONNECTED_RECEIVES: u32 = 256;
/// Maximum number of outstanding sends of a connection. All packets to a peer use one connection.
const CONNECTED_SENDS: u32 = 64;
/// Maximum number of cached address handles, for packets of control that name no peer.
const HANDLES_MAX: usize = 64;
/// Timeout for a device to return the requests of a queue pair in ERR.
const BACK_MAX: Duration = Duration::from_secs(5);
/// Maximum number of packets that wait for space in a send queue.
const WAITING_MAX: usize = 256;
/// Maximum number of rejected packets that wait for control, which limits the rate of ICMP errors
/// anyway.
const FILTERED_MAX: usize = 64;
/// Maximum number of packets of control that wait behind those: as many as the ring from control
/// and the queue before it hold.
const FRAMES_MAX: usize = 2048;

/// Takes a packet to a local address or a group if a socket receives it. Returns whether it did.
pub type Take<'a> = &'a mut dyn FnMut(&PacketHeaders, &[u8]) -> bool;

/// Offers a packet to sockets. Returns whether one took it.
#[inline]
pub(super) fn take_if_for_socket(received: &Received, take: Take<'_>) -> bool {
    let Received { packet, headers, verdict, .. } = received;
    let is_offered = match verdict {
        Verdict::Local => true,
        Verdict::Transit => is_by_group(received),
        Verdict::Punt => false,
    };
    is_offered && take(headers, packet.bytes())
}

/// Whether a packet arrived by a multicast group, which this host has joined.
fn is_by_group(received: &Received) -> bool {
    matches!(received.from, RxSource::Datagram { group: Some(_), .. })
}

/// Whether a packet arrived by a multicast group, and its destination may be routed off the link.
fn is_to_routed_group(received: &Received) -> bool {
    let Received { packet, headers, .. } = received;
    is_by_group(received) && headers.destination(packet.bytes()).is_some_and(is_routed_group)
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    #[error(transparent)]
    Memory(pollux_mem::pool::PoolError),
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    #[error(
        "no space at the device for another worker: {0}; lower `workers` of the interface, or use \
         another device"
    )]
    NoWorkerContext(VerbsError),
}

#[derive(Debug, Default)]
pub struct Arrived {
    pub packets: Vec<Received>,
    pub connection_events: Vec<(ConnectionKey, QueuePairEvent)>,
}

impl Arrived {
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty() && self.connection_events.is_empty()
    }
}

/// A peer in the route table.
#[derive(Clone, Copy, Debug)]
struct Known {
    peer: Peer,
    route: Route,
    /// The address handle of the route, and the vector of which it was made.
    handle: Option<(AddressVector, Ah)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortDriverConfig {
    pub p_key: PKey,
    pub scope: Scope,
    /// The receive MTU of connections; `None` without connections.
    pub message_bytes: Option<u32>,
}

pub struct PortDriver {
    device: Box<dyn Device + Send>,
    port: u8,
    pd: Pd,
    netdev: Netdev,
    routes: RouteTable,
    reader: Snapshot<Routes>,
    own: Destinations,
    peers: BTreeMap<PeerKey, Known>,
    connections: BTreeMap<ConnectionKey, DriverConnection>,
    /// Connections that have received no packet yet.
    awaiting_first_packet: BTreeSet<ConnectionId>,
    attached: BTreeSet<(Gid, Lid)>,
    /// Refused actions, which are retried, and the reasons.
    undone: BTreeMap<Subject, (Action, VerbsError)>,
    /// A refused action without which the interface cannot work.
    broken: Option<VerbsError>,
    /// Ending connections and their timeouts, in order.
    leaving: VecDeque<(Time, ConnectionKey)>,
    /// When the UD queue pair has to have finished a change of state.
    settled_by: Option<Time>,
    handles: AddressHandles,
    /// Handles that a reader of an older route table may still use.
    retired: Vec<Ah>,
    /// The link of the netdev; `None` if the netdev is to be stopped.
    link: Option<LinkProperties>,
    connection_events: Vec<(ConnectionKey, QueuePairEvent)>,
    /// Packets for control, with the reason.
    pub(super) punts: VecDeque<(Vec<u8>, PuntReason)>,
    /// The access control list for arriving packets, and packets that it rejected, for control.
    filter: Option<AclFilter>,
    pub(super) filtered: Vec<Vec<u8>>,
    waiting: VecDeque<Outgoing>,
    /// Packets of control that found no space in `waiting`.
    frames: VecDeque<control::OutgoingPacket>,
    /// Packets for the next doorbell, and the packet that is being written.
    batch: Vec<Outgoing>,
    draft: Option<Buf>,
    refused: Vec<Refused>,
    pub(super) counts: Counts,
    pub(super) forward_drops: ForwardDrops,
    pub(super) taps: CaptureTaps,
    // Pools are dropped after their buffers.
    _memory: Arc<WorkerMemory>,
    // The fabric ends after the device has left it.
    _fabric: Option<Arc<Embedded>>,
}

/// Drops that the netdev does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets for other hosts, while forwarding is off.
    pub transit: u64,
    /// Packets without a buffer, or without space to wait.
    pub no_room: u64,
    pub refused_actions: u64,
    /// Connections given up with buffers that the device did not return.
    pub given_up: u64,
    pub punts_dropped: u64,
}

impl PortDriver {
    /// Creates all objects of a worker. The netdev does not run yet. The seed has to be secret.
    pub fn new(
        access: WorkerAccess,
        terms: PortDriverConfig,
        memory: Arc<WorkerMemory>,
        seed: u64,
    ) -> Result<Self, DeviceError> {
        let PortDriverConfig { p_key, scope, message_bytes } = terms;
        let WorkerAccess { mut device, port, pd, fabric } = access;
        let connected_receives = message_bytes.map_or(0, |_| CONNECTED_RECEIVES);
        let receive_mtu = message_bytes.unwrap_or_default();
        let connected_sends = CONNECTED_SENDS;
        let config = NetdevConfig {
            port,
            connected_receives,
            connected_sends,
            receive_mtu,
            ..NetdevConfig::default()
        };
        let netdev = Netdev::new(&mut *device, pd, config, &memory.small, &memory.large)?;
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
            awaiting_first_packet: BTreeSet::new(),
            attached: BTreeSet::new(),
            undone: BTreeMap::new(),
            broken: None,
            handles: AddressHandles::new(pd, HANDLES_MAX),
            retired: Vec::new(),
            link: None,
            connection_events: Vec::new(),
            punts: VecDeque::new(),
            filter: None,
            filtered: Vec::new(),
            leaving: VecDeque::new(),
            settled_by: None,
            waiting: VecDeque::new(),
            frames: VecDeque::new(),
            batch: Vec::new(),
            draft: None,
            refused: Vec::new(),
            counts: Counts::default(),
            forward_drops: ForwardDrops::default(),
            taps: CaptureTaps::new(Time::START),
            _memory: memory,
            _fabric: fabric,
            device,
        })
    }

    pub fn qpn(&self) -> Qpn {
        self.netdev.qpn()
    }

    /// Registers the UD queue pair of another worker of this interface. Its multicast packets are
    /// dropped as echoes.
    pub(super) fn add_sibling(&mut self, qpn: Qpn) {
        self.netdev.add_sibling(qpn);
    }

    pub fn netdev(&self) -> &Netdev {
        &self.netdev
    }

    pub fn connection_use(&self, connection: ConnectionKey) -> Option<ConnectionUse> {
        self.netdev.connection_use(self.connections.get(&connection)?.id)
    }

    pub fn is_idle(&self) -> bool {
        self.netdev.is_stopped()
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    pub fn undone(&self) -> impl Iterator<Item = (&Action, &VerbsError)> {
        self.undone.values().map(|(action, why)| (action, why))
    }

    pub(in crate::interface) fn is_destination(&self, address: IpAddr) -> bool {
        self.own.contains(address)
    }

    /// Polls the device. Returns whether there was anything to do.
    pub fn poll(&mut self, now: Time, arrived: &mut Arrived) -> Result<bool, VerbsError> {
        let mut busy = self.poll_device_events()?;
        let before = arrived.packets.len();
        busy |= self.netdev.poll(&mut *self.device, &self.own, &mut arrived.packets)? > 0;
        self.note_first_packets(&arrived.packets[before..]);
        self.tap_received(&arrived.packets[before..]);
        if self.filter.is_some() {
            self.filter(&mut arrived.packets, before);
        }
        while let Some(event) = self.netdev.poll_event() {
            self.handle_netdev_event(event);
            busy = true;
        }
        self.broken.take().map_or(Ok(()), Err)?;
        self.start_again()?;
        self.check_timeouts(now)?;
        self.flush();
        busy |= self.send_waiting() | self.send_frames();
        arrived.connection_events.append(&mut self.connection_events);
        Ok(busy)
    }

    pub(super) fn set_filter(&mut self, filter: Option<AclFilter>) {
        self.filter = filter;
    }

    /// Drops the packets from index `from` on that the access control list does not permit.
    /// Protocols of the link, such as ARP, are exempt.
    fn filter(&mut self, packets: &mut Vec<Received>, from: usize) {
        let Self { filter: Some(filter), filtered, forward_drops, netdev, taps, .. } = self else {
            return;
        };
        let refused = packets.extract_if(from.., |one| {
            let decide = || filter.decide(&one.headers, one.packet.bytes());
            match if one.verdict == Verdict::Punt { AclAction::Permit } else { decide() } {
                AclAction::Permit => return false,
                AclAction::Deny => {}
                AclAction::Reject if filtered.len() < FILTERED_MAX => {
                    filtered.push(one.packet.bytes().to_vec());
                }
                AclAction::Reject => {}
            }
            true
        });
        for received in refused {
            forward_drops.count(ForwardDrop::AclIn);
            taps.record(CaptureEvent::Dropped(ForwardDrop::AclIn.name()), received.packet.bytes());
            netdev.recycle(received.packet);
        }
    }

    /// Whether a packet is for this host. Other packets are counted as drops.
    pub fn is_for_us(&mut self, received: &Received) -> bool {
        let is_for_us = received.verdict != Verdict::Transit || is_by_group(received);
        if !is_for_us {
            self.counts.transit += 1;
            self.taps.record(CaptureEvent::Dropped(TRANSIT), received.packet.bytes());
        }
        is_for_us
    }

    /// The source of a packet for control; `None` if its connection is gone.
    pub(super) fn from(&self, received: &Received) -> Option<PacketSource> {
        Some(match received.from {
            RxSource::Datagram { qpn, lid, gid, group } => {
                PacketSource::Datagram { qpn, lid, gid, group }
            }
            RxSource::Connection(id) => PacketSource::Connection(self.key(id)?),
        })
    }

    /// Moves the packets in transit from index `from` on into `transit`. A packet to a group that
    /// also has listeners on this host is copied.
    pub(super) fn take_transit(
        &mut self,
        packets: &mut Vec<Received>,
        from: usize,
        transit: &mut Vec<TransitPacket>,
    ) {
        let is_transit = |one: &mut Received| {
            one.verdict == Verdict::Transit && (!is_by_group(one) || is_to_routed_group(one))
        };
        let taken = packets.extract_if(from.., is_transit);
        let taken = taken.map(|Received { packet, headers, .. }| TransitPacket { packet, headers });
        transit.extend(taken);
        for one in &packets[from..] {
            if one.verdict == Verdict::Local
                && is_to_routed_group(one)
                && let Some(packet) = self.copy(&one.packet)
            {
                transit.push(TransitPacket { packet, headers: one.headers });
            }
        }
    }

    /// Copies a packet in transit. The lack of a buffer is counted.
    pub(super) fn copy(&mut self, packet: &Buf) -> Option<Buf> {
        let copy = self.netdev.copy(packet);
        if copy.is_none() {
            self.forward_drops.count(ForwardDrop::NoBuffer);
        }
        copy
    }

    pub fn recycle(&mut self, received: Received) {
        self.netdev.recycle(received.packet);
    }

    /// The key by which control knows a connection; `None` once the connection has ended.
    pub fn key(&self, connection: ConnectionId) -> Option<ConnectionKey> {
        self.netdev.peering(connection).map(|peering| ConnectionKey(peering.key))
    }

    fn netdev_link(link: &LinkProperties) -> pollux_dataplane::ipoib::LinkAttributes {
        let LinkProperties { pkey_index, qkey, lid, lmc, gid, .. } = *link;
        pollux_dataplane::ipoib::LinkAttributes { pkey_index, qkey, lid, lmc, gid }
    }

    /// Starts the netdev if it has stopped although it has a link.
    fn start_again(&mut self) -> Result<(), VerbsError> {
        match &self.link {
            Some(link) if self.netdev.is_stopped() => {
                self.netdev.start(&mut *self.device, Self::netdev_link(link))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for PortDriver {
    /// Closes everything, so that the device writes to no buffer any more. Errors are ignored: the
    /// memory of buffers that the device keeps is not reused.
    fn drop(&mut self) {
        let qp = self.netdev.datagram_qp();
        for (mgid, mlid) in std::mem::take(&mut self.attached) {
            let _ = self.device.detach_multicast(qp, mgid, mlid);
        }
        let _ = self.netdev.close(&mut *self.device);
    }
}
