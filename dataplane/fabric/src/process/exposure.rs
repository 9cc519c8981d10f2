//! What the sender of a direct lane lets its receiver read, so that long messages are copied once.
//!
//! ```text
//!               Expose, by way of the server               Mapped: yes
//!   by copy ------------------------------------> asked ----------------> by lease
//!      ^                                            |                        |
//!      |                 Mapped: no                 |        Withdraw        |
//!      +--------------------------------------------+------------------------+
//! ```
//!
//! A segment is named to the receiver the first time that a long message by the lane could come out
//! of it, and a message is lent only when the receiver has said that everything it takes is mapped:
//! until then, and where the receiver cannot or does not want to map it, messages go by copy. So a
//! receiver never waits for a segment, and nobody reads what was not lent by a lane to it. What it
//! reads then is all of the segment, for as long as the lane lasts.
//!
//! One question at a time: so the server can bound what a sender puts in the way of a receiver.

use super::loans::{Loans, SEGMENTS_MAX, TABLE};
use pollux_verbs::LKey;
use std::collections::BTreeSet;

/// Of one lane.
#[derive(Debug, Default)]
pub(crate) struct Exposure {
    mapped: BTreeSet<u32>,
    /// The receiver could not map these.
    refused: BTreeSet<u32>,
    asked: Option<u32>,
}

/// How a long message can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The receiver copies it out of its sender's memory.
    Lease,
    /// By copy, for the receiver has to map this segment first.
    Asks(u32),
    /// By copy.
    Copy,
}

impl Exposure {
    /// How a message can go that is in the regions of these keys.
    #[inline]
    pub(crate) fn reach(&self, loans: &Loans, keys: &mut dyn Iterator<Item = LKey>) -> Reach {
        for key in keys {
            let Some(segment) = loans.segment_of(key) else { return Reach::Copy };
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

    /// The receiver has been told of a segment.
    pub(crate) fn asked(&mut self, segment: u32) {
        self.asked = Some(segment);
    }

    /// The receiver has answered.
    pub(crate) fn answered(&mut self, segment: u32, is_mapped: bool, loans: &Loans) {
        if self.asked != Some(segment) {
            return;
        }
        self.asked = None;
        if is_mapped {
            self.mapped.insert(segment);
        } else if loans.has(segment) {
            self.refused.insert(segment);
        }
    }

    /// A segment that is lent no more, of which the receiver is to be told now.
    pub(crate) fn stale(&mut self, loans: &Loans) -> Option<u32> {
        if self.asked.is_some() {
            return None;
        }
        self.refused.retain(|segment| loans.has(*segment));
        self.mapped.iter().copied().find(|segment| !loans.has(*segment))
    }

    /// The receiver has been told that there is nothing more to be read in a segment.
    pub(crate) fn withdrew(&mut self, segment: u32) {
        self.mapped.remove(&segment);
        self.asked = Some(segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_mem::Memory;

    fn reach(exposure: &Exposure, loans: &Loans, keys: &[LKey]) -> Reach {
        exposure.reach(loans, &mut keys.iter().copied())
    }

    #[test]
    fn a_message_is_lent_when_all_that_it_takes_is_mapped_and_not_before() {
        let (loans, mut exposure) = (Loans::new().unwrap(), Exposure::default());
        let keys = [LKey(0x100), LKey(0x200)];
        keys.iter().for_each(|key| loans.lend(*key, &Memory::shared(1).unwrap()));
        for segment in [TABLE, 1, 2] {
            assert_eq!(reach(&exposure, &loans, &keys), Reach::Asks(segment));
            exposure.asked(segment);
            assert_eq!(reach(&exposure, &loans, &keys), Reach::Copy, "one question at a time");
            exposure.answered(segment + 1, true, &loans);
            assert_eq!(reach(&exposure, &loans, &keys), Reach::Copy, "that was not asked");
            exposure.answered(segment, true, &loans);
        }
        assert_eq!(reach(&exposure, &loans, &keys), Reach::Lease);
        assert_eq!(reach(&exposure, &loans, &[LKey(0x300)]), Reach::Copy, "that is not lent");

        assert_eq!(exposure.stale(&loans), None);
        loans.end(keys[0]);
        assert_eq!(exposure.stale(&loans), Some(1));
        exposure.withdrew(1);
        assert_eq!(exposure.stale(&loans), None);
        exposure.answered(1, false, &loans);
        assert_eq!(reach(&exposure, &loans, &keys[1..]), Reach::Lease);
    }

    #[test]
    fn what_the_receiver_cannot_map_goes_by_copy_for_good() {
        let (loans, mut exposure) = (Loans::new().unwrap(), Exposure::default());
        loans.lend(LKey(0x100), &Memory::shared(1).unwrap());
        for (segment, is_mapped) in [(TABLE, true), (1, false)] {
            assert_eq!(reach(&exposure, &loans, &[LKey(0x100)]), Reach::Asks(segment));
            exposure.asked(segment);
            exposure.answered(segment, is_mapped, &loans);
        }
        assert_eq!(reach(&exposure, &loans, &[LKey(0x100)]), Reach::Copy);
        assert_eq!(exposure.stale(&loans), None);
    }
}
