//! The verbs of the adapter, with argument checks (IBA 11.2, 11.4).

use super::memory::{MemoryRange, RegionChange};
use super::qpn::qpn_of;
use super::queue::{CompletionQueue, SharedQueue};
use super::{Adapter, LIMITS, Member, QueuePair};
use pollux_mem::Memory;
use pollux_verbs::error::{invalid, none, over};
use pollux_verbs::{
    Access, AddressVector, Ah, AsyncEvent, Cq, LKey, MemoryRegion, MemoryWindow, Pd, Qp,
    QpAttributes, QpInit, QpState, QpType, RKey, Srq, VerbsError, check, transition,
};
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::QKey;
use std::collections::VecDeque;

impl Adapter {
    pub fn create_pd(&mut self) -> Result<Pd, VerbsError> {
        let kept = self.shared.pds.insert(());
        kept.map(Pd).map_err(|()| over("create_pd", "pds_max", LIMITS.pds_max))
    }

    pub(crate) fn destroy_pd(&mut self, pd: Pd) -> Result<(), VerbsError> {
        const VERB: &str = "destroy_pd";
        self.check_pd(VERB, pd)?;
        let by = if self.shared.memory.uses(pd) {
            "memory"
        } else if self.qps.iter().any(|(_, qp)| qp.common.init.pd == pd) {
            "a queue pair"
        } else if self.shared.srqs.iter().any(|(_, srq)| srq.pd == pd) {
            "a shared receive queue"
        } else if self.shared.ahs.iter().any(|(_, (of, _))| *of == pd) {
            "an address handle"
        } else {
            self.shared.pds.remove(pd.0);
            return Ok(());
        };
        Err(VerbsError::Busy { verb: VERB, by })
    }

    fn check_pd(&self, verb: &'static str, pd: Pd) -> Result<(), VerbsError> {
        self.shared.pds.get(pd.0).copied().ok_or(none(verb, "protection domain"))
    }

    pub fn register(
        &mut self,
        pd: Pd,
        memory: &Memory,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        let (address, bytes) = (memory.address(), memory.bytes() as u64);
        self.register_range(pd, memory, MemoryRange { at: 0, bytes, address }, access)
    }

    /// Registers part of `memory`. Peers get a lease on a region only if it covers all of its
    /// memory.
    pub fn register_range(
        &mut self,
        pd: Pd,
        memory: &Memory,
        range: MemoryRange,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        self.check_pd("register", pd)?;
        let limit = LIMITS.regions_max;
        let region = self.shared.memory.register(pd, memory, range, access, limit)?;
        if range.at == 0 && range.bytes == memory.bytes() as u64 {
            self.shared.leases.grant(region.lkey, memory, range.address);
        }
        Ok(region)
    }

    /// Re-registers a region under its current keys. This ends the lease of the region, so peers
    /// get its bytes by copy from then on.
    pub fn reregister(&mut self, region: LKey, change: RegionChange<'_>) -> Result<(), VerbsError> {
        if let Some(pd) = change.pd {
            self.check_pd("reregister", pd)?;
        }
        self.shared.memory.reregister(region, change)?;
        self.shared.leases.end(region);
        Ok(())
    }

    pub(crate) fn deregister(&mut self, region: LKey) -> Result<(), VerbsError> {
        self.shared.memory.deregister(region)?;
        self.shared.leases.end(region);
        Ok(())
    }

    pub(crate) fn create_window(&mut self, pd: Pd) -> Result<MemoryWindow, VerbsError> {
        self.check_pd("create_window", pd)?;
        self.shared.memory.create_window(pd).map(|rkey| MemoryWindow { rkey })
    }

    pub(crate) fn destroy_window(&mut self, window: RKey) -> Result<(), VerbsError> {
        self.shared.memory.destroy_window(window)
    }

    /// The current key of a window. `key` may be any key that the window has had.
    pub fn window_key(&self, key: RKey) -> Option<RKey> {
        self.shared.memory.window_key(key)
    }

    pub fn create_cq(&mut self, completions_max: u32) -> Result<Cq, VerbsError> {
        check::cq(completions_max, &LIMITS)?;
        let kept = self.shared.cqs.insert(CompletionQueue::new(completions_max));
        kept.map(Cq).map_err(|_| over("create_cq", "cqs_max", LIMITS.cqs_max))
    }

    /// Changes the capacity of a queue. Fails if the queue holds more completions than the new
    /// capacity.
    pub fn resize_cq(&mut self, cq: Cq, completions_max: u32) -> Result<(), VerbsError> {
        const VERB: &str = "resize_cq";
        check::cq(completions_max, &LIMITS)?;
        let queue = self.shared.cqs.get_mut(cq.0).ok_or(none(VERB, "completion queue"))?;
        if !queue.resize(completions_max) {
            return Err(invalid(VERB, "completions_max", "the queue has more completions"));
        }
        Ok(())
    }

