//! Tests of solicitations and advertisements byte by byte, of duplicates, and of hostile packets.

use super::*;
use crate::frame::NoLink;
use crate::output::FRAMES_MAX;
use pollux_wire::address::{Gid, Guid, Qpn};
use pollux_wire::ip::icmpv6;
use pollux_wire::ip::mgid::GroupId;
use pollux_wire::ip::nd::RouterAdvertisement;
use pollux_wire::ip::nd_option::PrefixInformation;
use proptest::prelude::*;

const NOBODY: Ipv6Addr = Ipv6Addr::UNSPECIFIED;

fn at(ms: u64) -> Time {
    Time::START + Duration::from_millis(ms)
}

fn local(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last)
}

fn link(qpn: u32) -> LinkAddress {
    let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0002_c903_0000_1000 | u64::from(qpn)));
    LinkAddress { rc: true, uc: false, qpn: Qpn(qpn), gid }
}

fn config() -> NdConfig {
    NdConfig { link: link(3), detections: 1, retry_after: Duration::from_secs(1) }
}

/// A node with `fe80::1` at QPN 3.
fn nd() -> Nd {
    let mut nd = Nd::new(NdConfig { detections: 0, ..config() }, 1);
    assert!(nd.add(at(0), local(1), false));
    nd.handle_timeout(at(0));
    assert_eq!(events(&mut nd), [NdEvent::Assigned(local(1))]);
    nd.config.detections = 1;
    nd
}

fn group(ip: Ipv6Addr) -> To {
    To::Group(GroupId::of(ip.into()).unwrap())
}

