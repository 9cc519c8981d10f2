//! Counters of dropped and refused packets, by reason.
//!
//! A dropped packet is gone. A refused packet is returned to its sender, which decides what to do.

macro_rules! reasons {
    (
        $(#[$meta:meta])* $reason:ident,
        $(#[$counts_meta:meta])* $counts:ident {
            $($(#[$doc:meta])* $variant:ident = $name:literal,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $reason { $($(#[$doc])* $variant,)* }

        impl $reason {
            /// Every reason.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name of its counter.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }

        $(#[$counts_meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $counts([u64; $reason::ALL.len()]);

        impl Default for $counts {
            fn default() -> Self {
                Self([0; $reason::ALL.len()])
            }
        }

        impl $counts {
            /// Counts a packet.
            #[inline]
            pub fn count(&mut self, reason: $reason) {
                self.0[reason as usize] += 1;
            }

            /// The count of a reason.
            pub fn of(&self, reason: $reason) -> u64 {
                self.0[reason as usize]
            }

            /// The total of all reasons.
            pub fn total(&self) -> u64 {
                self.0.iter().sum()
            }
        }
    };
}

reasons! {
    /// Why a packet was dropped.
    PacketDrop,
    /// Drops by reason.
    PacketDrops {
        /// The receive failed: a message too long, or memory that the adapter may not write.
        ReceiveFailed = "receive_failed",
        /// Not a message but a peer's RDMA write, which is not allowed.
        NotAMessage = "not_a_message",
        /// Too short for the encapsulation header.
        Runt = "runt",
        /// Not an EtherType of IPoIB.
        EtherType = "ether_type",
        /// Shorter than the minimum header of its type.
        Truncated = "truncated",
        /// The IP version differs from the type.
        Version = "version",
        /// An invalid GRH.
        Grh = "grh",
        /// An own multicast packet, received back.
        Echo = "echo",
        /// A completion of no outstanding request.
        Stray = "stray",
        /// Posted on a connection that failed or ended first.
        ConnectionLost = "connection_lost",
        /// Posted as a datagram that the adapter could not send.
        DatagramFailed = "datagram_failed",
    }
}

reasons! {
    /// Why a packet was refused.
    Refusal,
    /// Refusals by reason.
    Refusals {
        /// Longer than the MTU: to be fragmented, or answered with an ICMP error.
        TooBig = "too_big",
        /// The send queue is full: poll, then send again.
        Full = "full",
        /// The connection is gone and the packet is too long for a datagram: send it again when
        /// control has made another connection or failed to.
        Disconnected = "disconnected",
        /// The next hop is not resolved, and no request is pending.
        Unknown = "unknown",
        /// The resolution of the next hop is pending.
        Pending = "pending",
        /// The resolution of the next hop failed.
        Unreachable = "unreachable",
        /// The address handle of the route, which is of an older table, is destroyed.
        Stale = "stale",
        /// The netdev is stopped, or recovering from an error.
        Down = "down",
        /// The buffer is not of registered memory, and the packet is too long to send inline.
        Foreign = "foreign",
        /// The buffer has no headroom for the encapsulation header.
        NoHeadroom = "no_headroom",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_reason_has_its_count_and_name() {
        let mut drops = PacketDrops::default();
        for (times, &reason) in PacketDrop::ALL.iter().enumerate() {
            (0..times).for_each(|_| drops.count(reason));
        }
        for (times, &reason) in PacketDrop::ALL.iter().enumerate() {
            assert_eq!(drops.of(reason), times as u64, "{}", reason.name());
        }
        assert_eq!(drops.total(), 55);
        let drops = PacketDrop::ALL.iter().map(|reason| reason.name());
        let names: BTreeSet<_> = drops.chain(Refusal::ALL.iter().map(|why| why.name())).collect();
        assert_eq!(names.len(), PacketDrop::ALL.len() + Refusal::ALL.len());
    }
}
