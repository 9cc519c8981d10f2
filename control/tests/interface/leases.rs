//! An interface that asks a DHCP server for its address, and a server of few words at another.

use crate::world::{World, packet, v4};
use pollux_fabric::sm::SmConfig;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::dhcp::{
    DhcpHeader, DhcpKind, DhcpMessage, DhcpOp, DhcpOption, DhcpOptionCode as Code,
};
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Packet};
use pollux_wire::ip::list::List;
use pollux_wire::ip::udp::{self, UdpDatagram, UdpHeader};
use pollux_wire::mad::smp::PortState;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);
const LEASE_SECONDS: u32 = 3600;

/// A world whose first host has the server, and whose second asks it.
struct Leasing {
    world: World,
    /// What the server gives next.
    gives: Ipv4Addr,
    answers: bool,
    heard: Vec<Heard>,
}

/// A message of the client, and how it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Heard {
    kind: DhcpKind,
    header: DhcpHeader,
    source: Ipv4Addr,
    destination: Ipv4Addr,
    id_bytes: usize,
}

fn host(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, number)
}

impl Leasing {
    fn new(seed: u64) -> Self {
        let world = World::with(seed, 3, SmConfig::default(), |mut config, nth| {
            if nth == 1 {
                config.addresses.clear();
                config.dhcp = true;
            }
            config
        });
        Self { world, gives: host(42), answers: true, heard: Vec::new() }
    }

    /// The same once the client has its address.
    fn bound(seed: u64) -> Self {
        let mut leasing = Self::new(seed);
        leasing.pass(20 * SECOND);
        assert_eq!(leasing.state(), "bound");
        leasing
    }

    fn state(&self) -> &'static str {
        self.world.hosts[1].interface.lease_row().expect("it asks for one").state
    }

    fn has(&self, ip: Ipv4Addr) -> bool {
        self.world.hosts[1].port_driver.own.contains(&IpAddr::V4(ip))
    }

    fn kinds(&self) -> Vec<DhcpKind> {
        self.heard.iter().map(|heard| heard.kind).collect()
    }

    /// Advances the time, and the server answers.
    fn pass(&mut self, time: Duration) {
        let until = self.world.now + time;
        while self.world.now < until {
            self.world.pass(SECOND / 5);
            self.serve();
        }
    }

    fn serve(&mut self) {
        for bytes in std::mem::take(&mut self.world.hosts[0].got) {
            let packet = Ipv4Packet::parse(&bytes).unwrap();
            let Ok(datagram) = UdpDatagram::parse(packet.payload()) else { continue };
            if datagram.header().destination_port != 67 {
                continue;
            }
            let asked = DhcpMessage::parse(datagram.payload()).unwrap();
            let &[kind] = asked.option(Code::MESSAGE_TYPE).unwrap() else { panic!("{asked:?}") };
            let Ipv4Header { source, destination, .. } = packet.header();
            let id_bytes = asked.option(Code::CLIENT_IDENTIFIER).map_or(0, <[u8]>::len);
            let (kind, header) = (DhcpKind(kind), asked.header);
            self.heard.push(Heard { kind, header, source, destination, id_bytes });
            let answer = match kind {
                DhcpKind::DISCOVER => DhcpKind::OFFER,
                DhcpKind::REQUEST => DhcpKind::ACK,
                _ => continue,
            };
            if self.answers {
                let yours = if source.is_unspecified() { self.gives } else { source };
                let answer = self.answer(&asked, answer, yours);
                self.world.send(0, answer);
            }
        }
    }

    /// By broadcast to a client without an address, else by unicast.
    fn answer(&self, asked: &DhcpMessage<'_>, kind: DhcpKind, yours: Ipv4Addr) -> Vec<u8> {
        let (server, router) = (SERVER.octets(), ROUTER.octets());
        let options = [
            (Code::MESSAGE_TYPE, &[kind.0][..]),
            (Code::SERVER_IDENTIFIER, &server[..]),
            (Code::LEASE_TIME, &LEASE_SECONDS.to_be_bytes()[..]),
            (Code::SUBNET_MASK, &[255, 255, 255, 0][..]),
            (Code::ROUTER, &router[..]),
        ];
        let options = options.map(|(code, data)| DhcpOption { code, data });
        let xid = asked.header.xid;
        let header = DhcpHeader {
            op: DhcpOp::REPLY,
            hardware_type: DhcpHeader::INFINIBAND,
            xid,
            yours,
            ..DhcpHeader::default()
        };
        let message = DhcpMessage::new(header, List::of(&options));
        let destination = if asked.header.broadcast { Ipv4Addr::BROADCAST } else { yours };
        let ip = Ipv4Header {
            ttl: 64,
            protocol: IpProtocol::UDP,
            source: SERVER,
            destination,
            ..Ipv4Header::default()
        };
        let ports = UdpHeader { source_port: 67, destination_port: 68, ..UdpHeader::default() };
        let mut payload = vec![0; UdpHeader::LEN + message.wire_len()];
        let room = ports.write_datagram(message.wire_len(), &mut payload).unwrap();
        message.write(room).unwrap();
        udp::fill_checksum(&mut payload, &ip.pseudo_header()).unwrap();
        let mut packet = vec![0; Ipv4Header::LEN + payload.len()];
        ip.write_packet(&[], payload.len(), &mut packet).unwrap().copy_from_slice(&payload);
        packet
    }
}

