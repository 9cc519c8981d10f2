//! REJ, which rejects a connection that is not established yet, and its reasons (IBA 12.6.7).

use super::{AnsweredMessage, CommId};
use crate::address::Guid;

connection_message! {
    pub struct Rej: 232 bytes {
        8:0      2  message_rejected: AnsweredMessage,
        /// Number of valid bytes in [`Rej::additional_info`].
        9:0      7  reject_info_len: u8,
        10:0    16  reason: RejectReason,
        /// The format depends on the reason.
        12:0   576  additional_info: [u8; 72],
        84:0  1184  private_data: [u8; 148],
    }
}

codes! {
    /// The reason for a rejection (IBA 12.6.7.2).
    pub struct RejectReason(u16) {
        NO_QP = 1,
        NO_EEC = 2,
        NO_RESOURCES = 3,
        /// No response arrived in time. The additional information is the sender's CA GUID.
        TIMEOUT = 4,
        UNSUPPORTED_REQUEST = 5,
        INVALID_COMM_ID = 6,
        INVALID_COMM_INSTANCE = 7,
        /// No listener has the service ID.
        INVALID_SERVICE_ID = 8,
        INVALID_TRANSPORT_SERVICE_TYPE = 9,
        /// The sender of the REJ still has a connection with this queue pair.
        STALE_CONNECTION = 10,
        RDC_DOES_NOT_EXIST = 11,
        /// The additional information is a GID that would be accepted.
        INVALID_PRIMARY_REMOTE_GID = 12,
        INVALID_PRIMARY_REMOTE_LID = 13,
        INVALID_PRIMARY_SL = 14,
        INVALID_PRIMARY_TRAFFIC_CLASS = 15,
        INVALID_PRIMARY_HOP_LIMIT = 16,
        INVALID_PRIMARY_PACKET_RATE = 17,
        INVALID_ALTERNATE_REMOTE_GID = 18,
        INVALID_ALTERNATE_REMOTE_LID = 19,
        INVALID_ALTERNATE_SL = 20,
        INVALID_ALTERNATE_TRAFFIC_CLASS = 21,
        INVALID_ALTERNATE_HOP_LIMIT = 22,
        INVALID_ALTERNATE_PACKET_RATE = 23,
        PORT_AND_CM_REDIRECT = 24,
        PORT_REDIRECT = 25,
        INVALID_PATH_MTU = 26,
        INSUFFICIENT_RESPONDER_RESOURCES = 27,
        /// The listening consumer rejects the connection.
        CONSUMER_REJECT = 28,
        RNR_RETRY_COUNT_REJECT = 29,
        DUPLICATE_LOCAL_COMM_ID = 30,
        UNSUPPORTED_CLASS_VERSION = 31,
        INVALID_PRIMARY_FLOW_LABEL = 32,
        INVALID_ALTERNATE_FLOW_LABEL = 33,
        VENDOR_OPTION_NOT_SUPPORTED = 35,
    }
}

impl Rej {
    /// The valid part of the additional information.
    pub fn info(&self) -> &[u8] {
        let len = usize::from(self.reject_info_len).min(self.additional_info.len());
        &self.additional_info[..len]
    }

    /// The same rejection with additional information, truncated to 72 bytes.
    #[must_use]
    pub fn with_info(mut self, info: &[u8]) -> Self {
        let len = info.len().min(self.additional_info.len());
        self.additional_info = [0; 72];
        self.additional_info[..len].copy_from_slice(&info[..len]);
        self.reject_info_len = len as u8;
        self
    }

    /// For reason `TIMEOUT`, the CA GUID of the sender. The sender may not know the receiver's
    /// communication ID, so the receiver finds the connection by this GUID and
    /// [`Rej::local_comm_id`].
    pub fn timed_out_ca(&self) -> Option<Guid> {
        match self.reason {
            RejectReason::TIMEOUT => {
                self.info().first_chunk().map(|bytes| Guid(u64::from_be_bytes(*bytes)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::tests::{assert_bytes, counting};
    use std::format;

    #[test]
    fn every_field_is_where_the_specification_has_it() {
        let rej = Rej {
            local_comm_id: CommId(0x0102_0304),
            remote_comm_id: CommId(0x0506_0708),
            message_rejected: AnsweredMessage::OTHER,
            reject_info_len: 8,
            reason: RejectReason(0x1112),
            additional_info: counting(0x20),
            private_data: counting(0x81),
        };
        assert_bytes(
            &rej,
            &[
                (0, &[1, 2, 3, 4, 5, 6, 7, 8, 0b10 << 6, 8 << 1, 0x11, 0x12]),
                (12, &counting::<72>(0x20)),
                (84, &counting::<148>(0x81)),
            ],
        );
    }

    #[test]
    fn reasons_have_their_numbers_and_names() {
        let mut printed = std::string::String::new();
        for reason in RejectReason::ALL {
            printed += &format!("{}={reason} ", reason.0);
        }
        assert!(printed.starts_with("1=NO_QP 2=NO_EEC 3=NO_RESOURCES 4=TIMEOUT "));
        assert!(printed.contains(" 8=INVALID_SERVICE_ID "));
        assert!(printed.contains(" 10=STALE_CONNECTION "));
        assert!(printed.contains(" 28=CONSUMER_REJECT "));
        assert!(
            printed.ends_with(" 33=INVALID_ALTERNATE_FLOW_LABEL 35=VENDOR_OPTION_NOT_SUPPORTED ")
        );
        assert_eq!(format!("{:?}", RejectReason(99)), "RejectReason(99)");
    }

    #[test]
    fn additional_information_depends_on_the_reason() {
        let timeout = Rej { reason: RejectReason::TIMEOUT, ..Rej::default() };
        let guid = Guid(0x0002_c903_0000_1000);
        let with_guid = timeout.with_info(&guid.0.to_be_bytes());
        assert_eq!(with_guid.timed_out_ca(), Some(guid));
        assert_eq!(timeout.timed_out_ca(), None, "no bytes, no GUID");

        let moved = Rej { reason: RejectReason::INVALID_PRIMARY_REMOTE_GID, ..with_guid };
        assert_eq!(moved.timed_out_ca(), None);
    }

    #[test]
    fn information_longer_than_its_field_is_cut() {
        let rej = Rej { reject_info_len: 127, ..Rej::default() };
        assert_eq!(rej.info().len(), 72);
        assert_eq!(rej.with_info(&[7; 100]).info(), [7; 72]);
    }
}
