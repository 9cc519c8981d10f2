//! The segments that the sender of a direct ring leases to its receiver, so that long messages are
//! copied once.
//!
//! ```text
//!               Expose, through the server                 Mapped: yes
//!   by copy ------------------------------------> asked ----------------> by lease
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
    asked: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The receiver copies the message out of the sender's memory.
    Lease,
    /// The sender writes the message into the ring, and asks the receiver to map this segment.
    Asks(u32),
    /// The sender writes the message into the ring.
    Copy,
}

impl Exposure {
    #[inline]
    pub(crate) fn reach(
        &self,
        leases: &SharedLeases,
        keys: &mut dyn Iterator<Item = LKey>,
    ) -> Reach {
        for key in keys {
            let Some(segment) = leases.segment_of(key) else { return Reach::Copy };
            let missing = [TABLE, segment].into_iter().find(|number| !self.mapped.contains(number));
            if let Some(missing) = missing {
                return self.ask(missing);
            }
        }
        Reach::Lease
    }

    #[cold]
    fn ask(&self, segment: u32) -> Reach {
        let may = self.asked.is_none()
            && !self.refused.contains(&segment)
            && self.mapped.len() + self.refused.len() <= SEGMENTS_MAX;
        if may { Reach::Asks(segment) } else { Reach::Copy }
    }

    pub(crate) fn record_request(&mut self, segment: u32) {
        self.asked = Some(segment);
    }

    pub(crate) fn handle_answer(&mut self, segment: u32, is_mapped: bool, leases: &SharedLeases) {
        if self.asked != Some(segment) {
            return;
        }
        self.asked = None;
        if is_mapped {
            self.mapped.insert(segment);
        } else if leases.has(segment) {
            self.refused.insert(segment);
        }
    }

    /// A mapped segment that has no leases any more and can be withdrawn now.
    pub(crate) fn find_stale(&mut self, leases: &SharedLeases) -> Option<u32> {
        if self.asked.is_some() {
            return None;
        }
        self.refused.retain(|segment| leases.has(*segment));
        self.mapped.iter().copied().find(|segment| !leases.has(*segment))
    }

    /// Records that Withdraw was sent for a segment.
    pub(crate) fn record_withdrawal(&mut self, segment: u32) {
        self.mapped.remove(&segment);
        self.asked = Some(segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_hca::lease::LeasePublisher;
    use pollux_mem::Memory;

    fn reach(exposure: &Exposure, leases: &SharedLeases, keys: &[LKey]) -> Reach {
        exposure.reach(leases, &mut keys.iter().copied())
    }

    #[test]
    fn a_message_is_leased_when_all_that_it_takes_is_mapped_and_not_before() {
        let (leases, mut exposure) = (SharedLeases::new().unwrap(), Exposure::default());
        let keys = [LKey(0x100), LKey(0x200)];
        keys.iter().for_each(|key| leases.grant(*key, &Memory::shared(1).unwrap(), 0));
        for segment in [TABLE, 1, 2] {
            assert_eq!(reach(&exposure, &leases, &keys), Reach::Asks(segment));
            exposure.record_request(segment);
            assert_eq!(reach(&exposure, &leases, &keys), Reach::Copy, "one question at a time");
            exposure.handle_answer(segment + 1, true, &leases);
            assert_eq!(reach(&exposure, &leases, &keys), Reach::Copy, "that was not asked");
            exposure.handle_answer(segment, true, &leases);
        }
        assert_eq!(reach(&exposure, &leases, &keys), Reach::Lease);
        assert_eq!(reach(&exposure, &leases, &[LKey(0x300)]), Reach::Copy, "that is not leased");

        assert_eq!(exposure.find_stale(&leases), None);
        leases.end(keys[0]);
        assert_eq!(exposure.find_stale(&leases), Some(1));
        exposure.record_withdrawal(1);
        assert_eq!(exposure.find_stale(&leases), None);
        exposure.handle_answer(1, false, &leases);
        assert_eq!(reach(&exposure, &leases, &keys[1..]), Reach::Lease);
    }

    #[test]
    fn a_segment_that_the_receiver_cannot_map_is_sent_by_copy() {
        let (leases, mut exposure) = (SharedLeases::new().unwrap(), Exposure::default());
        leases.grant(LKey(0x100), &Memory::shared(1).unwrap(), 0);
        for (segment, is_mapped) in [(TABLE, true), (1, false)] {
            assert_eq!(reach(&exposure, &leases, &[LKey(0x100)]), Reach::Asks(segment));
            exposure.record_request(segment);
            exposure.handle_answer(segment, is_mapped, &leases);
        }
        assert_eq!(reach(&exposure, &leases, &[LKey(0x100)]), Reach::Copy);
        assert_eq!(exposure.find_stale(&leases), None);
    }
}
