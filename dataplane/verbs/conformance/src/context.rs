//! The environment of a case: the two devices, their completions, and the passage of time.

use super::adapters::{Adapters, Group, Side, WaitDecision};
use super::verdict::{Stop, fail, skip};
use pollux_mem::Memory;
use pollux_verbs::address::{AddressVector, GlobalRoute};
use pollux_verbs::completion::Completion;
use pollux_verbs::device::{Device, Limits};
use pollux_verbs::error::VerbsError;
use pollux_verbs::event::AsyncEvent;
use pollux_verbs::memory::Cq;
use pollux_wire::address::Lid;
use pollux_wire::keys::PKey;
use pollux_wire::units::Mtu;
use std::collections::{BTreeMap, VecDeque};

/// Number of polls after which a case assumes that nothing more arrives. In virtual time these
/// polls cover every running timer. With a real clock the time is short: a case may miss a late
/// completion, but does not fail a correct adapter.
const QUIET_ROUNDS: usize = 256;

const POLL_BATCH: usize = 16;

pub struct Context<'a> {
    adapters: &'a mut dyn Adapters,
    /// Another context of A's device, after [`Context::open_second_context`].
    second: Option<Box<dyn Device + Send>>,
    is_lossy: bool,
    /// Polled completions that the case has not taken yet, by queue.
    pub(super) inbox: BTreeMap<(Side, Cq), VecDeque<Completion>>,
    pub(super) events: Vec<(Side, AsyncEvent)>,
    /// Registered memory, which must outlive the case.
    pub(super) memories: Vec<Memory>,
}

impl<'a> Context<'a> {
    pub(super) fn new(adapters: &'a mut dyn Adapters, is_lossy: bool) -> Self {
        let inbox = BTreeMap::new();
        let (second, events, memories) = (None, Vec::new(), Vec::new());
        Self { adapters, second, is_lossy, inbox, events, memories }
    }

    pub fn is_lossy(&self) -> bool {
        self.is_lossy
    }

    /// One of the devices.
    ///
    /// # Panics
    /// When a case asks for the second context without having opened it.
    pub fn device(&mut self, side: Side) -> &mut dyn Device {
        device_of(self.adapters, &mut self.second, side)
    }

