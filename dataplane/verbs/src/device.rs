//! The trait that every adapter implements.
//!
//! # Ownership
//!
//! A device belongs to one worker and has no lock. A second thread that needs the same adapter gets
//! another context of it with [`Device::open_shared`]. Queues, regions and address handles are
//! identified by integer handles, which are valid for one device only.
//!
//! The adapter owns the memory of a request from a successful post to the completion. Inline data
//! is copied at once. A post accepts requests from the front of the batch and stops at the first
//! request that it refuses. The error has the number of accepted requests; the caller keeps the
//! other requests.
//!
//! # Guarantees of every adapter
//!
//! - The requests of one send queue complete in order, and so do those of one receive queue.
//! - Every signaled request and every receive completes exactly once, at the latest when its queue
//!   pair enters the error state. Requests of a destroyed or reset queue pair do not complete, and
//!   their completions that were not polled may be removed.
//! - The completion of a send implies that all earlier unsignaled sends of its queue are done.
//! - Verbs check their arguments, and their errors name the invalid one: [`VerbsError`],
//!   [`PostError`].
//! - A software adapter makes progress only in [`Device::poll`] and the posts, and needs no
//!   thread.

use crate::address::AddressVector;
use crate::completion::Completion;
use crate::error::{PostError, VerbsError};
use crate::event::AsyncEvent;
use crate::memory::{Access, Ah, Cq, LKey, MemoryRegion, MemoryWindow, Pd, Qp, RKey, Srq};
use crate::qp::{QpAttributes, QpInit, QpState};
use crate::work::{RecvRequest, SendRequest};
use pollux_mem::Memory;
use pollux_wire::address::{Gid, Guid, Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::smp::PortState;
use pollux_wire::units::Mtu;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// A context of an adapter, opened by one worker.
pub trait Device {
    fn attributes(&self) -> DeviceAttributes;

    /// The attributes of a port; ports count from 1.
    fn port(&self, port: u8) -> Result<PortAttributes, VerbsError>;
    fn gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError>;
    fn pkey(&self, port: u8, index: u16) -> Result<PKey, VerbsError>;

    fn create_pd(&mut self) -> Result<Pd, VerbsError>;
    /// Destroys an unused protection domain.
    fn destroy_pd(&mut self, pd: Pd) -> Result<(), VerbsError>;

    /// Registers all of `memory` with these access rights.
    fn register(
        &mut self,
        pd: Pd,
        memory: &Memory,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError>;
    /// Deregisters a region. Later requests with its keys fail.
    fn deregister(&mut self, region: LKey) -> Result<(), VerbsError>;
    fn create_window(&mut self, pd: Pd) -> Result<MemoryWindow, VerbsError>;
    /// Destroys the memory window with this current key.
    fn destroy_window(&mut self, window: RKey) -> Result<(), VerbsError>;

    fn create_cq(&mut self, completions_max: u32) -> Result<Cq, VerbsError>;
    /// Destroys a completion queue that no queue pair uses.
    fn destroy_cq(&mut self, cq: Cq) -> Result<(), VerbsError>;

    fn create_srq(&mut self, pd: Pd, requests_max: u32, sges_max: u32) -> Result<Srq, VerbsError>;
    /// Arms one [`AsyncEvent::SrqLimitReached`], which is raised when fewer than `limit` receives
    /// are left; 0 disarms it.
    fn set_srq_limit(&mut self, srq: Srq, limit: u32) -> Result<(), VerbsError>;
    /// Destroys a shared receive queue that no queue pair uses, with its posted receives.
    fn destroy_srq(&mut self, srq: Srq) -> Result<(), VerbsError>;

    /// Creates a queue pair in state RESET.
    fn create_qp(&mut self, init: &QpInit) -> Result<Qp, VerbsError>;
    fn qpn(&self, qp: Qp) -> Result<Qpn, VerbsError>;
    /// Modifies a queue pair, as the table in [`transition`](crate::transition) allows.
    fn modify_qp(&mut self, qp: Qp, change: &QpAttributes) -> Result<(), VerbsError>;
    /// The state of a queue pair, and every attribute that was set.
    fn query_qp(&self, qp: Qp) -> Result<(QpState, QpAttributes), VerbsError>;
    /// Destroys a queue pair, with its outstanding requests.
    fn destroy_qp(&mut self, qp: Qp) -> Result<(), VerbsError>;

    fn create_ah(&mut self, pd: Pd, address: &AddressVector) -> Result<Ah, VerbsError>;
    /// Destroys an address handle; posted datagrams are still sent.
    fn destroy_ah(&mut self, ah: Ah) -> Result<(), VerbsError>;

    fn attach_multicast(&mut self, qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError>;
    fn detach_multicast(&mut self, qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError>;

    /// Posts requests to a send queue, with one doorbell for all.
    fn post_send(&mut self, qp: Qp, batch: &[SendRequest<'_>]) -> Result<(), PostError>;
    fn post_recv(&mut self, qp: Qp, batch: &[RecvRequest<'_>]) -> Result<(), PostError>;
    fn post_srq_recv(&mut self, srq: Srq, batch: &[RecvRequest<'_>]) -> Result<(), PostError>;

    /// Polls completions and returns their number. A software adapter makes progress here.
    fn poll(&mut self, cq: Cq, completions: &mut [Completion]) -> Result<usize, VerbsError>;
    /// Requests a notification for the next completion after this call.
    fn arm(&mut self, cq: Cq, arm: Arm) -> Result<(), VerbsError>;
    /// Sleeps until an armed queue has a completion, an event arrives or `timeout` expires. Returns
    /// the queue, if any; it must be polled and armed again.
    fn wait(&mut self, timeout: Duration) -> Result<Option<Cq>, VerbsError>;

    /// The descriptor for a caller that sleeps outside of [`Device::wait`]. Before it sleeps, the
    /// caller arms the queues and then polls them once more. After the sleep, it takes the
    /// notification with a `wait` of timeout zero. `None` if the device has no descriptor.
    fn wake_source(&mut self) -> Option<WakeSource<'_>> {
        None
    }

    fn async_event(&mut self) -> Option<AsyncEvent>;

    /// Opens another context of the same adapter, for another worker. Contexts share no handles,
    /// and QPNs are unique in the adapter. Management datagrams, GSI included, are delivered to the
    /// first context only.
    fn open_shared(&mut self) -> Result<Box<dyn Device + Send>, VerbsError> {
        Err(VerbsError::Unsupported { verb: "open_shared", capability: "a second context" })
    }
}

/// A descriptor that wakes a sleeping caller.
#[derive(Clone, Copy, Debug)]
pub struct WakeSource<'a> {
    /// Becomes readable when an armed queue has a completion, or an event arrives.
    pub fd: BorrowedFd<'a>,
    /// The longest sleep: the timers of the device run only when the caller polls.
    pub longest: Duration,
}

/// The completions that a notification is requested for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    Any,
    /// A solicited or a failed completion.
    Solicited,
}

/// Identity, limits and capabilities of an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// The name under which it was opened.
    pub name: String,
    pub node_guid: Guid,
    pub ports: u8,
    pub limits: Limits,
    pub can: Capabilities,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub pds_max: u32,
    pub regions_max: u32,
    pub windows_max: u32,
    pub cqs_max: u32,
    pub completions_max: u32,
    pub srqs_max: u32,
    pub srq_requests_max: u32,
    pub qps_max: u32,
    pub requests_max: u32,
    pub sges_max: u32,
    pub inline_bytes_max: u32,
    pub ahs_max: u32,
    pub multicast_attachments_max: u32,
    pub responder_resources_max: u8,
    pub initiator_depth_max: u8,
}

/// Optional features. The conformance suite skips, and reports, the cases for missing features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    pub uc: bool,
    pub uc_srq: bool,
    pub atomics: bool,
    pub windows: bool,
    pub send_invalidate: bool,
    pub srq_limit: bool,
    pub multicast: bool,
    pub drain: bool,
    pub migration: bool,
    /// Whether a refused request of a peer raises an event here.
    pub refusal_events: bool,
    /// Whether the link is an InfiniBand subnet, with LIDs; not so on RoCE.
    pub subnet: bool,
    /// Whether a program may create queue pair 1, the GSI (IBA 13.5).
    pub gsi: bool,
    /// Whether requests of peers are acknowledged only when this process polls, as in a software
    /// adapter within the process.
    pub acks_when_polled: bool,
    /// Whether [`Device::wait`] sleeps; otherwise it only polls.
    pub sleep: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// Logical state (IBA 7.2.7): down, initializing, armed or active.
    pub state: PortState,
    pub lid: Lid,
    /// LMC: the number of low LID bits that select a path.
    pub lmc: u8,
    pub sm_lid: Lid,
    pub sm_sl: u8,
    pub mtu_max: Mtu,
    /// The active MTU.
    pub mtu: Mtu,
    /// Entries of the GID table.
    pub gids: u8,
    /// Entries of the P_Key table.
    pub pkeys: u16,
}
