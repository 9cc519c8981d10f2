//! The M_Key check of a port (IBA 14.2.4).
//!
//! A port with an M_Key requires it in a Set and a TrapRepress, and also in a Get unless the
//! protection level allows a Get without it. The first refusal starts the lease, unless the lease
//! period is 0. If no request with the key arrives within the period, the protection of Gets ends,
//! so that a new subnet manager can read the key.

use super::MadArrival;
use crate::node::SubnetNode;
use pollux_wire::mad::notice::{BadMKeyTrap, TrapDetails, TrapNumber};
use pollux_wire::mad::smp::{DirectedSmp, LidSmp, MKey, MKeyProtection};
use pollux_wire::mad::{Method, MgmtClass};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Full,
    /// A Get is answered, but the answer has 0 as M_Key.
    KeyHidden,
    Refused,
}

pub(super) fn check(
    node: &mut SubnetNode,
    arrival: MadArrival,
    smp: &LidSmp,
    bytes: &[u8; 256],
) -> Access {
    let managed = node.managed_port(arrival.port);
    let port = &mut node.ports[usize::from(managed)];
    let info = &mut port.info;
    if port.lease_end.is_some_and(|end| end <= arrival.now) {
        port.lease_end = None;
        info.m_key_protection = MKeyProtection::NONE;
    }
    if info.m_key == MKey::default() {
        return Access::Full;
    }
    if info.m_key == smp.m_key {
        port.lease_end = None;
        return Access::Full;
    }
    let is_get = smp.header.method == Method::GET;
    match info.m_key_protection {
        MKeyProtection::NONE if is_get => return Access::Full,
        MKeyProtection::KEY_HIDDEN if is_get => return Access::KeyHidden,
        _ => {}
    }
    info.m_key_violations = info.m_key_violations.saturating_add(1);
    let lease = Duration::from_secs(info.m_key_lease_period.into());
    if port.lease_end.is_none() && !lease.is_zero() {
        port.lease_end = Some(arrival.now + lease);
    }
    let details = TrapDetails::BadMKey(bad_key_trap(arrival, smp, bytes));
    node.raise(arrival.port, TrapNumber::BAD_M_KEY, details);
    Access::Refused
}

fn bad_key_trap(arrival: MadArrival, smp: &LidSmp, bytes: &[u8; 256]) -> BadMKeyTrap {
    let trap = BadMKeyTrap {
        lid: arrival.slid,
        method: smp.header.method,
        attribute_id: smp.header.attribute_id,
        attribute_modifier: smp.header.attribute_modifier,
        m_key: smp.m_key,
        ..BadMKeyTrap::default()
    };
    if smp.header.mgmt_class != MgmtClass::SUBN_DIRECTED_ROUTE {
        return trap;
    }
    let directed = DirectedSmp::parse(bytes);
    let mut return_path = [0; 30];
    // Entry 0 of a path is unused.
    return_path.copy_from_slice(&directed.return_path[1..31]);
    let hops = usize::from(directed.hop_count());
    let path_truncated = hops > return_path.len();
    BadMKeyTrap {
        dr_slid: directed.dr_slid,
        is_directed: true,
        path_truncated,
        hop_count: hops.min(return_path.len()) as u8,
        return_path,
        ..trap
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_verbs::time::Time;
    use pollux_wire::address::Lid;

    #[test]
    fn a_trap_counts_the_hops_that_it_holds() {
        const HOP_COUNT: usize = 7;
        let arrival = MadArrival { now: Time::START, port: 1, slid: Lid(9) };
        let mut mad = [0; 256];
        mad[1] = MgmtClass::SUBN_DIRECTED_ROUTE.0;
        for (hops, held, is_truncated) in
            [(0, 0, false), (30, 30, false), (31, 30, true), (63, 30, true)]
        {
            mad[HOP_COUNT] = hops;
            let trap = bad_key_trap(arrival, &LidSmp::parse(&mad), &mad);
            assert_eq!((trap.hop_count, trap.path_truncated), (held, is_truncated), "{hops}");
        }
    }
}
