//! `null:`: an adapter without a link, for benchmarks of the layers above it.
//!
//! Sends complete as soon as they are posted. Each poll fills the posted receives with the same
//! packet, so a poller is never idle. A packet costs the minimum of any adapter: the device stores
//! the receive request, writes the bytes to its buffer, and writes the completion. It does not read
//! sent bytes.
//!
//! The device supports the verbs that send and receive messages, on datagram and on connected queue
//! pairs, and refuses all others. Queue pair 1 receives nothing, so no subnet administrator
//! answers, and an IPoIB interface does not come up.

use pollux_mem::Memory;
use pollux_verbs::device::{Capabilities, Limits};
use pollux_verbs::error::{none, over, within};
use pollux_verbs::table::Table;
use pollux_verbs::*;
use pollux_wire::address::{Gid, Guid, Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::smp::PortState;
use pollux_wire::packet::Grh;
use pollux_wire::units::Mtu;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The limit of each kind of object.
const MANY: u32 = 1 << 16;
/// Contexts of a device, including closed ones: each context number is used once.
const CONTEXTS_MAX: u32 = 1 << (24 - NUMBER_BITS);
const NUMBER_BITS: u32 = 17;
const INLINE_BYTES_MAX: u32 = 188;
/// The source of all received datagrams: another port.
const SOURCE: Source = Source {
    src_qp: Qpn(0x99),
    slid: Lid(2),
    sl: 0,
    dlid_path_bits: 0,
    pkey_index: 0,
    has_grh: false,
};
const WORD: usize = size_of::<u64>();
const GUID: Guid = Guid(0x0250_9e00_0000_0001);

/// An adapter that always receives, and that discards sent packets.
pub struct NullDevice {
    /// The received message with its encapsulation, padded with zeros to a multiple of a word.
    message: Vec<u8>,
    message_bytes: usize,
    /// The number of this context.
    nth: u32,
    /// How many contexts of the device have been opened, with the first.
    opened: Arc<AtomicU32>,
    pds: Table<()>,
    ahs: Table<()>,
    regions: Table<Memory>,
    cqs: Table<Queue>,
    srqs: Table<Receives>,
    qps: Table<QueuePair>,
}

#[derive(Default)]
struct Queue {
    done: VecDeque<Completion>,
    done_max: usize,
    /// Queue pairs with receives that complete here, in the order of their turns.
    fed: VecDeque<u32>,
}

/// A receive queue.
#[derive(Default)]
struct Receives {
    posted: VecDeque<(u64, Sge)>,
    posted_max: usize,
}

struct QueuePair {
    init: QpInit,
    attributes: QpAttributes,
    state: QpState,
    /// Used if the queue pair has no shared receive queue.
    receives: Receives,
}

impl NullDevice {
    /// A device that receives IP packets of 64 bytes, to 10.0.0.1.
    pub fn new() -> Self {
        let mut message = vec![8, 0, 0, 0, 0x45, 0, 0, 64, 0, 0, 0, 0, 64, 17, 0x66, 0xab];
        message.extend([10, 0, 0, 2, 10, 0, 0, 1, 0x1b, 0x58, 0x1b, 0x59, 0, 44, 0, 0]);
        message.resize(4 + 64, 0);
        Self::with(message)
    }

    /// A device that receives this message. The first four bytes are the IPoIB encapsulation.
    pub fn with(mut message: Vec<u8>) -> Self {
        let message_bytes = message.len();
        message.resize(message_bytes.next_multiple_of(WORD), 0);
        Self {
            message,
            message_bytes,
            nth: 0,
            opened: Arc::new(AtomicU32::new(1)),
            pds: Table::new(MANY),
            ahs: Table::new(MANY),
            regions: Table::new(MANY),
            cqs: Table::new(MANY),
            srqs: Table::new(MANY),
            qps: Table::new(MANY),
        }
    }

    fn qp(&self, verb: &'static str, qp: Qp) -> Result<&QueuePair, VerbsError> {
        self.qps.get(qp.0).ok_or(none(verb, "queue pair"))
    }

    /// The QPN of a handle. The low 24 bits of a handle are a slot from 1 on, below 2^17. Adding 1
    /// avoids the special QPNs 0 and 1.
    fn number_of(&self, qp: Qp) -> Qpn {
        Qpn((self.nth << NUMBER_BITS | qp.0 & 0x00ff_ffff) + 1)
    }

    fn flush(&mut self, qp: Qp) {
        let qpn = self.number_of(qp);
        let Some(kept) = self.qps.get_mut(qp.0) else { return };
        let Some(queue) = self.cqs.get_mut(kept.init.recv_cq.0) else { return };
        for (id, _) in kept.receives.posted.drain(..) {
            let status = CompletionStatus::Flushed;
            let kind = CompletionKind::Recv;
            queue.done.push_back(Completion { id, status, kind, ..done(qpn) });
        }
    }

    /// Fills the oldest receives of a queue pair, at most one for each of `completions`; returns
    /// their number.
    ///
    /// Why not inline: within the code of a poll iteration, the loop has too few registers.
    #[inline(never)]
    fn feed(&mut self, number: u32, completions: &mut [Completion]) -> usize {
        let qpn = self.number_of(Qp(number));
        let Some(qp) = self.qps.get_mut(number) else { return 0 };
        let receives = match qp.init.srq {
            Some(srq) => self.srqs.get_mut(srq.0),
            None => Some(&mut qp.receives),
        };
        let Some(Receives { posted, .. }) = receives else { return 0 };
        let is_datagram = qp.init.qp_type.is_datagram();
        let gap = if is_datagram { Grh::LEN } else { 0 };
        let bytes = gap + self.message_bytes;
        let from = is_datagram.then_some(SOURCE);
        let (kind, bytes_all) = (CompletionKind::Recv, bytes as u32);
        let received = Completion { kind, bytes: bytes_all, from, ..done(qpn) };
        let count = posted.len().min(completions.len());
        for (completion, (id, sge)) in completions.iter_mut().zip(posted.drain(..count)) {
            // Write complete words if they fit: a partial word takes more than one store.
            let fits = gap + self.message.len() <= sge.bytes as usize;
            let message = if fits { &self.message } else { &self.message[..self.message_bytes] };
            let is_written = bytes <= sge.bytes as usize
                && self.regions.get(sge.lkey.0).is_some_and(|memory| {
                    let at = sge.address.wrapping_sub(memory.address()) as usize;
                    memory.write(at.wrapping_add(gap), message)
                });
            *completion = Completion { id, ..received };
            if !is_written {
                completion.status = CompletionStatus::LocalProtection;
            }
        }
        count
    }

    /// The receive queue of a queue pair, its own or a shared one.
    fn receives(&self, qp: u32) -> Option<&Receives> {
        let qp = self.qps.get(qp)?;
        qp.init.srq.map_or(Some(&qp.receives), |srq| self.srqs.get(srq.0))
    }

    fn remove_fed(&mut self, cq: Cq, qp: Qp) {
        if let Some(queue) = self.cqs.get_mut(cq.0) {
            queue.fed.retain(|fed| *fed != qp.0);
        }
    }
}

impl Default for NullDevice {
    fn default() -> Self {
        Self::new()
    }
}

/// A successful completion of a queue pair. The caller sets the other fields.
fn done(qpn: Qpn) -> Completion {
    Completion { status: CompletionStatus::Success, qpn, ..Completion::NOTHING }
}

impl Receives {
    fn new(posted_max: u32) -> Self {
        Self { posted: VecDeque::new(), posted_max: posted_max as usize }
    }

    #[inline]
    fn post(&mut self, batch: &[RecvRequest<'_>]) -> Result<(), PostError> {
        let free = self.posted_max.saturating_sub(self.posted.len());
        let fitting = batch.iter().take(free).take_while(|request| request.sges.len() == 1);
        let accepted = fitting.count();
        self.posted.extend(batch[..accepted].iter().map(|request| (request.id, request.sges[0])));
        let refusal = match accepted {
            _ if accepted == batch.len() => return Ok(()),
            _ if accepted == free => PostRefusal::Full,
            _ => PostRefusal::TooManySges,
        };
        Err(PostError { accepted, refusal })
    }
}

const fn unsupported<T>(verb: &'static str, capability: &'static str) -> Result<T, VerbsError> {
    Err(VerbsError::Unsupported { verb, capability })
}

const NO_QUEUE: PostError = PostError { accepted: 0, refusal: PostRefusal::NoSuchQueue };

impl Device for NullDevice {
    fn attributes(&self) -> DeviceAttributes {
        let limits = Limits {
            pds_max: MANY,
            regions_max: MANY,
            windows_max: 0,
            cqs_max: MANY,
            completions_max: 16 * MANY,
            srqs_max: MANY,
            srq_requests_max: MANY,
            qps_max: MANY,
            requests_max: MANY,
            sges_max: 1,
            inline_bytes_max: INLINE_BYTES_MAX,
            ahs_max: MANY,
            multicast_attachments_max: MANY,
            responder_resources_max: 16,
            initiator_depth_max: 16,
        };
        let can = Capabilities {
            uc: true,
            uc_srq: true,
            multicast: true,
            subnet: true,
            gsi: true,
            ..Capabilities::default()
        };
        DeviceAttributes { name: "null:".into(), node_guid: GUID, ports: 1, limits, can }
    }

    fn port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        if port != 1 {
            return Err(none("port", "port: it has one, number 1"));
        }
        Ok(PortAttributes {
            state: PortState::ACTIVE,
            lid: Lid(1),
            lmc: 0,
            sm_lid: Lid(1),
            sm_sl: 0,
            mtu_max: Mtu::BYTES_4096,
            mtu: Mtu::BYTES_4096,
            gids: 1,
            pkeys: 1,
        })
    }

    fn gid(&self, _: u8, index: u8) -> Result<Gid, VerbsError> {
        let gid = (index == 0).then_some(Gid::new(Gid::DEFAULT_PREFIX, GUID));
        gid.ok_or(none("gid", "entry of the GID table"))
    }

    fn pkey(&self, _: u8, index: u16) -> Result<PKey, VerbsError> {
        (index == 0).then_some(PKey::DEFAULT).ok_or(none("pkey", "entry of the P_Key table"))
    }

    fn create_pd(&mut self) -> Result<Pd, VerbsError> {
        self.pds.insert(()).map(Pd).map_err(|()| over("create_pd", "pds_max", MANY))
    }

    fn destroy_pd(&mut self, pd: Pd) -> Result<(), VerbsError> {
        self.pds.remove(pd.0).ok_or(none("destroy_pd", "protection domain"))
    }

    fn register(&mut self, _: Pd, memory: &Memory, _: Access) -> Result<MemoryRegion, VerbsError> {
        let key = self.regions.insert(memory.clone());
        let key = key.map_err(|_| over("register", "regions_max", MANY))?;
        let (address, bytes) = (memory.address(), memory.bytes() as u64);
        Ok(MemoryRegion { address, bytes, lkey: LKey(key), rkey: RKey(key) })
    }

    fn deregister(&mut self, region: LKey) -> Result<(), VerbsError> {
        self.regions.remove(region.0).map(drop).ok_or(none("deregister", "memory region"))
    }

    fn create_window(&mut self, _: Pd) -> Result<MemoryWindow, VerbsError> {
        unsupported("create_window", "memory windows")
    }

    fn destroy_window(&mut self, _: RKey) -> Result<(), VerbsError> {
        unsupported("destroy_window", "memory windows")
    }

    fn create_cq(&mut self, completions_max: u32) -> Result<Cq, VerbsError> {
        const VERB: &str = "create_cq";
        within(VERB, "completions_max", completions_max, 16 * MANY)?;
        let queue = Queue { done_max: completions_max as usize, ..Queue::default() };
        self.cqs.insert(queue).map(Cq).map_err(|_| over(VERB, "cqs_max", MANY))
    }

    fn destroy_cq(&mut self, cq: Cq) -> Result<(), VerbsError> {
        const VERB: &str = "destroy_cq";
        let is_used = |qp: &QueuePair| qp.init.send_cq == cq || qp.init.recv_cq == cq;
        if self.qps.iter().any(|(_, qp)| is_used(qp)) {
            return Err(VerbsError::Busy { verb: VERB, by: "a queue pair" });
        }
        self.cqs.remove(cq.0).map(drop).ok_or(none(VERB, "completion queue"))
    }

    fn create_srq(&mut self, _: Pd, requests_max: u32, _: u32) -> Result<Srq, VerbsError> {
        const VERB: &str = "create_srq";
        within(VERB, "srq_requests_max", requests_max, MANY)?;
        let receives = Receives::new(requests_max);
        self.srqs.insert(receives).map(Srq).map_err(|_| over(VERB, "srqs_max", MANY))
    }

    fn set_srq_limit(&mut self, _: Srq, _: u32) -> Result<(), VerbsError> {
        unsupported("set_srq_limit", "limit events")
    }

    fn destroy_srq(&mut self, srq: Srq) -> Result<(), VerbsError> {
        self.srqs.remove(srq.0).map(drop).ok_or(none("destroy_srq", "shared receive queue"))
    }

    fn create_qp(&mut self, init: &QpInit) -> Result<Qp, VerbsError> {
        const VERB: &str = "create_qp";
        within(VERB, "requests_max", init.recv_requests_max.max(init.send_requests_max), MANY)?;
        for cq in [init.send_cq, init.recv_cq] {
            self.cqs.get(cq.0).ok_or(none(VERB, "completion queue"))?;
        }
        let qp = QueuePair {
            init: *init,
            attributes: QpAttributes::default(),
            state: QpState::Reset,
            receives: Receives::new(init.recv_requests_max),
        };
        self.qps.insert(qp).map(Qp).map_err(|_| over(VERB, "qps_max", MANY))
    }

    fn qpn(&self, qp: Qp) -> Result<Qpn, VerbsError> {
        self.qp("qpn", qp).map(|_| self.number_of(qp))
    }

    fn modify_qp(&mut self, qp: Qp, change: &QpAttributes) -> Result<(), VerbsError> {
        const VERB: &str = "modify_qp";
        let kept = self.qps.get_mut(qp.0).ok_or(none(VERB, "queue pair"))?;
        let Some(state) = change.state else { return Ok(()) };
        (kept.state, kept.attributes) = (state, *change);
        let (init, is_reset) = (kept.init, state == QpState::Reset);
        if is_reset {
            kept.receives.posted.clear();
        }
        self.remove_fed(init.recv_cq, qp);
        let receives = matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        match self.cqs.get_mut(init.recv_cq.0) {
            Some(queue) if receives && init.qp_type != QpType::Gsi => queue.fed.push_back(qp.0),
            _ if state == QpState::Err => self.flush(qp),
            _ => {}
        }
        Ok(())
    }

    fn query_qp(&self, qp: Qp) -> Result<(QpState, QpAttributes), VerbsError> {
        self.qp("query_qp", qp).map(|kept| (kept.state, kept.attributes))
    }

    fn destroy_qp(&mut self, qp: Qp) -> Result<(), VerbsError> {
        let gone = self.qps.remove(qp.0).ok_or(none("destroy_qp", "queue pair"))?;
        self.remove_fed(gone.init.recv_cq, qp);
        Ok(())
    }

    fn create_ah(&mut self, _: Pd, _: &AddressVector) -> Result<Ah, VerbsError> {
        self.ahs.insert(()).map(Ah).map_err(|()| over("create_ah", "ahs_max", MANY))
    }

    fn destroy_ah(&mut self, ah: Ah) -> Result<(), VerbsError> {
        self.ahs.remove(ah.0).ok_or(none("destroy_ah", "address handle"))
    }

    /// Does nothing, because there are no multicast groups.
    fn attach_multicast(&mut self, qp: Qp, _: Gid, _: Lid) -> Result<(), VerbsError> {
        self.qp("attach_multicast", qp).map(drop)
    }

    fn detach_multicast(&mut self, qp: Qp, _: Gid, _: Lid) -> Result<(), VerbsError> {
        self.qp("detach_multicast", qp).map(drop)
    }

    fn post_send(&mut self, qp: Qp, batch: &[SendRequest<'_>]) -> Result<(), PostError> {
        let qpn = self.number_of(qp);
        let Some(kept) = self.qps.get_mut(qp.0) else { return Err(NO_QUEUE) };
        let is_ready = matches!(kept.state, QpState::Rts | QpState::Err);
        let refused = |accepted, refusal| Err(PostError { accepted, refusal });
        if !is_ready {
            return refused(0, PostRefusal::State(kept.state));
        }
        let status = match kept.state {
            QpState::Err => CompletionStatus::Flushed,
            _ => CompletionStatus::Success,
        };
        let (qp_type, inline_max) = (kept.init.qp_type, kept.init.inline_bytes_max as usize);
        let signals_all = kept.init.signal_all || kept.state == QpState::Err;
        let Some(queue) = self.cqs.get_mut(kept.init.send_cq.0) else { return Err(NO_QUEUE) };
        for (accepted, request) in batch.iter().enumerate() {
            if !qp_type.has(&request.op) {
                return refused(accepted, PostRefusal::BadOperation);
            }
            if matches!(request.data, Data::Inline(bytes) if bytes.len() > inline_max) {
                return refused(accepted, PostRefusal::InlineTooLong);
            }
            if signals_all || request.flags.has(SendFlags::SIGNALED) {
                if queue.done.len() >= queue.done_max {
                    return refused(accepted, PostRefusal::Full);
                }
                let (id, kind) = (request.id, request.op.kind());
                queue.done.push_back(Completion { id, kind, status, ..done(qpn) });
            }
        }
        Ok(())
    }

    fn post_recv(&mut self, qp: Qp, batch: &[RecvRequest<'_>]) -> Result<(), PostError> {
        let Some(kept) = self.qps.get_mut(qp.0) else { return Err(NO_QUEUE) };
        kept.receives.post(batch)?;
        if kept.state == QpState::Err {
            self.flush(qp);
        }
        Ok(())
    }

    fn post_srq_recv(&mut self, srq: Srq, batch: &[RecvRequest<'_>]) -> Result<(), PostError> {
        self.srqs.get_mut(srq.0).ok_or(NO_QUEUE)?.post(batch)
    }

    fn poll(&mut self, cq: Cq, completions: &mut [Completion]) -> Result<usize, VerbsError> {
        let queue = self.cqs.get_mut(cq.0).ok_or(none("poll", "completion queue"))?;
        let mut count = queue.done.len().min(completions.len());
        for (completion, done) in completions.iter_mut().zip(queue.done.drain(..count)) {
            *completion = done;
        }
        // The queue pairs take turns to fill the rest of the completions.
        for _ in 0..queue.fed.len() {
            let Some(queue) = self.cqs.get_mut(cq.0) else { break };
            queue.fed.rotate_left(1);
            let Some(&qp) = queue.fed.back() else { break };
            count += self.feed(qp, &mut completions[count..]);
        }
        Ok(count)
    }

    /// Does nothing: `wait` returns a completion queue whether it is armed or not.
    fn arm(&mut self, _: Cq, _: Arm) -> Result<(), VerbsError> {
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> Result<Option<Cq>, VerbsError> {
        let has_receive = |qp: &u32| self.receives(*qp).is_some_and(|all| !all.posted.is_empty());
        let is_ready = |queue: &Queue| !queue.done.is_empty() || queue.fed.iter().any(has_receive);
        let ready = self.cqs.iter().find(|(_, queue)| is_ready(queue));
        let ready = ready.map(|(number, _)| Cq(number));
        if ready.is_none() {
            sleep(timeout);
        }
        Ok(ready)
    }

    fn async_event(&mut self) -> Option<AsyncEvent> {
        None
    }

    /// The new context has QPNs of its own.
    fn open_shared(&mut self) -> Result<Box<dyn Device + Send>, VerbsError> {
        let opened = Arc::clone(&self.opened);
        let nth = opened.fetch_add(1, Ordering::Relaxed);
        if nth >= CONTEXTS_MAX {
            opened.fetch_sub(1, Ordering::Relaxed);
            return Err(over("open_shared", "shared contexts", CONTEXTS_MAX));
        }
        let message = self.message[..self.message_bytes].to_vec();
        Ok(Box::new(Self { nth, opened, ..Self::with(message) }))
    }
}

#[expect(clippy::disallowed_methods, reason = "without completions, a wait has to sleep")]
fn sleep(timeout: Duration) {
    std::thread::sleep(timeout);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn ready(device: &mut dyn Device, qp_type: QpType) -> (Cq, Qp, Memory, MemoryRegion) {
        let pd = device.create_pd().unwrap();
        let cq = device.create_cq(16).unwrap();
        let init = QpInit {
            qp_type,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            send_requests_max: 8,
            recv_requests_max: 4,
            send_sges_max: 1,
            recv_sges_max: 1,
            inline_bytes_max: 64,
            signal_all: false,
        };
        let qp = device.create_qp(&init).unwrap();
        let memory = Memory::private(4096).unwrap();
        let region = device.register(pd, &memory, Access::LOCAL_WRITE).unwrap();
        (cq, qp, memory, region)
    }

    fn to(device: &mut dyn Device, qp: Qp, state: QpState) {
        let change = QpAttributes { state: Some(state), ..QpAttributes::default() };
        device.modify_qp(qp, &change).unwrap();
    }

    fn polled(device: &mut NullDevice, cq: Cq) -> Vec<(u64, CompletionStatus)> {
        let mut out = [Completion::NOTHING; 16];
        let count = device.poll(cq, &mut out).unwrap();
        out[..count].iter().map(|one| (one.id, one.status)).collect()
    }

    #[test]
    fn every_receive_is_filled_once_and_in_turn() {
        let mut device = NullDevice::with(vec![8, 0, 0, 0, 0x45, 7]);
        let (cq, qp, memory, region) = ready(&mut device, QpType::Ud);
        let sge = |at: u64, bytes| Sge { address: region.address + at, bytes, lkey: region.lkey };
        let posts =
            [(1, [sge(0, 64)]), (2, [sge(64, 64)]), (3, [sge(128, 45)]), (4, [sge(4090, 64)])];
        let posts = posts.each_ref().map(|(id, sges)| RecvRequest { id: *id, sges });
        device.post_recv(qp, &posts).unwrap();
        let full = device.post_recv(qp, &posts[..1]).unwrap_err();
        assert_eq!((full.accepted, full.refusal), (0, PostRefusal::Full));
        to(&mut device, qp, QpState::Init);
        assert_eq!(polled(&mut device, cq), [], "nothing is received before RTR");
        to(&mut device, qp, QpState::Rtr);
        let (good, bad) = (CompletionStatus::Success, CompletionStatus::LocalProtection);
        // The third buffer is too short, and the fourth exceeds its memory.
        assert_eq!(polled(&mut device, cq), [(1, good), (2, good), (3, bad), (4, bad)]);
        let mut bytes = [0; 6];
        assert!(memory.read(64 + 40, &mut bytes));
        assert_eq!(bytes, [8, 0, 0, 0, 0x45, 7]);
        assert_eq!(polled(&mut device, cq), []);
        device.post_recv(qp, &posts[..2]).unwrap();
        to(&mut device, qp, QpState::Err);
        let flushed = CompletionStatus::Flushed;
        assert_eq!(polled(&mut device, cq), [(1, flushed), (2, flushed)]);
    }

    #[test]
    fn contexts_of_one_device_have_different_qpns() {
        let mut first = NullDevice::new();
        let mut second = first.open_shared().unwrap();
        let mut third = second.open_shared().unwrap();
        let mut seen = BTreeSet::new();
        for device in [&mut first as &mut dyn Device, second.as_mut(), third.as_mut()] {
            let (cq, qp, memory, region) = ready(device, QpType::Ud);
            to(device, qp, QpState::Rtr);
            let sges = [Sge { address: region.address, bytes: 128, lkey: region.lkey }];
            device.post_recv(qp, &[RecvRequest { id: 1, sges: &sges }]).unwrap();
            let mut out = [Completion::NOTHING];
            assert_eq!(device.poll(cq, &mut out), Ok(1));
            assert_eq!(device.qpn(qp), Ok(out[0].qpn));
            let mut bytes = [0; 5];
            assert!(memory.read(Grh::LEN, &mut bytes));
            assert_eq!(bytes, [8, 0, 0, 0, 0x45]);
            seen.insert(out[0].qpn);
        }
        assert_eq!(seen.len(), 3);
        assert_eq!((0..CONTEXTS_MAX).filter(|_| first.open_shared().is_ok()).count(), 125);
    }

    #[test]
    fn sends_complete_at_once_and_invalid_ones_are_refused() {
        let mut device = NullDevice::new();
        let (cq, qp, ..) = ready(&mut device, QpType::Rc);
        let request = |id, flags, bytes| SendRequest {
            id,
            op: SendOp::Send,
            flags,
            data: Data::Inline(bytes),
        };
        let batch = [
            request(1, SendFlags::NONE, &[0; 64]),
            request(2, SendFlags::SIGNALED, &[0; 64]),
            request(3, SendFlags::SIGNALED, &[0; 65]),
        ];
        let refused = device.post_send(qp, &batch).unwrap_err();
        assert_eq!(refused.refusal, PostRefusal::State(QpState::Reset));
        to(&mut device, qp, QpState::Rts);
        let refused = device.post_send(qp, &batch).unwrap_err();
        assert_eq!((refused.accepted, refused.refusal), (2, PostRefusal::InlineTooLong));
        assert_eq!(polled(&mut device, cq), [(2, CompletionStatus::Success)]);
        assert!(device.create_window(Pd(1)).unwrap_err().to_string().contains("memory windows"));
        assert!(device.destroy_cq(cq).is_err());
        device.destroy_qp(qp).unwrap();
        device.destroy_cq(cq).unwrap();
        assert_eq!(device.post_send(qp, &batch).unwrap_err(), NO_QUEUE);
    }

    #[test]
    fn a_wait_returns_queues_with_completions_only() {
        let mut device = NullDevice::new();
        let (cq, qp, _memory, region) = ready(&mut device, QpType::Ud);
        to(&mut device, qp, QpState::Rts);
        assert_eq!(device.wait(Duration::ZERO), Ok(None), "no receive is posted");
        let sges = [Sge { address: region.address, bytes: 128, lkey: region.lkey }];
        device.post_recv(qp, &[RecvRequest { id: 1, sges: &sges }]).unwrap();
        assert_eq!(device.wait(Duration::ZERO), Ok(Some(cq)));
        assert_eq!(polled(&mut device, cq), [(1, CompletionStatus::Success)]);
        assert_eq!(device.wait(Duration::ZERO), Ok(None));

        let (cq, qp, ..) = ready(&mut device, QpType::Rc);
        to(&mut device, qp, QpState::Rts);
        let (op, flags, data) = (SendOp::Send, SendFlags::SIGNALED, Data::Inline(&[0; 64]));
        device.post_send(qp, &[SendRequest { id: 2, op, flags, data }]).unwrap();
        assert_eq!(device.wait(Duration::ZERO), Ok(Some(cq)), "a send has completed");
    }
}