    /// Opens a second context of A's device; skips the case if the device does not support that.
    pub fn open_second_context(&mut self) -> Result<(), Stop> {
        match self.device(Side::A).open_shared() {
            Ok(device) => self.second = Some(device),
            Err(error @ VerbsError::Unsupported { .. }) => return skip(error.to_string()),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Closes the second context, with all its resources.
    pub fn close_second_context(&mut self) {
        self.inbox.retain(|(side, _), _| *side != Side::SecondContext);
        self.second = None;
    }

    /// The side under which objects of `side` are recorded: A if both sides are the same device.
    pub(super) fn owner(&self, side: Side) -> Side {
        if side == Side::B && self.adapters.is_one_device() { Side::A } else { side }
    }

    pub fn port(&self, side: Side) -> u8 {
        self.adapters.port(if side == Side::SecondContext { Side::A } else { side })
    }

    /// The lower of both devices' limits, for the limits that cases use.
    pub fn limits(&mut self) -> Limits {
        let a = self.device(Side::A).attributes().limits;
        let b = self.device(Side::B).attributes().limits;
        Limits {
            requests_max: a.requests_max.min(b.requests_max),
            completions_max: a.completions_max.min(b.completions_max),
            sges_max: a.sges_max.min(b.sges_max),
            inline_bytes_max: a.inline_bytes_max.min(b.inline_bytes_max),
            qps_max: a.qps_max.min(b.qps_max),
            srq_requests_max: a.srq_requests_max.min(b.srq_requests_max),
            responder_resources_max: a.responder_resources_max.min(b.responder_resources_max),
            initiator_depth_max: a.initiator_depth_max.min(b.initiator_depth_max),
            ..a
        }
    }

    /// The largest MTU that both ports support.
    pub fn mtu(&mut self) -> Result<Mtu, Stop> {
        let mut mtus = Side::BOTH.map(|side| (side, Mtu::BYTES_4096));
        for (side, mtu) in &mut mtus {
            let port = self.port(*side);
            *mtu = self.device(*side).port(port)?.mtu;
        }
        Ok(mtus[0].1.min(mtus[1].1))
    }

    /// As [`Self::mtu`], in bytes.
    pub fn mtu_bytes(&mut self) -> Result<usize, Stop> {
        let mtu = self.mtu()?;
        mtu.bytes().ok_or_else(|| Stop::Fail(format!("the ports' MTU has no size: {mtu:?}")))
    }

    /// The path from one side's port to another's.
    pub fn path(&mut self, from: Side, to: Side) -> Result<AddressVector, Stop> {
        let to_port = self.port(to);
        let dlid = self.device(to).port(to_port)?.lid;
        let dgid = self.device(to).gid(to_port, 0)?;
        let by_lid = self.adapters.is_one_subnet() && self.device(from).attributes().can.subnet;
        let route = GlobalRoute::to(dgid, 64);
        let port = self.port(from);
        Ok(AddressVector { dlid, port, grh: (!by_lid).then_some(route), ..Default::default() })
    }

    /// As [`Self::path`], always with a GRH.
    pub fn global_path(&mut self, from: Side, to: Side) -> Result<AddressVector, Stop> {
        let to_port = self.port(to);
        let dgid = self.device(to).gid(to_port, 0)?;
        let grh = GlobalRoute::to(dgid, 64);
        Ok(AddressVector { grh: Some(grh), ..self.path(from, to)? })
    }

    /// An alternate path: between the second LIDs of both ports if they have more than one, else
    /// the same path with a GRH.
    pub fn alternate_path(&mut self, from: Side, to: Side) -> Result<AddressVector, Stop> {
        for side in [from, to] {
            let port = self.port(side);
            if self.device(side).port(port)?.lmc == 0 {
                return self.global_path(from, to);
            }
        }
        let path = self.path(from, to)?;
        Ok(AddressVector { dlid: Lid(path.dlid.0 + 1), src_path_bits: 1, ..path })
    }

    /// A multicast group; skips the case if there is none.
    pub fn group(&mut self, nth: u8) -> Result<Group, Stop> {
        match self.adapters.group(nth) {
            Some(group) => Ok(group),
            None => skip("no multicast group could be made"),
        }
    }

    /// Sets the first entries of both P_Key tables, or skips the case.
    pub fn set_pkeys(&mut self, a: &[PKey], b: &[PKey]) -> Result<(), Stop> {
        if self.adapters.set_pkeys(Side::A, a) && self.adapters.set_pkeys(Side::B, b) {
            return Ok(());
        }
        skip("the P_Key tables cannot be set")
    }

    /// Skips the case unless it may use this much memory.
    pub fn needs_memory(&self, bytes: u64) -> Result<(), Stop> {
        let max = self.adapters.memory_bytes_max();
        if bytes <= max {
            return Ok(());
        }
        skip(format!("it takes {bytes} bytes of memory, and {max} are allowed"))
    }

    /// Skips the case unless it may create this many objects.
    pub fn needs_objects(&self, count: u32) -> Result<(), Stop> {
        if count <= self.adapters.objects_max() {
            return Ok(());
        }
        skip(format!("the limit is {count}, too many to try"))
    }

    pub(super) fn memory(&self, bytes: usize) -> Result<Memory, Stop> {
        let memory = self.adapters.memory(bytes);
        memory.map_err(|error| Stop::Skip(format!("no memory for the case: {error}")))
    }

    /// Polls all queues once; returns whether anything arrived.
    pub(super) fn breathe(&mut self) -> Result<bool, Stop> {
        let mut came = false;
        for ((side, cq), inbox) in &mut self.inbox {
            let mut batch = [Completion::NOTHING; POLL_BATCH];
            let device = device_of(self.adapters, &mut self.second, *side);
            let count = device.poll(*cq, &mut batch)?;
            if count > POLL_BATCH {
                return fail(format!("poll: expected at most {POLL_BATCH}, found {count}"));
            }
            inbox.extend(&batch[..count]);
            came |= count > 0;
        }
        let second = self.second.as_ref().map(|_| Side::SecondContext);
        for side in Side::BOTH.into_iter().chain(second) {
            while let Some(event) = self.device(side).async_event() {
                self.events.push((self.owner(side), event));
                came = true;
            }
        }
        Ok(came)
    }

    /// Polls until `find` succeeds. The case fails if nothing more can arrive.
    pub(super) fn until<T>(
        &mut self,
        what: &dyn Fn() -> String,
        mut find: impl FnMut(&mut Self) -> Result<Option<T>, Stop>,
    ) -> Result<T, Stop> {
        loop {
            if let Some(found) = find(self)? {
                return Ok(found);
            }
            if !self.breathe()? && self.turn() == WaitDecision::GiveUp {
                return fail(format!("expected {}, found that nothing came", what()));
            }
        }
    }

    pub fn turn(&mut self) -> WaitDecision {
        self.adapters.turn()
    }

    /// Polls until nothing more seems to arrive, at most `QUIET_ROUNDS` times.
    pub fn settle(&mut self) -> Result<(), Stop> {
        for _ in 0..QUIET_ROUNDS {
            if !self.breathe()? && self.turn() == WaitDecision::GiveUp {
                break;
            }
        }
        Ok(())
    }

    /// Checks, at the end of a case, that the case has taken all completions and events.
    pub(super) fn finish(mut self) -> Result<(), Stop> {
        self.settle()?;
        for ((side, cq), inbox) in &self.inbox {
            if let Some(left) = inbox.front() {
                return fail(format!(
                    "at the end: expected no more completions, found {} in {cq:?} of {side:?}, \
                     first {left:?}",
                    inbox.len(),
                ));
            }
        }
        match self.events.iter().find(|(_, event)| !is_incidental(event)) {
            None => Ok(()),
            Some((side, event)) => {
                fail(format!("at the end: expected no more events, found {event:?} at {side:?}"))
            }
        }
    }
}

fn device_of<'a>(
    adapters: &'a mut dyn Adapters,
    second: &'a mut Option<Box<dyn Device + Send>>,
    side: Side,
) -> &'a mut dyn Device {
    match side {
        Side::A | Side::B => adapters.device(side),
        Side::SecondContext => second.as_deref_mut().expect("the case has opened it"),
    }
}

/// Whether an event may occur at any time: port events, and the first packet of a connection, which
/// not all adapters report (IBA 11.6.3.1).
fn is_incidental(event: &AsyncEvent) -> bool {
    use AsyncEvent::*;
    matches!(
        event,
        ConnectionEstablished(_)
            | PortActive(_)
            | LidChange(_)
            | PkeyChange(_)
            | GidChange(_)
            | SmChange(_)
            | ClientReregister(_)
    )
}
