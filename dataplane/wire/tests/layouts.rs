//! Rules that hold for every layout.
//!
//! The formats' own tests compare single bytes with captures; this one checks for all of them that
//! no bit of a field is lost, that reserved bits are ignored and sent as zero, and that no length
//! of input or output panics. `scripts/tidy` checks that the list below leaves no layout out.

use pollux_wire::WireError;
use pollux_wire::layout::{Field, Layout, load_bits};
use proptest::collection::vec;
use proptest::prelude::*;

/// Tests of all layouts at these paths; a failure names the layout.
macro_rules! layouts {
    ($($($path:ident)::+,)+) => {
        #[test]
        fn every_layout_keeps_its_fields_and_nothing_else() {
            $( keeps_fields_only::<pollux_wire::$($path)::+>(); )+
        }

        #[test]
        fn every_layout_reports_missing_bytes() {
            $( reports_missing_bytes::<pollux_wire::$($path)::+>(); )+
        }
    };
}

layouts! {
    packet::Lrh,
    packet::Grh,
    packet::Bth,
    packet::Deth,
    packet::Reth,
    packet::Aeth,
    packet::ImmDt,
    packet::Ieth,
    packet::AtomicEth,
    packet::AtomicAckEth,
    packet::Rdeth,
    packet::Rwh,
    mad::MadHeader,
    mad::class_port_info::ClassPortInfo,
    mad::class_port_info::ClassAddress,
    mad::notice::Notice,
    mad::notice::NoticeReport,
    mad::notice::GidTrap,
    mad::notice::LinkStateTrap,
    mad::notice::CapabilityTrap,
    mad::notice::BadMKeyTrap,
    mad::notice::BadKeyTrap,
    mad::notice::BadPKeyAtSwitchTrap,
    mad::perf::PortCounters,
    mad::perf::PortCountersExtended,
    mad::rmpp::RmppHeader,
    mad::smp::LidSmp,
    mad::smp::DirectedSmp,
    mad::smp::NodeDescription,
    mad::smp::NodeInfo,
    mad::smp::SwitchInfo,
    mad::smp::GuidInfo,
    mad::smp::PortInfo,
    mad::smp::PortInfoModifier,
    mad::smp::PKeyTable,
    mad::smp::PKeyTableModifier,
    mad::smp::SlToVlMappingTable,
    mad::smp::SlToVlModifier,
    mad::smp::VlArbitrationTable,
    mad::smp::VlArbitrationModifier,
    mad::smp::VlWeight,
    mad::smp::LinearForwardingTable,
    mad::smp::RandomForwardingTable,
    mad::smp::RandomForwardingEntry,
    mad::smp::MulticastForwardingTable,
    mad::smp::MulticastForwardingTableModifier,
    mad::smp::SmInfo,
    mad::sa::SaHeader,
    mad::sa::SaMad,
    mad::sa::InformInfo,
    mad::sa::InformInfoRecord,
    mad::sa::McMemberRecord,
    mad::sa::MultiPathRecord,
    mad::sa::NodeRecord,
    mad::sa::PathRecord,
    mad::sa::PortInfoRecord,
    mad::sa::ServiceRecord,
    mad::sa::LinkRecord,
    mad::sa::SwitchInfoRecord,
    mad::sa::LftRecord,
    mad::sa::MftRecord,
    mad::sa::PKeyTableRecord,
    mad::sa::SmInfoRecord,
    mad::cm::Dreq,
    mad::cm::Drep,
    mad::cm::ip_service::IpServiceHeader,
    mad::cm::ipoib::AskingWorker,
    mad::cm::ipoib::IpoibPrivateData,
    mad::cm::Lap,
    mad::cm::Apr,
    mad::cm::Mra,
    mad::cm::Rej,
    mad::cm::Rep,
    mad::cm::Req,
    mad::cm::ReqPath,
    mad::cm::Rtu,
    mad::cm::SidrReq,
    mad::cm::SidrRep,
    ip::arp::ArpHeader,
    ip::arp::ProtocolAddress,
    ip::dhcp::DhcpHeader,
    ip::group_record::QuerierHeader,
    ip::group_record::GroupRecordHeader,
    ip::group_record::ReportHeader,
    ip::icmp::IcmpHeader,
    ip::igmp::IgmpHeader,
    ip::ipoib::IpoibHeader,
    ip::ipv4::Ipv4Header,
    ip::ipv6::Ipv6Header,
    ip::ipv6_ext::ExtensionHeader,
    ip::ipv6_ext::FragmentHeader,
    ip::link_address::LinkAddress,
    ip::link_address::DraftLinkAddress,
    ip::mgid::Mgid,
    ip::mld::MldHeader,
    ip::nd::RouterAdvertisement,
    ip::nd::NeighborSolicitation,
    ip::nd::NeighborAdvertisement,
    ip::nd::Redirect,
    ip::nd_option::NdOptionHeader,
    ip::nd_option::LinkAddressOption,
    ip::nd_option::MacAddressOption,
    ip::nd_option::PrefixInformation,
    ip::nd_option::MtuOption,
    ip::nd_option::RecursiveDnsServerHeader,
    ip::tcp::TcpHeader,
    ip::tcp::SackBlock,
    ip::udp::UdpHeader,
    ethernet::EthernetHeader,
    ethernet::VlanTag,
    capture::FileHeader,
    capture::RecordHeader,
    capture::ErfHeader,
    pcapng::BlockHeader,
    pcapng::SectionBody,
    pcapng::InterfaceBody,
    pcapng::PacketBody,
    pcapng::StatisticsBody,
    pcapng::OptionHeader,
}

