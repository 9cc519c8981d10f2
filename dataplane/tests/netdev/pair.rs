//! Two hosts on a link, each with a netdev, and packets that all differ.

use crate::pair_world::{World, WorldLink};
use pollux_dataplane::ipoib::{
    self, ConnectionId, Netdev, NetdevConfig, NetdevEvent, Outgoing, Received, Refused,
};
use pollux_dataplane::neighbor::{Connected, DatagramRoute, Route};
use pollux_dataplane::packet_memory::PacketMemory;
use pollux_dataplane::verdict::Destinations;
use pollux_fabric::link::Link;
use pollux_fabric::link::Wire;
use pollux_fabric::{Adapter, Port, SoftDevice};
use pollux_mem::Buf;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::*;
use pollux_wire::address::{Gid, Guid, Lid, Qpn};
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::keys::QKey;
use pollux_wire::packet::RnrTimer;
use pollux_wire::psn::Psn;
use pollux_wire::units::{Mtu, TimeCode};
use std::time::Duration;

/// As OpenSM chooses it.
pub const QKEY: QKey = QKey(0x0b1b);
/// The key of connections at control.
pub const KEY: u64 = 0x1234_5678_9abc_def0;
/// Of datagrams, on a link of 2,048 bytes.
pub const UD_MTU: u32 = 2044;
/// Of connections.
pub const CM_MTU: u32 = 65_520;

pub struct Host<L: Link = WorldLink> {
    pub device: SoftDevice<L>,
    pub netdev: Netdev,
    pub small: PacketMemory,
    pub large: PacketMemory,
    pub link: ipoib::LinkAttributes,
    pub pd: Pd,
    /// To the other host.
    pub ah: Ah,
    pub peer: LinkAddress,
    pub received: Vec<Received>,
    pub refused: Vec<Refused>,
    pub events: Vec<NetdevEvent>,
}

pub struct Pair {
    pub world: World,
    pub hosts: [Host; 2],
}

/// The configuration of both hosts.
#[derive(Clone, Copy)]
pub struct Setup {
    pub wire: Wire,
    pub config: NetdevConfig,
    /// Buffers of each host.
    pub small: [u32; 2],
    pub large: [u32; 2],
}

impl Default for Setup {
    fn default() -> Self {
        let config = NetdevConfig { connected_receives: 64, ..NetdevConfig::default() };
        Self { wire: Wire::default(), config, small: [512; 2], large: [256; 2] }
    }
}

impl Setup {
    pub fn lossy(per_million: u32) -> Self {
        let mut setup = Self::default();
        setup.wire.faults.loss = per_million;
        setup.wire.faults.delay_max = Duration::from_micros(50);
        setup
    }
}

impl Pair {
    pub fn new(seed: u64, setup: Setup) -> Self {
        let (world, [link_a, link_b]) = World::new(seed, setup.wire);
        let device = |link, lid| {
            let mut port = Port::active(Lid(lid), Guid(lid.into()));
            port.mtu = Mtu::BYTES_2048;
            SoftDevice::new("soft", Adapter::new(port), link)
        };
        let sizes = |nth: usize| (setup.small[nth], setup.large[nth]);
        let mut hosts = [
            Host::new(device(link_a, 1), 2, setup.config, sizes(0)),
            Host::new(device(link_b, 2), 1, setup.config, sizes(1)),
        ];
        let qpns = [0, 1].map(|i: usize| hosts[i].netdev.qpn());
        for (i, host) in hosts.iter_mut().enumerate() {
            let gid = gid(2 - i as u16);
            host.peer = LinkAddress { rc: true, uc: true, qpn: qpns[1 - i], gid };
        }
        Self { world, hosts }
    }

    /// Polls both hosts and advances the time. Returns whether anything is pending.
    pub fn step(&mut self) -> bool {
        for host in &mut self.hosts {
            host.turn();
        }
        self.world.step()
    }

