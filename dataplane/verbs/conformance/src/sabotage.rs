//! Broken devices: a wrapper around any device that adds one fault.
//!
//! [`SABOTAGES`] lists, for each fault, cases that must fail. The test of a backend checks that
//! they do, with a device that passes them without the fault.

use super::adapters::{Adapters, Factory, Group, Side, WaitDecision};
use pollux_mem::Memory;
use pollux_mem::region::MapError;
use pollux_verbs::address::AddressVector;
use pollux_verbs::completion::{Completion, CompletionStatus, With};
use pollux_verbs::device::{Arm, Device, DeviceAttributes, PortAttributes};
use pollux_verbs::error::{PostError, VerbsError};
use pollux_verbs::event::AsyncEvent;
use pollux_verbs::memory::{Access, Ah, Cq, LKey, MemoryRegion, MemoryWindow, Pd, Qp, RKey, Srq};
use pollux_verbs::qp::{QpAttributes, QpInit, QpState};
use pollux_verbs::work::{RecvRequest, SendFlags, SendRequest, Sge};
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::PKey;
use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// A fault of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The first two completions of a poll are swapped.
    SwapCompletions,
    /// Every fourth completion is lost.
    LoseCompletions,
    /// Every completion is reported twice.
    RepeatCompletions,
    /// One bit of received data is wrong.
    CorruptByte,
    /// The reported length of a receive is one byte too long.
    MisstateLength,
    LoseImmediate,
    /// All failures have the same status.
    BlurStatus,
    LoseEvents,
    IgnoreRights,
    IgnoreFences,
    /// Every completion counts as solicited.
    IgnoreSolicited,
    SignalEverything,
    /// A refused post reports too many accepted requests.
    MiscountAccepted,
    /// A queue pair always reports RTS.
    ForgetState,
    IgnoreMigration,
}

/// Every fault, and cases that fail with it.
pub const SABOTAGES: &[(Fault, &[&str])] = &[
    (Fault::SwapCompletions, &["flush/receives-rc", "ordering/rc-messages-in-order"]),
    (Fault::LoseCompletions, &["flush/receives-rc", "ordering/full-queues-for-long"]),
    (Fault::RepeatCompletions, &["operation/rc-send", "flush/posted-in-err-rc"]),
    (Fault::CorruptByte, &["operation/rc-send", "size/rc-send-1", "scatter/scatter-odd"]),
    (Fault::MisstateLength, &["size/rc-send-65536", "scatter/a-receive-may-be-longer"]),
    (Fault::LoseImmediate, &["operation/rc-send-imm", "operation/rc-write-imm-empty"]),
    (Fault::BlurStatus, &["remote-rights/write-unknown-key", "not-ready/no-retry-left"]),
    (
        Fault::LoseEvents,
        &[
            "remote-rights/read-over-by-one",
            "shared-receive/last-receive-event",
            "migration/the-owner-moves-both-uc",
            "migration/no-other-path-is-followed",
        ],
    ),
    (
        Fault::IgnoreRights,
        &[
            "remote-rights/write-not-in-region",
            "remote-rights/read-not-in-qp",
            "local-rights/recv-read-only",
            "local-rights/rights-that-go-not-together",
        ],
    ),
    (Fault::IgnoreFences, &["ordering/fence-after-read"]),
    (Fault::IgnoreSolicited, &["signaling/solicited-arm-sleeps-on"]),
    (Fault::SignalEverything, &["signaling/silent-sends-complete-silently"]),
    (Fault::MiscountAccepted, &["posting/send-in-init", "posting/bad-in-the-middle-of-a-batch"]),
    (Fault::ForgetState, &["state/rc-from-init", "state/created-in-reset"]),
    (Fault::IgnoreMigration, &["migration/traffic-arms-both-rc", "migration/a-dead-path-is-left"]),
];

/// A factory that adds a fault to the devices of another factory.
pub struct SabotagedFactory<'a> {
    inner: &'a mut dyn Factory,
    fault: Fault,
}

impl<'a> SabotagedFactory<'a> {
    pub fn new(inner: &'a mut dyn Factory, fault: Fault) -> Self {
        Self { inner, fault }
    }
}

impl Factory for SabotagedFactory<'_> {
    fn name(&self) -> String {
        format!("{} with the fault {:?}", self.inner.name(), self.fault)
    }

    fn adapters(&mut self) -> Result<Box<dyn Adapters>, VerbsError> {
        let inner = Rc::new(RefCell::new(self.inner.adapters()?));
        let devices = Side::BOTH.map(|side| Sabotaged {
            adapters: inner.clone(),
            side,
            fault: self.fault,
            regions: BTreeMap::new(),
            receives: BTreeMap::new(),
            completions: 0,
        });
        Ok(Box::new(SabotagedAdapters { inner, devices }))
    }

    fn is_lossy(&self) -> bool {
        self.inner.is_lossy()
    }
}

type Shared = Rc<RefCell<Box<dyn Adapters>>>;

struct SabotagedAdapters {
    inner: Shared,
    devices: [Sabotaged; 2],
}