fn packet(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    hop_limit: u8,
    body: NdBody,
    options: &[NdOption<'_>],
) -> Vec<u8> {
    let from = Sender { source, destination, hop_limit, router_alert: false };
    let message = Icmpv6Message::Nd(NdMessage { body, options: List::of(options) });
    LinkFrame::icmpv6(To::<NoLink>::Route, from, &message).unwrap().packet
}

fn solicitation(source: Ipv6Addr, target: Ipv6Addr, link: Option<LinkAddress>) -> Vec<u8> {
    let options: Vec<_> = link.map(|link| NdOption::Source(link.into())).into_iter().collect();
    let body = NdBody::NeighborSolicitation(NeighborSolicitation { target });
    packet(source, solicited_node(target), 255, body, &options)
}

fn advertisement(destination: Ipv6Addr, solicited: bool, target: Ipv6Addr, qpn: u32) -> Vec<u8> {
    let body = NdBody::NeighborAdvertisement(NeighborAdvertisement {
        router: false,
        solicited,
        override_cached: true,
        target,
    });
    packet(target, destination, 255, body, &[NdOption::Target(link(qpn).into())])
}

fn frames(nd: &mut Nd) -> Vec<LinkFrame> {
    std::iter::from_fn(|| nd.poll_transmit()).collect()
}

fn events(nd: &mut Nd) -> Vec<NdEvent> {
    std::iter::from_fn(|| nd.poll_event()).collect()
}

/// The header and the message of a valid frame of ours.
fn parsed(frame: &LinkFrame) -> (Ipv6Header, NdMessage<'_>) {
    let packet = Ipv6Packet::parse(&frame.packet).unwrap();
    assert!(checksum_ok(packet.payload(), &packet.header().pseudo_header()));
    (packet.header(), NdMessage::parse(packet.payload()).unwrap())
}

// req: ud-nd-option
// req: cm-resolution-on-ud
#[test]
fn a_question_to_the_group_is_answered_to_one() {
    let mut asker = Nd::new(NdConfig { link: link(2), ..config() }, 1);
    asker.solicit(local(2), local(1), None);
    let question = asker.poll_transmit().unwrap();
    assert_eq!(question.to, group("ff02::1:ff00:1".parse().unwrap()));
    // The IPv6 header, 24 bytes of solicitation, then the option.
    assert_eq!(question.packet[64..72], [1, 3, 0, 0, 0x80, 0, 0, 2]);
    assert_eq!(
        (question.packet[72..].to_vec(), question.packet.len()),
        (link(2).gid.0.to_vec(), 88)
    );
    let mut nd = nd();
    nd.handle_packet(&question.packet);
    let answers = frames(&mut nd);
    let [answer] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(answer.to, To::Link(link(2)), "by UD, to whoever asked");
    assert_eq!(answer.packet[64..72], [2, 3, 0, 0, 0x80, 0, 0, 3]);
    let (header, message) = parsed(answer);
    assert_eq!((header.source, header.destination, header.hop_limit), (local(1), local(2), 255));
    let expected = NeighborAdvertisement {
        router: false,
        solicited: true,
        override_cached: true,
        target: local(1),
    };
    assert_eq!(message.body, NdBody::NeighborAdvertisement(expected));
    let request = Claim { ip: local(2).into(), address: Some(link(2)), kind: ClaimKind::Request };
    assert_eq!(events(&mut nd), [NdEvent::Claim(request)]);
    asker.handle_packet(&answer.packet);
    let kind = ClaimKind::Answer { solicited: true, override_cached: true };
    let claim = Claim { ip: local(1).into(), address: Some(link(3)), kind };
    assert_eq!(events(&mut asker), [NdEvent::Claim(claim), NdEvent::NotRouter(local(1))]);
}

#[test]
fn a_solicitation_without_a_link_address_is_answered_after_resolution() {
    let mut nd = nd();
    nd.handle_packet(&solicitation(local(2), local(1), None));
    assert_eq!(frames(&mut nd)[0].to, To::Neighbor(local(2).into()));
    nd.solicit(local(1), local(2), Some(link(2)));
    let probe = frames(&mut nd);
    assert_eq!((probe[0].to, parsed(&probe[0]).0.destination), (To::Link(link(2)), local(2)));
}

#[test]
fn an_address_is_asked_for_before_it_is_used() {
    let mut nd = Nd::new(config(), 3);
    assert!(nd.add(at(0), local(1), false));
    let first = nd.poll_timeout().unwrap();
    assert!(first <= at(1000), "a random wait");
    nd.handle_timeout(first);
    let asked = frames(&mut nd);
    assert_eq!((asked.len(), asked[0].to), (1, group(solicited_node(local(1)))));
    let (header, message) = parsed(&asked[0]);
    assert_eq!((header.source, message.options.iter().count()), (NOBODY, 0));
    nd.handle_packet(&asked[0].packet.clone());
    nd.handle_packet(&solicitation(local(2), local(1), Some(link(2))));
    assert_eq!(frames(&mut nd), [], "nothing is answered for it");
    // Its own solicitation, looped back, cannot be told from another node's.
    assert_eq!(events(&mut nd), [NdEvent::Duplicate(local(1), None)]);
    assert!(nd.add(at(0), local(1), false));
    while let Some(due) = nd.poll_timeout() {
        nd.handle_timeout(due);
    }
    assert_eq!(events(&mut nd), [NdEvent::Assigned(local(1))]);
}

#[test]
fn a_briefly_probed_address_is_ours_within_100_ms_and_given_up_if_its_holder_is_slow() {
    for is_late in [false, true] {
        let mut nd = Nd::new(config(), 3);
        assert!(nd.add(at(0), local(1), true));
        let mut assigned = None;
        while assigned.is_none() {
            let due = nd.poll_timeout().unwrap();
            nd.handle_timeout(due);
            assigned = events(&mut nd).contains(&NdEvent::Assigned(local(1))).then_some(due);
        }
        assert!(assigned.unwrap() < at(100), "{assigned:?}");
        assert_eq!(frames(&mut nd).len(), 2, "solicitations");
        let answer = advertisement(ALL_NODES, false, local(1), 2);
        if is_late {
            nd.handle_packet(&answer);
            assert_eq!(events(&mut nd), [NdEvent::Duplicate(local(1), Some(link(2)))]);
            assert_eq!((nd.own().count(), nd.poll_timeout()), (0, None));
        } else {
            nd.handle_timeout(nd.poll_timeout().unwrap());
            nd.handle_packet(&answer);
            assert_eq!(events(&mut nd), [NdEvent::Contested(local(1))], "it is confirmed");
        }
    }
}

// req: ud-slaac
#[test]
fn duplicates_are_found_by_question_and_by_answer() {
    let answer = advertisement(ALL_NODES, false, local(1), 2);
    for (bytes, by) in [(solicitation(NOBODY, local(1), None), None), (answer, Some(link(2)))] {
        for is_brief in [false, true] {
            let mut nd = Nd::new(config(), 3);
            assert!(nd.add(at(0), local(1), is_brief));
            nd.handle_packet(&bytes);
            assert_eq!(events(&mut nd), [NdEvent::Duplicate(local(1), by)]);
            assert_eq!((nd.own().count(), nd.poll_timeout()), (0, None));
        }
    }
    // A node with the assigned address advertises it to all nodes.
    let mut nd = nd();
    nd.handle_packet(&solicitation(NOBODY, local(1), None));
    let answers = frames(&mut nd);
    assert_eq!((answers.len(), answers[0].to), (1, group(ALL_NODES)));
    let (_, message) = parsed(&answers[0]);
    assert!(matches!(message.body, NdBody::NeighborAdvertisement(body) if !body.solicited));
    nd.handle_packet(&advertisement(ALL_NODES, false, local(1), 2));
    assert_eq!(events(&mut nd), [NdEvent::Contested(local(1))]);
}

// req: ud-slaac
#[test]
fn routers_are_asked_for_until_one_answers() {
    let mut nd = nd();
    nd.solicit_routers(at(0));
    let mut asked = Vec::new();
    while let Some(due) = nd.poll_timeout() {
        nd.handle_timeout(due);
        asked.extend(frames(&mut nd).iter().map(|frame| (due, frame.to)));
    }
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|(_, to)| *to == group(ALL_ROUTERS)));
    assert_eq!(asked[2].0, asked[0].0 + Duration::from_secs(8));
    nd.solicit_routers(at(60_000));
    let body = RouterAdvertisement {
        cur_hop_limit: 64,
        preference: 3,
        router_lifetime_seconds: 1800,
        reachable_time_ms: 20_000,
        ..RouterAdvertisement::default()
    };
    let prefix = PrefixInformation { prefix_length: 64, ..PrefixInformation::default() };
    let options = [
        NdOption::Source(link(9).into()),
        NdOption::Mtu(2044),
        NdOption::Mtu(100),
        NdOption::Prefix(prefix),
    ];
    let body = NdBody::RouterAdvertisement(body);
    nd.handle_packet(&packet(local(9), ALL_NODES, 255, body, &options));
    assert_eq!(nd.poll_timeout(), None, "one answered");
    let told = events(&mut nd);
    let [NdEvent::Claim(claim), NdEvent::Router(said)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((claim.address, claim.kind), (Some(link(9)), ClaimKind::Request));
    assert_eq!((said.router, said.preference), (local(9), -1));
    assert_eq!((said.prefixes.len(), said.retry_after), (1, None));
    assert_eq!(said.reachable_for, Some(Duration::from_secs(20)));
    nd.handle_packet(&packet("2001:db8::9".parse().unwrap(), ALL_NODES, 255, body, &options));
    assert_eq!(nd.drops().of(NdDrop::BadAddress), 1, "routers speak from link-local addresses");
}

