//! Argument checks of the [`Device`](crate::Device) contract, for all adapters.
//!
//! An adapter checks handles with its own tables, state changes with [`transition`], and all other
//! arguments with this module, before it passes them to a driver. Drivers truncate values that are
//! too large without an error, and all adapters have to reject an argument with the same message.
//!
//! [`transition`]: crate::transition

use crate::device::{Limits, PortAttributes};
use crate::error::{invalid, within};
use crate::work::{MESSAGE_BYTES_MAX, SendOp};
use crate::{
    Access, AddressVector, Data, Migration, PostRefusal, QpAttributes, QpInit, QpState, QpType,
    SendRequest, VerbsError,
};
use pollux_wire::address::{Gid, Lid, Qpn};

type Checked = Result<(), VerbsError>;

pub fn port(verb: &'static str, device: &str, port: u8, ports: u8) -> Checked {
    if (1..=ports).contains(&port) {
        return Ok(());
    }
    let reason = match ports {
        1 => format!("{device} has one port, number 1"),
        _ => format!("{device} has ports 1 to {ports}"),
    };
    Err(invalid(verb, "port", reason))
}

pub fn access(access: Access) -> Checked {
    if access.is_consistent() {
        return Ok(());
    }
    let reason = "remote write access needs local write access: add Access::LOCAL_WRITE";
    Err(invalid("register", "access", reason))
}

pub fn cq(completions_max: u32, limits: &Limits) -> Checked {
    const VERB: &str = "create_cq";
    if completions_max == 0 {
        return Err(invalid(VERB, "completions_max", "a queue has room for one at least"));
    }
    within(VERB, "completions_max", completions_max, limits.completions_max)
}

pub fn srq(requests_max: u32, sges_max: u32, limits: &Limits) -> Checked {
    const VERB: &str = "create_srq";
    within(VERB, "srq_requests_max", requests_max, limits.srq_requests_max)?;
    within(VERB, "sges_max", sges_max, limits.sges_max)
}

/// A change of the migration state from `now` to `asked` (IBA 17.2.8). `has_alternate` says whether
/// the queue pair has an alternate path after the change.
pub fn migration(now: Migration, asked: Option<Migration>, has_alternate: bool) -> Checked {
    let reason = match (now, asked) {
        (_, Some(Migration::Armed)) => {
            "only the peer's packets make a queue pair Armed; ask for Rearm"
        }
        (_, Some(Migration::Rearm)) if !has_alternate => {
            "to Rearm, a queue pair needs an alternate_path"
        }
        (Migration::Rearm, Some(Migration::Migrated)) => {
            "a queue pair in Rearm can migrate once a packet of the peer's has made it Armed"
        }
        _ => return Ok(()),
    };
    Err(invalid("modify_qp", "migration", reason))
}

pub fn srq_limit(limit: u32, requests_max: u32) -> Checked {
    if limit <= requests_max {
        return Ok(());
    }
    Err(invalid("set_srq_limit", "limit", "more than the queue has room for"))
}

pub fn qp_init(init: &QpInit, limits: &Limits) -> Checked {
    const VERB: &str = "create_qp";
    for requests in [init.send_requests_max, init.recv_requests_max] {
        within(VERB, "requests_max", requests, limits.requests_max)?;
    }
    for sges in [init.send_sges_max, init.recv_sges_max] {
        within(VERB, "sges_max", sges, limits.sges_max)?;
    }
    within(VERB, "inline_bytes_max", init.inline_bytes_max, limits.inline_bytes_max)
}

