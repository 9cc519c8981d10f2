//! The RMPP receiver: reassembles a table and acknowledges its segments (IBA 13.6.6.3).

use super::{Mad, RESPONSE_TIME};
use pollux_wire::mad::Method;
use pollux_wire::mad::rmpp::{RmppHeader, RmppStatus, RmppType};
use pollux_wire::mad::sa::{SaHeader, SaMad};

/// The RMPP window: segments between two ACKs.
const WINDOW: u32 = 64;

/// A transfer in progress, at its receiver.
#[derive(Debug, Default)]
pub struct Reception {
    table: Vec<u8>,
    received: u32,
    window_last: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SegmentOutcome {
    /// Not the expected segment.
    Ignored,
    /// The expected segment, which needs no ACK yet.
    Kept,
    /// Send this ACK.
    Acknowledged(Mad),
    /// The table is complete; send this ACK.
    Complete(Mad),
    /// The segment is invalid for this reason; send this ABORT.
    Aborted(RmppStatus, Mad),
    /// The sender ended the transfer.
    Ended(RmppStatus),
}

impl Reception {
    /// Handles a segment of a table of at most `bytes_max` bytes.
    pub fn receive(&mut self, mad: &SaMad, bytes_max: usize) -> SegmentOutcome {
        let rmpp = &mad.rmpp;
        if matches!(rmpp.rmpp_type, RmppType::STOP | RmppType::ABORT) {
            return SegmentOutcome::Ended(rmpp.status);
        }
        if let Err(status) = check(rmpp) {
            return aborted(mad, status);
        }
        if rmpp.segment_number == 0 || rmpp.segment_number > self.received + 1 {
            return SegmentOutcome::Ignored;
        }
        if rmpp.segment_number <= self.received {
            return SegmentOutcome::Acknowledged(self.acknowledge(mad, WINDOW));
        }
        let Ok(len) = rmpp.data_len(SaHeader::LEN) else {
            return aborted(mad, RmppStatus::INCONSISTENT_LAST_AND_PAYLOAD_LENGTH);
        };
        if self.table.len() + len > bytes_max {
            return aborted(mad, RmppStatus::RESOURCES_EXHAUSTED);
        }
        self.table.extend_from_slice(&mad.data[..len]);
        self.received += 1;
        if rmpp.last {
            return SegmentOutcome::Complete(self.acknowledge(mad, 0));
        }
        if self.received < self.window_last {
            return SegmentOutcome::Kept;
        }
        SegmentOutcome::Acknowledged(self.acknowledge(mad, WINDOW))
    }

    fn acknowledge(&mut self, mad: &SaMad, window: u32) -> Mad {
        self.window_last = self.received + window;
        reply(mad, RmppHeader::ack(self.received, self.window_last, RESPONSE_TIME))
    }

