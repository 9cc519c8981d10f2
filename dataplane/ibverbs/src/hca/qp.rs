//! Queue pairs: creation, modification, query, destruction.

use super::memory::raw_access;
use super::owned::{Owned, checked};
use super::{Hca, QueuePair, end_in, raw_type, tag};
use ibverbs_sys as ffi;
use pollux_verbs::error::over;
use pollux_verbs::qp::Migration;
use pollux_verbs::{
    Access, DeviceAttributes, Qp, QpAttributes, QpInit, QpState, QpType, VerbsError, check,
    transition,
};
use pollux_wire::address::Qpn;
use pollux_wire::keys::QKey;
use std::mem::zeroed;
use std::ptr;

impl Hca {
    pub(super) fn create_qp(&mut self, init: &QpInit) -> Result<Qp, VerbsError> {
        const VERB: &str = "create_qp";
        let raw_pd = self.pd(VERB, init.pd)?;
        let mut raw = self.raw_init(VERB, init)?;
        let limits = self.attributes.limits;
        let number = self.qps.next_number().ok_or(over(VERB, "qps_max", limits.qps_max))?;
        raw.qp_context = tag(number);
        // SAFETY: domain and queues are live, and the queue pair is destroyed before them: at drop
        // by the order of the fields, and before that because `destroy_pd`, `destroy_cq` and
        // `destroy_srq` refuse while a queue pair uses them. `create_qp` is `ibv_create_qp`, or
        // equivalent by the contract of `set_create_qp`.
        let made =
            unsafe { Owned::new((self.create_qp)(raw_pd, &raw mut raw), ffi::ibv_destroy_qp) };
        let object = made.map_err(self.refused(VERB))?;
        // SAFETY: the object is live, and its QPN does not change.
        let qpn = Qpn(unsafe { (*object.raw()).qp_num });
        let (state, attributes) = (QpState::Reset, QpAttributes::default());
        let kept = QueuePair { object, qpn, init: *init, state, attributes };
        let kept = self.qps.insert(kept).map_err(|_| over(VERB, "qps_max", limits.qps_max))?;
        debug_assert_eq!(kept, number, "what it is tagged with");
        self.count_qp(init, 1);
        Ok(Qp(number))
    }

    /// Checks the creation attributes and converts them to the library's format.
    fn raw_init(
        &self,
        verb: &'static str,
        init: &QpInit,
    ) -> Result<ffi::ibv_qp_init_attr, VerbsError> {
        check::qp_init(init, &self.attributes.limits)?;
        let srq = init.srq.map(|srq| self.srq(verb, srq)).transpose()?;
        // SAFETY: all zero is a value of this structure of numbers and pointers.
        let mut raw: ffi::ibv_qp_init_attr = unsafe { zeroed() };
        raw.send_cq = self.cq(verb, init.send_cq)?.object.raw();
        raw.recv_cq = self.cq(verb, init.recv_cq)?.object.raw();
        raw.srq = srq.map_or(ptr::null_mut(), |srq| srq.object.raw());
        raw.qp_type = raw_type(init.qp_type)
            .ok_or(VerbsError::Unsupported { verb, capability: "queue pair of this service" })?;
        raw.sq_sig_all = init.signal_all.into();
        raw.cap.max_send_wr = init.send_requests_max;
        raw.cap.max_send_sge = init.send_sges_max;
        if srq.is_none() {
            raw.cap.max_recv_wr = init.recv_requests_max;
            raw.cap.max_recv_sge = init.recv_sges_max;
        }
        raw.cap.max_inline_data = init.inline_bytes_max;
        Ok(raw)
    }

    /// Adds `change` to the use counts of the queues of a queue pair.
    pub(super) fn count_qp(&mut self, init: &QpInit, change: i32) {
        for cq in [init.send_cq, init.recv_cq] {
            if let Some(queue) = self.cqs.get_mut(cq.0) {
                queue.qps = queue.qps.wrapping_add_signed(change);
            }
        }
        if let Some(queue) = init.srq.and_then(|srq| self.srqs.get_mut(srq.0)) {
            queue.qps = queue.qps.wrapping_add_signed(change);
        }
    }

    pub(super) fn modify_qp(&mut self, qp: Qp, change: &QpAttributes) -> Result<(), VerbsError> {
        const VERB: &str = "modify_qp";
        let (from, present) = self.present(VERB, qp)?;
        let kept = self.qp(VERB, qp)?;
        let to = transition::check(kept.init.qp_type, from, change)?;
        let has_alternate = change.alternate_path.or(present.alternate_path).is_some();
        check::migration(present.migration.unwrap_or_default(), change.migration, has_alternate)?;
        if (from, to) == (QpState::Reset, QpState::Err) {
            self.leave_reset(VERB, kept)?;
        }
        let (mut raw, mask) = self.raw_change(VERB, kept, change)?;
        raw.qp_state = raw_state(to);
        self.change_raw(VERB, kept, &mut raw, mask)?;
        self.record_change(qp, to, present, change);
        Ok(())
    }

