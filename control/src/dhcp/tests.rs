//! Tests of a client against a minimal server.

mod states;

use super::*;
use crate::frame::LinkFrame;
use crate::output::FRAMES_MAX;
use pollux_wire::address::Guid;
use pollux_wire::ip::dhcp::DhcpOption;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::list::List;
use pollux_wire::ip::udp::{self, UdpHeader};
use pollux_wire::keys::PKey;
use proptest::prelude::*;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);
const GIVEN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 42);
const LEASE_SECONDS: u32 = 3600;

fn at(seconds: u64) -> Time {
    Time::START + Duration::from_secs(seconds)
}

fn client() -> Dhcp {
    Dhcp::new(&client_id(Guid(0x0002_c903_0000_1001), PKey(0x8001)), 1)
}

/// A message of the client, with its time and addresses.
#[derive(Debug)]
struct Said {
    at: Time,
    to: To<NoLink>,
    source: Ipv4Addr,
    destination: Ipv4Addr,
    payload: Vec<u8>,
}

impl Said {
    fn message(&self) -> DhcpMessage<'_> {
        DhcpMessage::parse(&self.payload).unwrap()
    }

    fn kind(&self) -> DhcpKind {
        let &[kind] = self.message().option(DhcpOptionCode::MESSAGE_TYPE).unwrap() else {
            panic!("{self:?}");
        };
        DhcpKind(kind)
    }

    fn has(&self, code: DhcpOptionCode) -> bool {
        self.message().option(code).is_some()
    }
}

fn sent(client: &mut Dhcp, at: Time) -> Vec<Said> {
    let frames = std::iter::from_fn(|| client.poll_transmit());
    let parsed = frames.map(|frame| {
        let packet = Ipv4Packet::parse(&frame.packet).unwrap();
        let header = packet.header();
        let datagram = UdpDatagram::parse(packet.payload()).unwrap();
        assert!(packet.checksum_ok() && datagram.checksum_ok(&header.pseudo_header()));
        assert_eq!(datagram.header().destination_port, 67);
        let payload = datagram.payload().to_vec();
        let (source, destination) = (header.source, header.destination);
        Said { at, to: frame.to, source, destination, payload }
    });
    parsed.collect()
}

/// Handles timeouts until the client sends a message.
fn next(client: &mut Dhcp) -> Said {
    loop {
        let due = client.poll_timeout().expect("it has something to do");
        client.handle_timeout(due);
        if let Some(said) = sent(client, due).pop() {
            return said;
        }
    }
}

fn events(client: &mut Dhcp) -> Vec<DhcpEvent> {
    std::iter::from_fn(|| client.poll_event()).collect()
}

/// A server's answer to `asked`.
fn reply(asked: &Said, kind: DhcpKind, yours: Ipv4Addr, server: Ipv4Addr) -> Vec<u8> {
    let id = asked.message().option(DhcpOptionCode::CLIENT_IDENTIFIER).unwrap();
    let options = [
        (DhcpOptionCode::MESSAGE_TYPE, &[kind.0][..]),
        (DhcpOptionCode::SERVER_IDENTIFIER, &server.octets()[..]),
        (DhcpOptionCode::LEASE_TIME, &LEASE_SECONDS.to_be_bytes()[..]),
        (DhcpOptionCode::SUBNET_MASK, &[255, 255, 252, 0][..]),
        (DhcpOptionCode::ROUTER, &[10, 0, 0, 1, 10, 0, 0, 2][..]),
        (DhcpOptionCode::INTERFACE_MTU, &[0x07, 0xfc][..]),
        (DhcpOptionCode::CLIENT_IDENTIFIER, id),
    ];
    let options = options.map(|(code, data)| DhcpOption { code, data });
    let header = DhcpHeader {
        op: DhcpOp::REPLY,
        hardware_type: DhcpHeader::INFINIBAND,
        xid: asked.message().header.xid,
        yours,
        ..DhcpHeader::default()
    };
    packet(&DhcpMessage::new(header, List::of(&options)))
}

