//! Queue pairs: creation parameters, modifiable attributes and states (IBA 10.2.4, 10.3).

use crate::address::AddressVector;
use crate::memory::{Access, Cq, Pd, Srq};
use crate::work::SendOp;
use pollux_wire::address::Qpn;
use pollux_wire::keys::QKey;
use pollux_wire::packet::RnrTimer;
use pollux_wire::psn::Psn;
use pollux_wire::units::{Mtu, TimeCode};
use std::fmt;

/// Transport services of queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum QpType {
    Rc,
    Uc,
    Ud,
    /// The general services interface: queue pair 1 of a port, at most one for each port. It has
    /// the states of a UD queue pair, uses [`QKey::GSI`] and receives packets of all partitions of
    /// its port. Agents of the port may reserve management classes. Adapters without it refuse to
    /// create one.
    Gsi,
}

impl QpType {
    #[inline]
    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::Ud | Self::Gsi)
    }

    /// Whether the service supports the operation (IBA table 37).
    #[inline]
    pub const fn has(self, op: &SendOp) -> bool {
        match op {
            SendOp::Datagram(_) | SendOp::DatagramImm(..) => self.is_datagram(),
            SendOp::DatagramIn(..) => matches!(self, Self::Gsi),
            SendOp::Send
            | SendOp::SendImm(_)
            | SendOp::Write(_)
            | SendOp::WriteImm(..)
            | SendOp::Bind(_)
            | SendOp::LocalInvalidate(_)
            | SendOp::Nop => matches!(self, Self::Rc | Self::Uc),
            SendOp::SendInvalidate(_)
            | SendOp::Read(_)
            | SendOp::CompareSwap { .. }
            | SendOp::FetchAdd { .. } => matches!(self, Self::Rc),
        }
    }
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Gsi => "GSI",
        })
    }
}

/// States of a queue pair (IBA 10.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QpState {
    /// As created: no requests, no packets.
    #[default]
    Reset,
    /// Receives can be posted; packets are dropped.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send as well.
    Rts,
    /// Send queue drain: finishes the requests in progress and starts no new ones.
    Sqd,
    /// Send queue error (UC, UD): sends are flushed, receives continue.
    Sqe,
    /// Error: all requests are flushed and all packets dropped.
    Err,
}

impl QpState {
    /// All states, in the usual order of transitions; the error states are last.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        })
    }
}

/// Creation parameters of a queue pair, which never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInit {
    pub qp_type: QpType,
    pub pd: Pd,
    pub send_cq: Cq,
    pub recv_cq: Cq,
    /// Shared receive queue; without it the queue pair has its own receive queue.
    pub srq: Option<Srq>,
    pub send_requests_max: u32,
    /// Posted receives, at most; ignored with an SRQ.
    pub recv_requests_max: u32,
    pub send_sges_max: u32,
    pub recv_sges_max: u32,
    pub inline_bytes_max: u32,
    pub signal_all: bool,
}

/// A retry count of a requester (IBA 9.9.2.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries(u8);

impl Retries {
    pub const NONE: Self = Self(0);
    /// Seven retries after timeouts; as an RNR retry count, unlimited.
    pub const SEVEN: Self = Self(7);

    /// `count` retries, at most seven.
    pub const fn new(count: u8) -> Option<Self> {
        if count <= 7 { Some(Self(count)) } else { None }
    }

    pub const fn get(self) -> u8 {
        self.0
    }
}

macro_rules! qp_attributes {
    ($($(#[$meta:meta])* $field:ident: $type:ty = $bit:ident),* $(,)?) => {
        /// Attributes to modify; `None` leaves an attribute unchanged. The table in
        /// [`transition`](crate::transition) has the required and optional attributes of each
        /// transition.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct QpAttributes {
            $($(#[$meta])* pub $field: Option<$type>,)*
        }

        /// An attribute, for the table of transitions.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum QpAttribute { $($bit,)* }

        impl QpAttribute {
            pub const ALL: &'static [Self] = &[$(Self::$bit,)*];

            /// The field name in [`QpAttributes`].
            pub const fn name(self) -> &'static str {
                match self { $(Self::$bit => stringify!($field),)* }
            }
        }

        impl QpAttributes {
            /// The attributes that are set, as bits by [`QpAttribute`].
            pub fn mask(&self) -> u32 {
                let mut mask = 0;
                $(if self.$field.is_some() { mask |= 1 << QpAttribute::$bit as u32; })*
                mask
            }

            #[must_use]
            pub fn without(mut self, attribute: QpAttribute) -> Self {
                match attribute { $(QpAttribute::$bit => self.$field = None,)* }
                self
            }

            /// Copies the set attributes of `change`.
            pub fn take(&mut self, change: &Self) {
                $(if change.$field.is_some() { self.$field = change.$field; })*
            }
        }
    };
}

qp_attributes! {
    state: QpState = State,
    /// The expected current state; the change fails if the queue pair is in another state.
    current_state: QpState = CurrentState,
    pkey_index: u16 = PkeyIndex,
    /// Physical port of the primary path, from 1.
    port: u8 = Port,
    /// The Q_Key that datagrams must have.
    qkey: QKey = Qkey,
    /// Access rights of the peer.
    access: Access = Access,
    path: AddressVector = Path,
    /// The alternate path to the peer (IBA 17.2.8).
    alternate_path: AddressVector = AlternatePath,
    path_mtu: Mtu = PathMtu,
    dest_qp: Qpn = DestQp,
    /// The first PSN to receive.
    rq_psn: Psn = RqPsn,
    /// The first PSN to send.
    sq_psn: Psn = SqPsn,
    /// Outstanding reads and atomics of the peer, at most.
    responder_resources: u8 = ResponderResources,
    /// Own outstanding reads and atomics, at most.
    initiator_depth: u8 = InitiatorDepth,
    /// The RNR timer that an RNR NAK requests of the peer.
    min_rnr_timer: RnrTimer = MinRnrTimer,
    /// ACK timeout; code 0 disables it.
    timeout: TimeCode = Timeout,
    /// Retries after a timeout or a sequence error.
    retry_count: Retries = RetryCount,
    /// Retries after an RNR NAK; seven is unlimited.
    rnr_retry: Retries = RnrRetry,
    /// Request an event when the send queue is drained.
    drain_event: bool = DrainEvent,
    migration: Migration = Migration,
}

/// State of automatic path migration (IBA 17.2.8.1).
///
/// The consumer loads an alternate path and sets [`Rearm`](Self::Rearm), at both ends. Traffic in
/// both directions makes both ends [`Armed`](Self::Armed), which no consumer can set. An armed
/// queue pair migrates when its retries run out, when its peer migrated, or when its consumer sets
/// [`Migrated`](Self::Migrated). The alternate path then becomes the primary path, and there is no
/// alternate path until the consumer loads another, preferably after both ends have migrated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Migration {
    /// No migration is prepared. The initial state, and the state after a migration.
    #[default]
    Migrated,
    /// Waiting for the peer to rearm.
    Rearm,
    /// Ready to migrate.
    Armed,
}