    /// Steps until nothing is pending, and ten times more for work of several turns.
    pub fn step_until_idle(&mut self) {
        let mut quiet = 0;
        for _ in 0..1_000_000 {
            quiet = if self.step() { 0 } else { quiet + 1 };
            if quiet == 10 {
                return;
            }
        }
        panic!("it does not become idle");
    }

    /// A connection, ready at both ends.
    pub fn connect(&mut self, qp_type: QpType) -> [ConnectionId; 2] {
        self.connect_with(qp_type, Retries::SEVEN)
    }

    pub fn connect_with(&mut self, qp_type: QpType, retries: Retries) -> [ConnectionId; 2] {
        let ids = [0, 1].map(|i: usize| {
            let host = &mut self.hosts[i];
            host.netdev.connect(&mut host.device, KEY, qp_type).unwrap()
        });
        let qpns = [0, 1].map(|i: usize| self.hosts[i].netdev.peering(ids[i]).unwrap().qpn);
        for (i, host) in self.hosts.iter_mut().enumerate() {
            for change in attributes(qp_type, qpns[1 - i], 2 - i as u16, retries) {
                host.netdev.modify_connection(&mut host.device, ids[i], &change).unwrap();
            }
        }
        ids
    }

    /// Closes all; every buffer must be back.
    pub fn close(self) {
        for host in self.hosts {
            host.close();
        }
    }
}

pub fn gid(lid: u16) -> Gid {
    Gid::new(Gid::DEFAULT_PREFIX, Guid(lid.into()))
}

pub fn path(lid: u16) -> AddressVector {
    AddressVector::to_lid(Lid(lid), 1)
}

/// The change of a connected queue pair to INIT.
pub fn to_init() -> QpAttributes {
    QpAttributes {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        access: Some(Access::NONE),
        ..QpAttributes::default()
    }
}

fn attributes(qp_type: QpType, peer: Qpn, lid: u16, retries: Retries) -> [QpAttributes; 3] {
    let rc = qp_type == QpType::Rc;
    let to = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
    let rtr = QpAttributes {
        path: Some(path(lid)),
        path_mtu: Some(Mtu::BYTES_2048),
        dest_qp: Some(peer),
        rq_psn: Some(Psn::new(0xff_fff0)),
        responder_resources: rc.then_some(0),
        min_rnr_timer: rc.then_some(RnrTimer(1)),
        ..to(QpState::Rtr)
    };
    let rts = QpAttributes {
        sq_psn: Some(Psn::new(0xff_fff0)),
        timeout: rc.then_some(TimeCode(8)),
        retry_count: rc.then_some(retries),
        rnr_retry: rc.then_some(Retries::SEVEN),
        initiator_depth: rc.then_some(0),
        ..to(QpState::Rts)
    };
    [to_init(), rtr, rts]
}

impl<L: Link> Host<L> {
    /// A started netdev with this many buffers of each memory, and a path to another port.
    pub fn new(
        mut device: SoftDevice<L>,
        peer_lid: u16,
        config: NetdevConfig,
        (small, large): (u32, u32),
    ) -> Self {
        let pd = device.create_pd().unwrap();
        let port = device.port(1).unwrap();
        let small = PacketMemory::new(small, port.mtu_max.bytes().unwrap() as u32 - 4).unwrap();
        let large = PacketMemory::new(large, CM_MTU).unwrap();
        let mut netdev = Netdev::new(&mut device, pd, config, &small, &large).unwrap();
        let gid = device.gid(1, 0).unwrap();
        let link =
            ipoib::LinkAttributes { pkey_index: 0, qkey: QKEY, lid: port.lid, lmc: port.lmc, gid };
        netdev.start(&mut device, link).unwrap();
        let ah = device.create_ah(pd, &path(peer_lid)).unwrap();
        let (received, refused, events) = Default::default();
        let peer = LinkAddress::default();
        Self { device, netdev, small, large, link, pd, ah, peer, received, refused, events }
    }

