//! Counters of ICMP messages, by family and kind: those sent, and those suppressed by a rate limit.

use super::IcmpError;
use pollux_verbs::named_enum;
use std::collections::BTreeMap;

named_enum! {
    pub enum IcmpSentKind {
        EchoReply = "echo_reply",
        NoRoute = "no_route",
        HostUnreachable = "host_unreachable",
        PortUnreachable = "port_unreachable",
        TooBig = "too_big",
        TimeExceeded = "time_exceeded",
        Prohibited = "prohibited",
        ParameterProblem = "parameter_problem",
    }
}

impl IcmpSentKind {
    pub(super) const fn of(error: IcmpError) -> Self {
        match error {
            IcmpError::NoRoute => Self::NoRoute,
            IcmpError::AddressUnreachable | IcmpError::RejectRoute => Self::HostUnreachable,
            IcmpError::NoPort => Self::PortUnreachable,
            IcmpError::TooBig(_) => Self::TooBig,
            IcmpError::TimeExceeded => Self::TimeExceeded,
            IcmpError::Prohibited => Self::Prohibited,
            IcmpError::ParameterProblem(_) => Self::ParameterProblem,
        }
    }
}

/// The ICMP messages that an interface has sent or suppressed since its start, by family (4 or 6).
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

    pub fn sent(&self, family: u8, kind: IcmpSentKind) -> u64 {
        self.sent.get(&(family, kind)).copied().unwrap_or(0)
    }

    pub fn suppressed(&self, family: u8) -> u64 {
        self.suppressed.get(&family).copied().unwrap_or(0)
    }
}
