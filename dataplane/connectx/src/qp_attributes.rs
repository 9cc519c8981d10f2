//! Converts attributes of queue pairs between the kernel's structures and those of `pollux_verbs`.

use crate::abi::{ModifyQp, QpDest, QueryQpResp, attr};
use pollux_verbs::{Access, AddressVector, GlobalRoute, Migration, QpAttributes, QpState, Retries};
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::QKey;
use pollux_wire::packet::RnrTimer;
use pollux_wire::psn::Psn;
use pollux_wire::units::{Mtu, TimeCode};
use rustix::io::Errno;

/// The states in the order of the kernel's numbers.
const STATES: [QpState; 7] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Sqe,
    QpState::Err,
];

const MIGRATIONS: [Migration; 3] = [Migration::Migrated, Migration::Rearm, Migration::Armed];

const RIGHTS: [Access; 5] = [
    Access::LOCAL_WRITE,
    Access::REMOTE_WRITE,
    Access::REMOTE_READ,
    Access::REMOTE_ATOMIC,
    Access::BIND,
];

pub(crate) fn access_of_bits(bits: u32) -> Access {
    let held = RIGHTS.into_iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1);
    held.fold(Access::NONE, |all, (_, right)| all | right)
}

/// The attributes that a MODIFY_QP command sets.
pub(crate) fn change_of(asked: &ModifyQp) -> Result<QpAttributes, Errno> {
    let has = |bit| asked.attr_mask & bit != 0;
    if has(!attr::ALL) {
        return Err(Errno::OPNOTSUPP);
    }
    if has(attr::CAP) {
        return Err(Errno::INVAL);
    }
    let state = |number: u8| STATES.get(usize::from(number)).copied().ok_or(Errno::INVAL);
    let retries = |count| Retries::new(count).ok_or(Errno::INVAL);
    let mut change = QpAttributes::default();
    if has(attr::STATE) {
        change.state = Some(state(asked.qp_state)?);
    }
    if has(attr::CUR_STATE) {
        change.current_state = Some(state(asked.cur_qp_state)?);
    }
    if has(attr::RETRY_CNT) {
        change.retry_count = Some(retries(asked.retry_cnt)?);
    }
    if has(attr::RNR_RETRY) {
        change.rnr_retry = Some(retries(asked.rnr_retry)?);
    }
    if has(attr::PATH_MIG_STATE) {
        let migration = MIGRATIONS.get(usize::from(asked.path_mig_state));
        change.migration = Some(*migration.ok_or(Errno::INVAL)?);
    }
    change.drain_event = has(attr::EN_SQD_ASYNC_NOTIFY).then_some(asked.en_sqd_async_notify != 0);
    change.access =
        has(attr::ACCESS_FLAGS).then_some(access_of_bits(asked.qp_access_flags).remote());
    change.pkey_index = has(attr::PKEY_INDEX).then_some(asked.pkey_index);
    change.port = has(attr::PORT).then_some(asked.port_num);
    change.qkey = has(attr::QKEY).then_some(QKey(asked.qkey));
    change.path = has(attr::AV).then(|| path_of(&asked.dest));
    change.alternate_path = has(attr::ALT_PATH).then(|| path_of(&asked.alt_dest));
    change.path_mtu = has(attr::PATH_MTU).then_some(Mtu(asked.path_mtu));
    change.timeout = has(attr::TIMEOUT).then_some(TimeCode(asked.timeout));
    change.rq_psn = has(attr::RQ_PSN).then_some(Psn::new(asked.rq_psn));
    change.sq_psn = has(attr::SQ_PSN).then_some(Psn::new(asked.sq_psn));
    change.initiator_depth = has(attr::MAX_QP_RD_ATOMIC).then_some(asked.max_rd_atomic);
    change.responder_resources = has(attr::MAX_DEST_RD_ATOMIC).then_some(asked.max_dest_rd_atomic);
    change.min_rnr_timer = has(attr::MIN_RNR_TIMER).then_some(RnrTimer(asked.min_rnr_timer));
    change.dest_qp = has(attr::DEST_QPN).then_some(Qpn(asked.dest_qp_num & 0xff_ffff));
    Ok(change)
}

fn path_of(dest: &QpDest) -> AddressVector {
    let route = GlobalRoute {
        dgid: Gid(dest.dgid),
        sgid_index: dest.sgid_index,
        flow_label: dest.flow_label,
        hop_limit: dest.hop_limit,
        traffic_class: dest.traffic_class,
    };
    AddressVector {
        dlid: Lid(dest.dlid),
        sl: dest.sl,
        src_path_bits: dest.src_path_bits,
        static_rate: dest.static_rate,
        port: dest.port_num.max(1),
        grh: (dest.is_global != 0).then_some(route),
    }
}

fn dest_of(path: &AddressVector) -> QpDest {
    let route = path.grh.unwrap_or_default();
    QpDest {
        dgid: route.dgid.0,
        flow_label: route.flow_label,
        dlid: path.dlid.0,
        reserved: 0,
        sgid_index: route.sgid_index,
        hop_limit: route.hop_limit,
        traffic_class: route.traffic_class,
        sl: path.sl,
        src_path_bits: path.src_path_bits,
        static_rate: path.static_rate,
        is_global: path.grh.is_some().into(),
        port_num: path.port,
    }
}

/// The answer to a QUERY_QP command, without the capacities.
pub(crate) fn response_of(state: QpState, attributes: &QpAttributes) -> QueryQpResp {
    let all = attributes;
    let state = STATES.iter().position(|one| *one == state).unwrap_or(0) as u8;
    let migration = all.migration.unwrap_or_default();
    let dest = |path: Option<AddressVector>| path.map_or(QpDest::default(), |path| dest_of(&path));
    QueryQpResp {
        dest: dest(all.path),
        alt_dest: dest(all.alternate_path),
        qkey: all.qkey.map_or(0, |key| key.0),
        rq_psn: all.rq_psn.map_or(0, Psn::get),
        sq_psn: all.sq_psn.map_or(0, Psn::get),
        dest_qp_num: all.dest_qp.map_or(0, |qpn| qpn.0),
        qp_access_flags: all.access.map_or(0, |access| access.bits().into()),
        pkey_index: all.pkey_index.unwrap_or(0),
        qp_state: state,
        cur_qp_state: state,
        path_mtu: all.path_mtu.map_or(0, |mtu| mtu.0),
        path_mig_state: MIGRATIONS.iter().position(|one| *one == migration).unwrap_or(0) as u8,
        sq_draining: 0,
        max_rd_atomic: all.initiator_depth.unwrap_or(0),
        max_dest_rd_atomic: all.responder_resources.unwrap_or(0),
        min_rnr_timer: all.min_rnr_timer.map_or(0, |timer| timer.0),
        port_num: all.port.unwrap_or(0),
        timeout: all.timeout.map_or(0, |time| time.0),
        retry_cnt: all.retry_count.map_or(0, Retries::get),
        rnr_retry: all.rnr_retry.map_or(0, Retries::get),
        alt_port_num: all.alternate_path.map_or(0, |path| path.port),
        ..QueryQpResp::default()
    }
}