/// Attributes of a queue pair in any state, against the limits of its port. Does not check port
/// numbers, and checks only the DLIDs of paths; [`path()`] checks the other fields. `subnet` says
/// whether the link has LIDs.
pub fn qp_attributes(
    change: &QpAttributes,
    limits: &Limits,
    port: &PortAttributes,
    subnet: bool,
) -> Checked {
    const VERB: &str = "modify_qp";
    if change.pkey_index.is_some_and(|index| index >= port.pkeys) {
        let reason = format!("the port's table has {} entries", port.pkeys);
        return Err(invalid(VERB, "pkey_index", reason));
    }
    for path in [&change.path, &change.alternate_path].into_iter().flatten() {
        if !path.dlid.is_unicast() && subnet {
            return Err(invalid(VERB, "dlid", format!("{} is no port's", path.dlid)));
        }
    }
    if change.path_mtu.is_some_and(|mtu| mtu.bytes().is_none() || mtu > port.mtu) {
        return Err(invalid(VERB, "path_mtu", format!("the port carries {}", port.mtu)));
    }
    for (argument, depth, depth_max) in [
        ("responder_resources", change.responder_resources, limits.responder_resources_max),
        ("initiator_depth", change.initiator_depth, limits.initiator_depth_max),
    ] {
        if depth.is_some_and(|depth| depth > depth_max) {
            return Err(invalid(VERB, argument, format!("the adapter has {depth_max}")));
        }
    }
    if change.dest_qp.is_some_and(|qpn| qpn > Qpn::MAX) {
        return Err(invalid(VERB, "dest_qp", "a queue pair number has 24 bits"));
    }
    for (argument, code) in [
        ("min_rnr_timer", change.min_rnr_timer.map(|code| code.0)),
        ("timeout", change.timeout.map(|code| code.0)),
    ] {
        if code.is_some_and(|code| code > 31) {
            return Err(invalid(VERB, argument, "a code has five bits"));
        }
    }
    Ok(())
}

/// A path from a port with these attributes. `subnet` says whether the link has LIDs.
pub fn path(
    verb: &'static str,
    path: &AddressVector,
    port: &PortAttributes,
    subnet: bool,
) -> Checked {
    if path.grh.is_none() && !subnet {
        return Err(invalid(verb, "grh", "on Ethernet every packet has a GRH"));
    }
    if path.grh.is_none() && path.dlid.is_multicast() {
        return Err(invalid(verb, "grh", "a packet to a multicast group has a GRH"));
    }
    if path.grh.is_some_and(|grh| grh.sgid_index >= port.gids) {
        let reason = format!("the port's GID table has {} entries", port.gids);
        return Err(invalid(verb, "sgid_index", reason));
    }
    if path.src_path_bits >> port.lmc.min(7) != 0 {
        return Err(invalid(verb, "src_path_bits", "beyond the port's LIDs"));
    }
    if path.sl > 15 {
        return Err(invalid(verb, "sl", "there are service levels 0 to 15"));
    }
    Ok(())
}

/// A multicast group that a queue pair of this type attaches to. `subnet` says whether the link has
/// LIDs.
pub fn multicast(qp_type: QpType, mgid: Gid, mlid: Lid, subnet: bool) -> Checked {
    const VERB: &str = "attach_multicast";
    if qp_type != QpType::Ud {
        return Err(invalid(VERB, "qp", "only UD queue pairs join multicast groups"));
    }
    if !mgid.is_multicast() {
        return Err(invalid(VERB, "mgid", format!("{mgid} is no multicast GID")));
    }
    if !mlid.is_multicast() && subnet {
        return Err(invalid(VERB, "mlid", format!("{mlid} is no multicast LID")));
    }
    Ok(())
}

/// A request to the send queue of a queue pair, except its handles.
#[inline]
pub fn send(request: &SendRequest<'_>, init: &QpInit) -> Result<(), PostRefusal> {
    if !init.qp_type.has(&request.op) {
        return Err(PostRefusal::BadOperation);
    }
    match request.data {
        Data::Inline(_) if request.op.is_answered() => Err(PostRefusal::BadOperation),
        Data::Inline(bytes) if bytes.len() > init.inline_bytes_max as usize => {
            Err(PostRefusal::InlineTooLong)
        }
        Data::Sges(sges) if sges.len() > init.send_sges_max as usize => {
            Err(PostRefusal::TooManySges)
        }
        Data::Sges(_) if request.data.bytes() > MESSAGE_BYTES_MAX => Err(PostRefusal::TooLong),
        _ => match request.op {
            SendOp::Datagram(to) | SendOp::DatagramImm(to, _) | SendOp::DatagramIn(to, _)
                if to.qpn > Qpn::MAX =>
            {
                Err(PostRefusal::BadOperation)
            }
            _ => Ok(()),
        },
    }
}

#[inline]
pub fn send_state(state: QpState) -> Result<(), PostRefusal> {
    match state {
        QpState::Reset | QpState::Init | QpState::Rtr => Err(PostRefusal::State(state)),
        QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => Ok(()),
    }
}
