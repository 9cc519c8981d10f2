//! RMPP: segmented management transactions (IBA 13.6).
//!
//! A message that does not fit in one datagram is sent as numbered segments, one per datagram. If a
//! class has its own header behind the RMPP header (subnet administration: 20 bytes), every segment
//! repeats that header, and the payload lengths include every copy. Senders compute these lengths
//! with [`Segmentation`], receivers with [`RmppHeader::data_len`].

use core::ops::Range;

use crate::WireError;
use crate::units::TimeCode;

/// Length of a datagram behind the RMPP header, in bytes.
pub const SEGMENT_LEN: usize = 220;

layout! {
    /// The RMPP header, behind the common MAD header (IBA 13.6.2.1).
    pub struct RmppHeader: 12 bytes {
        /// 1; 0 in a datagram that does not use RMPP.
        0:0    8  version: u8,
        1:0    8  rmpp_type: RmppType,
        /// The response time of the sender of this packet.
        2:0    5  response_time: TimeCode,
        2:5    1  last: bool,
        2:6    1  first: bool,
        /// Whether the datagram uses RMPP; if not, the other fields are meaningless.
        2:7    1  active: bool,
        3:0    8  status: RmppStatus,
        /// The number of this segment, from 1; in an ACK, the last segment received without a gap.
        4:0   32  segment_number: u32,
        /// In the first segment, the payload length of the message; in the last segment, the
        /// payload length of this segment; in an ACK, the last segment that may be sent.
        8:0   32  payload_length_or_window: u32,
    }
}

codes! {
    /// RMPP packet types (IBA 13.6.2.1).
    pub struct RmppType(u8) {
        NONE = 0,
        DATA = 1,
        ACK = 2,
        STOP = 3,
        ABORT = 4,
    }
}

codes! {
    /// The status of a transfer; in STOP and ABORT, the reason (IBA 13.6.2.1).
    pub struct RmppStatus(u8) {
        NORMAL = 0,
        RESOURCES_EXHAUSTED = 1,
        TOTAL_TIME_TOO_LONG = 118,
        INCONSISTENT_LAST_AND_PAYLOAD_LENGTH = 119,
        INCONSISTENT_FIRST_AND_SEGMENT_NUMBER = 120,
        BAD_TYPE = 121,
        NEW_WINDOW_LAST_TOO_SMALL = 122,
        SEGMENT_NUMBER_TOO_BIG = 123,
        ILLEGAL_STATUS = 124,
        UNSUPPORTED_VERSION = 125,
        TOO_MANY_RETRIES = 126,
        UNSPECIFIED = 127,
    }
}

impl RmppHeader {
    pub const VERSION: u8 = 1;

    /// Acknowledges all segments up to `segment_number`, and permits segments up to
    /// `new_window_last`.
    pub const fn ack(segment_number: u32, new_window_last: u32, response_time: TimeCode) -> Self {
        Self {
            version: Self::VERSION,
            rmpp_type: RmppType::ACK,
            response_time,
            last: false,
            first: false,
            active: true,
            status: RmppStatus::NORMAL,
            segment_number,
            payload_length_or_window: new_window_last,
        }
    }

    /// Ends a transfer early. `rmpp_type` is `STOP` or `ABORT`.
    pub const fn end(rmpp_type: RmppType, status: RmppStatus) -> Self {
        Self { rmpp_type, status, ..Self::ack(0, 0, TimeCode(0)) }
    }

    /// The number of data bytes in this segment, without the class header of `class_header_len`
    /// bytes. Only the last segment can be shorter than [`SEGMENT_LEN`].
    pub fn data_len(&self, class_header_len: usize) -> Result<usize, WireError> {
        let bad = WireError::BadLength { format: "RmppHeader" };
        let payload_length = self.payload_length_or_window as usize;
        let len = if self.last { payload_length } else { SEGMENT_LEN };
        if len > SEGMENT_LEN {
            return Err(bad);
        }
        len.checked_sub(class_header_len).ok_or(bad)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    data_len: usize,
    class_header_len: usize,
}

impl Segmentation {
    /// Segments `data_len` bytes, in a class that repeats a header of `class_header_len` bytes in
    /// each segment. Panics unless `class_header_len` is less than [`SEGMENT_LEN`].
    pub const fn new(data_len: usize, class_header_len: usize) -> Self {
        assert!(class_header_len < SEGMENT_LEN, "no space for data behind the class header");
        Self { data_len, class_header_len }
    }

