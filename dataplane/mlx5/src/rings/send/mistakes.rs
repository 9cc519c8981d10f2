//! Wrong doorbell sequences, to test that the software ConnectX detects them.

use super::{Last, SendRing};
use crate::memory::{Record, SendRegister};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// The doorbell is rung before the record has the request.
    EarlyDoorbell,
    /// The record has the request before the ring has its control segment.
    EarlyRecord,
    /// The WQE is written to the same half of the register as the one before.
    SameHalf,
    /// The control segment is written to the ring after the doorbell.
    LateWqe,
}

impl SendRing {
    /// As [`SendRing::ring`] for one request, with a mistake.
    pub(crate) fn ring_wrongly(&mut self, mistake: Mistake, register: &mut SendRegister) {
        let Last { at, first, .. } = self.last;
        let [control, ..] = *self.memory.read_block(at).as_chunks().0 else { return };
        let hand_over = || self.record.set(Record::SEND, self.producer.into());
        match mistake {
            Mistake::EarlyDoorbell => {
                register.ring(first);
                hand_over();
            }
            Mistake::EarlyRecord => {
                self.memory.write(at, [0; 2]);
                hand_over();
                self.memory.write(at, control);
                register.ring(first);
            }
            Mistake::SameHalf => {
                self.ring(true, register);
                register.flip();
            }
            Mistake::LateWqe => {
                self.memory.write(at, [0; 2]);
                register.ring(first);
                self.memory.write(at, control);
                hand_over();
            }
        }
    }
}
