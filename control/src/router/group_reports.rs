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
        IgmpMessage::ReportV3(records) => all(records.iter()),
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
        MldMessage::ReportV2(records) => all(records.iter()),
        _ => KernelPacket::OfTheLink,
    })
}

fn one(group: impl Into<IpAddr>, listens: bool) -> KernelPacket {
    report(std::iter::once((group.into(), listens)))
}

/// A report of groups. Solicited-node groups are left out, because the interface joins its own.
fn report(groups: impl Iterator<Item = (IpAddr, bool)>) -> KernelPacket {
    KernelPacket::Report(groups.filter(|(group, _)| !is_solicited(*group)).collect())
}

/// The groups of records, and whether programs listen to each.
fn all<'a, A: Item<'a> + Into<IpAddr> + 'a>(
    records: impl Iterator<Item = GroupRecord<'a, A>>,
) -> KernelPacket {
    let listens = |record: &GroupRecord<'a, A>| match record.kind {
        RecordType::MODE_IS_EXCLUDE | RecordType::CHANGE_TO_EXCLUDE_MODE => Some(true),
        RecordType::MODE_IS_INCLUDE
        | RecordType::CHANGE_TO_INCLUDE_MODE
        | RecordType::ALLOW_NEW_SOURCES => Some(record.sources.iter().next().is_some()),
        _ => None,
    };
    report(records.filter_map(|record| {
        let listens = listens(&record)?;
        Some((record.group.into(), listens))
    }))
}

fn is_solicited(group: IpAddr) -> bool {
    const PREFIX: u128 = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).to_bits() >> 24;
    matches!(group, IpAddr::V6(group) if group.to_bits() >> 24 == PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::ip::group_record::GroupRecord;
    use pollux_wire::ip::list::List;

    /// An IPv6 packet with this MLD message.
    fn packet(message: &MldMessage<'_>) -> Vec<u8> {
        let mut bytes = vec![0; 40 + message.wire_len()];
        (bytes[0], bytes[5], bytes[6]) = (6 << 4, message.wire_len() as u8, 58);
        message.write(&mut bytes[40..]).unwrap();
        bytes
    }

    #[test]
    fn reports_of_both_versions_leave_out_solicited_node_groups() {
        let solicited = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0x1234);
        let other = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb);
        let listens = |group| GroupRecord {
            kind: RecordType::CHANGE_TO_EXCLUDE_MODE,
            group,
            sources: List::of(&[]),
        };
        for (group, expected) in [(other, vec![(other.into(), true)]), (solicited, vec![])] {
            let records = [listens(group)];
            let of_version_2 = MldMessage::ReportV2(List::of(&records));
            for message in [MldMessage::ReportV1(group), of_version_2] {
                let report = KernelPacket::parse(&packet(&message));
                assert_eq!(report, KernelPacket::Report(expected.clone()), "{message:?}");
            }
            let left = KernelPacket::parse(&packet(&MldMessage::Done(group)));
            let expected = expected.iter().map(|&(group, _)| (group, false)).collect();
            assert_eq!(left, KernelPacket::Report(expected));
        }
    }
}
