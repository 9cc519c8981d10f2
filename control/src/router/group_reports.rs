//! The multicast groups to which programs of the kernel listen. They are read from the membership
//! reports that the kernel sends on the shadow netdev of an interface (RFC 2236, RFC 3376, RFC
//! 2710, RFC 3810).
//!
//! A report with a source filter counts as a report of the group, because the kernel applies the
//! filter itself.

use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::group_record::{GroupRecord, RecordType};
use pollux_wire::ip::igmp::IgmpMessage;
use pollux_wire::ip::ipv4::Ipv4Packet;
use pollux_wire::ip::ipv6::Ipv6Packet;
use pollux_wire::ip::ipv6_ext::UpperLayer;
use pollux_wire::ip::list::Item;
use pollux_wire::ip::mld::MldMessage;
use std::net::{IpAddr, Ipv6Addr};

/// A packet that the kernel sends on the shadow netdev of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelPacket {
    /// A membership report: whether programs of the kernel listen to each group.
    Report(Vec<(IpAddr, bool)>),
    /// A neighbor discovery message or a membership query; the interface sends its own.
    OfTheLink,
    Program,
    Malformed,
}

impl KernelPacket {
    pub fn parse(packet: &[u8]) -> Self {
        let kind = match packet.first().map(|first| first >> 4) {
            Some(4) => parse_v4(packet),
            Some(6) => parse_v6(packet),
            _ => None,
        };
        kind.unwrap_or(Self::Malformed)
    }
}

fn parse_v4(bytes: &[u8]) -> Option<KernelPacket> {
    let packet = Ipv4Packet::parse(bytes).ok()?;
    if packet.header().protocol != IpProtocol::IGMP {
        return Some(KernelPacket::Program);
    }
    Some(match IgmpMessage::parse(packet.payload()).ok()? {
        IgmpMessage::ReportV1(group) | IgmpMessage::ReportV2(group) => one(group, true),
        IgmpMessage::Leave(group) => one(group, false),
        IgmpMessage::ReportV3(records) => KernelPacket::Report(all(records.iter())),
        _ => KernelPacket::OfTheLink,
    })
}

fn parse_v6(bytes: &[u8]) -> Option<KernelPacket> {
    let packet = Ipv6Packet::parse(bytes).ok()?;
    let upper = UpperLayer::find(packet.header().next_header, packet.payload()).ok()?;
    if upper.protocol != IpProtocol::ICMPV6 {
        return Some(KernelPacket::Program);
    }
    match upper.payload.first()? {
        130..=132 | 143 => {}
        133..=137 => return Some(KernelPacket::OfTheLink),
        _ => return Some(KernelPacket::Program),
    }
    Some(match MldMessage::parse(upper.payload).ok()? {
        MldMessage::ReportV1(group) => one(group, true),
        MldMessage::Done(group) => one(group, false),
        MldMessage::ReportV2(records) => KernelPacket::Report(all(records.iter())),
        _ => KernelPacket::OfTheLink,
    })
}

fn one(group: impl Into<IpAddr>, listens: bool) -> KernelPacket {
    KernelPacket::Report(vec![(group.into(), listens)])
}

/// The groups of records, and whether programs listen to each. Solicited-node groups are left out,
/// because the interface joins its own.
fn all<'a, A: Item<'a> + Into<IpAddr> + 'a>(
    records: impl Iterator<Item = GroupRecord<'a, A>>,
) -> Vec<(IpAddr, bool)> {
    let listens = |record: &GroupRecord<'a, A>| match record.kind {
        RecordType::MODE_IS_EXCLUDE | RecordType::CHANGE_TO_EXCLUDE_MODE => Some(true),
        RecordType::MODE_IS_INCLUDE
        | RecordType::CHANGE_TO_INCLUDE_MODE
        | RecordType::ALLOW_NEW_SOURCES => Some(record.sources.iter().next().is_some()),
        _ => None,
    };
    let groups = records.filter_map(|record| Some((listens(&record)?, record.group.into())));
    groups
        .map(|(listens, group)| (group, listens))
        .filter(|(group, _)| !is_solicited(*group))
        .collect()
}

fn is_solicited(group: IpAddr) -> bool {
    const PREFIX: u128 = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).to_bits() >> 24;
    matches!(group, IpAddr::V6(group) if group.to_bits() >> 24 == PREFIX)
}