impl Adapters for SabotagedAdapters {
    fn device(&mut self, side: Side) -> &mut dyn Device {
        let side = if self.is_one_device() { Side::A } else { side };
        &mut self.devices[side as usize]
    }

    fn port(&self, side: Side) -> u8 {
        self.inner.borrow().port(side)
    }

    fn is_one_device(&self) -> bool {
        self.inner.borrow().is_one_device()
    }

    fn is_one_subnet(&self) -> bool {
        self.inner.borrow().is_one_subnet()
    }

    fn turn(&mut self) -> WaitDecision {
        self.inner.borrow_mut().turn()
    }

    fn group(&mut self, nth: u8) -> Option<Group> {
        self.inner.borrow_mut().group(nth)
    }

    fn set_pkeys(&mut self, side: Side, pkeys: &[PKey]) -> bool {
        self.inner.borrow_mut().set_pkeys(side, pkeys)
    }

    fn memory(&self, bytes: usize) -> Result<Memory, MapError> {
        self.inner.borrow().memory(bytes)
    }

    fn memory_bytes_max(&self) -> u64 {
        self.inner.borrow().memory_bytes_max()
    }
}

/// A device with a fault. Both sides share the adapters, and borrow them for each verb.
struct Sabotaged {
    adapters: Shared,
    side: Side,
    fault: Fault,
    /// Registered regions, to corrupt received data.
    regions: BTreeMap<LKey, (Memory, MemoryRegion)>,
    /// The first nonempty entry of each posted receive, by ID.
    receives: BTreeMap<u64, Sge>,
    completions: u64,
}

impl Sabotaged {
    fn adapters(&self) -> RefMut<'_, Box<dyn Adapters>> {
        self.adapters.borrow_mut()
    }

    fn note_receives(&mut self, batch: &[RecvRequest<'_>]) {
        for recv in batch {
            if let Some(sge) = recv.sges.iter().find(|sge| sge.bytes > 0) {
                self.receives.insert(recv.id, *sge);
            }
        }
    }

    /// Flips a bit in the first byte of a receive.
    fn corrupt(&self, id: u64) {
        let Some(sge) = self.receives.get(&id) else { return };
        let Some((memory, region)) = self.regions.get(&sge.lkey) else { return };
        let at = sge.address.wrapping_sub(region.address) as usize;
        let mut byte = [0];
        if memory.read(at, &mut byte) {
            let written = memory.write(at, &[byte[0] ^ 0x10]);
            debug_assert!(written, "what can be read can be written");
        }
    }

    /// Changes a completion; returns whether it is reported.
    fn spoil(&mut self, completion: &mut Completion) -> bool {
        self.completions += 1;
        let succeeded = completion.status == CompletionStatus::Success;
        let received = succeeded && completion.kind.is_recv();
        match self.fault {
            Fault::LoseCompletions => return !self.completions.is_multiple_of(4),
            Fault::BlurStatus if !succeeded => completion.status = CompletionStatus::General,
            Fault::MisstateLength if received => completion.bytes += 1,
            Fault::LoseImmediate => completion.with = With::Nothing,
            Fault::CorruptByte if received && completion.bytes > 0 => self.corrupt(completion.id),
            _ => {}
        }
        true
    }

    fn miscount(&self, answer: Result<(), PostError>) -> Result<(), PostError> {
        let wrong = usize::from(self.fault == Fault::MiscountAccepted);
        answer.map_err(|error| PostError { accepted: error.accepted + wrong, ..error })
    }
}

impl Device for Sabotaged {
    fn attributes(&self) -> DeviceAttributes {
        self.adapters().device(self.side).attributes()
    }