    /// Changes a queue pair from RESET to INIT. IBA permits the transition from RESET to ERR
    /// (10.3.1.7), but Linux does not, so the queue pair passes through INIT.
    fn leave_reset(&self, verb: &'static str, kept: &QueuePair) -> Result<(), VerbsError> {
        let is_ud = kept.init.qp_type == QpType::Ud;
        let any = QpAttributes {
            pkey_index: Some(0),
            port: Some(1),
            access: (!is_ud).then_some(Access::NONE),
            qkey: is_ud.then_some(QKey(0)),
            ..QpAttributes::default()
        };
        let (mut raw, mask) = self.raw_change(verb, kept, &any)?;
        raw.qp_state = raw_state(QpState::Init);
        self.change_raw(verb, kept, &mut raw, mask)
    }

    fn change_raw(
        &self,
        verb: &'static str,
        kept: &QueuePair,
        raw: &mut ffi::ibv_qp_attr,
        mask: ffi::ibv_qp_attr_mask,
    ) -> Result<(), VerbsError> {
        let mask = mask | ffi::ibv_qp_attr_mask::IBV_QP_STATE;
        // SAFETY: the queue pair is live, and the library only reads the structure.
        let answer = unsafe { ffi::ibv_modify_qp(kept.object.raw(), raw, mask.0 as i32) };
        checked(answer).map_err(self.refused(verb))
    }

    /// Records a change; `present` are the attributes before it.
    fn record_change(
        &mut self,
        qp: Qp,
        to: QpState,
        mut present: QpAttributes,
        change: &QpAttributes,
    ) {
        let Some(kept) = self.qps.get_mut(qp.0) else { return };
        kept.state = to;
        if to == QpState::Reset {
            kept.attributes = QpAttributes::default();
        } else {
            let was_armed = present.migration == Some(Migration::Armed);
            if was_armed && change.migration == Some(Migration::Migrated) {
                take_alternate(&mut present);
            }
            present.take(change);
            kept.attributes = present;
        }
        let (qpn, init, pkey_index) = (kept.qpn, kept.init, kept.attributes.pkey_index);
        if init.qp_type == QpType::Ud
            && let Some(queue) = self.cqs.get_mut(init.recv_cq.0)
        {
            queue.datagram_qps.retain(|(other, _)| *other != qpn);
            queue.datagram_qps.push((qpn, pkey_index.unwrap_or(0)));
            queue.datagram_qps.sort_unstable();
        }
    }

    /// Checks a change and converts it to the library's format, with its mask.
    fn raw_change(
        &self,
        verb: &'static str,
        kept: &QueuePair,
        change: &QpAttributes,
    ) -> Result<(ffi::ibv_qp_attr, ffi::ibv_qp_attr_mask), VerbsError> {
        use ffi::ibv_qp_attr_mask as bit;
        let port = self.port(verb, change.port.or(kept.attributes.port).unwrap_or(1))?;
        let Self { attributes: DeviceAttributes { limits, can, .. }, .. } = self;
        check::qp_attributes(change, limits, &port, can.subnet)?;
        // SAFETY: all zero is a value of this structure of numbers.
        let mut raw: ffi::ibv_qp_attr = unsafe { zeroed() };
        let mut mask = ffi::ibv_qp_attr_mask(0);
        macro_rules! set {
            ($($field:ident: $name:ident, $bit:ident = |$value:ident| $raw:expr;)*) => {$(
                if let Some($value) = change.$field {
                    raw.$name = $raw;
                    mask |= bit::$bit;
                }
            )*};
        }
        set! {
            pkey_index: pkey_index, IBV_QP_PKEY_INDEX = |index| index;
            port: port_num, IBV_QP_PORT = |port| port;
            qkey: qkey, IBV_QP_QKEY = |qkey| qkey.0;
            access: qp_access_flags, IBV_QP_ACCESS_FLAGS = |access| raw_access(access);
            path: ah_attr, IBV_QP_AV = |path| self.raw_path(verb, &path)?;
            path_mtu: path_mtu, IBV_QP_PATH_MTU = |mtu| mtu.0.into();
            dest_qp: dest_qp_num, IBV_QP_DEST_QPN = |qpn| qpn.0;
            rq_psn: rq_psn, IBV_QP_RQ_PSN = |psn| psn.get();
            sq_psn: sq_psn, IBV_QP_SQ_PSN = |psn| psn.get();
            responder_resources: max_dest_rd_atomic, IBV_QP_MAX_DEST_RD_ATOMIC = |count| count;
            initiator_depth: max_rd_atomic, IBV_QP_MAX_QP_RD_ATOMIC = |count| count;
            min_rnr_timer: min_rnr_timer, IBV_QP_MIN_RNR_TIMER = |timer| timer.0;
            timeout: timeout, IBV_QP_TIMEOUT = |timeout| timeout.0;
            retry_count: retry_cnt, IBV_QP_RETRY_CNT = |count| count.get();
            rnr_retry: rnr_retry, IBV_QP_RNR_RETRY = |count| count.get();
            drain_event: en_sqd_async_notify, IBV_QP_EN_SQD_ASYNC_NOTIFY = |wanted| wanted.into();
            migration: path_mig_state, IBV_QP_PATH_MIG_STATE = |state| raw_migration(state);
            alternate_path: alt_ah_attr, IBV_QP_ALT_PATH = |path| self.raw_path(verb, &path)?;
        }
        if let Some(path) = change.alternate_path {
            // By the contract, the alternate path has the same partition and timeout.
            let own = kept.attributes;
            raw.alt_port_num = path.port;
            raw.alt_pkey_index = change.pkey_index.or(own.pkey_index).unwrap_or(0);
            raw.alt_timeout = change.timeout.or(own.timeout).unwrap_or_default().0;
        }
        Ok((raw, mask))
    }

