//! Tests of reports and answers in every version, and of the joined groups of the link.

use super::reporter::Version;
use super::*;
use crate::frame::{LinkFrame, Sender, To};
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::group_record::{Querier, RecordType};
use pollux_wire::ip::icmpv6::{self, Icmpv6Message};
use pollux_wire::ip::igmp::{self, IgmpMessage};
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Option, Ipv4Packet};
use pollux_wire::ip::ipv6::Ipv6Packet;
use pollux_wire::ip::ipv6_ext::UpperLayer;
use pollux_wire::ip::list::List;
use pollux_wire::ip::mld::MldMessage;
use proptest::prelude::*;
use std::time::Duration;

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
const OTHER: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 4);
const ALL: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);

fn at(ms: u64) -> Time {
    Time::START + Duration::from_millis(ms)
}

fn v6(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

fn querier<A: for<'a> pollux_wire::ip::list::Item<'a>>(sources: &[A]) -> Querier<'_, A> {
    Querier {
        suppress_router_processing: false,
        robustness: 2,
        interval_code: 125,
        sources: List::of(sources),
    }
}

fn igmp_packet(
    destination: Ipv4Addr,
    options: &[Ipv4Option<'_>],
    message: &IgmpMessage<'_>,
) -> Vec<u8> {
    let mut payload = vec![0; message.wire_len()];
    message.write(&mut payload).unwrap();
    igmp::fill_checksum(&mut payload).unwrap();
    let header = Ipv4Header {
        ttl: 1,
        protocol: IpProtocol::IGMP,
        source: ROUTER,
        destination,
        ..Ipv4Header::default()
    };
    LinkFrame::ipv4(To::<NoLink>::Route, &header, options, &payload).unwrap().packet
}

fn query_v3(group: Ipv4Addr, tenths: u8, sources: &[Ipv4Addr]) -> Vec<u8> {
    let to = if group.is_unspecified() { ALL } else { group };
    let message =
        IgmpMessage::QueryV3 { max_response_code: tenths, group, querier: querier(sources) };
    igmp_packet(to, &[Ipv4Option::ROUTER_ALERT], &message)
}

fn query_v2(group: Ipv4Addr) -> Vec<u8> {
    let to = if group.is_unspecified() { ALL } else { group };
    let message = IgmpMessage::QueryV2 { max_response_tenths: 100, group };
    igmp_packet(to, &[Ipv4Option::ROUTER_ALERT], &message)
}

/// All reports until `end`: the time, and the destination and content in short form.
fn reports(membership: &mut InterfaceGroups, end: Time) -> Vec<(Time, String)> {
    let mut said = Vec::new();
    while let Some(due) = membership.poll_timeout().filter(|due| *due <= end) {
        membership.handle_timeout(due);
        while let Some(frame) = membership.poll_transmit() {
            said.push((due, short(&frame)));
        }
    }
    said
}

fn said(membership: &mut InterfaceGroups, end: Time) -> Vec<String> {
    reports(membership, end).into_iter().map(|(_, said)| said).collect()
}

fn short(frame: &LinkFrame<NoLink>) -> String {
    let records = |kind: RecordType, group: IpAddr, sources: Vec<IpAddr>| {
        format!(" {kind} {group} {sources:?}")
    };
    if let Ok(packet) = Ipv4Packet::parse(&frame.packet) {
        assert!(packet.checksum_ok() && igmp::checksum_ok(packet.payload()));
        assert_eq!((packet.header().ttl, packet.options().count()), (1, 1));
        assert_eq!(frame.to, To::group_of(packet.header().destination.into()));
        let to = packet.header().destination;
        return match IgmpMessage::parse(packet.payload()).unwrap() {
            IgmpMessage::ReportV3(list) => list.iter().fold(format!("{to}:"), |text, one| {
                let sources = one.sources.iter().map(IpAddr::V4).collect();
                text + &records(one.kind, one.group.into(), sources)
            }),
            IgmpMessage::ReportV2(group) => format!("{to}: v2 {group}"),
            IgmpMessage::ReportV1(group) => format!("{to}: v1 {group}"),
            IgmpMessage::Leave(group) => format!("{to}: leave {group}"),
            query => panic!("{query:?}"),
        };
    }
    let packet = Ipv6Packet::parse(&frame.packet).unwrap();
    let (header, payload) = (packet.header(), packet.payload());
    let upper = UpperLayer::find(header.next_header, payload).unwrap();
    assert!(icmpv6::checksum_ok(upper.payload, &header.pseudo_header()));
    assert_eq!((header.next_header, header.hop_limit), (IpProtocol::HOP_BY_HOP, 1));
    let to = header.destination;
    match MldMessage::parse(upper.payload).unwrap() {
        MldMessage::ReportV2(list) => list.iter().fold(format!("{to}:"), |text, one| {
            let sources = one.sources.iter().map(IpAddr::V6).collect();
            text + &records(one.kind, one.group.into(), sources)
        }),
        MldMessage::ReportV1(group) => format!("{to}: v1 {group}"),
        MldMessage::Done(group) => format!("{to}: done {group}"),
        query => panic!("{query:?}"),
    }
}

fn events(membership: &mut InterfaceGroups) -> Vec<MembershipEvent> {
    std::iter::from_fn(|| membership.poll_event()).collect()
}

/// A member of [`GROUP`] that has reported it.
fn member() -> InterfaceGroups {
    let mut membership = InterfaceGroups::new(5);
    assert!(membership.join(at(0), GROUP.into()));
    said(&mut membership, at(9999));
    events(&mut membership);
    membership
}

// req: ud-multicast-membership
#[test]
fn the_first_listener_joins_the_link_and_the_last_leaves_it() {
    let mut membership = InterfaceGroups::new(1);
    let id = GroupId::V4(GROUP);
    for _ in 0..3 {
        assert!(membership.join(at(0), GROUP.into()));
    }
    assert_eq!(events(&mut membership), [MembershipEvent::Join(id)]);
    membership.leave(at(1), GROUP.into());
    membership.leave(at(1), GROUP.into());
    assert_eq!(events(&mut membership), []);
    assert!(membership.has_listener(GROUP.into()));
    membership.leave(at(1), GROUP.into());
    membership.leave(at(1), GROUP.into());
    assert_eq!(events(&mut membership), [MembershipEvent::Leave(id)]);
    assert!(!membership.has_listener(GROUP.into()));
    assert!(!membership.join(at(1), ROUTER.into()), "no group");
    assert!(!membership.join(at(1), Ipv4Addr::BROADCAST.into()), "the interface's own");
}

// req: ud-multicast-membership
#[test]
fn groups_of_ipv6_that_share_a_group_of_the_link_join_it_once() {
    // The same lower 80 bits.
    let (one, two) = (v6("ff02::1:2:3:4:5"), v6("ff0e:9::1:2:3:4:5"));
    let mut membership = InterfaceGroups::new(1);
    membership.join(at(0), one.into());
    let [MembershipEvent::Join(id)] = events(&mut membership)[..] else { panic!() };
    membership.join(at(0), two.into());
    assert_eq!(membership.link_groups().collect::<Vec<_>>(), [(id, 2)]);
    membership.leave(at(0), one.into());
    assert_eq!(events(&mut membership), []);
    assert!(!membership.has_listener(one.into()) && membership.has_listener(two.into()));
    membership.leave(at(0), two.into());
    assert_eq!(events(&mut membership), [MembershipEvent::Leave(id)]);
}

#[test]
fn changes_are_repeated_by_the_robustness_variable() {
    let mut membership = InterfaceGroups::new(1);
    membership.join(at(0), GROUP.into());
    membership.join(at(0), v6("ff05::7").into());
    membership.join(at(0), ALL.into());
    membership.join(at(0), v6("ff02::1").into());
    let told = reports(&mut membership, at(100_000));
    let text =
        |told: &[(Time, String)]| told.iter().map(|(_, said)| said.clone()).collect::<Vec<_>>();
    let v4 = "224.0.0.22: CHANGE_TO_EXCLUDE_MODE 239.1.2.3 []";
    let v6 = "ff02::16: CHANGE_TO_EXCLUDE_MODE ff05::7 []";
    let mut sorted = text(&told);
    sorted.sort_unstable();
    assert_eq!(sorted, [v4, v4, v6, v6], "and nothing of groups that everyone hears");
    assert!(told[0].0 == at(0) && told[3].0 <= at(1000));
    membership.leave(at(200_000), GROUP.into());
    let told = said(&mut membership, at(300_000));
    assert_eq!(told, ["224.0.0.22: CHANGE_TO_INCLUDE_MODE 239.1.2.3 []"; 2]);
    assert_eq!(membership.poll_timeout(), None);
}

#[test]
fn queries_are_answered_within_their_time() {
    let mut membership = member();
    membership.handle_igmp(at(10_000), &query_v3(Ipv4Addr::UNSPECIFIED, 100, &[]));
    let told = reports(&mut membership, at(100_000));
    let [(when, text)] = &told[..] else { panic!("{told:?}") };
    assert!(at(10_000) <= *when && *when <= at(20_000));
    assert_eq!(text, "224.0.0.22: MODE_IS_EXCLUDE 239.1.2.3 []");
    membership.handle_igmp(at(30_000), &query_v3(OTHER, 100, &[]));
    assert_eq!(said(&mut membership, at(50_000)), [""; 0], "not heard here");
    // Queries about some sources, all of which are received; then a query about all sources.
    let some = query_v3(GROUP, 100, &[ROUTER, Ipv4Addr::new(10, 0, 0, 7)]);
    membership.handle_igmp(at(60_000), &some);
    membership.handle_igmp(at(60_000), &query_v3(GROUP, 100, &[Ipv4Addr::new(10, 0, 0, 8)]));
    let told = said(&mut membership, at(80_000));
    assert_eq!(told, ["224.0.0.22: MODE_IS_INCLUDE 239.1.2.3 [10.0.0.7, 10.0.0.8, 10.0.0.254]"]);
    membership.handle_igmp(at(80_000), &some);
    membership.handle_igmp(at(80_000), &query_v3(GROUP, 100, &[]));
    assert_eq!(said(&mut membership, at(99_000)), ["224.0.0.22: MODE_IS_EXCLUDE 239.1.2.3 []"]);
    // A pending answer to a general query serves for later queries.
    membership.handle_igmp(at(100_000), &query_v3(Ipv4Addr::UNSPECIFIED, 0x80 | 1, &[]));
    assert_eq!(said(&mut membership, at(160_000)).len(), 1);
}

#[test]
fn an_older_querier_is_spoken_to_in_its_language() {
    let mut membership = member();
    membership.handle_igmp(at(10_000), &query_v2(Ipv4Addr::UNSPECIFIED));
    assert_eq!(membership.igmp.version(at(10_000)), Version::Older);
    assert_eq!(said(&mut membership, at(20_000)), ["239.1.2.3: v2 239.1.2.3"]);
    // Another host's report suppresses ours; then that host has to send the leave message.
    membership.handle_igmp(at(30_000), &query_v2(GROUP));
    let heard = igmp_packet(GROUP, &[Ipv4Option::ROUTER_ALERT], &IgmpMessage::ReportV2(GROUP));
    membership.handle_igmp(at(30_000), &heard);
    assert_eq!(said(&mut membership, at(50_000)), [""; 0]);
    membership.join(at(60_000), OTHER.into());
    assert_eq!(said(&mut membership, at(80_000)), ["239.1.2.4: v2 239.1.2.4"; 2]);
    membership.leave(at(90_000), OTHER.into());
    membership.leave(at(90_000), GROUP.into());
    assert_eq!(said(&mut membership, at(100_000)), ["224.0.0.2: leave 239.1.2.4"]);
    // IGMPv1, which has no leave message.
    membership.handle_igmp(at(110_000), &igmp_packet(ALL, &[], &IgmpMessage::QueryV1));
    membership.join(at(120_000), GROUP.into());
    assert_eq!(said(&mut membership, at(140_000)), ["239.1.2.3: v1 239.1.2.3"; 2]);
    membership.leave(at(150_000), GROUP.into());
    assert_eq!(said(&mut membership, at(160_000)), [""; 0]);
    assert_eq!(membership.igmp.version(at(370_000)), Version::Current, "long ago");
    membership.join(at(370_000), GROUP.into());
    assert!(said(&mut membership, at(370_000))[0].starts_with("224.0.0.22"));
}

#[test]
fn waiting_reports_of_another_version_are_dropped() {
    let mut membership = member();
    membership.handle_igmp(at(10_000), &query_v3(Ipv4Addr::UNSPECIFIED, 100, &[]));
    membership.handle_igmp(at(10_000), &query_v2(OTHER));
    assert_eq!((said(&mut membership, at(99_000)), membership.poll_timeout()), (vec![], None));
}

fn mld_query(hop_limit: u8, router_alert: bool, message: MldMessage<'_>) -> Vec<u8> {
    let (source, destination) = (v6("fe80::9"), v6("ff02::1"));
    let from = Sender { source, destination, hop_limit, router_alert };
    LinkFrame::icmpv6(To::<NoLink>::Route, from, &Icmpv6Message::Mld(message)).unwrap().packet
}

#[test]
fn listener_discovery_is_the_same_with_longer_addresses() {
    let group = v6("ff05::7");
    let mut membership = InterfaceGroups::new(5);
    membership.set_sources(Ipv4Addr::UNSPECIFIED, v6("fe80::1"));
    membership.join(at(0), group.into());
    said(&mut membership, at(5000));
    let everything = MldMessage::QueryV2 {
        max_response_code: 10_000,
        group: Ipv6Addr::UNSPECIFIED,
        querier: querier(&[]),
    };
    for (hop_limit, alert, reason) in
        [(255, true, MembershipDrop::BadAddress), (1, false, MembershipDrop::NoRouterAlert)]
    {
        membership.handle_mld(at(10_000), &mld_query(hop_limit, alert, everything));
        assert_eq!((membership.drops().of(reason), membership.poll_timeout()), (1, None));
    }
    membership.handle_mld(at(10_000), &mld_query(1, true, everything));
    assert_eq!(said(&mut membership, at(20_000)), ["ff02::16: MODE_IS_EXCLUDE ff05::7 []"]);
    let old = MldMessage::QueryV1 { max_response_ms: 1000, group };
    membership.handle_mld(at(30_000), &mld_query(1, true, old));
    assert_eq!(said(&mut membership, at(31_000)), ["ff05::7: v1 ff05::7"]);
    membership.leave(at(40_000), group.into());
    assert_eq!(said(&mut membership, at(50_000)), ["ff02::2: done ff05::7"]);
}

#[test]
fn many_groups_take_several_reports_that_fit() {
    let mut membership = InterfaceGroups::new(5);
    for nth in 0..2000u16 {
        let group = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 1, nth);
        assert_eq!(membership.join(at(0), group.into()), usize::from(nth) < GROUPS_MAX);
    }
    membership.handle_timeout(at(0));
    let frames: Vec<_> = std::iter::from_fn(|| membership.poll_transmit()).collect();
    assert!(frames.iter().all(|frame| frame.packet.len() <= 1280));
    let told: usize = frames.iter().map(|frame| short(frame).matches("CHANGE_TO").count()).sum();
    assert_eq!((told, frames.len()), (GROUPS_MAX, GROUPS_MAX.div_ceil(48)));
}

