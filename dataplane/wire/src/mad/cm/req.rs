//! The request for a connection (IBA 12.6.5): everything that the passive side needs for its queue
//! pair, and up to two paths between the two.
//!
//! *Local* always means the sender of the message.

use super::{CommId, TransportService};
use crate::address::{Gid, Guid, Lid, Qpn};
use crate::keys::{PKey, QKey};
use crate::mad::service_id::ServiceId;
use crate::psn::Psn;
use crate::units::{Mtu, Rate, TimeCode};

layout! {
    pub struct Req: 232 bytes {
        0:0     32  local_comm_id: CommId,
        /// The vendor of the options that the attribute modifier selects; 0 for none.
        5:0     24  vendor_id: u32,
        /// The service ID; a listener matches all 64 bits.
        8:0     64  service_id: ServiceId,
        /// With [`Req::local_qpn`] it identifies stale connections.
        16:0    64  local_ca_guid: Guid,
        /// Of the sender's queue pair, for reliable datagrams.
        28:0    32  local_q_key: QKey,
        32:0    24  local_qpn: Qpn,
        /// Reads and atomics that the sender can serve at once.
        35:0     8  responder_resources: u8,
        /// The sender's end-to-end context, for reliable datagrams.
        36:0    24  local_eecn: u32,
        /// Reads and atomics that the sender would issue at once.
        39:0     8  initiator_depth: u8,
        40:0    24  remote_eecn: u32,
        /// How soon the sender expects an answer of the receiver's connection manager.
        43:0     5  remote_cm_response_timeout: TimeCode,
        43:5     2  transport_service: TransportService,
        /// Whether the sender's acknowledgements carry credits.
        43:7     1  end_to_end_flow_control: bool,
        /// The first packet that the sender expects to receive.
        44:0    24  starting_psn: Psn,
        /// How soon the sender's own connection manager answers.
        47:0     5  local_cm_response_timeout: TimeCode,
        /// How often the receiver shall repeat an unacknowledged packet.
        47:5     3  retry_count: u8,
        48:0    16  p_key: PKey,
        50:0     4  path_mtu: Mtu,
        /// Whether a reliable datagram channel is there already.
        50:4     1  rdc_exists: bool,
        /// How often the receiver shall repeat after "receiver not ready"; 7 for ever.
        50:5     3  rnr_retry_count: u8,
        /// How often either side repeats its connection management messages.
        51:0     4  max_cm_retries: u8,
        51:4     1  srq: bool,
        /// Which transport, when `transport_service` says `EXTENDED`; 1 is XRC.
        51:5     3  extended_transport: u8,
        52:0   352  primary: ReqPath,
        /// The path to migrate to; all zero for none.
        96:0   352  alternate: ReqPath,
        140:0  736  private_data: [u8; 92],
    }
}

layout! {
    /// One of the two paths in a [`Req`], as the sender sees it.
    pub struct ReqPath: 44 bytes {
        /// The sender's port; permissive when the path leaves the subnet.
        0:0    16  local_lid: Lid,
        /// The receiver's port; permissive when the path leaves the subnet.
        2:0    16  remote_lid: Lid,
        4:0   128  local_gid: Gid,
        20:0  128  remote_gid: Gid,
        36:0   20  flow_label: u32,
        /// The fastest that the sender may be sent to.
        39:2    6  packet_rate: Rate,
        40:0    8  traffic_class: u8,
        41:0    8  hop_limit: u8,
        /// Service level of packets to the sender.
        42:0    4  sl: u8,
        /// Whether both ports are in one subnet, so that the LIDs are good.
        42:4    1  subnet_local: bool,
        /// How long the receiver waits for the sender to acknowledge.
        43:0    5  local_ack_timeout: TimeCode,
        /// Whether the sender takes suggestions of another alternate path; reserved in the primary.
        43:5    1  sap_supported: bool,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::tests::{assert_bytes, counting, counting_gid};

    fn path(first: u8) -> ReqPath {
        ReqPath {
            local_lid: Lid(u16::from(first) << 8 | 1),
            remote_lid: Lid(u16::from(first) << 8 | 2),
            local_gid: counting_gid(first + 0x10),
            remote_gid: counting_gid(first + 0x20),
            flow_label: 0xf_edcb,
            packet_rate: Rate(0x2a),
            traffic_class: first + 3,
            hop_limit: first + 4,
            sl: 9,
            subnet_local: true,
            local_ack_timeout: TimeCode(19),
            sap_supported: false,
        }
    }

    #[test]
    fn every_field_is_where_the_specification_has_it() {
        let req = Req {
            local_comm_id: CommId(0x0102_0304),
            vendor_id: 0x02c9,
            service_id: ServiceId(0x1000_0000_0012_3456),
            local_ca_guid: Guid(0x0002_c903_0000_1000),
            local_q_key: QKey(0x1112_1314),
            local_qpn: Qpn(0x21_2223),
            responder_resources: 4,
            local_eecn: 0x31_3233,
            initiator_depth: 5,
            remote_eecn: 0x41_4243,
            remote_cm_response_timeout: TimeCode(20),
            transport_service: TransportService::UC,
            end_to_end_flow_control: true,
            starting_psn: Psn::new(0x51_5253),
            local_cm_response_timeout: TimeCode(21),
            retry_count: 6,
            p_key: PKey(0x8123),
            path_mtu: Mtu::BYTES_2048,
            rdc_exists: true,
            rnr_retry_count: 7,
            max_cm_retries: 15,
            srq: true,
            extended_transport: 1,
            primary: path(0x60),
            alternate: ReqPath { sap_supported: true, subnet_local: false, ..path(0x90) },
            private_data: counting(0xa0),
        };
        assert_bytes(
            &req,
            &[
                (0, &[1, 2, 3, 4]),
                (5, &[0, 2, 0xc9]),
                (8, &[0x10, 0, 0, 0, 0, 0x12, 0x34, 0x56]),
                (16, &[0, 2, 0xc9, 3, 0, 0, 0x10, 0]),
                (28, &[0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 4, 0x31, 0x32, 0x33, 5]),
                (40, &[0x41, 0x42, 0x43, 20 << 3 | 1 << 1 | 1, 0x51, 0x52, 0x53, 21 << 3 | 6]),
                (48, &[0x81, 0x23, 4 << 4 | 1 << 3 | 7, 15 << 4 | 1 << 3 | 1]),
                (52, &[0x60, 1, 0x60, 2]),
                (56, &counting::<16>(0x70)),
                (72, &counting::<16>(0x80)),
                (88, &[0xfe, 0xdc, 0xb0, 0x2a, 0x63, 0x64, 9 << 4 | 1 << 3, 19 << 3]),
                (96, &[0x90, 1, 0x90, 2]),
                (100, &counting::<16>(0xa0)),
                (116, &counting::<16>(0xb0)),
                (132, &[0xfe, 0xdc, 0xb0, 0x2a, 0x93, 0x94, 9 << 4, 19 << 3 | 1 << 2]),
                (140, &counting::<92>(0xa0)),
            ],
        );
    }
}
