//! Why a packet was dropped or not taken, as names to count under.
//!
//! A drop ends a packet. A refusal does not: the packet is its sender's again, who decides.

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

            /// The name under which it is counted.
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
            /// Counts one.
            #[inline]
            pub fn count(&mut self, reason: $reason) {
                self.0[reason as usize] += 1;
            }

            /// How often it was this reason.
            pub fn of(&self, reason: $reason) -> u64 {
                self.0[reason as usize]
            }

            /// How often it was any.
            pub fn total(&self) -> u64 {
                self.0.iter().sum()
            }
        }
    };
}

reasons! {
    /// Why a packet ended here.
    PacketDrop,
    /// Drops by reason.
    PacketDrops {
        /// The receive failed: a message too long, or memory that the adapter may not write.
        ReceiveFailed = "receive_failed",
        /// Not a message but a peer's write, which nobody here allows.
        NotAMessage = "not_a_message",
        /// Too short for the encapsulation header.
        Runt = "runt",
        /// A type that the link does not carry.
        EtherType = "ether_type",
        /// Shorter than the least header of its type.
        Truncated = "truncated",
        /// IPv4 that says to be another version, or IPv6 that does.
        Version = "version",
        /// A GRH that is none.
        Grh = "grh",
        /// Our own, to a group that we are in ourselves.
        Echo = "echo",
        /// A completion of nothing that is outstanding.
        Stray = "stray",
        /// Accepted for a connection that ended first.
        ConnectionLost = "connection_lost",
        /// Accepted as a datagram that the adapter could not send.
        DatagramFailed = "datagram_failed",
    }
}

reasons! {
    /// Why a packet was not taken.
    Refusal,
    /// Refusals by reason.
    Refusals {
        /// Longer than what the way takes: to be fragmented, or answered by ICMP.
        TooBig = "too_big",
        /// The send queue is full: poll, then send again.
        Full = "full",
        /// The connection is gone and the packet is too long for a datagram: to be sent again when
        /// control has made another connection or given that up.
        Disconnected = "disconnected",
        /// Nobody has asked for the next hop's address yet.
        Unknown = "unknown",
        /// The next hop's address is being asked for.
        Pending = "pending",
        /// The next hop does not answer.
        Unreachable = "unreachable",
        /// The way is of an older table: an address handle that is no more.
        Stale = "stale",
        /// The netdev is not started, or not up again after an error.
        Down = "down",
        /// The buffer is not of the memory that the netdev's adapter knows, and too long to be
        /// copied.
        Foreign = "foreign",
        /// The buffer has no room for the header in front of the packet.
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
