//! The performance management agent: reads and sets the counters of a node (IBA 16.1).
//!
//! The class has no key, so any node in the partition can read and set the counters.

use crate::node::{Counters, NodeDrop, SubnetNode};
use pollux_wire::mad::class_port_info::{ClassCapabilities, ClassPortInfo};
use pollux_wire::mad::perf::{PortCounters, PortCountersExtended};
use pollux_wire::mad::{Attribute, MAD_LEN, MadHeader, MadStatus, Method};
use pollux_wire::units::TimeCode;

/// The offset of the attribute in a datagram of this class (IBA 16.1.1).
const DATA: usize = 64;

type Data = [u8; MAD_LEN - DATA];

/// Answers a datagram of this class. `None` for a response, which is counted as a drop.
pub fn handle(node: &mut SubnetNode, mad: &[u8; MAD_LEN]) -> Option<[u8; MAD_LEN]> {
    let (head, data) = mad.split_at(DATA);
    let mut header = MadHeader::read(head).ok()?.0;
    let mut data: Data = data.try_into().ok()?;
    if header.method.is_response() {
        node.drops.count(NodeDrop::Unclaimed);
        return None;
    }
    header.status = match execute(node, &header, &mut data) {
        Ok(()) => MadStatus::OK,
        Err(status) => status,
    };
    header.method = header.method.response();
    let mut answer = *mad;
    answer[..MadHeader::LEN].copy_from_slice(&header.emit());
    answer[DATA..].copy_from_slice(&data);
    Some(answer)
}

/// Executes a request. `data` has the attribute of the request, and then that of the answer.
fn execute(node: &mut SubnetNode, header: &MadHeader, data: &mut Data) -> Result<(), MadStatus> {
    if header.base_version != 1 || header.class_version != 1 {
        return Err(MadStatus::BAD_VERSION);
    }
    let is_set = match header.method {
        Method::GET => false,
        Method::SET => true,
        _ => return Err(MadStatus::BAD_METHOD),
    };
    match header.attribute_id {
        ClassPortInfo::ID if !is_set => *data = class_port_info(node).to_data(),
        PortCounters::ID => {
            let request = PortCounters::from_data(data);
            let counters = counters(node, request.port_select)?;
            if is_set {
                counters.set_port_counters(&request);
            }
            let selects = (request.counter_select, request.counter_select2);
            *data = PortCounters {
                port_select: request.port_select,
                counter_select: selects.0,
                counter_select2: selects.1,
                ..counters.port_counters()
            }
            .to_data();
        }
        PortCountersExtended::ID => {
            let request = PortCountersExtended::from_data(data);
            let counters = counters(node, request.port_select)?;
            if is_set {
                counters.set_port_counters_extended(&request);
            }
            *data = PortCountersExtended {
                port_select: request.port_select,
                counter_select: request.counter_select,
                ..counters.port_counters_extended()
            }
            .to_data();
        }
        _ => return Err(MadStatus::BAD_METHOD_ATTRIBUTE),
    }
    Ok(())
}

fn class_port_info(node: &SubnetNode) -> ClassPortInfo {
    ClassPortInfo {
        base_version: 1,
        class_version: 1,
        capability_mask: ClassCapabilities::PERF_EXTENDED_WIDTH
            .with(ClassCapabilities::PERF_PORT_XMIT_WAIT),
        resp_time_value: node.ports.first().map_or(TimeCode(8), |port| port.info.resp_time_value),
        ..ClassPortInfo::default()
    }
}

