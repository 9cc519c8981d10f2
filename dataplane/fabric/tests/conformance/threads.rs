//! Two adapters, each in its own thread, which polls continuously, by the machine's clock. The
//! verbs of a case are sent to these threads by channel.
//!
//! Why naps: with two cores and several pairs, threads that only poll take the processors from
//! threads with work. A nap is shorter than any acknowledgement timeout of a case.

use crate::{filter, group, note, setting};
use pollux_conformance::{Adapters, Case, Factory, Group, Side, Summary, Theme, WaitDecision};
use pollux_fabric::link::threads::{Clock, ThreadLink, pair};
use pollux_fabric::{Adapter, Port, SoftDevice, Time};
use pollux_mem::Memory;
use pollux_verbs::*;
use pollux_wire::address::{Gid, Guid, Lid, Qpn};
use pollux_wire::keys::PKey;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A case that still waits after this time has failed; far above the need on a busy machine.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// Concurrent pairs: a case that waits for a timer leaves the machine to the others.
const PAIRS: usize = 4;

type Soft = SoftDevice<ThreadLink>;

/// A closure for the thread of the adapter.
type Verb = Box<dyn FnOnce(&mut Soft) + Send>;

/// Rounds of polling without a nap, while there is no request.
const ROUNDS: u32 = 32;

/// The length of a nap. A sleeping thread is scheduled soon after a request, also on a busy
/// machine; a thread that yields is scheduled after all others.
const NAP: Duration = Duration::from_micros(50);

