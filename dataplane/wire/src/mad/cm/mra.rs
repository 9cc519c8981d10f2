//! MRA, Message Receipt Acknowledgment (IBA 12.6.6): a message was received, but the response will
//! take longer than the timeout of the message's sender.

use super::{AnsweredMessage, CommId};
use crate::units::TimeCode;

connection_message! {
    pub struct Mra: 232 bytes {
        /// The message that was received; `OTHER` is a LAP.
        8:0      2  message_mraed: AnsweredMessage,
        /// How long the response may take.
        9:0      5  service_timeout: TimeCode,
        10:0  1776  private_data: [u8; 222],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::tests::{assert_bytes, counting};

    #[test]
    fn every_field_is_where_the_specification_has_it() {
        let mra = Mra {
            local_comm_id: CommId(0x0102_0304),
            remote_comm_id: CommId(0x0506_0708),
            message_mraed: AnsweredMessage::REP,
            service_timeout: TimeCode(21),
            private_data: counting(0x41),
        };
        assert_bytes(
            &mra,
            &[(0, &[1, 2, 3, 4, 5, 6, 7, 8, 0b01 << 6, 21 << 3]), (10, &counting::<222>(0x41))],
        );
    }
}
