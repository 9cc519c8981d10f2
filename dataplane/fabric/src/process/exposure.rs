//! The segments that the sender of a direct ring leases to its receiver, so that long messages are
//! copied once.
//!
//! ```text
//!               Expose, through the server                 Mapped: yes
//!   by copy ------------------------------------> requested ------------> by lease
//!      ^                                            |                        |
//!      |                 Mapped: no                 |        Withdraw        |
//!      +--------------------------------------------+------------------------+
//! ```
//!
//! The sender exposes a segment to the receiver at the first long message in it. A message is
//! leased only if the receiver has mapped every segment that the message needs; otherwise, it is
//! copied. So a receiver never waits for a segment, and a process reads only memory that the sender
//! of one of its rings has leased to it. The receiver can read all of the segment until the ring
//! ends.
//!
//! A ring has one outstanding request at a time, so the server can bound the control messages of a
//! sender.

use super::shared_leases::{SEGMENTS_MAX, SharedLeases, TABLE};
use pollux_verbs::LKey;
use std::collections::BTreeSet;

/// The segments of one ring.
#[derive(Debug, Default)]
pub(crate) struct Exposure {
    mapped: BTreeSet<u32>,
    /// Segments that the receiver could not map.
    refused: BTreeSet<u32>,
    /// The segment in the outstanding request.
    outstanding: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferMode {
    /// The receiver copies the message out of the sender's memory.
    Lease,
    /// The sender writes the message into the ring, and asks the receiver to map this segment.
    CopyAndRequest(u32),
    /// The sender writes the message into the ring.
    Copy,
}

impl Exposure {
    #[inline]
    pub(crate) fn transfer_mode(
        &self,
        leases: &SharedLeases,
        keys: &mut dyn Iterator<Item = LKey>,
    ) -> TransferMode {
        for key in keys {
            let Some(segment) = leases.segment_of(key) else { return TransferMode::Copy };
            let missing = [TABLE, segment].into_iter().find(|number| !self.mapped.contains(number));
            if let Some(missing) = missing {
                return self.copy_and_request(missing);
            }
        }
        TransferMode::Lease
    }

    #[cold]
    fn copy_and_request(&self, segment: u32) -> TransferMode {
        let may = self.outstanding.is_none()
            && !self.refused.contains(&segment)
            && self.mapped.len() + self.refused.len() <= SEGMENTS_MAX;
        if may { TransferMode::CopyAndRequest(segment) } else { TransferMode::Copy }
    }

    pub(crate) fn record_request(&mut self, segment: u32) {
        self.outstanding = Some(segment);
    }

    pub(crate) fn handle_answer(&mut self, segment: u32, is_mapped: bool, leases: &SharedLeases) {
        if self.outstanding != Some(segment) {
            return;
        }
        self.outstanding = None;
        if is_mapped {
            self.mapped.insert(segment);
        } else if leases.has(segment) {
            self.refused.insert(segment);
        }
    }

    /// A mapped segment that has no leases any more and can be withdrawn now.
    pub(crate) fn find_stale(&mut self, leases: &SharedLeases) -> Option<u32> {
        if self.outstanding.is_some() {
            return None;
        }
        self.refused.retain(|segment| leases.has(*segment));
        self.mapped.iter().copied().find(|segment| !leases.has(*segment))
    }

    /// Records that Withdraw was sent for a segment.
    pub(crate) fn record_withdrawal(&mut self, segment: u32) {
        self.mapped.remove(&segment);
        self.outstanding = Some(segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_hca::lease::LeasePublisher;
    use pollux_mem::Memory;

    fn transfer_mode(exposure: &Exposure, leases: &SharedLeases, keys: &[LKey]) -> TransferMode {
        exposure.transfer_mode(leases, &mut keys.iter().copied())
    }

    #[test]
    fn a_message_is_leased_when_all_that_it_takes_is_mapped_and_not_before() {
        let (leases, mut exposure) = (SharedLeases::new().unwrap(), Exposure::default());
        let keys = [LKey(0x100), LKey(0x200)];
        keys.iter().for_each(|key| leases.grant(*key, &Memory::shared(1).unwrap(), 0));
        for segment in [TABLE, 1, 2] {
            assert_eq!(
                transfer_mode(&exposure, &leases, &keys),
                TransferMode::CopyAndRequest(segment)
            );
            exposure.record_request(segment);
            assert_eq!(
                transfer_mode(&exposure, &leases, &keys),
                TransferMode::Copy,
                "one question at a time"
            );
            exposure.handle_answer(segment + 1, true, &leases);
            assert_eq!(
                transfer_mode(&exposure, &leases, &keys),
                TransferMode::Copy,
                "that was not asked"
            );
            exposure.handle_answer(segment, true, &leases);
        }
        assert_eq!(transfer_mode(&exposure, &leases, &keys), TransferMode::Lease);
        assert_eq!(
            transfer_mode(&exposure, &leases, &[LKey(0x300)]),
            TransferMode::Copy,
            "that is not leased"
        );

        assert_eq!(exposure.find_stale(&leases), None);
        leases.end(keys[0]);
        assert_eq!(exposure.find_stale(&leases), Some(1));
        exposure.record_withdrawal(1);
        assert_eq!(exposure.find_stale(&leases), None);
        exposure.handle_answer(1, false, &leases);
        assert_eq!(transfer_mode(&exposure, &leases, &keys[1..]), TransferMode::Lease);
    }

    #[test]
    fn a_segment_that_the_receiver_cannot_map_is_sent_by_copy() {
        let (leases, mut exposure) = (SharedLeases::new().unwrap(), Exposure::default());
        leases.grant(LKey(0x100), &Memory::shared(1).unwrap(), 0);
        for (segment, is_mapped) in [(TABLE, true), (1, false)] {
            assert_eq!(
                transfer_mode(&exposure, &leases, &[LKey(0x100)]),
                TransferMode::CopyAndRequest(segment)
            );
            exposure.record_request(segment);
            exposure.handle_answer(segment, is_mapped, &leases);
        }
        assert_eq!(transfer_mode(&exposure, &leases, &[LKey(0x100)]), TransferMode::Copy);
        assert_eq!(exposure.find_stale(&leases), None);
    }
}
