//! Checks that a command names only handles of its own context. A handle of another context of the
//! program is invalid.

use super::Call;
use crate::abi::command;
use crate::hca::Hca;
use pollux_hca::Link;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Pd,
    Region,
    Window,
    Cq,
    Srq,
    Qp,
}

/// The handles in commands: the command, the kind of object, and the offset in the body.
const HANDLES: [(u32, Kind, usize); 22] = [
    (command::DEALLOC_PD, Kind::Pd, 0),
    (command::REG_MR, Kind::Pd, 24),
    (command::REREG_MR, Kind::Region, 0),
    (command::REREG_MR, Kind::Pd, 32),
    (command::DEREG_MR, Kind::Region, 0),
    (command::ALLOC_MW, Kind::Pd, 0),
    (command::DEALLOC_MW, Kind::Window, 0),
    (command::RESIZE_CQ, Kind::Cq, 0),
    (command::DESTROY_CQ, Kind::Cq, 0),
    (command::CREATE_SRQ, Kind::Pd, 8),
    (command::MODIFY_SRQ, Kind::Srq, 0),
    (command::QUERY_SRQ, Kind::Srq, 0),
    (command::DESTROY_SRQ, Kind::Srq, 0),
    (command::CREATE_QP, Kind::Pd, 8),
    (command::CREATE_QP, Kind::Cq, 12),
    (command::CREATE_QP, Kind::Cq, 16),
    (command::CREATE_QP, Kind::Srq, 20),
    (command::QUERY_QP, Kind::Qp, 0),
    (command::MODIFY_QP, Kind::Qp, 64),
    (command::DESTROY_QP, Kind::Qp, 0),
    (command::ATTACH_MCAST, Kind::Qp, 16),
    (command::DETACH_MCAST, Kind::Qp, 16),
];

impl<L: Link> Hca<L> {
    /// Whether a command names a handle of another context. A handle that does not exist is not
    /// checked here; the command itself fails.
    pub(super) fn has_foreign_handle(&self, context: u32, call: &Call<'_>) -> bool {
        let of_command = HANDLES.iter().filter(|(number, ..)| *number == call.number);
        of_command.into_iter().any(|&(_, kind, at)| {
            let bytes = call.body.get(at..).and_then(<[u8]>::first_chunk);
            let owner = bytes.and_then(|bytes| self.owner(kind, u32::from_ne_bytes(*bytes)));
            owner.is_some_and(|owner| owner != context)
        })
    }

    fn owner(&self, kind: Kind, handle: u32) -> Option<u32> {
        match kind {
            Kind::Pd => {
                let mut contexts = self.contexts.iter();
                contexts.find(|(_, one)| one.pds.contains(&handle)).map(|(number, _)| number)
            }
            Kind::Region => self.regions.get(&handle).map(|one| one.context),
            Kind::Window => self.windows.get(&handle).copied(),
            Kind::Cq => self.cqs.get(handle).map(|one| one.context),
            Kind::Srq => self.srqs.get(handle).map(|one| one.context),
            Kind::Qp => self.qps.get(handle).map(|one| one.context),
        }
    }
}