#[test]
fn an_interface_gets_keeps_and_gives_back_an_address() {
    let mut leasing = Leasing::bound(41);
    assert_eq!(leasing.kinds(), [DhcpKind::DISCOVER, DhcpKind::REQUEST]);
    for heard in &leasing.heard {
        let header = &heard.header;
        assert_eq!((header.hardware_type, header.hardware_len), (32, 0), "RFC 4390 2.1");
        assert!(header.broadcast && heard.id_bytes > 0 && heard.source.is_unspecified());
        assert_eq!(heard.destination, Ipv4Addr::BROADCAST);
    }
    assert!(leasing.has(host(42)));
    let world = &mut leasing.world;
    assert!(world.reaches(0, 1, &packet(v4(1), v4(42), b"to whom it was given"), SECOND));
    let beyond = Ipv4Addr::new(192, 0, 2, 1).into();
    let hop = world.hosts[1].interface.next_hop(world.now, beyond).map(|hop| hop.ip());
    assert_eq!(hop, Some(ROUTER.into()));
    assert!(world.hosts[1].got.iter().all(|got| got[0] >> 4 != 4 || got[9] != 17 || got[23] != 68));

    leasing.heard.clear();
    leasing.pass(Duration::from_secs(u64::from(LEASE_SECONDS)));
    assert_eq!((leasing.state(), leasing.has(host(42))), ("bound", true));
    let renewed = leasing.heard[0];
    assert_eq!((renewed.kind, renewed.source), (DhcpKind::REQUEST, host(42)));
    assert_eq!((renewed.destination, renewed.header.broadcast), (SERVER, false));
    assert_eq!(renewed.header.client, host(42));

    leasing.heard.clear();
    let now = leasing.world.now;
    leasing.world.hosts[1].interface.release(now);
    leasing.world.settle();
    leasing.world.hosts[1].interface.set_open(now, false);
    leasing.world.settle();
    leasing.serve();
    assert_eq!(leasing.kinds(), [DhcpKind::RELEASE]);
    assert_eq!(leasing.heard[0].destination, SERVER);
    assert_eq!((leasing.state(), leasing.has(host(42))), ("stopped", false));
    leasing.world.hosts[1].interface.set_open(now, true);
    leasing.pass(20 * SECOND);
    assert_eq!((leasing.state(), leasing.has(host(42))), ("bound", true), "and asks again");
}

#[test]
fn an_address_ends_with_its_lease() {
    let mut leasing = Leasing::bound(42);
    leasing.answers = false;
    leasing.pass(Duration::from_secs(u64::from(LEASE_SECONDS) - 60));
    assert_eq!((leasing.state(), leasing.has(host(42))), ("rebinding", true));
    leasing.pass(120 * SECOND);
    assert_eq!((leasing.state(), leasing.has(host(42))), ("selecting", false));
    let interface = &leasing.world.hosts[1].interface;
    let beyond = Ipv4Addr::new(192, 0, 2, 1).into();
    assert_eq!(interface.next_hop(leasing.world.now, beyond), None, "nor is there a router");
    leasing.answers = true;
    leasing.pass(120 * SECOND);
    assert_eq!((leasing.state(), leasing.has(host(42))), ("bound", true));
}

#[test]
fn an_address_that_was_only_being_checked_is_not_kept() {
    let mut leasing = Leasing::new(45);
    while leasing.world.hosts[1].interface.lease_row().is_none_or(|row| row.state != "checking") {
        leasing.pass(SECOND / 5);
    }
    let now = leasing.world.now;
    leasing.world.hosts[1].interface.release(now);
    leasing.pass(20 * SECOND);
    assert_eq!((leasing.state(), leasing.has(host(42))), ("stopped", false));
}

#[test]
fn an_address_in_use_is_declined() {
    let mut leasing = Leasing::new(43);
    leasing.gives = host(3);
    leasing.pass(8 * SECOND);
    assert!(leasing.kinds().contains(&DhcpKind::DECLINE), "{:?}", leasing.kinds());
    assert!(!leasing.has(host(3)));
    leasing.gives = host(42);
    leasing.pass(60 * SECOND);
    assert_eq!((leasing.state(), leasing.has(host(42))), ("bound", true));
}

#[test]
fn an_address_is_confirmed_after_the_link_was_away() {
    let mut leasing = Leasing::bound(44);
    leasing.heard.clear();
    leasing.world.seen = |nth, mut view| {
        if nth == 1 {
            view.state = PortState::DOWN;
        }
        view
    };
    leasing.pass(5 * SECOND);
    assert!(!leasing.has(host(42)));
    leasing.world.seen = |_, view| view;
    leasing.pass(20 * SECOND);
    assert_eq!((leasing.state(), leasing.has(host(42))), ("bound", true));
    assert_eq!(leasing.kinds(), [DhcpKind::REQUEST], "no new search");
    assert_eq!(leasing.heard[0].destination, Ipv4Addr::BROADCAST, "any server may know better");
}