    pub(crate) fn destroy_cq(&mut self, cq: Cq) -> Result<(), VerbsError> {
        const VERB: &str = "destroy_cq";
        let queue = self.shared.cqs.get(cq.0).ok_or(none(VERB, "completion queue"))?;
        if queue.qps > 0 {
            return Err(VerbsError::Busy { verb: VERB, by: "a queue pair" });
        }
        self.shared.cqs.remove(cq.0);
        Ok(())
    }

    pub(crate) fn create_srq(
        &mut self,
        pd: Pd,
        requests_max: u32,
        sges_max: u32,
    ) -> Result<Srq, VerbsError> {
        const VERB: &str = "create_srq";
        self.check_pd(VERB, pd)?;
        check::srq(requests_max, sges_max, &LIMITS)?;
        let queue = SharedQueue {
            pd,
            requests: VecDeque::new(),
            source: None,
            requests_max: requests_max as usize,
            sges_max: sges_max as usize,
            limit: 0,
            qps: 0,
        };
        let kept = self.shared.srqs.insert(queue);
        kept.map(Srq).map_err(|_| over(VERB, "srqs_max", LIMITS.srqs_max))
    }

    pub(crate) fn set_srq_limit(&mut self, srq: Srq, limit: u32) -> Result<(), VerbsError> {
        const VERB: &str = "set_srq_limit";
        let queue = self.shared.srqs.get_mut(srq.0).ok_or(none(VERB, "shared receive queue"))?;
        check::srq_limit(limit, queue.requests_max as u32)?;
        queue.limit = limit;
        Ok(())
    }

    pub(crate) fn destroy_srq(&mut self, srq: Srq) -> Result<(), VerbsError> {
        const VERB: &str = "destroy_srq";
        let queue = self.shared.srqs.get(srq.0).ok_or(none(VERB, "shared receive queue"))?;
        if queue.qps > 0 {
            return Err(VerbsError::Busy { verb: VERB, by: "a queue pair" });
        }
        self.shared.srqs.remove(srq.0);
        Ok(())
    }

    pub fn create_qp(&mut self, init: &QpInit) -> Result<Qp, VerbsError> {
        const VERB: &str = "create_qp";
        self.check_pd(VERB, init.pd)?;
        let is_gsi = init.qp_type == QpType::Gsi;
        if is_gsi && self.context != 0 {
            let capability = "QP1 (GSI): only context 0 of a shared port has it";
            return Err(VerbsError::Unsupported { verb: VERB, capability });
        }
        if is_gsi && self.gsi.is_some() {
            return Err(over(VERB, "GSI queue pairs", 1));
        }
        for cq in [init.send_cq, init.recv_cq] {
            self.shared.cqs.get(cq.0).ok_or(none(VERB, "completion queue"))?;
        }
        if let Some(srq) = init.srq {
            self.shared.srqs.get(srq.0).ok_or(none(VERB, "shared receive queue"))?;
        }
        check::qp_init(init, &LIMITS)?;
        // The handle and the QPN are known only after the insertion.
        let kept = self.qps.insert(QueuePair::new(Qp(0), Qpn(0), *init));
        let number = kept.map_err(|_| over(VERB, "qps_max", LIMITS.qps_max))?;
        if let Some(qp) = self.qps.get_mut(number) {
            let qpn = if is_gsi { Qpn::GSI } else { qpn_of(self.context, number) };
            (qp.common.handle, qp.common.qpn) = (Qp(number), qpn);
        }
        self.gsi = self.gsi.or(is_gsi.then_some(number));
        self.count_qp(init, 1);
        Ok(Qp(number))
    }

    fn count_qp(&mut self, init: &QpInit, change: i32) {
        for cq in [init.send_cq, init.recv_cq] {
            if let Some(queue) = self.shared.cqs.get_mut(cq.0) {
                queue.qps = queue.qps.wrapping_add_signed(change);
            }
        }
        if let Some(queue) = init.srq.and_then(|srq| self.shared.srqs.get_mut(srq.0)) {
            queue.qps = queue.qps.wrapping_add_signed(change);
        }
    }

    fn qp(&self, verb: &'static str, qp: Qp) -> Result<&QueuePair, VerbsError> {
        self.qps.get(qp.0).ok_or(none(verb, "queue pair"))
    }

    pub fn qpn(&self, qp: Qp) -> Result<Qpn, VerbsError> {
        self.qp("qpn", qp).map(|qp| qp.common.qpn)
    }

