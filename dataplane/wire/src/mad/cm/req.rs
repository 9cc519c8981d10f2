//! REQ, the connection request (IBA 12.6.5): the parameters that the passive side needs for its
//! queue pair, the primary path, and optionally an alternate path.
//!
//! In all messages, *local* is the sender of the message.

use super::{CommId, TransportService};
use crate::address::{Gid, Guid, Lid, Qpn};
use crate::keys::{PKey, QKey};
use crate::mad::service_id::ServiceId;
use crate::psn::Psn;
use crate::units::{Mtu, Rate, TimeCode};

layout! {
    pub struct Req: 232 bytes {
        0:0     32  local_comm_id: CommId,
        /// Vendor of the options that the attribute modifier selects; 0 for none.
        5:0     24  vendor_id: u32,
        8:0     64  service_id: ServiceId,
        /// Together with [`Req::local_qpn`], identifies stale connections.
        16:0    64  local_ca_guid: Guid,
        /// The Q_Key of the sender's queue pair, for RD.
        28:0    32  local_q_key: QKey,
        32:0    24  local_qpn: Qpn,
        /// Number of RDMA READs and atomics that the sender accepts at the same time.
        35:0     8  responder_resources: u8,
        /// The sender's end-to-end context, for RD.
        36:0    24  local_eecn: u32,
        /// Number of RDMA READs and atomics that the sender wants to issue at the same time.
        39:0     8  initiator_depth: u8,
        40:0    24  remote_eecn: u32,
        /// How soon the sender expects a response from the receiver's CM.
        43:0     5  remote_cm_response_timeout: TimeCode,
        43:5     2  transport_service: TransportService,
        /// Whether the sender's acknowledgements carry credits.
        43:7     1  end_to_end_flow_control: bool,
        /// The PSN of the first packet that the sender expects to receive.
        44:0    24  starting_psn: Psn,
        /// How soon the sender's CM responds.
        47:0     5  local_cm_response_timeout: TimeCode,
        /// How often the receiver retries an unacknowledged packet.
        47:5     3  retry_count: u8,
        48:0    16  p_key: PKey,
        50:0     4  path_mtu: Mtu,
        /// Whether a reliable datagram channel already exists.
        50:4     1  rdc_exists: bool,
        /// How often the receiver retries after an RNR NAK; 7 for no limit.
        50:5     3  rnr_retry_count: u8,
        /// How often either side retransmits a CM message.
        51:0     4  max_cm_retries: u8,
        51:4     1  srq: bool,
        /// The transport if `transport_service` is `EXTENDED`; 1 is XRC.
        51:5     3  extended_transport: u8,
        52:0   352  primary: ReqPath,
        /// The path for automatic path migration; all zero for none.
        96:0   352  alternate: ReqPath,
        140:0  736  private_data: [u8; 92],
    }
}

layout! {
    /// A path in a [`Req`], from the viewpoint of the sender.
    pub struct ReqPath: 44 bytes {
        /// LID of the sender's port; permissive if the path leaves the subnet.
        0:0    16  local_lid: Lid,
        /// LID of the receiver's port; permissive if the path leaves the subnet.
        2:0    16  remote_lid: Lid,
        4:0   128  local_gid: Gid,
        20:0  128  remote_gid: Gid,
        36:0   20  flow_label: u32,
        /// The maximum rate of packets to the sender.
        39:2    6  packet_rate: Rate,
        40:0    8  traffic_class: u8,
        41:0    8  hop_limit: u8,
        /// Service level of packets to the sender.
        42:0    4  sl: u8,
        /// Whether both ports are in one subnet, so that the LIDs are valid.
        42:4    1  subnet_local: bool,
        /// How long the receiver waits for an ACK from the sender.
        43:0    5  local_ack_timeout: TimeCode,
        /// Whether the sender accepts suggestions for another alternate path; reserved in the
        /// primary path.
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