/// The counters of a port. Port 255, the sum of all ports, is invalid, because AllPortSelect is not
/// among the capabilities.
fn counters(node: &mut SubnetNode, port: u8) -> Result<&mut Counters, MadStatus> {
    let is_switch = node.is_switch();
    let port = node.ports.get_mut(usize::from(port)).filter(|_| port > 0 || is_switch);
    port.map(|port| &mut port.counters).ok_or(MadStatus::BAD_FIELD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Topology;
    use pollux_wire::mad::perf::CounterSelect;
    use pollux_wire::mad::{AttributeId, MgmtClass};
    use proptest::prelude::*;

    fn host() -> SubnetNode {
        SubnetNode::new(&Topology::generate("single:1", 0).unwrap().nodes()[1])
    }

    fn ask<A: Attribute>(node: &mut SubnetNode, method: Method, attribute: A) -> (MadStatus, A) {
        let header = MadHeader::new(MgmtClass::PERF, method, 0x1234, A::ID);
        let mut mad = [0; MAD_LEN];
        mad[..MadHeader::LEN].copy_from_slice(&header.emit());
        mad[DATA..].copy_from_slice(&attribute.to_data::<192>());
        let answer = handle(node, &mad).expect("requests are answered");
        let header = MadHeader::read(&answer).unwrap().0;
        assert_eq!((header.method, header.transaction_id), (method.response(), 0x1234));
        let data: Data = answer[DATA..].try_into().unwrap();
        (header.status, A::from_data(&data))
    }

    // req: iba-counters
    #[test]
    fn counters_are_read_and_cleared_by_mask() {
        let mut node = host();
        node.ports[1].counters.sent_many(1, 9, false);
        let of_port = PortCounters { port_select: 1, ..PortCounters::default() };
        let (status, read) = ask(&mut node, Method::GET, of_port);
        assert_eq!((status, read.port_xmit_data, read.port_xmit_pkts), (MadStatus::OK, 9, 1));
        let clear = PortCounters { counter_select: CounterSelect::PORT_XMIT_DATA, ..of_port };
        let (_, read) = ask(&mut node, Method::SET, clear);
        assert_eq!((read.port_xmit_data, read.port_xmit_pkts), (0, 1));
        let long = PortCountersExtended { port_select: 1, ..PortCountersExtended::default() };
        let (status, read) = ask(&mut node, Method::GET, long);
        assert_eq!((status, read.port_xmit_data), (MadStatus::OK, 9), "a view of its own");
    }

    #[test]
    fn unsupported_attributes_have_their_status() {
        let mut node = host();
        let (status, info) = ask(&mut node, Method::GET, ClassPortInfo::default());
        assert_eq!((status, info.class_version), (MadStatus::OK, 1));
        let (status, _) = ask(&mut node, Method::SET, info);
        assert_eq!(status, MadStatus::BAD_METHOD_ATTRIBUTE);
        let no_port = PortCounters { port_select: 2, ..PortCounters::default() };
        assert_eq!(ask(&mut node, Method::GET, no_port).0, MadStatus::BAD_FIELD);
        assert_eq!(ask(&mut node, Method::SEND, no_port).0, MadStatus::BAD_METHOD);
        let mut mad = [0; MAD_LEN];
        let per_level = AttributeId(0x36);
        let mut header = MadHeader::new(MgmtClass::PERF, Method::GET, 1, per_level);
        mad[..24].copy_from_slice(&header.emit());
        let status = |answer: [u8; MAD_LEN]| u16::from_be_bytes([answer[4], answer[5]]);
        assert_eq!(status(handle(&mut node, &mad).unwrap()), MadStatus::BAD_METHOD_ATTRIBUTE.0);
        header.class_version = 2;
        mad[..24].copy_from_slice(&header.emit());
        assert_eq!(status(handle(&mut node, &mad).unwrap()), MadStatus::BAD_VERSION.0);
        header.method = Method::GET_RESP;
        mad[..24].copy_from_slice(&header.emit());
        assert_eq!(handle(&mut node, &mad), None);
        assert_eq!(node.drops.of(NodeDrop::Unclaimed), 1);
    }

    proptest! {
        #[test]
        fn any_datagram_is_answered_or_counted(
            bytes in prop::collection::vec(any::<u8>(), MAD_LEN),
            method in prop_oneof![Just(1u8), Just(2), any::<u8>()],
            attribute in prop_oneof![Just(0x01u8), Just(0x12), Just(0x1d), any::<u8>()],
        ) {
            let mut mad: [u8; MAD_LEN] = bytes.try_into().unwrap();
            (mad[0], mad[2], mad[3], mad[16], mad[17]) = (1, 1, method, 0, attribute);
            let mut node = host();
            let answer = handle(&mut node, &mad);
            prop_assert_eq!(u64::from(answer.is_none()), node.drops.total());
        }
    }
}
