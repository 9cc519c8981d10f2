//! Tests of requests and replies byte by byte, of conflicts, and of hostile packets.

use super::*;
use crate::output::FRAMES_MAX;
use pollux_wire::address::{Gid, Guid, Qpn};
use proptest::prelude::*;
use std::net::IpAddr;
use std::time::Duration;

const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const NOBODY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
const EVERYONE: To = To::Group(GroupId::Broadcast);

fn at(ms: u64) -> Time {
    Time::START + Duration::from_millis(ms)
}

fn link(qpn: u32) -> LinkAddress {
    let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0002_c903_0000_1000 | u64::from(qpn)));
    LinkAddress { rc: true, uc: false, qpn: Qpn(qpn), gid }
}

/// A node at QPN 2 that holds `OURS`, which it did not probe.
fn arp() -> Arp {
    let mut arp = Arp::new(link(2), 1);
    assert!(arp.add(at(0), OURS, Probes::None));
    assert_eq!(events(&mut arp), [ArpEvent::Held(OURS)]);
    while arp.poll_timeout().is_some_and(|due| due < at(10_000)) {
        arp.handle_timeout(arp.poll_timeout().unwrap());
    }
    while arp.poll_transmit().is_some() || arp.poll_event().is_some() {}
    arp
}

fn packet(
    operation: ArpOperation,
    (sender_hardware, sender_protocol): (LinkAddress, Ipv4Addr),
    (target_hardware, target_protocol): (LinkAddress, Ipv4Addr),
) -> Vec<u8> {
    let mut bytes = vec![0; ArpPacket::<LinkAddress>::LEN];
    let packet =
        ArpPacket { operation, sender_hardware, sender_protocol, target_hardware, target_protocol };
    packet.write(&mut bytes).unwrap();
    bytes
}

