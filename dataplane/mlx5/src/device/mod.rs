//! The device: libibverbs makes its objects, and their rings are used here.
//!
//! [`Hca`] has the objects and checks the arguments. Beside each object with a ring is that ring,
//! under the same handle. The files: `rings_of` asks libmlx5 for the rings of a new object; `verbs`
//! is the contract, and `data` its posts and polls; `qpns` finds a queue pair by its number.

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
/// The rings drop before the objects whose memory they are.
pub(crate) struct ConnectX {
    qps: SideTable<QueuePair>,
    qpns: Qpns,
    cqs: SideTable<CompletionQueue>,
    srqs: SideTable<SharedRing>,
    ahs: SideTable<Address>,
    /// Of all queue pairs, which share them.
    registers: Vec<SendRegister>,
    hca: Hca,
}

struct CompletionQueue {
    ring: CompletionRing,
    /// What was in the ring when a queue pair was reset or destroyed: the entries name requests of
    /// it, and its number may be the next one's. Polled before the ring.
    settled: VecDeque<Completion>,
}

struct QueuePair {
    init: QpInit,
    qpn: Qpn,
    /// The state after the last change; it may have failed since, which posts need not know.
    state: QpState,
    /// Of datagrams.
    pkey_index: Option<u16>,
    send: SendRing,
    /// Unless it has a shared receive queue.
    recv: Option<RecvRing>,
    /// Index of its doorbell register.
    register: usize,
}

struct Address {
    pd: Pd,
    av: Av,
}

impl QueuePair {
    /// As created.
    fn reset(&mut self) {
        self.pkey_index = self.pkey_index.and(Some(0));
        self.send.reset();
        self.recv.iter_mut().for_each(RecvRing::reset);
    }
}

/// Variables by which libmlx5 changes the form of WQEs, and does not tell.
const SIGNATURES: [&str; 2] = ["MLX5_QP_SIGNATURE", "MLX5_SRQ_SIGNATURE"];

impl ConnectX {
    /// The rings of a device; the device itself and the reason if it has none of this form.
    pub(crate) fn over(mut hca: Hca) -> Result<Self, Box<(Hca, &'static str)>> {
        let refused = |hca, reason| Err(Box::new((hca, reason)));
        if !rings_of::is_supported(&hca) {
            return refused(hca, "it is no ConnectX of the driver mlx5");
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