fn keeps_fields_only<L: Layout + Field>() {
    let kept = emitted::<L>(&vec![0xff; L::LEN]);
    check_kept::<L>(&kept);
    proptest!(|(bytes in vec(any::<u8>(), L::LEN))| {
        let expected: Vec<u8> =
            bytes.iter().zip(&kept).map(|(byte, mask)| byte & mask).collect();
        let emitted = emitted::<L>(&bytes);
        prop_assert_eq!(&emitted, &expected, "{}", L::NAME);
        prop_assert_eq!(L::read(&emitted).unwrap().0, L::read(&bytes).unwrap().0);
    });
}

/// Exactly the bits of the table, and of the tables within it, are kept.
fn check_kept<L: Layout + Field>(kept: &[u8]) {
    let mut occupied = vec![0; L::LEN];
    L::occupy(&mut occupied, 0, L::LEN * 8);
    for bit in 0..L::LEN * 8 {
        let field = L::FIELDS.iter().rfind(|field| field.bit <= bit).map(|field| field.name);
        assert_eq!(
            (load_bits(kept, bit, 1), bit),
            (load_bits(&occupied, bit, 1), bit),
            "{}: kept, or to be kept, in or behind {field:?}",
            L::NAME,
        );
    }
}

/// Reads `bytes` and writes them over others.
fn emitted<L: Layout>(bytes: &[u8]) -> Vec<u8> {
    let (value, rest) = L::read(bytes).expect("as many bytes as the layout has");
    assert!(rest.is_empty());
    let mut out = vec![0xaa; L::LEN];
    assert!(value.write(&mut out).expect("room for the layout").is_empty());
    out
}

fn reports_missing_bytes<L: Layout>() {
    let bytes = vec![0x55; L::LEN];
    let (value, _) = L::read(&bytes).expect("as many bytes as the layout has");
    let (format, needed) = (L::NAME, L::LEN);
    for have in 0..L::LEN {
        let truncated = WireError::Truncated { format, needed, have };
        assert_eq!(L::read(&bytes[..have]).unwrap_err(), truncated);
        let no_room = WireError::NoRoom { format, needed, have };
        assert_eq!(value.write(&mut vec![0; have]).unwrap_err(), no_room);
    }
}