#[test]
fn groups_that_come_and_go_do_not_pile_up() {
    let mut membership = InterfaceGroups::new(5);
    for nth in 0..10_000u16 {
        let group = IpAddr::V6(Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 1, nth));
        assert!(membership.join(at(0), group));
        membership.leave(at(0), group);
    }
    membership.handle_timeout(at(0));
    let frames = std::iter::from_fn(|| membership.poll_transmit());
    let told: usize = frames.map(|frame| short(&frame).matches("CHANGE_TO").count()).sum();
    assert_eq!(told, 2 * GROUPS_MAX - 1);
}

proptest! {
    /// For any sequence of messages, joins and leaves, the link is joined for exactly the IP groups
    /// with a listener, and all timers end.
    #[test]
    fn the_link_is_joined_for_groups_with_listeners(
        all in proptest::collection::vec((0u8..8, 0u8..4, any::<u16>()), 0..100),
    ) {
        let mut membership = InterfaceGroups::new(5);
        let mut joined = std::collections::BTreeSet::new();
        let mut now = at(0);
        for (what, which, more) in all {
            let group = Ipv4Addr::new(239, 0, 0, which);
            match what {
                0 | 1 => drop(membership.join(now, group.into())),
                2 => membership.leave(now, group.into()),
                3 => membership.handle_igmp(now, &query_v3(group, more as u8, &[ROUTER])),
                4 => membership.handle_igmp(now, &query_v2(Ipv4Addr::UNSPECIFIED)),
                5 => membership.handle_igmp(now, &igmp_packet(ALL, &[], &IgmpMessage::QueryV1)),
                6 => membership.handle_igmp(now, &query_v3(Ipv4Addr::UNSPECIFIED, more as u8, &[])),
                _ => now = now + Duration::from_millis(u64::from(more)),
            }
            said(&mut membership, now);
            for event in events(&mut membership) {
                match event {
                    MembershipEvent::Join(id) => prop_assert!(joined.insert(id)),
                    MembershipEvent::Leave(id) => prop_assert!(joined.remove(&id)),
                }
            }
            for which in 0..4 {
                let group = Ipv4Addr::new(239, 0, 0, which);
                let has_listener = membership.has_listener(group.into());
                prop_assert_eq!(has_listener, joined.contains(&GroupId::V4(group)));
            }
        }
        said(&mut membership, now + Duration::from_secs(3200));
        prop_assert_eq!(membership.poll_timeout(), None);
    }

    #[test]
    fn any_bytes_are_a_drop_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        member().handle_igmp(at(0), &bytes);
        member().handle_mld(at(0), &bytes);
    }
}
