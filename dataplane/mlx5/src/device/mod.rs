//! The device: libibverbs creates its objects, and this crate uses their rings.
//!
//! [`Hca`] owns the objects and checks arguments. For each object with a ring, [`ConnectX`] keeps
//! the ring under the same handle. The files: `rings_of` asks libmlx5 for the rings of a new
//! object; `verbs` implements the [`Device`](pollux_verbs::Device) trait, and `data` its posts and
//! polls; `qpns` finds a queue pair by its QPN.

mod data;
mod qpns;
mod rings_of;
#[cfg(test)]
mod tests;
mod verbs;

use crate::memory::SendRegister;
use crate::rings::completion::CompletionRing;
use crate::rings::receive::RecvRing;
use crate::rings::send::SendRing;
use crate::rings::shared::SharedRing;
use crate::wqe::Av;
use pollux_ibverbs::{Hca, HcaOpenError};
use pollux_verbs::table::SideTable;
use pollux_verbs::{Completion, Pd, QpInit, QpState};
use pollux_wire::address::Qpn;
use qpns::Qpns;
use std::collections::VecDeque;

/// A ConnectX.
///
/// The fields with rings are dropped before `hca`, whose objects own the memory of the rings.
pub(crate) struct ConnectX {
    qps: SideTable<QueuePair>,
    qpns: Qpns,
    cqs: SideTable<CompletionQueue>,
    srqs: SideTable<SharedRing>,
    ahs: SideTable<Address>,
    /// The doorbell registers of all queue pairs, which share them.
    registers: Vec<SendRegister>,
    hca: Hca,
}

struct CompletionQueue {
    ring: CompletionRing,
    /// Completions that were taken from the ring when a queue pair was reset or destroyed. Their
    /// entries name its requests, and the next queue pair may have the same QPN. They are polled
    /// before the ring.
    settled: VecDeque<Completion>,
}

struct QueuePair {
    init: QpInit,
    qpn: Qpn,
    /// The state after the last change. The queue pair may have failed since, which does not matter
    /// for posts.
    state: QpState,
    /// The P_Key index of a datagram queue pair.
    pkey_index: Option<u16>,
    send: SendRing,
    /// `None` if the queue pair has a shared receive queue or takes no receives.
    recv: Option<RecvRing>,
    /// The index of its doorbell register.
    register: usize,
}

struct Address {
    pd: Pd,
    av: Av,
}

impl QueuePair {
    /// Resets the queue pair to its state after creation.
    fn reset(&mut self) {
        self.pkey_index = self.pkey_index.and(Some(0));
        self.send.reset();
        self.recv.iter_mut().for_each(RecvRing::reset);
    }
}

/// Environment variables that make libmlx5 sign WQEs. It does not report this change of their
/// format.
const SIGNATURES: [&str; 2] = ["MLX5_QP_SIGNATURE", "MLX5_SRQ_SIGNATURE"];

impl ConnectX {
    /// A driver for the rings of a device. If this crate cannot use its rings, an error returns the
    /// device and the reason.
    pub(crate) fn over(mut hca: Hca) -> Result<Self, Box<(Hca, &'static str)>> {
        let refused = |hca, reason| Err(Box::new((hca, reason)));
        if !rings_of::is_supported(&hca) {
            return refused(hca, "it is not a ConnectX with the mlx5 driver");
        }
        #[expect(clippy::disallowed_methods, reason = "libmlx5 reads its environment too")]
        let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| value != "0");
        if SIGNATURES.iter().any(is_set) {
            return refused(hca, "its WQEs are signed (MLX5_QP_SIGNATURE, MLX5_SRQ_SIGNATURE)");
        }
        rings_of::prepare(&mut hca);
        Ok(Self {
            qps: SideTable::default(),
            qpns: Qpns::default(),
            cqs: SideTable::default(),
            srqs: SideTable::default(),
            ahs: SideTable::default(),
            registers: Vec::new(),
            hca,
        })
    }

    /// Opens a device with at least `port` ports.
    pub(crate) fn open(name: &str, port: u8) -> Result<Self, HcaOpenError> {
        Self::over(Hca::open(name, port)?).map_err(|refused| HcaOpenError::NoDirectRings {
            device: name.to_owned(),
            reason: refused.1,
        })
    }
}