#[test]
fn advertised_times_out_of_range_are_ignored() {
    let times = |retrans_timer_ms, reachable_time_ms| {
        let body = RouterAdvertisement {
            retrans_timer_ms,
            reachable_time_ms,
            ..RouterAdvertisement::default()
        };
        let mut nd = nd();
        let body = NdBody::RouterAdvertisement(body);
        nd.handle_packet(&packet(local(9), ALL_NODES, 255, body, &[]));
        let told = events(&mut nd);
        let [NdEvent::Router(said)] = &told[..] else { panic!("{told:?}") };
        (said.retry_after, said.reachable_for)
    };
    for bad in [0, 1, 99, u32::MAX] {
        assert_eq!(times(bad, bad), (None, None), "{bad} ms");
    }
    let five = Duration::from_secs(5);
    assert_eq!(times(5000, 5000), (Some(five), Some(five)));
}

// req: ud-qpn-change
#[test]
fn a_new_own_queue_pair_is_announced() {
    let mut nd = nd();
    nd.set_link_address(link(8));
    let told = frames(&mut nd);
    assert_eq!((told.len(), told[0].to), (1, group(ALL_NODES)));
    let (_, message) = parsed(&told[0]);
    assert!(matches!(message.body, NdBody::NeighborAdvertisement(body) if body.override_cached));
    let options: Vec<_> = message.options.iter().collect();
    assert_eq!(options, [NdOption::Target(link(8).into())]);
}

