//! Queries and reports as packets: IGMP in IPv4, MLD in ICMPv6 (RFC 3376 4, RFC 3810 5).

use super::reporter::{Query, Report, SOURCES_MAX, Version};
use super::{ALL_SYSTEMS, MembershipDrop};
use crate::frame::{CONTROL_DSCP, LinkFrame, NoLink, Sender, To};
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::group_record::{self, GroupRecord, RecordType};
use pollux_wire::ip::icmpv6::{self, Icmpv6Message};
use pollux_wire::ip::igmp::{self, IgmpMessage};
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Option, Ipv4OptionKind, Ipv4Packet};
use pollux_wire::ip::ipv6::{Ipv6Header, Ipv6Packet};
use pollux_wire::ip::ipv6_ext::{Extension, Extensions, Ipv6OptionKind, UpperLayer};
use pollux_wire::ip::list::{Item, List};
use pollux_wire::ip::mld::MldMessage;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

const ALL_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
const IGMPV3_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 22);
const MLDV2_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// The maximum response time of an IGMPv1 query, which has no field for it (RFC 3376 4.1.1).
const OLDEST_TIME: Duration = Duration::from_secs(10);

pub(super) enum ReceivedMessage {
    Query(Query),
    Report(IpAddr),
}

pub(super) fn read_igmp(bytes: &[u8]) -> Result<ReceivedMessage, MembershipDrop> {
    let malformed = |_| MembershipDrop::Malformed;
    let packet = Ipv4Packet::parse(bytes).map_err(malformed)?;
    let header = packet.header();
    if !packet.checksum_ok() || !igmp::checksum_ok(packet.payload()) {
        return Err(MembershipDrop::Checksum);
    }
    if header.protocol != IpProtocol::IGMP || header.is_fragment() {
        return Err(MembershipDrop::Malformed);
    }
    let has_alert = || {
        let mut options = packet.options().flatten();
        options.any(|option| option.kind == Ipv4OptionKind::ROUTER_ALERT)
    };
    let query = |version, group: Ipv4Addr, within, sources, robustness| {
        let group = (!group.is_unspecified()).then_some(group);
        // A general query is sent to all systems (RFC 3376 9.1).
        let is_right_group =
            group.map_or(header.destination == ALL_SYSTEMS, |ip| ip.is_multicast());
        let group = group.map(IpAddr::V4);
        match is_right_group {
            true => {
                Ok(ReceivedMessage::Query(Query { version, group, within, sources, robustness }))
            }
            false => Err(MembershipDrop::BadAddress),
        }
    };
    match IgmpMessage::parse(packet.payload()).map_err(malformed)? {
        IgmpMessage::QueryV1 => {
            query(Version::Oldest, Ipv4Addr::UNSPECIFIED, OLDEST_TIME, Vec::new(), None)
        }
        IgmpMessage::QueryV2 { max_response_tenths, group } if has_alert() => {
            query(Version::Older, group, tenths(max_response_tenths.into()), Vec::new(), None)
        }
        IgmpMessage::QueryV3 { max_response_code, group, querier } if has_alert() => {
            let within = tenths(group_record::floating(max_response_code));
            let sources = sources(&querier.sources);
            let robustness = Some(querier.robustness).filter(|&times| times > 0);
            query(Version::Current, group, within, sources, robustness)
        }
        IgmpMessage::ReportV1(group) | IgmpMessage::ReportV2(group) => {
            Ok(ReceivedMessage::Report(group.into()))
        }
        IgmpMessage::QueryV2 { .. } | IgmpMessage::QueryV3 { .. } => {
            Err(MembershipDrop::NoRouterAlert)
        }
        IgmpMessage::Leave(_) | IgmpMessage::ReportV3(_) => Err(MembershipDrop::NotForHosts),
    }
}

pub(super) fn read_mld(bytes: &[u8]) -> Result<ReceivedMessage, MembershipDrop> {
    let malformed = |_| MembershipDrop::Malformed;
    let packet = Ipv6Packet::parse(bytes).map_err(malformed)?;
    let header = packet.header();
    let upper = UpperLayer::find(header.next_header, packet.payload()).map_err(malformed)?;
    if upper.protocol != IpProtocol::ICMPV6 || upper.fragment.is_some() {
        return Err(MembershipDrop::Malformed);
    }
    if !icmpv6::checksum_ok(upper.payload, &header.pseudo_header()) {
        return Err(MembershipDrop::Checksum);
    }
    // RFC 3810 6.2, RFC 2710 5.
    if !header.source.is_unicast_link_local() || header.hop_limit != 1 {
        return Err(MembershipDrop::BadAddress);
    }
    if !has_mld_alert(&header, packet.payload()) {
        return Err(MembershipDrop::NoRouterAlert);
    }
    let query = |version, group: Ipv6Addr, ms: u32, sources, robustness| {
        let group = (!group.is_unspecified()).then_some(IpAddr::V6(group));
        let within = Duration::from_millis(u64::from(ms));
        Ok(ReceivedMessage::Query(Query { version, group, within, sources, robustness }))
    };
    match MldMessage::parse(upper.payload).map_err(malformed)? {
        MldMessage::QueryV1 { max_response_ms, group } => {
            query(Version::Older, group, max_response_ms.into(), Vec::new(), None)
        }
        MldMessage::QueryV2 { max_response_code, group, querier } => {
            let ms = group_record::floating_16(max_response_code);
            let robustness = Some(querier.robustness).filter(|&times| times > 0);
            query(Version::Current, group, ms, sources(&querier.sources), robustness)
        }
        MldMessage::ReportV1(group) => Ok(ReceivedMessage::Report(group.into())),
        MldMessage::Done(_) | MldMessage::ReportV2(_) => Err(MembershipDrop::NotForHosts),
    }
}

