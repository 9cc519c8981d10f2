//! Why a node dropped what came in or was to go out, and how often.

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum NodeDrop {
    /// A directed route that cannot be: hop pointer and count contradict each other or the node.
    DirectedRoute,
    /// A management datagram without the key, or without the right one.
    MKey,
    /// An answer that nobody here asked for, or a request that nobody here takes.
    Unclaimed,
    /// A port that the node does not have.
    NoPort,
    /// The link of the port is down, or not yet ready for data.
    PortState,
    /// The forwarding table has no port for this address.
    NoRoute,
    /// Of a packet that has crossed as many routers as it may.
    Hops,
    /// Back where it came from.
    Reflected,
    /// To a group that no other port is in.
    NoMember,
    /// Of a partition that the port it came in by is not in.
    PKeyInbound,
    /// Of a partition that the port it would go out by is not in.
    PKeyOutbound,
    /// Raw, where raw packets are filtered.
    Raw,
    /// A service level without a lane.
    NoLane,
    /// There is no room left where it would wait.
    Full,
    /// Bytes that are no packet, or no datagram of management where one has to be.
    Malformed,
    /// A CRC that does not match.
    Crc,
    /// A datagram of general services without their Q_Key, or of a partition that is not the
    /// port's.
    Key,
    /// From a process, with a source LID that is not its port's.
    SourceLid,
    /// A subnet management datagram that would set something, from a port without the grant to.
    NotManager,
    /// A process that took nothing of what it was told, and was detached.
    Overrun,
    /// Memory that a process lends, for which the fabric has no descriptor left.
    NoDescriptor,
}

impl NodeDrop {
    /// Every reason.
    pub const ALL: [Self; 21] = [
        Self::DirectedRoute,
        Self::MKey,
        Self::Unclaimed,
        Self::NoPort,
        Self::PortState,
        Self::NoRoute,
        Self::Hops,
        Self::Reflected,
        Self::NoMember,
        Self::PKeyInbound,
        Self::PKeyOutbound,
        Self::Raw,
        Self::NoLane,
        Self::Full,
        Self::Malformed,
        Self::Crc,
        Self::Key,
        Self::SourceLid,
        Self::NotManager,
        Self::Overrun,
        Self::NoDescriptor,
    ];

    /// The name under which it is counted.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DirectedRoute => "directed_route",
            Self::MKey => "m_key",
            Self::Unclaimed => "unclaimed",
            Self::NoPort => "no_port",
            Self::PortState => "port_state",
            Self::NoRoute => "no_route",
            Self::Hops => "hops",
            Self::Reflected => "reflected",
            Self::NoMember => "no_member",
            Self::PKeyInbound => "p_key_inbound",
            Self::PKeyOutbound => "p_key_outbound",
            Self::Raw => "raw",
            Self::NoLane => "no_lane",
            Self::Full => "full",
            Self::Malformed => "malformed",
            Self::Crc => "crc",
            Self::Key => "key",
            Self::SourceLid => "source_lid",
            Self::NotManager => "not_manager",
            Self::Overrun => "overrun",
            Self::NoDescriptor => "no_descriptor",
        }
    }
}

/// Counts by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDrops {
    counts: [u64; NodeDrop::ALL.len()],
}

impl NodeDrops {
    /// Counts one.
    #[inline]
    pub fn count(&mut self, reason: NodeDrop) {
        self.counts[reason as usize] += 1;
    }

    /// How often it was this reason.
    pub fn of(&self, reason: NodeDrop) -> u64 {
        self.counts[reason as usize]
    }

    /// How often it was any.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_count_and_name() {
        let mut drops = NodeDrops::default();
        for (times, reason) in NodeDrop::ALL.into_iter().enumerate() {
            (0..times).for_each(|_| drops.count(reason));
        }
        for (times, reason) in NodeDrop::ALL.into_iter().enumerate() {
            assert_eq!(drops.of(reason), times as u64, "{}", reason.name());
        }
        assert_eq!(drops.total(), 210);
    }
}