#[test]
fn messages_that_cannot_be_from_the_link_are_dropped() {
    let mut nd = nd();
    let good = solicitation(local(2), local(1), Some(link(2)));
    let body = NdBody::NeighborSolicitation(NeighborSolicitation { target: local(1) });
    nd.handle_packet(&packet(local(2), local(1), 254, body, &[]));
    assert_eq!(nd.drops().of(NdDrop::HopLimit), 1);
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    nd.handle_packet(&flipped);
    assert_eq!(nd.drops().of(NdDrop::Checksum), 1);
    // A fragment header before the message (RFC 6980).
    let mut fragment = good.clone();
    fragment[6] = 44;
    fragment.splice(40..40, [58, 0, 0, 0, 0, 0, 0, 1]);
    fragment[5] += 8;
    nd.handle_packet(&fragment);
    assert_eq!(nd.drops().of(NdDrop::Fragment), 1);
    let management = LinkAddress { qpn: Qpn::SMI, ..link(2) };
    nd.handle_packet(&solicitation(local(2), local(1), Some(management)));
    assert_eq!(nd.drops().of(NdDrop::BadHardware), 1);
    nd.handle_packet(&solicitation(NOBODY, local(1), Some(link(2))));
    nd.handle_packet(&advertisement(ALL_NODES, true, local(2), 2));
    nd.handle_packet(&packet(NOBODY, local(1), 255, body, &[]));
    assert_eq!(nd.drops().of(NdDrop::BadAddress), 3);
    assert_eq!((frames(&mut nd), events(&mut nd)), (vec![], vec![]));
    nd.handle_packet(&good);
    assert_eq!(frames(&mut nd).len(), 1);
}

#[test]
fn a_redirect_names_a_way_on_the_link() {
    let mut nd = nd();
    let destination: Ipv6Addr = "2001:db8::5".parse().unwrap();
    let redirect = |target, source| {
        let body = NdBody::Redirect(Redirect { target, destination });
        packet(source, local(1), 255, body, &[NdOption::Target(link(5).into())])
    };
    nd.handle_packet(&redirect(destination, local(9)));
    let told = events(&mut nd);
    let [NdEvent::Claim(claim), NdEvent::Redirected { router, target, .. }] = told[..] else {
        panic!("{told:?}");
    };
    assert_eq!((claim.ip, router, target), (destination.into(), local(9), destination));
    nd.handle_packet(&redirect("2001:db8::6".parse().unwrap(), local(9)));
    nd.handle_packet(&redirect(local(6), destination));
    assert_eq!(nd.drops().of(NdDrop::BadAddress), 2);
}

proptest! {
    /// Hostile packets with good checksums: frames, events and own addresses stay within their
    /// limits.
    #[test]
    fn hostile_packets_are_bounded(
        all in proptest::collection::vec(
            (133u8..138, proptest::collection::vec(any::<u8>(), 0..120), any::<bool>()), 0..300,
        ),
    ) {
        let mut nd = nd();
        for (kind, mut body, to_us) in all {
            body.resize(body.len().max(4).next_multiple_of(8), 0);
            if to_us && body.len() >= 24 {
                body[8..24].copy_from_slice(&local(1).octets());
            }
            body[..4].copy_from_slice(&[kind, 0, 0, 0]);
            let header = Ipv6Header {
                next_header: IpProtocol::ICMPV6,
                hop_limit: 255,
                source: local(2),
                destination: local(1),
                ..Ipv6Header::default()
            };
            icmpv6::fill_checksum(&mut body, &header.pseudo_header()).unwrap();
            let mut bytes = vec![0; Ipv6Header::LEN + body.len()];
            header.write_packet(body.len(), &mut bytes).unwrap().copy_from_slice(&body);
            nd.handle_packet(&bytes);
        }
        prop_assert!(frames(&mut nd).len() <= FRAMES_MAX);
        prop_assert!(events(&mut nd).len() <= EVENTS_MAX);
        prop_assert_eq!(nd.own().count(), 1);
        prop_assert_eq!(nd.drops().of(NdDrop::Checksum), 0);
    }

    #[test]
    fn any_bytes_are_a_drop_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        nd().handle_packet(&bytes);
    }
}