fn request(sender: (LinkAddress, Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
    packet(ArpOperation::REQUEST, sender, (LinkAddress::default(), target))
}

fn sent(arp: &mut Arp) -> Vec<(To, ArpPacket<LinkAddress>)> {
    let frames = std::iter::from_fn(|| arp.poll_transmit());
    frames.map(|frame| (frame.to, ArpPacket::parse(&frame.packet).unwrap())).collect()
}

fn events(arp: &mut Arp) -> Vec<ArpEvent> {
    std::iter::from_fn(|| arp.poll_event()).collect()
}

fn claim(qpn: u32, kind: ClaimKind) -> ArpEvent {
    ArpEvent::Claim(Claim { ip: IpAddr::V4(THEIRS), address: Some(link(qpn)), kind })
}

// req: ud-arp
#[test]
fn a_request_is_answered_whatever_its_target_hardware_address_is() {
    for garbage in [LinkAddress::default(), link(9), LinkAddress::parse(&[0xff; 20])] {
        let mut arp = arp();
        let asked = packet(ArpOperation::REQUEST, (link(3), THEIRS), (garbage, OURS));
        arp.handle_packet(at(20_000), &asked);
        let frame = arp.poll_transmit().unwrap();
        assert_eq!((frame.to, frame.ether_type), (To::Link(link(3)), EtherType::ARP));
        let mut expected = vec![0, 32, 8, 0, 20, 4, 0, 2];
        expected.extend(link(2).emit());
        expected.extend(OURS.octets());
        expected.extend(link(3).emit());
        expected.extend(THEIRS.octets());
        assert_eq!(frame.packet, expected);
        assert_eq!(events(&mut arp), [claim(3, ClaimKind::Request)]);
        assert_eq!(arp.poll_transmit(), None);
    }
}

// req: cm-resolution-on-ud
#[test]
fn requests_are_broadcast_and_replies_are_unicast() {
    let mut arp = arp();
    arp.solicit(OURS, THEIRS, None);
    arp.handle_packet(at(20_000), &request((link(3), THEIRS), OURS));
    arp.solicit(OURS, THEIRS, Some(link(3)));
    let sent = sent(&mut arp);
    let to: Vec<To> = sent.iter().map(|(to, _)| *to).collect();
    assert_eq!(to, [EVERYONE, To::Link(link(3)), To::Link(link(3))]);
    assert_eq!(sent[0].1.target_hardware, LinkAddress::default(), "as Linux has it");
}

#[test]
fn a_reply_to_us_counts_more_than_a_broadcast_one() {
    let mut arp = arp();
    let to_us = packet(ArpOperation::REPLY, (link(3), THEIRS), (link(2), OURS));
    let to_other = packet(ArpOperation::REPLY, (link(3), THEIRS), (link(9), THEIRS));
    for bytes in [&to_us, &to_other, &request((link(3), THEIRS), THEIRS)] {
        arp.handle_packet(at(20_000), bytes);
    }
    let told = [claim(3, ANSWERED), claim(3, ANNOUNCED), claim(3, ANNOUNCED)];
    assert_eq!(events(&mut arp), told);
    assert_eq!(sent(&mut arp), []);
}

#[test]
fn an_address_is_probed_and_announced_before_it_is_held() {
    let mut arp = Arp::new(link(2), 7);
    assert!(arp.add(at(0), OURS, Probes::Full));
    arp.handle_packet(at(0), &request((link(3), THEIRS), OURS));
    assert_eq!(sent(&mut arp), [], "not ours yet");
    let mut said = Vec::new();
    let mut held = None;
    while let Some(due) = arp.poll_timeout() {
        arp.handle_timeout(due);
        said.extend(sent(&mut arp).into_iter().map(|(to, it)| (to, it.sender_protocol)));
        if events(&mut arp).contains(&ArpEvent::Held(OURS)) {
            held = Some(due);
        }
    }
    let probe = (EVERYONE, NOBODY);
    assert_eq!(said, [probe, probe, probe, (EVERYONE, OURS), (EVERYONE, OURS)]);
    let held = held.unwrap();
    assert!(at(4000) <= held && held <= at(7000), "RFC 5227 2.1.1: {held:?}");
    assert_eq!(arp.own().collect::<Vec<_>>(), [(OURS, OwnState::Held { defended: None })]);
}

#[test]
fn a_briefly_probed_address_is_ours_within_100_ms_and_given_up_if_its_holder_is_slow() {
    let mut arp = Arp::new(link(2), 7);
    assert!(arp.add(at(0), OURS, Probes::Brief));
    let mut held = None;
    while held.is_none() {
        let due = arp.poll_timeout().unwrap();
        arp.handle_timeout(due);
        held = events(&mut arp).contains(&ArpEvent::Held(OURS)).then_some(due);
    }
    assert!(held.unwrap() < at(100), "{held:?}");
    let said: Vec<_> = sent(&mut arp).iter().map(|(_, it)| it.sender_protocol).collect();
    assert_eq!(said, [NOBODY, NOBODY, OURS]);
    let defense = packet(ArpOperation::REPLY, (link(3), OURS), (link(2), NOBODY));
    arp.handle_packet(at(500), &defense);
    assert!(events(&mut arp).contains(&ArpEvent::Ceded(OURS, link(3))));
}

#[test]
fn a_probed_address_is_given_up_if_another_node_has_or_probes_it() {
    let has = packet(ArpOperation::REPLY, (link(3), OURS), (link(2), NOBODY));
    let announces = request((link(3), OURS), OURS);
    let wants = request((link(3), NOBODY), OURS);
    for bytes in [has, announces, wants] {
        for probes in [Probes::Brief, Probes::Full] {
            let mut arp = Arp::new(link(2), 7);
            assert!(arp.add(at(0), OURS, probes));
            arp.handle_packet(at(1), &bytes);
            assert!(events(&mut arp).contains(&ArpEvent::Ceded(OURS, link(3))));
            assert_eq!((arp.own().count(), arp.poll_timeout()), (0, None));
        }
    }
    let mut arp = Arp::new(link(2), 7);
    assert!(arp.add(at(0), OURS, Probes::Full));
    arp.handle_packet(at(1), &request((link(2), NOBODY), OURS));
    assert_eq!((arp.own().count(), arp.drops().of(ArpDrop::Own)), (1, 1), "our own probe");
}

#[test]
fn a_held_address_is_defended_once_in_a_while() {
    let conflict = request((link(3), OURS), THEIRS);
    let mut arp = arp();
    let (mut seen, mut defenses) = (Vec::new(), 0);
    for ms in [20_000, 21_000, 29_999, 30_000] {
        arp.handle_packet(at(ms), &conflict);
        let is_defense =
            |(to, it): &(To, ArpPacket<LinkAddress>)| *to == EVERYONE && it.sender_protocol == OURS;
        defenses += sent(&mut arp).iter().filter(|frame| is_defense(frame)).count();
        seen.extend(events(&mut arp));
    }
    assert_eq!((seen, defenses), (vec![ArpEvent::Contested(OURS, link(3)); 2], 2));
    assert_eq!(arp.own().count(), 1);
}

// req: ud-qpn-change
#[test]
fn a_new_own_queue_pair_is_announced() {
    let mut arp = arp();
    arp.remove(OURS);
    arp.set_link_address(link(8));
    assert!(arp.add(at(20_000), OURS, Probes::None));
    arp.handle_timeout(at(20_000));
    let said = sent(&mut arp);
    let [(EVERYONE, announcement)] = said[..] else { panic!("{said:?}") };
    assert_eq!((announcement.sender_hardware, announcement.sender_protocol), (link(8), OURS));
    assert_eq!(announcement.target_protocol, OURS);
}

#[test]
fn an_unprobed_address_is_ceded_also_after_a_new_link_address() {
    let mut arp = Arp::new(link(2), 1);
    assert!(arp.add(at(0), OURS, Probes::None));
    arp.set_link_address(link(8));
    arp.handle_packet(at(0), &request((link(3), OURS), THEIRS));
    assert_eq!(events(&mut arp)[..2], [ArpEvent::Held(OURS), ArpEvent::Ceded(OURS, link(3))]);
}

// req: slides-static
#[test]
fn a_known_link_address_is_asked_for_its_address() {
    let (mut arp, mut other) = (arp(), Arp::new(link(3), 1));
    assert!(other.add(at(0), THEIRS, Probes::None));
    assert!(arp.ask_inverse(at(20_000), link(3)));
    let question = arp.poll_transmit().unwrap();
    assert_eq!((question.to, question.ether_type), (To::Link(link(3)), EtherType::ARP));
    other.handle_packet(at(20_000), &question.packet);
    let answer = other.poll_transmit().unwrap();
    assert_eq!(answer.to, To::Link(link(2)));
    arp.handle_packet(at(20_000), &answer.packet);
    arp.handle_packet(at(20_000), &answer.packet);
    assert_eq!(events(&mut arp), [ArpEvent::Inverse(link(3), THEIRS)]);
    assert_eq!(arp.drops().of(ArpDrop::Unasked), 1, "answered once already");
    // A request for another interface: in inverse requests alone, the target's link address counts.
    let elsewhere = packet(ArpOperation::INVERSE_REQUEST, (link(3), THEIRS), (link(9), NOBODY));
    arp.handle_packet(at(20_000), &elsewhere);
    assert_eq!((sent(&mut arp), arp.drops().of(ArpDrop::NotForUs)), (vec![], 1));
}

#[test]
fn requests_without_an_answer_end() {
    let mut arp = arp();
    for qpn in 100..100 + QUESTIONS_MAX as u32 {
        assert!(arp.ask_inverse(at(20_000), link(qpn)));
    }
    assert!(!arp.ask_inverse(at(20_000), link(9)), "too many");
    let mut asked = 0;
    while let Some(due) = arp.poll_timeout() {
        asked += sent(&mut arp).len();
        arp.handle_timeout(due);
    }
    assert_eq!(asked, 3 * QUESTIONS_MAX);
    assert_eq!(events(&mut arp).len(), QUESTIONS_MAX);
}

// req: slides-arp-server
#[test]
fn a_server_answers_for_registered_hosts() {
    let mut server = arp();
    assert!(server.register(THEIRS, link(3)));
    server.handle_packet(at(20_000), &request((link(4), Ipv4Addr::new(10, 0, 0, 4)), THEIRS));
    let [(To::Link(to), answer)] = sent(&mut server)[..] else { panic!() };
    assert_eq!((to, answer.sender_hardware, answer.sender_protocol), (link(4), link(3), THEIRS));
    // A registered host that restarted probes its address. An answer would keep it from the
    // address.
    server.handle_packet(
        at(20_000),
        &request((LinkAddress { qpn: Qpn(7), ..link(3) }, NOBODY), THEIRS),
    );
    assert_eq!(sent(&mut server), []);
    server.unregister(THEIRS);
    server.handle_packet(at(20_000), &request((link(4), Ipv4Addr::new(10, 0, 0, 4)), THEIRS));
    assert_eq!(sent(&mut server), []);
}

#[test]
fn link_addresses_of_no_interface_and_addresses_of_no_node_are_dropped() {
    let mut arp = arp();
    let group = LinkAddress { gid: Gid([0xff; 16]), ..link(3) };
    let management = LinkAddress { qpn: Qpn::GSI, ..link(3) };
    let nowhere = LinkAddress { gid: Gid::NONE, ..link(3) };
    for hardware in [group, management, nowhere, LinkAddress::group(group.gid)] {
        arp.handle_packet(at(20_000), &request((hardware, THEIRS), OURS));
    }
    assert_eq!(arp.drops().of(ArpDrop::BadHardware), 4);
    for protocol in [Ipv4Addr::BROADCAST, Ipv4Addr::LOCALHOST, Ipv4Addr::new(224, 0, 0, 1)] {
        arp.handle_packet(at(20_000), &request((link(3), protocol), OURS));
    }
    assert_eq!(arp.drops().of(ArpDrop::BadProtocol), 3);
    assert_eq!((sent(&mut arp), events(&mut arp)), (vec![], vec![]));
}

proptest! {
    /// Hostile packets: frames, events and own addresses stay within their limits.
    #[test]
    fn hostile_packets_are_bounded(
        all in proptest::collection::vec((any::<[u8; 56]>(), 0u16..12, any::<bool>()), 0..400),
    ) {
        let mut arp = arp();
        for (mut bytes, operation, to_us) in all {
            bytes[..8].copy_from_slice(&[0, 32, 8, 0, 20, 4, 0, operation as u8]);
            if to_us {
                bytes[52..].copy_from_slice(&OURS.octets());
            }
            arp.handle_packet(at(20_000), &bytes);
        }
        prop_assert!(sent(&mut arp).len() <= FRAMES_MAX);
        prop_assert!(events(&mut arp).len() <= EVENTS_MAX);
        prop_assert!(arp.own().count() <= 1);
    }

    #[test]
    fn any_bytes_are_a_drop_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let mut arp = arp();
        arp.handle_packet(at(20_000), &bytes);
        if bytes.len() < 56 {
            prop_assert_eq!(arp.drops().of(ArpDrop::Malformed), 1);
        }
    }
}