    pub fn into_table(self) -> Vec<u8> {
        self.table
    }
}

/// Checks the fields that do not depend on earlier segments.
fn check(rmpp: &RmppHeader) -> Result<(), RmppStatus> {
    if rmpp.version != RmppHeader::VERSION {
        return Err(RmppStatus::UNSUPPORTED_VERSION);
    }
    if rmpp.rmpp_type != RmppType::DATA {
        return Err(RmppStatus::BAD_TYPE);
    }
    if (rmpp.segment_number == 1) != rmpp.first {
        return Err(RmppStatus::INCONSISTENT_FIRST_AND_SEGMENT_NUMBER);
    }
    Ok(())
}

fn aborted(mad: &SaMad, status: RmppStatus) -> SegmentOutcome {
    SegmentOutcome::Aborted(status, reply(mad, RmppHeader::end(RmppType::ABORT, status)))
}

/// A MAD to the sender of `mad`: its headers, with the response bit of the method inverted.
fn reply(mad: &SaMad, rmpp: RmppHeader) -> Mad {
    const RESPONSE: u8 = 0x80;
    let mut header = mad.header;
    header.method = Method(header.method.0 ^ RESPONSE);
    SaMad { header, rmpp, sa: mad.sa, data: [0; 200] }.emit()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::mad::rmpp::Segmentation;
    use pollux_wire::mad::sa::{PathRecord, PathRecordMask};
    use proptest::prelude::*;

    fn head() -> SaMad {
        let (mask, record) = (PathRecordMask::NONE, PathRecord::default());
        SaMad { data: [0; 200], ..SaMad::new(Method::GET_TABLE_RESP, 7, mask, record) }
    }

    fn segments(table: &[u8]) -> Vec<SaMad> {
        let cut = Segmentation::new(table.len(), SaHeader::LEN);
        let segment = |number| {
            let mut mad = SaMad { rmpp: cut.header(number, RESPONSE_TIME), ..head() };
            let data = &table[cut.data(number)];
            mad.data[..data.len()].copy_from_slice(data);
            mad
        };
        (1..=cut.count()).map(segment).collect()
    }

    fn header_of(outcome: &SegmentOutcome) -> Option<RmppHeader> {
        match outcome {
            SegmentOutcome::Acknowledged(mad) | SegmentOutcome::Complete(mad) => {
                Some(SaMad::parse(mad).rmpp)
            }
            _ => None,
        }
    }

    #[test]
    fn a_window_is_acknowledged_when_it_is_used_up() {
        let table: Vec<u8> = (0..20_000).map(|i| (i * 7) as u8).collect();
        let mut reception = Reception::default();
        let mut acknowledged = Vec::new();
        for segment in segments(&table) {
            if let Some(ack) = header_of(&reception.receive(&segment, 1 << 20)) {
                acknowledged.push((ack.segment_number, ack.payload_length_or_window));
            }
        }
        assert_eq!(acknowledged, [(1, 65), (65, 129), (100, 100)]);
        assert_eq!(reception.into_table(), table);
    }

    #[test]
    fn a_gap_is_waited_for_and_a_repetition_acknowledged() {
        let table = [9; 700];
        let segments = segments(&table);
        let mut reception = Reception::default();
        assert!(header_of(&reception.receive(&segments[0], 1000)).is_some());
        assert_eq!(reception.receive(&segments[2], 1000), SegmentOutcome::Ignored);
        let again = header_of(&reception.receive(&segments[0], 1000)).unwrap();
        assert_eq!((again.segment_number, again.payload_length_or_window), (1, 65));
    }

    #[test]
    fn an_invalid_segment_aborts_with_its_reason() {
        let mut reception = Reception::default();
        let mut segment = segments(&[9; 700])[0];
        segment.rmpp.first = false;
        let status = RmppStatus::INCONSISTENT_FIRST_AND_SEGMENT_NUMBER;
        let outcome = reception.receive(&segment, 1000);
        let SegmentOutcome::Aborted(reason, mad) = outcome else { panic!("{outcome:?}") };
        let reply = SaMad::parse(&mad);
        assert_eq!(
            (reason, reply.rmpp.status, reply.rmpp.rmpp_type),
            (status, status, RmppType::ABORT)
        );
        assert_eq!(reply.header.method, Method::GET_TABLE);
        segment.rmpp.first = true;
        let outcome = reception.receive(&segment, 100);
        assert!(matches!(outcome, SegmentOutcome::Aborted(RmppStatus::RESOURCES_EXHAUSTED, _)));
    }

    proptest! {
        #[test]
        fn any_segments_are_survived_within_the_limit(
            segments in prop::collection::vec((any::<[u8; 12]>(), 0u8..5, 0u32..4), 0..20),
        ) {
            let mut reception = Reception::default();
            for (bytes, kind, number) in segments {
                let rmpp = RmppHeader {
                    rmpp_type: RmppType(kind),
                    segment_number: number,
                    version: 1,
                    ..RmppHeader::parse(&bytes)
                };
                reception.receive(&SaMad { rmpp, ..head() }, 500);
                prop_assert!(reception.table.len() <= 500);
            }
        }
    }
}
