//! Address resolution: ARP with all hardware addresses, ND, MLD, and multicast GIDs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pollux_wire::address::Gid;
use pollux_wire::ethernet::MacAddress;
use pollux_wire::ip::arp::ArpPacket;
use pollux_wire::ip::icmpv6::Icmpv6Message;
use pollux_wire::ip::link_address::{DraftLinkAddress, LinkAddress};
use pollux_wire::ip::mgid::LinkGroup;
use pollux_wire::ip::mld::MldMessage;
use pollux_wire::ip::nd::NdMessage;
use pollux_wire_fuzz::round_trips;

fuzz_target!(|bytes: &[u8]| {
    round_trips!(bytes, ArpPacket::<LinkAddress>, ArpPacket::<DraftLinkAddress>);
    round_trips!(bytes, ArpPacket::<MacAddress>);
    round_trips!(bytes, NdMessage, MldMessage, Icmpv6Message);
    if let Some(&gid) = bytes.first_chunk()
        && let Ok(group) = LinkGroup::from_mgid(Gid(gid))
    {
        assert_eq!(LinkGroup::from_mgid(group.mgid()), Ok(group));
    }
});
