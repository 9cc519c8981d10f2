//! The common header of management datagrams and its codes (IBA 13.4.3).

pub const MAD_LEN: usize = 256;

layout! {
    pub struct MadHeader: 24 bytes {
        0:0    8  base_version: u8,
        1:0    8  mgmt_class: MgmtClass,
        /// See [`MgmtClass::version`].
        2:0    8  class_version: u8,
        3:0    8  method: Method,
        /// In a directed-route SMP, the first bit is the direction.
        4:0   16  status: MadStatus,
        /// Defined by the class; in a directed-route SMP, hop pointer and hop count.
        6:0   16  class_specific: u16,
        /// A response repeats all 64 bits of the request's transaction ID.
        8:0   64  transaction_id: u64,
        16:0  16  attribute_id: AttributeId,
        /// Selects a part of the attribute, such as a port or a block.
        20:0  32  attribute_modifier: u32,
    }
}

impl MadHeader {
    /// Makes the header of a request, or of a datagram without response.
    pub fn new(
        mgmt_class: MgmtClass,
        method: Method,
        transaction_id: u64,
        attribute_id: AttributeId,
    ) -> Self {
        Self {
            base_version: 1,
            mgmt_class,
            class_version: mgmt_class.version(),
            method,
            transaction_id,
            attribute_id,
            ..Self::default()
        }
    }
}

codes! {
    /// Management classes (IBA 13.4.4).
    pub struct MgmtClass(u8) {
        SUBN_LID_ROUTED = 0x01,
        SUBN_ADM = 0x03,
        PERF = 0x04,
        BOARD = 0x05,
        DEVICE = 0x06,
        COMM_MGT = 0x07,
        SNMP = 0x08,
        CONGESTION = 0x21,
        SUBN_DIRECTED_ROUTE = 0x81,
    }
}

impl MgmtClass {
    /// The class version: 2 for subnet administration, communication management and congestion
    /// control, otherwise 1.
    pub const fn version(self) -> u8 {
        match self {
            Self::SUBN_ADM | Self::COMM_MGT | Self::CONGESTION => 2,
            _ => 1,
        }
    }

    /// Whether datagrams of this class use queue pair 0 and VL 15, instead of queue pair 1.
    pub const fn is_smi(self) -> bool {
        matches!(self, Self::SUBN_LID_ROUTED | Self::SUBN_DIRECTED_ROUTE)
    }
}

codes! {
    /// Methods (IBA 13.4.5; for subnet administration, 15.2.2).
    pub struct Method(u8) {
        GET = 0x01,
        SET = 0x02,
        SEND = 0x03,
        TRAP = 0x05,
        REPORT = 0x06,
        TRAP_REPRESS = 0x07,
        GET_TABLE = 0x12,
        GET_TRACE_TABLE = 0x13,
        GET_MULTI = 0x14,
        DELETE = 0x15,
        GET_RESP = 0x81,
        REPORT_RESP = 0x86,
        GET_TABLE_RESP = 0x92,
        GET_TRACE_TABLE_RESP = 0x93,
        GET_MULTI_RESP = 0x94,
        DELETE_RESP = 0x95,
    }
}

impl Method {
    const RESPONSE: u8 = 0x80;

    /// Whether this is the method of a response. `TRAP_REPRESS` is one, although its R bit is 0.
    pub const fn is_response(self) -> bool {
        self.0 & Self::RESPONSE != 0 || self.0 == Self::TRAP_REPRESS.0
    }

    pub const fn response(self) -> Self {
        match self {
            Self::SET => Self::GET_RESP,
            Self::TRAP => Self::TRAP_REPRESS,
            other => Self(other.0 | Self::RESPONSE),
        }
    }
}

codes! {
    /// Status of a response: common codes, and those of subnet administration (IBA 13.4.7, 15.2.3).
    pub struct MadStatus(u16) {
        OK = 0,
        BUSY = 0x0001,
        REDIRECT = 0x0002,
        BAD_VERSION = 0x0004,
        BAD_METHOD = 0x0008,
        BAD_METHOD_ATTRIBUTE = 0x000c,
        BAD_FIELD = 0x001c,
        SA_NO_RESOURCES = 0x0100,
        SA_REQUEST_INVALID = 0x0200,
        SA_NO_RECORDS = 0x0300,
        SA_TOO_MANY_RECORDS = 0x0400,
        SA_INVALID_GID = 0x0500,
        SA_INSUFFICIENT_COMPONENTS = 0x0600,
        SA_DENIED = 0x0700,
        SA_PRIORITY_SUGGESTED = 0x0800,
    }
}

impl MadStatus {
    const DIRECTION: u16 = 0x8000;

    /// The same status with the direction bit set.
    #[must_use]
    pub const fn returning(self) -> Self {
        Self(self.0 | Self::DIRECTION)
    }

    /// The status without the direction bit.
    #[must_use]
    pub const fn without_direction(self) -> Self {
        Self(self.0 & !Self::DIRECTION)
    }
}

/// An attribute ID. IDs of different classes overlap, so each attribute has its ID as a constant
/// ([`Attribute::ID`](super::Attribute::ID)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttributeId(pub u16);

number_field!(AttributeId(u16));

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn header_of_a_path_query() {
        let (transaction_id, path_record) = (0x0000_0012_0000_0034, AttributeId(0x35));
        let header = MadHeader::new(MgmtClass::SUBN_ADM, Method::GET, transaction_id, path_record);
        let bytes =
            [1, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0x12, 0, 0, 0, 0x34, 0, 0x35, 0, 0, 0, 0, 0, 0];
        assert_eq!(header.emit(), bytes);
        assert_eq!(MadHeader::parse(&bytes), header);
    }

    #[test]
    fn answers_have_their_requests_method() {
        assert_eq!(Method::GET.response(), Method::GET_RESP);
        assert_eq!(Method::SET.response(), Method::GET_RESP);
        assert_eq!(Method::GET_TABLE.response(), Method::GET_TABLE_RESP);
        assert_eq!(Method::TRAP.response(), Method::TRAP_REPRESS);
        assert!(Method::TRAP_REPRESS.is_response() && !Method::TRAP.is_response());
    }

    #[test]
    fn unknown_codes_print_as_numbers() {
        assert_eq!(format!("{:?} {:?}", Method(0x7f), Method::GET), "Method(127) Method(GET)");
    }
}