fn packet(message: &DhcpMessage<'_>) -> Vec<u8> {
    let ip = Ipv4Header {
        ttl: 64,
        protocol: IpProtocol::UDP,
        source: SERVER,
        destination: Ipv4Addr::BROADCAST,
        ..Ipv4Header::default()
    };
    let ports = UdpHeader { source_port: 67, destination_port: 68, ..UdpHeader::default() };
    let mut payload = vec![0; UdpHeader::LEN + message.wire_len()];
    let room = ports.write_datagram(message.wire_len(), &mut payload).unwrap();
    message.write(room).unwrap();
    udp::fill_checksum(&mut payload, &ip.pseudo_header()).unwrap();
    LinkFrame::ipv4(To::<NoLink>::Route, &ip, &[], &payload).unwrap().packet
}

/// A client with a checked address, and the time of the ACK.
fn bound() -> (Dhcp, Time) {
    let mut client = client();
    client.start(at(0));
    let discover = next(&mut client);
    client.handle_packet(discover.at, &reply(&discover, DhcpKind::OFFER, GIVEN, SERVER));
    let request = sent(&mut client, discover.at).pop().unwrap();
    client.handle_packet(request.at, &reply(&request, DhcpKind::ACK, GIVEN, SERVER));
    assert_eq!(events(&mut client), [DhcpEvent::Check(GIVEN)]);
    client.handle_free(request.at, GIVEN);
    (client, request.at)
}

#[test]
fn an_address_is_got_without_a_hardware_address() {
    let mut client = client();
    client.start(at(0));
    let discover = next(&mut client);
    assert_eq!((discover.kind(), discover.to), (DhcpKind::DISCOVER, BROADCAST));
    assert_eq!(
        (discover.source, discover.destination),
        (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST)
    );
    let header = discover.message().header;
    assert_eq!((header.hardware_type, header.hardware_len, header.hardware), (32, 0, [0; 16]));
    assert!(header.broadcast);
    let id = [255, 0, 0, 0x80, 1, 0, 3, 0, 32, 0, 2, 0xc9, 3, 0, 0, 0x10, 1];
    assert_eq!(discover.message().option(DhcpOptionCode::CLIENT_IDENTIFIER), Some(&id[..]));
    client.handle_packet(at(1), &reply(&discover, DhcpKind::OFFER, GIVEN, SERVER));
    let request = sent(&mut client, at(1)).pop().unwrap();
    let says = |code| request.message().option(code).map(<[u8]>::to_vec);
    assert_eq!((request.kind(), request.to), (DhcpKind::REQUEST, BROADCAST));
    assert_eq!(says(DhcpOptionCode::REQUESTED_ADDRESS), Some(GIVEN.octets().to_vec()));
    assert_eq!(says(DhcpOptionCode::SERVER_IDENTIFIER), Some(SERVER.octets().to_vec()));
    client.handle_packet(at(2), &reply(&request, DhcpKind::ACK, GIVEN, SERVER));
    assert_eq!(client.lease(), None, "not before it is checked");
    client.handle_free(at(9), GIVEN);
    let [DhcpEvent::Check(GIVEN), DhcpEvent::Bound(lease)] = &events(&mut client)[..] else {
        panic!();
    };
    assert_eq!((lease.ip, lease.prefix_len, lease.mtu), (GIVEN, 22, Some(2044)));
    assert_eq!(lease.routers, [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)]);
    assert_eq!((lease.renew_at, lease.rebind_at), (Some(at(1802)), Some(at(3152))));
    assert_eq!((lease.expires_at, client.lease()), (Some(at(3602)), Some(lease)));
}

#[test]
fn a_lease_is_renewed_then_rebound_then_over() {
    let (mut client, got) = bound();
    events(&mut client);
    let mut said = Vec::new();
    while client.lease().is_some() {
        let due = client.poll_timeout().unwrap();
        client.handle_timeout(due);
        said.extend(sent(&mut client, due));
    }
    assert_eq!(events(&mut client), [DhcpEvent::Lost(GIVEN)]);
    let (renewing, rebinding): (Vec<_>, Vec<_>) = said
        .iter()
        .filter(|said| said.kind() == DhcpKind::REQUEST)
        .partition(|said| said.to == To::Route);
    assert_eq!(renewing[0].at, got + Duration::from_secs(1800));
    assert!(renewing.iter().all(|said| said.destination == SERVER && said.source == GIVEN));
    assert_eq!(rebinding[0].at, got + Duration::from_secs(3150));
    assert!(rebinding.iter().all(|said| said.destination == Ipv4Addr::BROADCAST));
    let all = || renewing.iter().chain(&rebinding);
    assert!(all().all(|said| said.message().header.client == GIVEN));
    let forbidden = [DhcpOptionCode::REQUESTED_ADDRESS, DhcpOptionCode::SERVER_IDENTIFIER];
    assert!(all().all(|said| forbidden.iter().all(|&code| !said.has(code))), "RFC 2131 4.3.6");
    let times: Vec<Time> = all().map(|said| said.at).collect();
    let apart = |pair: &[Time]| pair[1] >= pair[0] + Duration::from_secs(60);
    assert!(times.windows(2).filter(|pair| pair[1] < got + Duration::from_secs(3150)).all(apart));
}