    /// The current state and attributes of a queue pair, which may have failed or migrated since
    /// the last change.
    fn present(&self, verb: &'static str, qp: Qp) -> Result<(QpState, QpAttributes), VerbsError> {
        let kept = self.qp(verb, qp)?;
        // SAFETY: all zero is a value of these structures of numbers and pointers.
        let (mut raw, mut init): (ffi::ibv_qp_attr, ffi::ibv_qp_init_attr) =
            unsafe { (zeroed(), zeroed()) };
        let mask =
            ffi::ibv_qp_attr_mask::IBV_QP_STATE | ffi::ibv_qp_attr_mask::IBV_QP_PATH_MIG_STATE;
        let mask = mask.0 as i32;
        // SAFETY: the queue pair is live, and the library writes the two structures.
        let answer =
            unsafe { ffi::ibv_query_qp(kept.object.raw(), &raw mut raw, mask, &raw mut init) };
        checked(answer).map_err(self.refused(verb))?;
        let mut states = QpState::ALL.into_iter();
        // Some drivers report the state of a failed queue pair only as an error.
        let state = states.find(|state| raw_state(*state) == raw.qp_state).unwrap_or(QpState::Err);
        let mut attributes = kept.attributes;
        if attributes.migration.is_some_and(|known| known != Migration::Migrated) {
            let mut migrations = [Migration::Rearm, Migration::Armed].into_iter();
            let is_it = |migration: &Migration| raw_migration(*migration) == raw.path_mig_state;
            let migration = migrations.find(is_it).unwrap_or(Migration::Migrated);
            if migration == Migration::Migrated {
                take_alternate(&mut attributes);
            }
            attributes.migration = Some(migration);
        }
        Ok((state, attributes))
    }

    pub(super) fn query_qp(&self, qp: Qp) -> Result<(QpState, QpAttributes), VerbsError> {
        const VERB: &str = "query_qp";
        let (state, attributes) = self.present(VERB, qp)?;
        Ok((state, QpAttributes { state: attributes.state.map(|_| state), ..attributes }))
    }

    pub(super) fn destroy_qp(&mut self, qp: Qp) -> Result<(), VerbsError> {
        const VERB: &str = "destroy_qp";
        self.qp(VERB, qp)?;
        if self.memberships.iter().any(|(member, ..)| *member == qp) {
            return Err(VerbsError::Busy { verb: VERB, by: "a multicast group" });
        }
        let ended = end_in(&mut self.qps, qp.0, |kept| &mut kept.object);
        let Some(QueuePair { qpn, init, .. }) = ended.map_err(self.refused(VERB))? else {
            return Ok(());
        };
        if let Some(queue) = self.cqs.get_mut(init.recv_cq.0) {
            queue.datagram_qps.retain(|(other, _)| *other != qpn);
        }
        self.count_qp(&init, -1);
        Ok(())
    }
}

/// The library's numbers of the states, in the order of [`QpState::ALL`].
const RAW_STATES: [ffi::ibv_qp_state::Type; 7] = [
    ffi::ibv_qp_state::IBV_QPS_RESET,
    ffi::ibv_qp_state::IBV_QPS_INIT,
    ffi::ibv_qp_state::IBV_QPS_RTR,
    ffi::ibv_qp_state::IBV_QPS_RTS,
    ffi::ibv_qp_state::IBV_QPS_SQD,
    ffi::ibv_qp_state::IBV_QPS_SQE,
    ffi::ibv_qp_state::IBV_QPS_ERR,
];

/// Records a migration: the alternate path becomes the primary path (IBA 17.2.8).
fn take_alternate(attributes: &mut QpAttributes) {
    attributes.path = attributes.alternate_path.take().or(attributes.path);
}

fn raw_state(state: QpState) -> ffi::ibv_qp_state::Type {
    RAW_STATES[state as usize]
}

fn raw_migration(state: Migration) -> ffi::ibv_mig_state {
    match state {
        Migration::Migrated => ffi::IBV_MIG_MIGRATED,
        Migration::Rearm => ffi::IBV_MIG_REARM,
        Migration::Armed => ffi::IBV_MIG_ARMED,
    }
}
