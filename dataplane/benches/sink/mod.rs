//! An adapter that discards requests, so that only the instructions of its caller are counted.

use pollux_mem::Memory;
use pollux_verbs::device::{Capabilities, Limits};
use pollux_verbs::*;
use pollux_wire::address::{Gid, Guid, Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::smp::PortState;
use pollux_wire::units::Mtu;
use std::time::Duration;

/// The reserved capacity for requests, so that no memory is allocated while instructions are
/// counted.
const REQUESTS_MAX: usize = 1024;

/// An adapter that discards sends, and receives the messages of [`Sink::deliver`].
pub struct Sink {
    memories: Vec<Memory>,
    qps: u32,
    /// Posted receives: request ID and memory.
    receives: Vec<(u64, Sge)>,
    ready: Vec<Completion>,
    /// The last signaled send.
    signaled: Option<u64>,
}

impl Sink {
    pub fn new() -> Self {
        let receives = Vec::with_capacity(REQUESTS_MAX);
        let ready = Vec::with_capacity(REQUESTS_MAX);
        Self { memories: Vec::new(), qps: 0, receives, ready, signaled: None }
    }

    /// Writes a message into the oldest receive of this length, `gap` bytes after its start.
    pub fn deliver(&mut self, receive_bytes: u32, gap: usize, message: &[u8], qpn: Qpn) {
        let of_length = |(_, sge): &(u64, Sge)| sge.bytes == receive_bytes;
        let at = self.receives.iter().position(of_length).expect("one is posted");
        let (id, sge) = self.receives.remove(at);
        let memory = &self.memories[sge.lkey.0 as usize];
        let offset = (sge.address - memory.address()) as usize + gap;
        assert!(memory.write(offset, message));
        let from = Source {
            src_qp: Qpn(99),
            slid: Lid(9),
            sl: 0,
            dlid_path_bits: 0,
            pkey_index: 0,
            has_grh: false,
        };
        self.ready.push(Completion {
            id,
            status: CompletionStatus::Success,
            kind: CompletionKind::Recv,
            qpn,
            bytes: (gap + message.len()) as u32,
            with: With::Nothing,
            from: (gap > 0).then_some(from),
        });
    }

    /// Completes all sends posted so far.
    pub fn finish_sends(&mut self) {
        let Some(id) = self.signaled.take() else { return };
        self.ready.push(Completion {
            id,
            status: CompletionStatus::Success,
            kind: CompletionKind::Send,
            qpn: Qpn(0),
            bytes: 0,
            with: With::Nothing,
            from: None,
        });
    }
}

impl Device for Sink {
    fn attributes(&self) -> DeviceAttributes {
        let many = 1 << 20;
        let limits = Limits {
            pds_max: many,
            regions_max: many,
            windows_max: many,
            cqs_max: many,
            completions_max: many,
            srqs_max: many,
            srq_requests_max: many,
            qps_max: many,
            requests_max: many,
            sges_max: 1,
            inline_bytes_max: 188,
            ahs_max: many,
            multicast_attachments_max: many,
            responder_resources_max: 16,
            initiator_depth_max: 16,
        };
        let can = Capabilities { uc: true, uc_srq: true, subnet: true, ..Capabilities::default() };
        let (name, node_guid) = ("sink".into(), Guid(1));
        DeviceAttributes { name, node_guid, ports: 1, limits, can }
    }

    fn port(&self, _: u8) -> Result<PortAttributes, VerbsError> {
        Ok(PortAttributes {
            state: PortState::ACTIVE,
            lid: Lid(1),
            lmc: 0,
            sm_lid: Lid(1),
            sm_sl: 0,
            mtu_max: Mtu::BYTES_2048,
            mtu: Mtu::BYTES_2048,
            gids: 1,
            pkeys: 1,
        })
    }

    fn register(&mut self, _: Pd, memory: &Memory, _: Access) -> Result<MemoryRegion, VerbsError> {
        let lkey = LKey(self.memories.len() as u32);
        self.memories.push(memory.clone());
        let (address, bytes) = (memory.address(), memory.bytes() as u64);
        Ok(MemoryRegion { address, bytes, lkey, rkey: RKey(0) })
    }

    fn create_qp(&mut self, _: &QpInit) -> Result<Qp, VerbsError> {
        self.qps += 1;
        Ok(Qp(self.qps))
    }

    fn qpn(&self, qp: Qp) -> Result<Qpn, VerbsError> {
        Ok(Qpn(qp.0))
    }

    #[inline(never)]
    fn post_send(&mut self, _: Qp, batch: &[SendRequest<'_>]) -> Result<(), PostError> {
        for request in batch {
            if request.flags.has(SendFlags::SIGNALED) {
                self.signaled = Some(request.id);
            }
        }
        Ok(())
    }

    fn post_recv(&mut self, _: Qp, batch: &[RecvRequest<'_>]) -> Result<(), PostError> {
        self.receives.extend(batch.iter().map(|request| (request.id, request.sges[0])));
        Ok(())
    }

    fn post_srq_recv(&mut self, _: Srq, batch: &[RecvRequest<'_>]) -> Result<(), PostError> {
        self.post_recv(Qp(0), batch)
    }

    #[inline(never)]
    fn poll(&mut self, _: Cq, completions: &mut [Completion]) -> Result<usize, VerbsError> {
        let count = self.ready.len().min(completions.len());
        completions[..count].copy_from_slice(&self.ready[..count]);
        self.ready.drain(..count);
        Ok(count)
    }

    fn create_srq(&mut self, _: Pd, _: u32, _: u32) -> Result<Srq, VerbsError> {
        Ok(Srq(0))
    }
    fn create_cq(&mut self, _: u32) -> Result<Cq, VerbsError> {
        Ok(Cq(0))
    }
    fn create_pd(&mut self) -> Result<Pd, VerbsError> {
        Ok(Pd(0))
    }
    fn create_ah(&mut self, _: Pd, _: &AddressVector) -> Result<Ah, VerbsError> {
        Ok(Ah(0))
    }
    fn query_qp(&self, _: Qp) -> Result<(QpState, QpAttributes), VerbsError> {
        Ok((QpState::Rts, QpAttributes::default()))
    }
    fn gid(&self, _: u8, _: u8) -> Result<Gid, VerbsError> {
        Ok(Gid::NONE)
    }
    fn pkey(&self, _: u8, _: u16) -> Result<PKey, VerbsError> {
        Ok(PKey::DEFAULT)
    }
    fn create_window(&mut self, _: Pd) -> Result<MemoryWindow, VerbsError> {
        Err(VerbsError::Unsupported { verb: "create_window", capability: "windows" })
    }
    fn modify_qp(&mut self, _: Qp, _: &QpAttributes) -> Result<(), VerbsError> {
        Ok(())
    }
    fn destroy_pd(&mut self, _: Pd) -> Result<(), VerbsError> {
        Ok(())
    }
    fn deregister(&mut self, _: LKey) -> Result<(), VerbsError> {
        Ok(())
    }
    fn destroy_window(&mut self, _: RKey) -> Result<(), VerbsError> {
        Ok(())
    }
    fn destroy_cq(&mut self, _: Cq) -> Result<(), VerbsError> {
        Ok(())
    }
    fn set_srq_limit(&mut self, _: Srq, _: u32) -> Result<(), VerbsError> {
        Ok(())
    }
    fn destroy_srq(&mut self, _: Srq) -> Result<(), VerbsError> {
        Ok(())
    }
    fn destroy_qp(&mut self, _: Qp) -> Result<(), VerbsError> {
        Ok(())
    }
    fn destroy_ah(&mut self, _: Ah) -> Result<(), VerbsError> {
        Ok(())
    }
    fn attach_multicast(&mut self, _: Qp, _: Gid, _: Lid) -> Result<(), VerbsError> {
        Ok(())
    }
    fn detach_multicast(&mut self, _: Qp, _: Gid, _: Lid) -> Result<(), VerbsError> {
        Ok(())
    }
    fn arm(&mut self, _: Cq, _: Arm) -> Result<(), VerbsError> {
        Ok(())
    }
    fn wait(&mut self, _: Duration) -> Result<Option<Cq>, VerbsError> {
        Ok(None)
    }
    fn async_event(&mut self) -> Option<AsyncEvent> {
        None
    }
}