#[test]
fn an_answer_prolongs_the_lease_and_a_refusal_ends_it() {
    let (mut client, _) = bound();
    events(&mut client);
    let renewal = next(&mut client);
    client.handle_packet(renewal.at, &reply(&renewal, DhcpKind::ACK, GIVEN, SERVER));
    let [DhcpEvent::Bound(lease)] = &events(&mut client)[..] else { panic!() };
    assert_eq!(lease.expires_at, Some(renewal.at + Duration::from_secs(3600)));
    let renewal = next(&mut client);
    let other = Ipv4Addr::new(10, 0, 0, 253);
    client.handle_packet(renewal.at, &reply(&renewal, DhcpKind::NAK, GIVEN, other));
    assert_eq!(client.drops().of(DhcpDrop::OtherServer), 1, "not its to refuse");
    client.handle_packet(renewal.at, &reply(&renewal, DhcpKind::NAK, GIVEN, SERVER));
    assert_eq!(events(&mut client), [DhcpEvent::Lost(GIVEN)]);
    assert_eq!(next(&mut client).kind(), DhcpKind::DISCOVER);
}

#[test]
fn an_address_that_is_taken_is_declined() {
    for held in [false, true] {
        let (mut client, got) = bound();
        if !held {
            client = self::client();
            client.start(at(0));
            let discover = next(&mut client);
            client.handle_packet(discover.at, &reply(&discover, DhcpKind::OFFER, GIVEN, SERVER));
            let request = sent(&mut client, discover.at).pop().unwrap();
            client.handle_packet(request.at, &reply(&request, DhcpKind::ACK, GIVEN, SERVER));
        }
        events(&mut client);
        client.handle_taken(got, GIVEN);
        let decline = sent(&mut client, got).pop().unwrap();
        assert_eq!((decline.kind(), decline.to), (DhcpKind::DECLINE, BROADCAST));
        assert_eq!(decline.message().header.client, Ipv4Addr::UNSPECIFIED);
        assert!(decline.has(DhcpOptionCode::REQUESTED_ADDRESS));
        assert!(decline.has(DhcpOptionCode::SERVER_IDENTIFIER));
        assert_eq!(events(&mut client).contains(&DhcpEvent::Lost(GIVEN)), held);
        let again = next(&mut client);
        assert_eq!((again.kind(), again.at), (DhcpKind::DISCOVER, got + DECLINE_WAIT));
    }
}

#[test]
fn silence_is_asked_again_more_and_more_slowly() {
    let mut client = client();
    client.start(at(0));
    let times: Vec<Time> = (0..9).map(|_| next(&mut client).at).collect();
    let waits = times.windows(2).map(|pair| (pair[1].nanos() - pair[0].nanos()) / 1_000_000);
    for (wait_ms, expected) in waits.zip([4, 8, 16, 32, 64, 64, 64, 64]) {
        assert!(wait_ms.abs_diff(expected * 1000) <= 1000, "{wait_ms} where {expected} s belong");
    }
    // A server that sends an offer and no ACK.
    let discover = next(&mut client);
    client.handle_packet(discover.at, &reply(&discover, DhcpKind::OFFER, GIVEN, SERVER));
    sent(&mut client, discover.at);
    let said: Vec<DhcpKind> = (0..4).map(|_| next(&mut client).kind()).collect();
    assert_eq!(said, [DhcpKind::REQUEST, DhcpKind::REQUEST, DhcpKind::REQUEST, DhcpKind::DISCOVER]);
}