    /// Closes the netdev; every buffer must be back.
    pub fn close(self) {
        let Self { mut device, mut netdev, small, large, received, refused, .. } = self;
        netdev.close(&mut device).unwrap();
        drop((netdev, received, refused));
        assert_eq!((small.pool().outstanding(), large.pool().outstanding()), (0, 0));
    }

    /// Polls once, and handles the events of the device.
    pub fn turn(&mut self) {
        // Through a table of functions, which a caller may prefer to code for each device.
        let device: &mut dyn Device = &mut self.device;
        self.netdev.poll(device, &Destinations::new(), &mut self.received).unwrap();
        while let Some(event) = self.device.async_event() {
            self.netdev.handle_event(&event);
        }
        self.events.extend(std::iter::from_fn(|| self.netdev.poll_event()));
    }

    /// By datagram to the other host.
    pub fn datagram(&self) -> Route {
        Route::Datagram(self.datagram_route())
    }

    pub fn datagram_route(&self) -> DatagramRoute {
        DatagramRoute { ah: self.ah, qpn: self.peer.qpn, mtu: UD_MTU }
    }

    /// By this connection.
    pub fn connected(&self, connection: ConnectionId) -> Route {
        let fallback = Some(self.datagram_route());
        Route::Connected(Connected { connection, mtu: CM_MTU, fallback })
    }

    /// To a group.
    pub fn group(&mut self, mgid: Gid, mlid: Lid) -> Route {
        let grh = Some(GlobalRoute::to(mgid, 1));
        let path = AddressVector { grh, ..path(mlid.0) };
        let ah = self.device.create_ah(self.pd, &path).unwrap();
        Route::Datagram(DatagramRoute { ah, qpn: Qpn::MULTICAST, mtu: UD_MTU })
    }

    /// A packet of these bytes, in a buffer of the memory that it fits.
    pub fn packet(&self, bytes: &[u8]) -> Buf {
        let memory = if bytes.len() <= UD_MTU as usize { &self.small } else { &self.large };
        let mut buf = memory.pool().alloc().expect("a test allocates fewer");
        buf.push_back(bytes.len()).unwrap().copy_from_slice(bytes);
        buf
    }

    /// Sends packets by one route.
    pub fn send(&mut self, route: Route, packets: impl IntoIterator<Item = Vec<u8>>) {
        let outgoing = |bytes: Vec<u8>| Outgoing {
            packet: self.packet(&bytes),
            ether_type: ether_type(&bytes),
            route,
        };
        let mut batch: Vec<_> = packets.into_iter().map(outgoing).collect();
        self.netdev.send(&mut self.device, &mut batch, &mut self.refused);
        assert!(batch.is_empty());
    }

    /// The received packets, in order.
    pub fn bytes(&mut self) -> Vec<Vec<u8>> {
        let bytes = |received: Received| received.packet.bytes().to_vec();
        std::mem::take(&mut self.received).into_iter().map(bytes).collect()
    }
}

/// The EtherType of a packet of [`packet`].
pub fn ether_type(bytes: &[u8]) -> EtherType {
    if bytes[0] >> 4 == 4 { EtherType::IPV4 } else { EtherType::IPV6 }
}

/// Pseudo-random bytes of a seed.
pub fn random_bytes(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = SeededRng::new(seed);
    (0..bytes).map(|_| rng.next_u64() as u8).collect()
}

/// A packet of this version and length, header included; it differs from all others.
pub fn packet(version: u8, bytes: usize, nth: u64) -> Vec<u8> {
    let mut packet = random_bytes(nth + 1, bytes);
    if version == 4 {
        let header = Ipv4Header { ttl: 64, protocol: IpProtocol(253), ..Ipv4Header::default() };
        header.write_packet(&[], bytes - Ipv4Header::LEN, &mut packet).unwrap();
    } else {
        packet[..40].fill(0);
        packet[0] = 0x60;
        packet[4..6].copy_from_slice(&((bytes - 40) as u16).to_be_bytes());
        packet[6..8].copy_from_slice(&[59, 64]);
    }
    packet
}
