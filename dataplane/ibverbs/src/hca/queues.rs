//! Completion queues and shared receive queues.

use super::owned::{Owned, checked};
use super::{CompletionQueue, Hca, SharedQueue, end_in, tag};
use ibverbs_sys as ffi;
use pollux_verbs::error::over;
use pollux_verbs::{Cq, Pd, Srq, VerbsError, check};
use std::mem::zeroed;

impl Hca {
    pub(super) fn create_cq(&mut self, completions_max: u32) -> Result<Cq, VerbsError> {
        const VERB: &str = "create_cq";
        let limits = self.attributes.limits;
        check::cq(completions_max, &limits)?;
        let number = self.cqs.next_number().ok_or(over(VERB, "cqs_max", limits.cqs_max))?;
        let (context, channel) = (self.context.raw(), self.channel.raw());
        // SAFETY: context and channel are live, and the queue is destroyed before both (order of
        // the fields). The length fits an int, because the limit came from one.
        let made = unsafe {
            let made = ffi::ibv_create_cq(context, completions_max as i32, tag(number), channel, 0);
            Owned::new(made, ffi::ibv_destroy_cq)
        };
        let object = made.map_err(self.refused(VERB))?;
        let kept = self.cqs.insert(CompletionQueue { object, qps: 0, datagram_qps: Vec::new() });
        debug_assert_eq!(kept.as_ref().ok(), Some(&number), "what it is tagged with");
        kept.map(Cq).map_err(|_| over(VERB, "cqs_max", limits.cqs_max))
    }

    pub(super) fn destroy_cq(&mut self, cq: Cq) -> Result<(), VerbsError> {
        const VERB: &str = "destroy_cq";
        if self.cq(VERB, cq)?.qps > 0 {
            return Err(VerbsError::Busy { verb: VERB, by: "a queue pair" });
        }
        let ended = end_in(&mut self.cqs, cq.0, |queue| &mut queue.object);
        ended.map(drop).map_err(self.refused(VERB))
    }

    pub(super) fn create_srq(
        &mut self,
        pd: Pd,
        requests_max: u32,
        sges_max: u32,
    ) -> Result<Srq, VerbsError> {
        const VERB: &str = "create_srq";
        let raw_pd = self.pd(VERB, pd)?;
        let limits = self.attributes.limits;
        check::srq(requests_max, sges_max, &limits)?;
        let number = self.srqs.next_number().ok_or(over(VERB, "srqs_max", limits.srqs_max))?;
        // SAFETY: all zero is a value of this structure of numbers and a pointer.
        let mut init: ffi::ibv_srq_init_attr = unsafe { zeroed() };
        init.srq_context = tag(number);
        init.attr.max_wr = requests_max;
        init.attr.max_sge = sges_max;
        // SAFETY: the domain is live, and the queue is destroyed before it (order of the fields;
        // `destroy_pd` refuses while a queue uses the domain).
        let made = unsafe {
            let made = ffi::ibv_create_srq(raw_pd, &raw mut init);
            Owned::new(made, ffi::ibv_destroy_srq)
        };
        let object = made.map_err(self.refused(VERB))?;
        // The driver returns the length of the queue, which it may round up.
        let requests_max = init.attr.max_wr.max(requests_max);
        let kept = self.srqs.insert(SharedQueue { object, pd, requests_max, sges_max, qps: 0 });
        debug_assert_eq!(kept.as_ref().ok(), Some(&number), "what it is tagged with");
        kept.map(Srq).map_err(|_| over(VERB, "srqs_max", limits.srqs_max))
    }

    pub(super) fn set_srq_limit(&mut self, srq: Srq, limit: u32) -> Result<(), VerbsError> {
        const VERB: &str = "set_srq_limit";
        let queue = self.srq(VERB, srq)?;
        check::srq_limit(limit, queue.requests_max)?;
        let mut change = ffi::ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        // SAFETY: the queue is live, and the library only reads the structure.
        let answer = unsafe {
            ffi::ibv_modify_srq(queue.object.raw(), &raw mut change, ffi::IBV_SRQ_LIMIT as i32)
        };
        checked(answer).map_err(self.refused(VERB))
    }

    pub(super) fn destroy_srq(&mut self, srq: Srq) -> Result<(), VerbsError> {
        const VERB: &str = "destroy_srq";
        if self.srq(VERB, srq)?.qps > 0 {
            return Err(VerbsError::Busy { verb: VERB, by: "a queue pair" });
        }
        let ended = end_in(&mut self.srqs, srq.0, |queue| &mut queue.object);
        ended.map(drop).map_err(self.refused(VERB))
    }
}
