//! The trait that every adapter implements.
//!
//! # Who owns what
//!
//! A device is one worker's own: it has no lock, and two threads that want the same adapter open it
//! once, and the second one beside that ([`Device::open_shared`]). What it keeps (queues, regions,
//! handles) goes by small handles, good for that device alone.
//!
//! Memory named in a request is the adapter's from a successful post to the completion. An inline
//! send is copied at once. A post takes requests from the front of its batch until one cannot be
//! taken; it says how many it took, and the rest never left the caller.
//!
//! # What may be expected of every adapter
//!
//! - Requests of one send queue complete in their order, and so do those of one receive queue.
//! - Every signaled request and every receive completes exactly once, at the latest when its queue
//!   pair enters the error state; those that a destroyed or reset queue pair takes along do not.
//! - A send that is not signaled is done when a later one of its queue is.
//! - Verbs check what they are told and say what is wrong: [`VerbsError`], [`PostError`].
//! - Time passes only in [`Device::poll`] and the posts: an adapter in software makes its progress
//!   there, and needs no thread.

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
use std::time::Duration;

/// An adapter, opened by one worker.
pub trait Device {
    /// What the adapter is and can.
    fn attributes(&self) -> DeviceAttributes;

    /// How a port is; ports count from 1.
    fn port(&self, port: u8) -> Result<PortAttributes, VerbsError>;
    /// An entry of a port's GID table.
    fn gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError>;
    /// An entry of a port's P_Key table.
    fn pkey(&self, port: u8, index: u16) -> Result<PKey, VerbsError>;

    /// Makes a protection domain.
    fn create_pd(&mut self) -> Result<Pd, VerbsError>;
    /// Ends one that nothing uses.
    fn destroy_pd(&mut self, pd: Pd) -> Result<(), VerbsError>;