    const fn data_per_segment(self) -> usize {
        SEGMENT_LEN - self.class_header_len
    }

    /// Number of segments; 1 without data.
    pub const fn count(self) -> u32 {
        let count = self.data_len.div_ceil(self.data_per_segment());
        if count == 0 { 1 } else { count as u32 }
    }

    /// The range of the data that a segment carries; empty for a number that is out of range.
    pub fn data(self, segment_number: u32) -> Range<usize> {
        let before = (segment_number as usize).wrapping_sub(1);
        let start = before.saturating_mul(self.data_per_segment()).min(self.data_len);
        start..(start + self.data_per_segment()).min(self.data_len)
    }

    /// The header of a segment. A single segment is both first and last.
    pub fn header(self, segment_number: u32, response_time: TimeCode) -> RmppHeader {
        let first = segment_number == 1;
        let last = segment_number == self.count();
        let payload_length = match (first, last) {
            (true, _) => self.data_len + self.count() as usize * self.class_header_len,
            (false, true) => self.data(segment_number).len() + self.class_header_len,
            (false, false) => 0,
        };
        RmppHeader {
            rmpp_type: RmppType::DATA,
            first,
            last,
            ..RmppHeader::ack(segment_number, payload_length as u32, response_time)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Length of the subnet administration header, in bytes.
    const SA: usize = 20;

    #[test]
    fn first_segment_of_an_answer() {
        let header = Segmentation::new(520, SA).header(1, TimeCode(14));
        // The length is 520 bytes of data and three SA headers of 20 bytes.
        let bytes = [1, 1, 0x73, 0, 0, 0, 0, 1, 0, 0, 0x02, 0x44];
        assert_eq!(header.emit(), bytes);
        assert_eq!(RmppHeader::parse(&bytes), header);
    }

    #[test]
    fn middle_and_last_segments() {
        let cut = Segmentation::new(520, SA);
        assert_eq!(cut.header(2, TimeCode(0)).emit(), [1, 1, 1, 0, 0, 0, 0, 2, 0, 0, 0, 0]);
        assert_eq!(cut.header(3, TimeCode(0)).emit(), [1, 1, 5, 0, 0, 0, 0, 3, 0, 0, 0, 140]);
        assert_eq!((cut.count(), cut.data(3), cut.data(4)), (3, 400..520, 520..520));
        assert_eq!(cut.data(0), 520..520, "segments are counted from 1");
    }

    #[test]
    fn no_data_still_has_a_segment() {
        let cut = Segmentation::new(0, SA);
        assert_eq!((cut.count(), cut.data(1)), (1, 0..0));
        assert_eq!(cut.header(1, TimeCode(0)).emit(), [1, 1, 7, 0, 0, 0, 0, 1, 0, 0, 0, 20]);
    }

    #[test]
    fn acknowledgement_and_abort() {
        let ack = RmppHeader::ack(1, 65, TimeCode(0));
        assert_eq!(ack.emit(), [1, 2, 1, 0, 0, 0, 0, 1, 0, 0, 0, 65]);
        let abort = RmppHeader::end(RmppType::ABORT, RmppStatus::SEGMENT_NUMBER_TOO_BIG);
        assert_eq!(abort.emit(), [1, 4, 1, 123, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn impossible_lengths_are_refused() {
        let last = |payload_length_or_window| RmppHeader {
            last: true,
            payload_length_or_window,
            ..RmppHeader::default()
        };
        assert_eq!(last(220).data_len(SA), Ok(200));
        assert_eq!(last(20).data_len(SA), Ok(0));
        assert!(last(221).data_len(SA).is_err() && last(19).data_len(SA).is_err());
    }

    proptest! {
        #[test]
        fn segments_cover_the_data_once(data_len in 0usize..5000, class_header_len in 0usize..219) {
            let cut = Segmentation::new(data_len, class_header_len);
            let mut next = 0;
            for number in 1..=cut.count() {
                let data = cut.data(number);
                let header = cut.header(number, TimeCode(0));
                prop_assert_eq!(data.start, next);
                prop_assert_eq!(header.data_len(class_header_len), Ok(data.len()));
                next = data.end;
            }
            prop_assert_eq!(next, data_len);
        }
    }
}
