//! P_Key and Q_Key violations, reported by an adapter to its port's agent (IBA 9.6.1.1, 14.2.5.1).
//!
//! The adapter detects violations; the agent of its port counts them and sends traps. The adapter
//! passes reports to the agent over its link, because the agent may run in another process.

use super::Shared;
use super::port::DropReason;
use crate::frame::Arrival;
use pollux_wire::address::{Gid, Qpn};
use pollux_wire::mad::notice::{BadKeyTrap, TrapDetails, TrapNumber};
use pollux_wire::packet::Extended;

/// The maximum number of queued reports. Further violations are only counted as drops.
const VIOLATIONS_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyViolation {
    pub trap_number: TrapNumber,
    pub trap: BadKeyTrap,
}

impl KeyViolation {
    fn of(reason: DropReason, receiver: Qpn, arrival: &Arrival<'_>) -> Option<Self> {
        let head = &arrival.head;
        let deth = match arrival.extended {
            Extended::Deth(deth) | Extended::DethImm(deth, _) => Some(deth),
            _ => None,
        };
        let (trap_number, key) = match reason {
            DropReason::PKey => (TrapNumber::BAD_P_KEY, head.pkey.0.into()),
            DropReason::QKey => (TrapNumber::BAD_Q_KEY, deth?.qkey.0),
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

    /// Parses a report from another process. `None` if it is invalid.
    pub fn read(trap_number: u64, details: &[u8]) -> Option<Self> {
        let trap_number = TrapNumber(trap_number.try_into().ok()?);
        match TrapDetails::parse(trap_number, details.try_into().ok()?) {
            TrapDetails::BadKey(trap) => Some(Self { trap_number, trap }),
            _ => None,
        }
    }

    pub fn details(&self) -> TrapDetails {
        TrapDetails::BadKey(self.trap)
    }
}

impl Shared {
    /// Queues a report of a dropped packet if it was dropped for its P_Key or Q_Key.
    #[cold]
    pub(super) fn report_violation(
        &mut self,
        reason: DropReason,
        receiver: Qpn,
        arrival: &Arrival<'_>,
    ) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.extend(KeyViolation::of(reason, receiver, arrival));
        }
    }
}