    /// Changes attributes of a queue pair, including its state (IBA 11.2.5.2).
    pub fn modify_qp(&mut self, qp: Qp, change: &QpAttributes) -> Result<(), VerbsError> {
        const VERB: &str = "modify_qp";
        let kept = self.qp(VERB, qp)?;
        let to = transition::check(kept.common.init.qp_type, kept.common.state, change)?;
        self.check_attributes(change)?;
        self.check_migration(&kept.common, change)?;
        let is_gsi = kept.common.init.qp_type == QpType::Gsi;
        if is_gsi && change.qkey.is_some_and(|qkey| qkey != QKey::GSI) {
            let reason =
                format!("a GSI queue pair has Q_Key {}, which cannot be changed", QKey::GSI);
            return Err(invalid(VERB, "qkey", reason));
        }
        if let Some(kept) = self.qps.get_mut(qp.0) {
            kept.change(to, change, &mut self.shared);
        }
        self.activate(qp.0);
        Ok(())
    }

    fn check_attributes(&self, change: &QpAttributes) -> Result<(), VerbsError> {
        const VERB: &str = "modify_qp";
        if let Some(port) = change.port {
            check::port(VERB, "the adapter", port, 1)?;
        }
        for path in [&change.path, &change.alternate_path].into_iter().flatten() {
            self.check_path(VERB, path)?;
        }
        let port = &self.shared.port;
        check::qp_attributes(change, &LIMITS, &port.attributes(), !port.is_ethernet())
    }

    fn check_path(&self, verb: &'static str, path: &AddressVector) -> Result<(), VerbsError> {
        check::port(verb, "the adapter", path.port, 1)?;
        let port = &self.shared.port;
        check::path(verb, path, &port.attributes(), !port.is_ethernet())
    }

    pub(crate) fn query_qp(&self, qp: Qp) -> Result<(QpState, QpAttributes), VerbsError> {
        self.qp("query_qp", qp).map(|qp| (qp.common.state, qp.common.attributes))
    }

    pub(crate) fn destroy_qp(&mut self, qp: Qp) -> Result<(), VerbsError> {
        const VERB: &str = "destroy_qp";
        self.qp(VERB, qp)?;
        if self.groups.iter().any(|member| member.qp == qp) {
            return Err(VerbsError::Busy { verb: VERB, by: "a multicast group" });
        }
        if let Some(kept) = self.qps.remove(qp.0) {
            self.gsi = self.gsi.filter(|gsi| *gsi != qp.0);
            self.count_qp(&kept.common.init, -1);
            self.shared.leases.revoke(kept.common.qpn);
            if let Some(due) = kept.timer {
                self.timers.remove(&(due, qp.0));
            }
        }
        Ok(())
    }

    pub(crate) fn create_ah(&mut self, pd: Pd, path: &AddressVector) -> Result<Ah, VerbsError> {
        const VERB: &str = "create_ah";
        self.check_pd(VERB, pd)?;
        self.check_path(VERB, path)?;
        let kept = self.shared.ahs.insert((pd, *path));
        kept.map(Ah).map_err(|_| over(VERB, "ahs_max", LIMITS.ahs_max))
    }

    pub(crate) fn destroy_ah(&mut self, ah: Ah) -> Result<(), VerbsError> {
        let removed = self.shared.ahs.remove(ah.0);
        removed.map(|_| ()).ok_or(none("destroy_ah", "address handle"))
    }

    pub(crate) fn attach_multicast(
        &mut self,
        qp: Qp,
        mgid: Gid,
        mlid: Lid,
    ) -> Result<(), VerbsError> {
        const VERB: &str = "attach_multicast";
        let is_ethernet = self.shared.port.is_ethernet();
        check::multicast(self.qp(VERB, qp)?.common.init.qp_type, mgid, mlid, !is_ethernet)?;
        let mlid = if is_ethernet { Lid::NONE } else { mlid };
        let member = Member { mgid, mlid, qp };
        if self.groups.contains(&member) {
            return Ok(());
        }
        if self.groups.len() >= LIMITS.multicast_attachments_max as usize {
            let max = LIMITS.multicast_attachments_max;
            return Err(over(VERB, "multicast_attachments_max", max));
        }
        self.groups.push(member);
        Ok(())
    }

    pub(crate) fn detach_multicast(
        &mut self,
        qp: Qp,
        mgid: Gid,
        mlid: Lid,
    ) -> Result<(), VerbsError> {
        let mlid = if self.shared.port.is_ethernet() { Lid::NONE } else { mlid };
        let member = Member { mgid, mlid, qp };
        let index = self.groups.iter().position(|kept| *kept == member);
        self.groups.remove(index.ok_or(none("detach_multicast", "membership"))?);
        Ok(())
    }

    pub(crate) fn has_event(&self) -> bool {
        !self.shared.events.is_empty()
    }

    pub fn async_event(&mut self) -> Option<AsyncEvent> {
        self.shared.events.pop_front()
    }
}
