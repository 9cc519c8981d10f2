//! Queue pairs: what they are made with, what can be changed, and their states (IBA 10.2.4, 10.3).

use crate::address::AddressVector;
use crate::memory::{Access, Cq, Pd, Srq};
use crate::work::SendOp;
use pollux_wire::address::Qpn;
use pollux_wire::keys::QKey;
use pollux_wire::packet::RnrTimer;
use pollux_wire::psn::Psn;
use pollux_wire::units::{Mtu, TimeCode};
use std::fmt;

/// Transport services that a queue pair can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Datagrams of general services: queue pair 1 of a port, which has one at most. It goes
    /// through its states as any for datagrams, with [`QKey::GSI`], and takes packets of all
    /// partitions of its port. Agents of the port may keep classes for themselves. Adapters
    /// without it refuse to create one.
    Gsi,
}

impl QpType {
    /// Whether it carries datagrams.
    #[inline]
    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::Ud | Self::Gsi)
    }

    /// Whether it has the operation (IBA table 37).
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
            | SendOp::LocalInvalidate(_) => matches!(self, Self::Rc | Self::Uc),
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
    /// As created: takes nothing.
    #[default]
    Reset,
    /// Takes receives; packets are dropped.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send as well.
    Rts,
    /// Finishes what it has begun to send, and begins nothing new.
    Sqd,
    /// A datagram or unreliable message could not be sent: sends are flushed, receives go on.
    Sqe,
    /// All requests are flushed, all packets dropped.
    Err,
}

impl QpState {
    /// All of them, in the order in which a queue pair may meet them.
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

/// What a queue pair is created with, and keeps for life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInit {
    /// Its service.
    pub qp_type: QpType,
    /// Its protection domain.
    pub pd: Pd,
    /// Where sends complete.
    pub send_cq: Cq,
    /// Where receives complete.
    pub recv_cq: Cq,
    /// Receives come from here; without it the queue pair has a receive queue of its own.
    pub srq: Option<Srq>,
    /// Sends that may be outstanding.
    pub send_requests_max: u32,
    /// Receives that may be posted; of no meaning with a shared queue.
    pub recv_requests_max: u32,
    /// Entries that a send may gather.
    pub send_sges_max: u32,
    /// Entries that a receive may scatter.
    pub recv_sges_max: u32,
    /// Bytes that a send may carry inline.
    pub inline_bytes_max: u32,
    /// Every send is signaled, asked or not.
    pub signal_all: bool,
}

/// How often a requester asks again (IBA 9.9.2.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries(u8);

impl Retries {
    /// Never again.
    pub const NONE: Self = Self(0);
    /// Seven: of retries after time-outs that many, of RNR retries without end.
    pub const SEVEN: Self = Self(7);

    /// `count` times, at most seven.
    pub const fn new(count: u8) -> Option<Self> {
        if count <= 7 { Some(Self(count)) } else { None }
    }

    /// As a number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

macro_rules! qp_attributes {
    ($($(#[$meta:meta])* $field:ident: $type:ty = $bit:ident),* $(,)?) => {
        /// What of a queue pair is to change; `None` stays. Which of these a change of state needs
        /// and takes, the table in [`transition`](crate::transition) says.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct QpAttributes {
            $($(#[$meta])* pub $field: Option<$type>,)*
        }

        /// One of the attributes, for the table of transitions.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "named after the attributes")]
        #[repr(u32)]
        pub enum Attribute { $($bit,)* }

        impl Attribute {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$bit,)*];

            /// The name that the attribute has in [`QpAttributes`].
            pub const fn name(self) -> &'static str {
                match self { $(Self::$bit => stringify!($field),)* }
            }
        }

        impl QpAttributes {
            /// Which attributes are to change, as bits by [`Attribute`].
            pub fn mask(&self) -> u32 {
                let mut mask = 0;
                $(if self.$field.is_some() { mask |= 1 << Attribute::$bit as u32; })*
                mask
            }

            /// The same change without one attribute.
            #[must_use]
            pub fn without(mut self, attribute: Attribute) -> Self {
                match attribute { $(Attribute::$bit => self.$field = None,)* }
                self
            }

            /// Takes over what is to change.
            pub fn take(&mut self, change: &Self) {
                $(if change.$field.is_some() { self.$field = change.$field; })*
            }
        }
    };
}

qp_attributes! {
    /// The state to go to.
    state: QpState = State,
    /// The state that the caller believes the queue pair in; another one makes the change fail.
    current_state: QpState = CurrentState,
    /// Which entry of the port's P_Key table.
    pkey_index: u16 = PkeyIndex,
    /// The port.
    port: u8 = Port,
    /// The key that datagrams must show.
    qkey: QKey = Qkey,
    /// What peers may do through it.
    access: Access = Access,
    /// Where the peer is.
    path: AddressVector = Path,
    /// Where the peer also is (IBA 17.2.8).
    alternate_path: AddressVector = AlternatePath,
    /// Largest payload of a packet.
    path_mtu: Mtu = PathMtu,
    /// The peer.
    dest_qp: Qpn = DestQp,
    /// The first sequence number to expect.
    rq_psn: Psn = RqPsn,
    /// The first sequence number to send.
    sq_psn: Psn = SqPsn,
    /// Reads and atomics of the peer's that may be outstanding here.
    responder_resources: u8 = ResponderResources,
    /// Reads and atomics of ours that may be outstanding there.
    initiator_depth: u8 = InitiatorDepth,
    /// How long a peer is to wait that found no receive.
    min_rnr_timer: RnrTimer = MinRnrTimer,
    /// How long an answer may take; code 0: for ever.
    timeout: TimeCode = Timeout,
    /// How often to ask again after a time-out or a gap.
    retry_count: Retries = RetryCount,
    /// How often to ask again after an RNR NAK; seven: without end.
    rnr_retry: Retries = RnrRetry,
    /// An event shall tell when a drain is done.
    drain_event: bool = DrainEvent,
    /// State of path migration.
    migration: Migration = Migration,
}

/// State of automatic path migration (IBA 17.2.8.1).
///
/// The owner loads an alternate path and asks for [`Rearm`](Self::Rearm), at both ends. Traffic in
/// both directions makes both [`Armed`](Self::Armed), which no owner can ask for. An armed queue
/// pair takes its alternate path when it is out of retries, when its peer has taken it, or when its
/// owner asks for [`Migrated`](Self::Migrated); the alternate path is the path then, and there is
/// none to migrate to until the next is loaded. That is best done when both ends have migrated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Migration {
    /// On the only path, or on the one migrated to: a queue pair begins so.
    #[default]
    Migrated,
    /// Waiting for the peer to be ready as well.
    Rearm,
    /// Ready to migrate.
    Armed,
}