fn has_mld_alert(header: &Ipv6Header, payload: &[u8]) -> bool {
    let first = Extensions::new(header.next_header, payload).next();
    let Some(Ok(Extension::HopByHop(options))) = first else { return false };
    options.options.iter().any(|option| option.kind == Ipv6OptionKind::ROUTER_ALERT)
}

/// A report as an IGMP packet, without IPv6 groups.
pub(super) fn write_igmp(source: Ipv4Addr, report: &Report) -> Option<LinkFrame<NoLink>> {
    let v4 = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    };
    match *report {
        Report::Joined(Version::Oldest, group) => {
            igmp_frame(source, v4(group)?, &IgmpMessage::ReportV1(v4(group)?))
        }
        Report::Joined(_, group) => {
            igmp_frame(source, v4(group)?, &IgmpMessage::ReportV2(v4(group)?))
        }
        Report::Done(group) => igmp_frame(source, ALL_ROUTERS, &IgmpMessage::Leave(v4(group)?)),
        Report::Records(ref records) => with_records(records, v4, |records| {
            igmp_frame(source, IGMPV3_ROUTERS, &IgmpMessage::ReportV3(records))
        }),
    }
}

/// A report as an MLD packet, without IPv4 groups.
pub(super) fn write_mld(source: Ipv6Addr, report: &Report) -> Option<LinkFrame<NoLink>> {
    let v6 = |ip: IpAddr| match ip {
        IpAddr::V6(ip) => Some(ip),
        IpAddr::V4(_) => None,
    };
    match *report {
        Report::Joined(_, group) => mld_frame(source, v6(group)?, MldMessage::ReportV1(v6(group)?)),
        Report::Done(group) => {
            mld_frame(source, crate::nd::ALL_ROUTERS, MldMessage::Done(v6(group)?))
        }
        Report::Records(ref records) => with_records(records, v6, |records| {
            mld_frame(source, MLDV2_ROUTERS, MldMessage::ReportV2(records))
        }),
    }
}

/// Calls `then` with the records of one family in wire form.
fn with_records<A: for<'a> Item<'a>, T>(
    records: &[(RecordType, IpAddr, Vec<IpAddr>)],
    family: impl Fn(IpAddr) -> Option<A>,
    then: impl FnOnce(List<'_, GroupRecord<'_, A>>) -> T,
) -> T {
    let sources: Vec<Vec<A>> = records
        .iter()
        .map(|(_, _, sources)| sources.iter().filter_map(|&ip| family(ip)).collect())
        .collect();
    let with_sources = records.iter().zip(&sources);
    let records: Vec<_> = with_sources
        .filter_map(|((kind, group, _), sources)| {
            let (kind, group) = (*kind, family(*group)?);
            Some(GroupRecord { kind, group, sources: List::of(sources) })
        })
        .collect();
    then(List::of(&records))
}

fn igmp_frame(
    source: Ipv4Addr,
    to: Ipv4Addr,
    message: &IgmpMessage<'_>,
) -> Option<LinkFrame<NoLink>> {
    let mut payload = vec![0; message.wire_len()];
    message.write(&mut payload).ok()?;
    igmp::fill_checksum(&mut payload).ok()?;
    let header = Ipv4Header {
        dscp: CONTROL_DSCP,
        ttl: 1,
        protocol: IpProtocol::IGMP,
        source,
        destination: to,
        ..Ipv4Header::default()
    };
    LinkFrame::ipv4(To::group_of(to.into()), &header, &[Ipv4Option::ROUTER_ALERT], &payload)
}

fn mld_frame(source: Ipv6Addr, to: Ipv6Addr, message: MldMessage<'_>) -> Option<LinkFrame<NoLink>> {
    let from = Sender { source, destination: to, hop_limit: 1, router_alert: true };
    LinkFrame::icmpv6(To::group_of(to.into()), from, &Icmpv6Message::Mld(message))
}

/// The sources of a query. If there are more than [`SOURCES_MAX`], the list is empty, which means
/// all sources.
fn sources<'a, A: Item<'a> + Into<IpAddr>>(list: &List<'a, A>) -> Vec<IpAddr> {
    let sources: Vec<IpAddr> = list.iter().take(SOURCES_MAX + 1).map(Into::into).collect();
    if sources.len() > SOURCES_MAX { Vec::new() } else { sources }
}

fn tenths(count: u32) -> Duration {
    Duration::from_millis(u64::from(count) * 100)
}
