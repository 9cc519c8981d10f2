//! Counters of ICMP messages, by family and kind: those that were sent, and those that a rate limit
//! kept back.

use super::IcmpError;
use std::collections::BTreeMap;

/// A kind of ICMP message that a node sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IcmpSentKind {
    /// A reply to an echo request.
    EchoReply,
    /// There is no route to the destination.
    NoRoute,
    /// The next hop does not answer.
    HostUnreachable,
    /// No socket has the destination port.
    PortUnreachable,
    /// The packet is longer than the MTU.
    TooBig,
    /// The hop limit ran out.
    TimeExceeded,
    /// A filter or a route forbids the packet.
    Prohibited,
    /// A header of the packet is wrong.
    ParameterProblem,
}

impl IcmpSentKind {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::EchoReply,
        Self::NoRoute,
        Self::HostUnreachable,
        Self::PortUnreachable,
        Self::TooBig,
        Self::TimeExceeded,
        Self::Prohibited,
        Self::ParameterProblem,
    ];

    /// The name of its counter.
    pub const fn name(self) -> &'static str {
        match self {
            Self::EchoReply => "echo_reply",
            Self::NoRoute => "no_route",
            Self::HostUnreachable => "host_unreachable",
            Self::PortUnreachable => "port_unreachable",
            Self::TooBig => "too_big",
            Self::TimeExceeded => "time_exceeded",
            Self::Prohibited => "prohibited",
            Self::ParameterProblem => "parameter_problem",
        }
    }

    pub(super) const fn of(error: IcmpError) -> Self {
        match error {
            IcmpError::NoRoute => Self::NoRoute,
            IcmpError::NoAnswer | IcmpError::RejectRoute => Self::HostUnreachable,
            IcmpError::NoPort => Self::PortUnreachable,
            IcmpError::TooBig(_) => Self::TooBig,
            IcmpError::TimeExceeded => Self::TimeExceeded,
            IcmpError::Prohibited => Self::Prohibited,
            IcmpError::ParameterProblem(_) => Self::ParameterProblem,
        }
    }
}

/// ICMP messages of an interface since its start. The family is 4 or 6.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IcmpCounters {
    sent: BTreeMap<(u8, IcmpSentKind), u64>,
    suppressed: BTreeMap<u8, u64>,
}

impl IcmpCounters {
    pub(super) fn count_sent(&mut self, family: u8, kind: IcmpSentKind) {
        *self.sent.entry((family, kind)).or_default() += 1;
    }

    pub(super) fn count_suppressed(&mut self, family: u8) {
        *self.suppressed.entry(family).or_default() += 1;
    }

    /// Messages of a family and a kind that were sent.
    pub fn sent(&self, family: u8, kind: IcmpSentKind) -> u64 {
        self.sent.get(&(family, kind)).copied().unwrap_or(0)
    }

    /// Messages of a family that a rate limit kept back.
    pub fn suppressed(&self, family: u8) -> u64 {
        self.suppressed.get(&family).copied().unwrap_or(0)
    }
}