#[test]
fn stopping_gives_the_address_back() {
    let (mut client, got) = bound();
    events(&mut client);
    client.stop(got);
    let release = sent(&mut client, got).pop().unwrap();
    assert_eq!(
        (release.kind(), release.to, release.destination),
        (DhcpKind::RELEASE, BROADCAST, SERVER)
    );
    assert_eq!(release.message().header.client, GIVEN);
    assert!(release.has(DhcpOptionCode::SERVER_IDENTIFIER));
    assert_eq!(events(&mut client), [DhcpEvent::Lost(GIVEN)]);
    assert_eq!((client.poll_timeout(), client.state().0), (None, &DhcpState::Stopped));
}

#[test]
fn messages_for_others_and_malformed_ones_are_dropped() {
    let mut client = client();
    client.start(at(0));
    let discover = next(&mut client);
    let good = reply(&discover, DhcpKind::OFFER, GIVEN, SERVER);
    let mut other = self::client();
    other.rng = SeededRng::new(2);
    other.start(at(0));
    let strange = next(&mut other);
    client.handle_packet(at(1), &reply(&strange, DhcpKind::OFFER, GIVEN, SERVER));
    assert_eq!(client.drops().of(DhcpDrop::NotForUs), 1, "another exchange");
    client.handle_packet(at(1), &reply(&discover, DhcpKind::ACK, GIVEN, SERVER));
    assert_eq!(client.drops().of(DhcpDrop::Unexpected), 1, "before it was requested");
    client.handle_packet(at(1), &reply(&discover, DhcpKind::OFFER, Ipv4Addr::UNSPECIFIED, SERVER));
    assert_eq!(client.drops().of(DhcpDrop::BadOption), 1, "no address");
    let mut broken = good.clone();
    *broken.last_mut().unwrap() ^= 1;
    client.handle_packet(at(1), &broken);
    assert_eq!(client.drops().of(DhcpDrop::Checksum), 1);
    client.handle_packet(at(1), &good);
    let request = sent(&mut client, at(1)).pop().unwrap();
    let server = Ipv4Addr::new(10, 0, 0, 253);
    client.handle_packet(at(1), &reply(&request, DhcpKind::ACK, GIVEN, server));
    assert_eq!(client.drops().of(DhcpDrop::OtherServer), 1);
    assert!(matches!(client.state().0, DhcpState::Requesting { .. }));
}

proptest! {
    /// For any answers of a server in any state, timers advance and queues stay bounded.
    #[test]
    fn a_hostile_server_cannot_stop_time(
        all in proptest::collection::vec(
            (1u8..9, any::<u32>(), any::<[u32; 3]>(), 0u64..4000, any::<bool>()), 0..60,
        ),
    ) {
        let mut client = client();
        client.start(at(0));
        let mut now = at(0);
        for (kind, yours, [lease, renew, rebind], wait, free) in all {
            let options = [
                (DhcpOptionCode::MESSAGE_TYPE, vec![kind]),
                (DhcpOptionCode::SERVER_IDENTIFIER, SERVER.octets().to_vec()),
                (DhcpOptionCode::LEASE_TIME, (lease >> (yours & 31)).to_be_bytes().to_vec()),
                (DhcpOptionCode::RENEWAL_TIME, (renew >> (yours & 31)).to_be_bytes().to_vec()),
                (DhcpOptionCode::REBINDING_TIME, (rebind >> (yours & 31)).to_be_bytes().to_vec()),
            ];
            let options: Vec<_> =
                options.iter().map(|(code, data)| DhcpOption { code: *code, data }).collect();
            let header = DhcpHeader {
                op: DhcpOp::REPLY,
                xid: client.xid,
                yours: Ipv4Addr::from_bits(yours | 1),
                ..DhcpHeader::default()
            };
            client.handle_packet(now, &packet(&DhcpMessage::new(header, List::of(&options))));
            if let (DhcpState::Checking { lease }, true) = (client.state().0.clone(), free) {
                client.handle_free(now, lease.ip);
            }
            now = now + Duration::from_secs(wait);
            client.handle_timeout(now);
            prop_assert!(client.poll_timeout().is_none_or(|due| due > now));
            prop_assert!(sent(&mut client, now).len() <= FRAMES_MAX);
            events(&mut client);
        }
    }

    #[test]
    fn any_bytes_are_a_drop_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut client = client();
        client.start(at(0));
        client.handle_packet(at(0), &bytes);
    }
}
