//! The cases, one file for each theme.

mod atomics;
mod completions;
mod connections;
mod datagrams;
mod drain;
mod flush;
mod handles;
mod inline;
mod lengths;
mod limits;
mod local_rights;
mod migration;
mod multicast;
mod operations;
mod ordering;
mod partitions;
mod posting;
mod remote_rights;
mod retries;
mod scatter;
mod shared_port;
mod shared_receive;
mod signaling;
mod sizes;
mod states;
mod windows;

use super::Theme;

/// Imports of all files of cases.
mod prelude {
    pub(super) use crate::adapters::{Group, Side, WaitDecision};
    pub(super) use crate::buffer::{Buffer, pattern};
    pub(super) use crate::context::Context;
    pub(super) use crate::expect::{Queue, fenced, inline, request, same, silent};
    pub(super) use crate::peers::{PairEnd, PairSetup, Place, REMOTE};
    pub(super) use crate::verdict::{
        Stop, busy, equal, fail, invalid, limited, no_such, post_refused, refused, skip,
    };
    pub(super) use crate::{Case, Need};
    pub(super) use pollux_verbs::address::{AddressVector, GlobalRoute};
    pub(super) use pollux_verbs::completion::CompletionStatus::{self, *};
    pub(super) use pollux_verbs::completion::{Completion, CompletionKind, With};
    pub(super) use pollux_verbs::device::Arm;
    pub(super) use pollux_verbs::error::{PostRefusal, VerbsError};
    pub(super) use pollux_verbs::event::AsyncEvent;
    pub(super) use pollux_verbs::memory::{Access, Cq, LKey, RKey, Srq};
    pub(super) use pollux_verbs::qp::{QpAttributes, QpState, QpType, Retries};
    pub(super) use pollux_verbs::work::{
        Bind, Data, Destination, MESSAGE_BYTES_MAX, RecvRequest, Remote, SendFlags, SendOp,
        SendRequest, Sge,
    };
    pub(super) use pollux_wire::packet::Grh;

    /// The statuses of a request that the peer does not permit. IBA 9.7.4.1.2 and 9.7.4.1.5 say
    /// which status applies, but adapters differ.
    pub(super) const REMOTE_REFUSALS: &[CompletionStatus] = &[RemoteAccess, RemoteInvalidRequest];
}

/// All themes, in reading and running order.
pub const THEMES: &[Theme] = &[
    // Valid operations.
    Theme { name: "operation", cases: operations::CASES },
    Theme { name: "size", cases: sizes::CONNECTED },
    Theme { name: "size", cases: sizes::DATAGRAMS },
    Theme { name: "size", cases: sizes::LONGEST },
    Theme { name: "scatter", cases: scatter::CASES },
    Theme { name: "inline", cases: inline::CASES },
    Theme { name: "signaling", cases: signaling::CASES },
    Theme { name: "completion", cases: completions::CASES },
    Theme { name: "ordering", cases: ordering::CASES },
    Theme { name: "connection", cases: connections::CASES },
    Theme { name: "connection", cases: connections::MTUS },
    Theme { name: "atomic", cases: atomics::CASES },
    Theme { name: "window", cases: windows::CASES },
    Theme { name: "shared-receive", cases: shared_receive::CASES },
    Theme { name: "datagram", cases: datagrams::CASES },
    Theme { name: "partition", cases: partitions::CASES },
    Theme { name: "multicast", cases: multicast::CASES },
    Theme { name: "drain", cases: drain::CASES },
    Theme { name: "migration", cases: migration::CASES },
    Theme { name: "shared-port", cases: shared_port::CASES },
    // Failures and their statuses.
    Theme { name: "not-ready", cases: retries::RNR },
    Theme { name: "absent", cases: retries::ABSENT },
    Theme { name: "length", cases: lengths::CASES },
    Theme { name: "local-rights", cases: local_rights::CASES },
    Theme { name: "remote-rights", cases: remote_rights::CASES },
    Theme { name: "remote-rights", cases: remote_rights::WRONGS },
    Theme { name: "flush", cases: flush::CASES },
    // Refusals.
    Theme { name: "posting", cases: posting::CASES },
    Theme { name: "state", cases: states::TABLE },
    Theme { name: "state", cases: states::CASES },
    Theme { name: "handle", cases: handles::CASES },
    Theme { name: "limit", cases: limits::CASES },
];
