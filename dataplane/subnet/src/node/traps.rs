//! Traps of a node, sent until the subnet manager represses them (IBA 13.4.9, 14.3.13).
//!
//! ```text
//! raise        queues a trap; if an equal one waits, gives that one a new TID
//! poll         sends the next trap, once every SubnetTimeout, and queues it again
//! repress(TID) removes a trap
//! ```

use crate::time::Time;
use pollux_wire::mad::Method;
use pollux_wire::mad::notice::Notice;
use pollux_wire::mad::smp::LidSmp;
use pollux_wire::mad::{Attribute, MadHeader, MgmtClass};
use std::collections::VecDeque;
use std::time::Duration;

pub const TRAPS_MAX: usize = 16;

#[derive(Clone, Debug, Default)]
pub struct Traps {
    pub(crate) waiting: VecDeque<Trap>,
    /// The TID of the newest trap. Why 32 bits: the upper half of a TID routes responses to agents.
    transaction_id: u32,
    not_before: Time,
}

#[derive(Clone, Debug)]
pub(crate) struct Trap {
    port: u8,
    transaction_id: u64,
    notice: Notice,
}

impl Traps {
    /// Queues a trap to be sent from `port`. If an equal trap waits, it gets a new TID instead: an
    /// answer that is on its way is about the earlier event, and must not remove it. If the queue
    /// is full, the trap is lost.
    pub(crate) fn raise(&mut self, port: u8, notice: Notice) {
        self.transaction_id = self.transaction_id.wrapping_add(1);
        let transaction_id = self.transaction_id.into();
        let mut waiting = self.waiting.iter_mut();
        if let Some(equal) = waiting.find(|trap| (trap.port, trap.notice) == (port, notice)) {
            equal.transaction_id = transaction_id;
        } else if self.waiting.len() < TRAPS_MAX {
            self.waiting.push_back(Trap { port, transaction_id, notice });
        }
    }

    pub fn due(&self) -> Option<Time> {
        (!self.waiting.is_empty()).then_some(self.not_before)
    }

    /// A trap that is due: its port and the datagram. The next trap is due after `interval`.
    pub(crate) fn poll(&mut self, now: Time, interval: Duration) -> Option<(u8, LidSmp)> {
        self.due().filter(|due| *due <= now)?;
        let trap = self.waiting.pop_front()?;
        self.not_before = now + interval;
        let class = MgmtClass::SUBN_LID_ROUTED;
        let header = MadHeader::new(class, Method::TRAP, trap.transaction_id, Notice::ID);
        let smp = LidSmp { header, data: trap.notice.to_data(), ..LidSmp::default() };
        let port = trap.port;
        self.waiting.push_back(trap);
        Some((port, smp))
    }

    /// Removes a repressed trap; returns whether it was a trap of this node.
    pub(crate) fn repress(&mut self, transaction_id: u64) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|trap| trap.transaction_id != transaction_id);
        self.waiting.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::address::Lid;

    const SECOND: Duration = Duration::from_secs(1);

    fn notice(lid: u16) -> Notice {
        Notice { issuer_lid: Lid(lid), ..Notice::default() }
    }

    #[test]
    fn a_trap_repeats_until_it_is_repressed() {
        let mut traps = Traps::default();
        traps.raise(1, notice(1));
        let (port, first) = traps.poll(Time::START, SECOND).unwrap();
        assert_eq!((port, first.header.method), (1, Method::TRAP));
        assert_eq!(traps.poll(Time::START, SECOND), None, "not so soon");
        assert_eq!(traps.due(), Some(Time::START + SECOND));
        let (_, again) = traps.poll(Time::START + SECOND, SECOND).unwrap();
        assert_eq!(again, first);
        assert!(!traps.repress(99) && traps.repress(first.header.transaction_id));
        assert_eq!((traps.due(), traps.waiting.is_empty()), (None, true));
    }

    #[test]
    fn a_trap_that_is_raised_again_outlives_the_answer_to_the_first() {
        let mut traps = Traps::default();
        traps.raise(1, notice(1));
        let (_, first) = traps.poll(Time::START, SECOND).unwrap();
        traps.raise(1, notice(1));
        assert!(!traps.repress(first.header.transaction_id), "it was about an earlier event");
        let (_, again) = traps.poll(Time::START + SECOND, SECOND).unwrap();
        assert!(traps.repress(again.header.transaction_id) && traps.waiting.is_empty());
    }

    #[test]
    fn traps_take_turns_and_equal_ones_are_merged() {
        let mut traps = Traps::default();
        (0..3).for_each(|_| traps.raise(0, notice(1)));
        traps.raise(0, notice(2));
        assert_eq!(traps.waiting.len(), 2);
        let issuer = |traps: &mut Traps, after: u32| {
            let (_, smp) = traps.poll(Time::START + SECOND * after, SECOND).unwrap();
            Notice::from_data(&smp.data).issuer_lid.0
        };
        assert_eq!([0, 1, 2].map(|after| issuer(&mut traps, after)), [1, 2, 1]);
    }

    #[test]
    fn waiting_traps_have_a_limit() {
        let mut traps = Traps::default();
        (0..20).for_each(|lid| traps.raise(0, notice(lid)));
        assert_eq!(traps.waiting.len(), TRAPS_MAX);
    }
}