    /// Lets the adapter touch `memory`, all of it, with these rights.
    fn register(
        &mut self,
        pd: Pd,
        memory: &Memory,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError>;
    /// Ends that. Requests that name the region fail from now on.
    fn deregister(&mut self, region: LKey) -> Result<(), VerbsError>;
    /// Makes a window, bound to nothing.
    fn create_window(&mut self, pd: Pd) -> Result<MemoryWindow, VerbsError>;
    /// Ends a window, by its present key.
    fn destroy_window(&mut self, window: RKey) -> Result<(), VerbsError>;

    /// Makes a completion queue with room for `completions_max`.
    fn create_cq(&mut self, completions_max: u32) -> Result<Cq, VerbsError>;
    /// Ends one that no queue pair uses.
    fn destroy_cq(&mut self, cq: Cq) -> Result<(), VerbsError>;

    /// Makes a shared receive queue.
    fn create_srq(&mut self, pd: Pd, requests_max: u32, sges_max: u32) -> Result<Srq, VerbsError>;
    /// Asks for one [`AsyncEvent::SrqLimitReached`] when fewer than `limit` receives are left; 0:
    /// no.
    fn set_srq_limit(&mut self, srq: Srq, limit: u32) -> Result<(), VerbsError>;
    /// Ends one that no queue pair uses; receives posted there go with it.
    fn destroy_srq(&mut self, srq: Srq) -> Result<(), VerbsError>;

    /// Makes a queue pair, in state RESET.
    fn create_qp(&mut self, init: &QpInit) -> Result<Qp, VerbsError>;
    /// The network's name of a queue pair.
    fn qpn(&self, qp: Qp) -> Result<Qpn, VerbsError>;
    /// Changes a queue pair, as the table in [`transition`](crate::transition) allows.
    fn modify_qp(&mut self, qp: Qp, change: &QpAttributes) -> Result<(), VerbsError>;
    /// How a queue pair is: its state, and every attribute that it has been given.
    fn query_qp(&self, qp: Qp) -> Result<(QpState, QpAttributes), VerbsError>;
    /// Ends a queue pair; requests that are outstanding go with it.
    fn destroy_qp(&mut self, qp: Qp) -> Result<(), VerbsError>;

    /// Makes a handle of an address, for datagrams.
    fn create_ah(&mut self, pd: Pd, address: &AddressVector) -> Result<Ah, VerbsError>;
    /// Ends it; datagrams already posted go their way.
    fn destroy_ah(&mut self, ah: Ah) -> Result<(), VerbsError>;

    /// Lets a UD queue pair receive what goes to a group.
    fn attach_multicast(&mut self, qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError>;
    /// Ends that.
    fn detach_multicast(&mut self, qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError>;

    /// Hands over requests to a send queue: one doorbell for all.
    fn post_send(&mut self, qp: Qp, batch: &[SendRequest<'_>]) -> Result<(), PostError>;
    /// Hands over receives to a queue pair's own queue.
    fn post_recv(&mut self, qp: Qp, batch: &[RecvRequest<'_>]) -> Result<(), PostError>;
    /// Hands over receives to a shared queue.
    fn post_srq_recv(&mut self, srq: Srq, batch: &[RecvRequest<'_>]) -> Result<(), PostError>;

    /// Takes finished requests, and says how many; makes progress where that is software's part.
    fn poll(&mut self, cq: Cq, completions: &mut [Completion]) -> Result<usize, VerbsError>;
    /// Asks to be woken by the next completion that comes after this call.
    fn arm(&mut self, cq: Cq, arm: Arm) -> Result<(), VerbsError>;
    /// Sleeps until an armed queue has a completion, an event has come or the time is over; says
    /// which queue it was. The queue has to be polled, and armed again.
    fn wait(&mut self, timeout: Duration) -> Result<Option<Cq>, VerbsError>;

    /// The next thing that has happened, if any has.
    fn async_event(&mut self) -> Option<AsyncEvent>;

    /// The same adapter once more, for another worker: nothing that one has is known to the other,
    /// and no two queue pairs of the adapter have one number. Datagrams of management, of general
    /// services too, stay with the first.
    fn open_shared(&mut self) -> Result<Box<dyn Device + Send>, VerbsError> {
        Err(VerbsError::Unsupported { verb: "open_shared", capability: "a second context" })
    }
}

/// What wakes the sleeper on a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// Any completion.
    Any,
    /// One whose sender asked for it, or one that failed.
    Solicited,
}

/// What an adapter is and can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Its name, as it was opened.
    pub name: String,
    /// The node's.
    pub node_guid: Guid,
    /// How many ports it has.
    pub ports: u8,
    /// Limits, each in what it counts.
    pub limits: Limits,
    /// What not every adapter can.
    pub can: Capabilities,
}

/// Limits of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the number of what it names")]
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

/// What not every adapter can. A suite skips what is missing here, and says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each names what it is about")]
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
    /// Whether a peer's request that is refused raises an event here.
    pub refusal_events: bool,
    /// Whether UD receives and CM go by LID, through a subnet; not so on RoCE.
    pub subnet: bool,
    /// Whether a program may create queue pair 1, which general services go by (IBA 13.5).
    pub gsi: bool,
    /// Whether requests of peers are acknowledged only when the process that has the adapter polls
    /// it: the adapter is software of that process.
    pub acks_when_polled: bool,
    /// Whether [`Device::wait`] sleeps, or only polls.
    pub sleep: bool,
}

/// How a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// Whether it carries traffic.
    pub state: PortState,
    /// Its address.
    pub lid: Lid,
    /// How many low bits of that may vary.
    pub lmc: u8,
    /// The subnet manager's address.
    pub sm_lid: Lid,
    /// And the service level to reach it.
    pub sm_sl: u8,
    /// The largest payload that the port can carry.
    pub mtu_max: Mtu,
    /// The largest that it carries now.
    pub mtu: Mtu,
    /// Entries of its GID table.
    pub gids: u8,
    /// Entries of its P_Key table.
    pub pkeys: u16,
}
