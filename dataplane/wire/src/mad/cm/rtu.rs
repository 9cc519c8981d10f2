//! "Ready to use" (IBA 12.6.9): the active side has taken the reply, the connection stands.

use super::CommId;

layout! {
    /// The third and last message of a connection's making (IBA 12.6.9).
    pub struct Rtu: 232 bytes {
        /// The sender's name for the connection.
        0:0    32  local_comm_id: CommId,
        /// The receiver's name for it.
        4:0    32  remote_comm_id: CommId,
        /// For the consumer.
        8:0  1792  private_data: [u8; 224],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::vector::{assert_bytes, counting};

    #[test]
    fn every_field_is_where_the_specification_has_it() {
        let rtu = Rtu {
            local_comm_id: CommId(0x0102_0304),
            remote_comm_id: CommId(0x0506_0708),
            private_data: counting(0x41),
        };
        assert_bytes(&rtu, &[(0, &[1, 2, 3, 4, 5, 6, 7, 8]), (8, &counting::<224>(0x41))]);
    }
}