/// Polls and runs requests, until their channel is closed.
fn own(mut device: Soft, verbs: Receiver<Verb>) {
    loop {
        let asked = (0..ROUNDS).find_map(|_| {
            device.progress();
            verbs.try_recv().ok()
        });
        match asked.ok_or(()).or_else(|()| verbs.recv_timeout(NAP)) {
            Ok(verb) => verb(&mut device),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// An adapter in another thread.
struct Distant {
    verbs: Sender<Verb>,
}

impl Distant {
    fn new(device: Soft) -> Self {
        let (verbs, asked) = channel();
        std::thread::spawn(move || own(device, asked));
        Self { verbs }
    }

    /// Runs a verb in that thread, and waits for the result.
    fn ask<T: Send + 'static>(&self, verb: impl FnOnce(&mut Soft) -> T + Send + 'static) -> T {
        let (answer, answered) = sync_channel(1);
        let verb = move |device: &mut Soft| answer.send(verb(device)).expect("somebody waits");
        self.verbs.send(Box::new(verb)).expect("the adapter's thread runs as long as we may ask");
        answered.recv().expect("the adapter's thread answers")
    }
}

/// A send request with its own data, to be sent to another thread.
struct OwnSend {
    id: u64,
    op: SendOp,
    flags: SendFlags,
    data: OwnData,
}

enum OwnData {
    Sges(Vec<Sge>),
    Inline(Vec<u8>),
}

impl OwnSend {
    fn of(send: &SendRequest<'_>) -> Self {
        let data = match send.data {
            Data::Sges(sges) => OwnData::Sges(sges.to_vec()),
            Data::Inline(bytes) => OwnData::Inline(bytes.to_vec()),
        };
        Self { id: send.id, op: send.op, flags: send.flags, data }
    }

    fn request(&self) -> SendRequest<'_> {
        let data = match &self.data {
            OwnData::Sges(sges) => Data::Sges(sges),
            OwnData::Inline(bytes) => Data::Inline(bytes),
        };
        SendRequest { id: self.id, op: self.op, flags: self.flags, data }
    }
}

/// Receive requests with their own data, to be sent to another thread.
fn own_recvs(batch: &[RecvRequest<'_>]) -> Vec<(u64, Vec<Sge>)> {
    batch.iter().map(|recv| (recv.id, recv.sges.to_vec())).collect()
}

fn borrow_recvs(batch: &[(u64, Vec<Sge>)]) -> Vec<RecvRequest<'_>> {
    batch.iter().map(|(id, sges)| RecvRequest { id: *id, sges }).collect()
}

impl Device for Distant {
    fn attributes(&self) -> DeviceAttributes {
        self.ask(|device| device.attributes())
    }

    fn port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        self.ask(move |device| device.port(port))
    }

    fn gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError> {
        self.ask(move |device| device.gid(port, index))
    }

    fn pkey(&self, port: u8, index: u16) -> Result<PKey, VerbsError> {
        self.ask(move |device| device.pkey(port, index))
    }

    fn create_pd(&mut self) -> Result<Pd, VerbsError> {
        self.ask(|device| device.create_pd())
    }

    fn destroy_pd(&mut self, pd: Pd) -> Result<(), VerbsError> {
        self.ask(move |device| device.destroy_pd(pd))
    }

    fn register(
        &mut self,
        pd: Pd,
        memory: &Memory,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        let memory = memory.clone();
        self.ask(move |device| device.register(pd, &memory, access))
    }

    fn deregister(&mut self, region: LKey) -> Result<(), VerbsError> {
        self.ask(move |device| device.deregister(region))
    }

    fn create_window(&mut self, pd: Pd) -> Result<MemoryWindow, VerbsError> {
        self.ask(move |device| device.create_window(pd))
    }

    fn destroy_window(&mut self, window: RKey) -> Result<(), VerbsError> {
        self.ask(move |device| device.destroy_window(window))
    }

    fn create_cq(&mut self, completions_max: u32) -> Result<Cq, VerbsError> {
        self.ask(move |device| device.create_cq(completions_max))
    }

    fn destroy_cq(&mut self, cq: Cq) -> Result<(), VerbsError> {
        self.ask(move |device| device.destroy_cq(cq))
    }

    fn create_srq(&mut self, pd: Pd, requests_max: u32, sges_max: u32) -> Result<Srq, VerbsError> {
        self.ask(move |device| device.create_srq(pd, requests_max, sges_max))
    }

    fn set_srq_limit(&mut self, srq: Srq, limit: u32) -> Result<(), VerbsError> {
        self.ask(move |device| device.set_srq_limit(srq, limit))
    }

    fn destroy_srq(&mut self, srq: Srq) -> Result<(), VerbsError> {
        self.ask(move |device| device.destroy_srq(srq))
    }

    fn create_qp(&mut self, init: &QpInit) -> Result<Qp, VerbsError> {
        let init = *init;
        self.ask(move |device| device.create_qp(&init))
    }

    fn qpn(&self, qp: Qp) -> Result<Qpn, VerbsError> {
        self.ask(move |device| device.qpn(qp))
    }

    fn modify_qp(&mut self, qp: Qp, change: &QpAttributes) -> Result<(), VerbsError> {
        let change = *change;
        self.ask(move |device| device.modify_qp(qp, &change))
    }

    fn query_qp(&self, qp: Qp) -> Result<(QpState, QpAttributes), VerbsError> {
        self.ask(move |device| device.query_qp(qp))
    }

    fn destroy_qp(&mut self, qp: Qp) -> Result<(), VerbsError> {
        self.ask(move |device| device.destroy_qp(qp))
    }

    fn create_ah(&mut self, pd: Pd, address: &AddressVector) -> Result<Ah, VerbsError> {
        let address = *address;
        self.ask(move |device| device.create_ah(pd, &address))
    }

    fn destroy_ah(&mut self, ah: Ah) -> Result<(), VerbsError> {
        self.ask(move |device| device.destroy_ah(ah))
    }

    fn attach_multicast(&mut self, qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError> {
        self.ask(move |device| device.attach_multicast(qp, mgid, mlid))
    }

    fn detach_multicast(&mut self, qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError> {
        self.ask(move |device| device.detach_multicast(qp, mgid, mlid))
    }

    fn post_send(&mut self, qp: Qp, batch: &[SendRequest<'_>]) -> Result<(), PostError> {
        let batch: Vec<OwnSend> = batch.iter().map(OwnSend::of).collect();
        self.ask(move |device| {
            device.post_send(qp, &batch.iter().map(OwnSend::request).collect::<Vec<_>>())
        })
    }

    fn post_recv(&mut self, qp: Qp, batch: &[RecvRequest<'_>]) -> Result<(), PostError> {
        let batch = own_recvs(batch);
        self.ask(move |device| device.post_recv(qp, &borrow_recvs(&batch)))
    }

    fn post_srq_recv(&mut self, srq: Srq, batch: &[RecvRequest<'_>]) -> Result<(), PostError> {
        let batch = own_recvs(batch);
        self.ask(move |device| device.post_srq_recv(srq, &borrow_recvs(&batch)))
    }

    fn poll(&mut self, cq: Cq, completions: &mut [Completion]) -> Result<usize, VerbsError> {
        let mut room = completions.to_vec();
        let (count, written) = self.ask(move |device| (device.poll(cq, &mut room), room));
        completions.copy_from_slice(&written);
        count
    }

    fn arm(&mut self, cq: Cq, arm: Arm) -> Result<(), VerbsError> {
        self.ask(move |device| device.arm(cq, arm))
    }

    fn wait(&mut self, timeout: Duration) -> Result<Option<Cq>, VerbsError> {
        self.ask(move |device| device.wait(timeout))
    }

    fn async_event(&mut self) -> Option<AsyncEvent> {
        self.ask(|device| device.async_event())
    }
}

struct Distants {
    devices: [Distant; 2],
    start: Instant,
}

impl Adapters for Distants {
    fn device(&mut self, side: Side) -> &mut dyn Device {
        &mut self.devices[side as usize]
    }

    fn port(&self, _: Side) -> u8 {
        1
    }

    fn turn(&mut self) -> WaitDecision {
        if self.start.elapsed() < WAIT_MAX { WaitDecision::GoOn } else { WaitDecision::GiveUp }
    }

    fn group(&mut self, nth: u8) -> Option<Group> {
        Some(group(nth))
    }

    fn set_pkeys(&mut self, side: Side, pkeys: &[PKey]) -> bool {
        let pkeys = pkeys.to_vec();
        let device = &self.devices[side as usize];
        device.ask(move |device| device.adapter.port_mut().pkeys = pkeys);
        true
    }

    fn memory_bytes_max(&self) -> u64 {
        setting("POLLUX_MEMORY_BYTES").unwrap_or(64 << 20)
    }
}

/// Makes pairs of adapters in threads.
#[derive(Clone)]
struct Threads;

impl Factory for Threads {
    fn name(&self) -> String {
        "threads".into()
    }

    fn adapters(&mut self) -> Result<Box<dyn Adapters>, VerbsError> {
        let start = Instant::now();
        let clock: Clock = Arc::new(move || Time::START + start.elapsed());
        let mut lids = 1..;
        let devices = pair(&clock).map(|link| {
            let lid = lids.next().unwrap_or_default();
            let port = Port::active(Lid(lid), Guid(u64::from(lid)));
            Distant::new(SoftDevice::new(format!("soft{lid}"), Adapter::new(port), link))
        });
        Ok(Box::new(Distants { devices, start }))
    }
}

/// Runs cases until there are none left.
fn judge(
    worlds: &mut impl Factory,
    cases: &Mutex<impl Iterator<Item = (&'static Theme, &'static Case)>>,
    judged: &Mutex<(Summary, Vec<String>)>,
) {
    let name = worlds.name();
    loop {
        // A separate statement, so that the lock is not held during a case.
        let next = cases.lock().expect("nobody panics with the lock").next();
        let Some((theme, case)) = next else { return };
        let report = pollux_conformance::run_case(worlds, theme, case);
        let (summary, failures) = &mut *judged.lock().expect("nobody panics with the lock");
        summary.count(&report);
        note(&name, &report, failures);
    }
}

/// Runs all cases, or those with `POLLUX_CASES` in their name, several at a time.
pub fn judge_together(worlds: impl Factory + Clone + Sync) {
    let filter = filter();
    let cases = pollux_conformance::cases()
        .filter(|(theme, case)| pollux_conformance::full_name(theme, case).contains(&filter));
    let (cases, judged) = (Mutex::new(cases), Mutex::default());
    std::thread::scope(|scope| {
        for _ in 0..PAIRS {
            scope.spawn(|| judge(&mut worlds.clone(), &cases, &judged));
        }
    });
    let (summary, failures) = judged.into_inner().expect("nobody panics with the lock");
    println!("{}: {summary}", worlds.name());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

// req: iba-rc, iba-uc, iba-ud, iba-work-queues, iba-memory
#[test]
fn on_threads() {
    judge_together(Threads);
}
