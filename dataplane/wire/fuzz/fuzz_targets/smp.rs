//! Subnet and performance management: whole packets, attributes, and details of notices.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pollux_wire::mad::class_port_info::ClassPortInfo;
use pollux_wire::mad::notice::{Notice, NoticeReport};
use pollux_wire::mad::perf::{PortCounters, PortCountersExtended};
use pollux_wire::mad::rmpp::RmppHeader;
use pollux_wire::mad::smp::*;
use pollux_wire_fuzz::survives;

fuzz_target!(|bytes: &[u8]| {
    survives!(bytes, LidSmp, DirectedSmp, ClassPortInfo, NoticeReport);
    survives!(bytes, NodeInfo, NodeDescription, GuidInfo, PortInfo, SwitchInfo, PKeyTable, SmInfo);
    survives!(bytes, SlToVlMappingTable, VlArbitrationTable, LinearForwardingTable);
    survives!(bytes, RandomForwardingTable, MulticastForwardingTable);
    survives!(bytes, PortCounters, PortCountersExtended);
    if let Ok((smp, _)) = DirectedSmp::read(bytes) {
        let _ = (smp.hop_pointer(), smp.hop_count());
        let _ = format!("{smp:?}");
        let _ = NodeDescription::parse(&smp.data).text();
    }
    if let Ok((notice, _)) = Notice::read(bytes) {
        let details = notice.details();
        let again = Notice { data_details: details.emit(), ..notice };
        assert_eq!(again.details(), details);
    }
    if let Ok((rmpp, _)) = RmppHeader::read(bytes) {
        for class_header_len in [0, 20] {
            let _ = rmpp.data_len(class_header_len);
        }
    }
});
