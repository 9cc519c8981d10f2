//! Keys that do not match: what an adapter dropped for them, to be told to its port's agent (IBA
//! 9.6.1.1, 14.2.5.1).
//!
//! The adapter finds out, and the agent of its port has the counters and sends the traps; the two
//! may be in different processes. The link takes one to the other.

use super::port::Drop;
use super::{Adapter, Shared};
use crate::frame::Arrival;
use pollux_wire::address::{Gid, Qpn};
use pollux_wire::mad::notice::{BadKeyTrap, TrapDetails, TrapNumber};
use pollux_wire::packet::Extended;

/// Violations that wait to be told; of more, only the drops are counted.
const VIOLATIONS_MAX: usize = 64;

/// Somebody sent with a key that is not the receiver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyViolation {
    /// Which trap says so: 257 or 258.
    pub trap_number: TrapNumber,
    /// Who, whom, and with what.
    pub trap: BadKeyTrap,
}

impl KeyViolation {
    /// That of such a drop, if it was for a key.
    fn of(reason: Drop, receiver: Qpn, arrival: &Arrival<'_>) -> Option<Self> {
        let head = &arrival.head;
        let deth = match arrival.extended {
            Extended::Deth(deth) | Extended::DethImm(deth, _) => Some(deth),
            _ => None,
        };
        let (trap_number, key) = match reason {
            Drop::PKey => (TrapNumber::BAD_P_KEY, head.pkey.0.into()),
            Drop::QKey => (TrapNumber::BAD_Q_KEY, deth?.qkey.0),
            _ => return None,
        };
        let (gid1, gid2) = arrival.grh.map_or((Gid::NONE, Gid::NONE), |grh| (grh.sgid, grh.dgid));
        let trap = BadKeyTrap {
            lid1: head.slid,
            lid2: head.dlid,
            key,
            service_level: head.sl,
            qp1: deth.map_or(Qpn::default(), |deth| deth.src_qp),
            qp2: receiver,
            gid1,
            gid2,
        };
        Some(Self { trap_number, trap })
    }

    /// One that a process reports: of which trap, and what that says. None if it makes no sense.
    pub(crate) fn read(trap_number: u64, details: &[u8]) -> Option<Self> {
        let trap_number = TrapNumber(trap_number.try_into().ok()?);
        match TrapDetails::parse(trap_number, details.try_into().ok()?) {
            TrapDetails::BadKey(trap) => Some(Self { trap_number, trap }),
            _ => None,
        }
    }

    /// What the trap says.
    pub fn details(&self) -> TrapDetails {
        TrapDetails::BadKey(self.trap)
    }
}

impl Shared {
    /// Something for a queue pair was dropped.
    #[cold]
    pub(super) fn refuse(&mut self, reason: Drop, receiver: Qpn, arrival: &Arrival<'_>) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.extend(KeyViolation::of(reason, receiver, arrival));
        }
    }
}

impl Adapter {
    /// The next violation that the port's agent is to be told of.
    #[inline]
    pub fn poll_violation(&mut self) -> Option<KeyViolation> {
        self.shared.violations.pop_front()
    }
}