    fn port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        self.adapters().device(self.side).port(port)
    }

    fn gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError> {
        self.adapters().device(self.side).gid(port, index)
    }

    fn pkey(&self, port: u8, index: u16) -> Result<PKey, VerbsError> {
        self.adapters().device(self.side).pkey(port, index)
    }

    fn create_pd(&mut self) -> Result<Pd, VerbsError> {
        self.adapters().device(self.side).create_pd()
    }

    fn destroy_pd(&mut self, pd: Pd) -> Result<(), VerbsError> {
        self.adapters().device(self.side).destroy_pd(pd)
    }

    fn register(
        &mut self,
        pd: Pd,
        memory: &Memory,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        let access = if self.fault == Fault::IgnoreRights { Access::ALL } else { access };
        let region = self.adapters().device(self.side).register(pd, memory, access)?;
        self.regions.insert(region.lkey, (memory.clone(), region));
        Ok(region)
    }

    fn deregister(&mut self, region: LKey) -> Result<(), VerbsError> {
        self.adapters().device(self.side).deregister(region)
    }

    fn create_window(&mut self, pd: Pd) -> Result<MemoryWindow, VerbsError> {
        self.adapters().device(self.side).create_window(pd)
    }

    fn destroy_window(&mut self, window: RKey) -> Result<(), VerbsError> {
        self.adapters().device(self.side).destroy_window(window)
    }

    fn create_cq(&mut self, completions_max: u32) -> Result<Cq, VerbsError> {
        self.adapters().device(self.side).create_cq(completions_max)
    }

    fn destroy_cq(&mut self, cq: Cq) -> Result<(), VerbsError> {
        self.adapters().device(self.side).destroy_cq(cq)
    }

    fn create_srq(&mut self, pd: Pd, requests_max: u32, sges_max: u32) -> Result<Srq, VerbsError> {
        self.adapters().device(self.side).create_srq(pd, requests_max, sges_max)
    }

    fn set_srq_limit(&mut self, srq: Srq, limit: u32) -> Result<(), VerbsError> {
        self.adapters().device(self.side).set_srq_limit(srq, limit)
    }

    fn destroy_srq(&mut self, srq: Srq) -> Result<(), VerbsError> {
        self.adapters().device(self.side).destroy_srq(srq)
    }

    fn create_qp(&mut self, init: &QpInit) -> Result<Qp, VerbsError> {
        let signal_all = init.signal_all || self.fault == Fault::SignalEverything;
        self.adapters().device(self.side).create_qp(&QpInit { signal_all, ..*init })
    }

    fn qpn(&self, qp: Qp) -> Result<Qpn, VerbsError> {
        self.adapters().device(self.side).qpn(qp)
    }

    fn modify_qp(&mut self, qp: Qp, change: &QpAttributes) -> Result<(), VerbsError> {
        let mut change = *change;
        if self.fault == Fault::IgnoreRights {
            change.access = change.access.map(|_| Access::ALL);
        }
        if self.fault == Fault::IgnoreMigration {
            (change.alternate_path, change.migration) = (None, None);
        }
        self.adapters().device(self.side).modify_qp(qp, &change)
    }

    fn query_qp(&self, qp: Qp) -> Result<(QpState, QpAttributes), VerbsError> {
        let (state, attributes) = self.adapters().device(self.side).query_qp(qp)?;
        let forgets = self.fault == Fault::ForgetState;
        Ok((if forgets { QpState::Rts } else { state }, attributes))
    }

    fn destroy_qp(&mut self, qp: Qp) -> Result<(), VerbsError> {
        self.adapters().device(self.side).destroy_qp(qp)
    }

    fn create_ah(&mut self, pd: Pd, address: &AddressVector) -> Result<Ah, VerbsError> {
        self.adapters().device(self.side).create_ah(pd, address)
    }

    fn destroy_ah(&mut self, ah: Ah) -> Result<(), VerbsError> {
        self.adapters().device(self.side).destroy_ah(ah)
    }

    fn attach_multicast(&mut self, qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError> {
        self.adapters().device(self.side).attach_multicast(qp, mgid, mlid)
    }

    fn detach_multicast(&mut self, qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError> {
        self.adapters().device(self.side).detach_multicast(qp, mgid, mlid)
    }

    fn post_send(&mut self, qp: Qp, batch: &[SendRequest<'_>]) -> Result<(), PostError> {
        let mut batch = batch.to_vec();
        if self.fault == Fault::IgnoreFences {
            for request in batch.iter_mut().filter(|request| request.flags.has(SendFlags::FENCE)) {
                request.flags = SendFlags::SIGNALED;
            }
        }
        let answer = self.adapters().device(self.side).post_send(qp, &batch);
        self.miscount(answer)
    }

    fn post_recv(&mut self, qp: Qp, batch: &[RecvRequest<'_>]) -> Result<(), PostError> {
        self.note_receives(batch);
        let answer = self.adapters().device(self.side).post_recv(qp, batch);
        self.miscount(answer)
    }

    fn post_srq_recv(&mut self, srq: Srq, batch: &[RecvRequest<'_>]) -> Result<(), PostError> {
        self.note_receives(batch);
        let answer = self.adapters().device(self.side).post_srq_recv(srq, batch);
        self.miscount(answer)
    }

    fn poll(&mut self, cq: Cq, completions: &mut [Completion]) -> Result<usize, VerbsError> {
        // Polls for half of the space, so that repeated completions fit.
        let room = completions.len().div_ceil(2);
        let count = self.adapters().device(self.side).poll(cq, &mut completions[..room])?;
        let mut kept = 0;
        for at in 0..count {
            let mut completion = completions[at];
            if self.spoil(&mut completion) {
                completions[kept] = completion;
                kept += 1;
            }
        }
        if self.fault == Fault::SwapCompletions && kept >= 2 {
            completions.swap(0, 1);
        }
        if self.fault == Fault::RepeatCompletions && 2 * kept <= completions.len() {
            completions.copy_within(..kept, kept);
            kept *= 2;
        }
        Ok(kept)
    }

    fn arm(&mut self, cq: Cq, arm: Arm) -> Result<(), VerbsError> {
        let arm = if self.fault == Fault::IgnoreSolicited { Arm::Any } else { arm };
        self.adapters().device(self.side).arm(cq, arm)
    }

    fn wait(&mut self, timeout: Duration) -> Result<Option<Cq>, VerbsError> {
        self.adapters().device(self.side).wait(timeout)
    }

    fn async_event(&mut self) -> Option<AsyncEvent> {
        let event = self.adapters().device(self.side).async_event();
        event.filter(|_| self.fault != Fault::LoseEvents)
    }

    // `open_shared` is not overridden: the second context has no fault.
}
