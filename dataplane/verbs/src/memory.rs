//! What an adapter may touch: protection domains, memory regions and windows, keys and rights
//! (IBA 10.2.3, 10.6); and the handles of everything that an adapter keeps.

use std::fmt;
use std::ops::BitOr;

macro_rules! handle {
    ($($(#[$meta:meta])* $name:ident),* $(,)?) => {$(
        $(#[$meta])*
        ///
        /// A handle is good for the device that gave it, until it is given back there; used after
        /// that, verbs answer [`NoSuch`](crate::VerbsError::NoSuch).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);
    )*};
}

handle! {
    /// A protection domain: queue pairs reach only memory of their own.
    Pd,
    /// A completion queue.
    Cq,
    /// A shared receive queue.
    Srq,
    /// A queue pair. Not its number, which is the network's name of it.
    Qp,
    /// An address handle: where datagrams go.
    Ah,
}

/// Names memory in work requests of its owner.
#[repr(transparent)]
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LKey(pub u32);

/// Names memory in requests of peers.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RKey(pub u32);

impl fmt::Debug for LKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LKey({:#x})", self.0)
    }
}

impl fmt::Debug for RKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RKey({:#x})", self.0)
    }
}

/// Rights to memory, and those of a queue pair to let peers use them.
///
/// Local reads are always allowed. Rights of peers to write include the owner's own: asking for
/// them without [`Access::LOCAL_WRITE`] is refused (IBA 10.6.3.1).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Access(u8);

impl Access {
    /// Only local reads.
    pub const NONE: Self = Self(0);
    /// Receives, and answers to reads and atomics, may be written there.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may write.
    pub const REMOTE_WRITE: Self = Self(2);
    /// Peers may read.
    pub const REMOTE_READ: Self = Self(4);
    /// Peers may do atomic operations.
    pub const REMOTE_ATOMIC: Self = Self(8);
    /// Windows may be bound to it.
    pub const BIND: Self = Self(16);
    /// Everything.
    pub const ALL: Self = Self(31);

    /// Whether these rights include `other`.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The rights that peers have among these.
    #[must_use]
    pub const fn remote(self) -> Self {
        Self(self.0 & (Self::REMOTE_WRITE.0 | Self::REMOTE_READ.0 | Self::REMOTE_ATOMIC.0))
    }

    /// Whether a region may have them: what peers write, the owner must be able to write.
    pub const fn is_consistent(self) -> bool {
        let writes = Self::REMOTE_WRITE.0 | Self::REMOTE_ATOMIC.0;
        self.0 & writes == 0 || self.has(Self::LOCAL_WRITE)
    }

    /// As five bits, in the order of the constants.
    pub const fn bits(self) -> u8 {
        self.0
    }
}

impl BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 5] =
            ["LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC", "BIND"];
        let held = NAMES.iter().enumerate().filter(|(bit, _)| self.0 >> bit & 1 == 1);
        f.debug_set().entries(held.map(|(_, name)| name)).finish()
    }
}

/// Registered memory: where it is, and its two names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRegion {
    /// First byte, as work requests and peers count.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// For work requests.
    pub lkey: LKey,
    /// For peers; of use to them only with remote rights.
    pub rkey: RKey,
}

/// A memory window: a key for peers that a work request binds to part of a region, and that a work
/// request or a peer's message ends (IBA 10.6.7). The key changes with every bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryWindow {
    /// The key at creation, bound to nothing.
    pub rkey: RKey,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_peers_write_the_owner_can_write() {
        assert!(Access::REMOTE_READ.is_consistent());
        assert!(!Access::REMOTE_WRITE.is_consistent());
        assert!(!(Access::REMOTE_ATOMIC | Access::REMOTE_READ).is_consistent());
        assert!((Access::REMOTE_WRITE | Access::LOCAL_WRITE).is_consistent());
    }

    #[test]
    fn rights_print_by_name() {
        let rights = Access::LOCAL_WRITE | Access::REMOTE_READ;
        assert_eq!(format!("{rights:?}"), r#"{"LOCAL_WRITE", "REMOTE_READ"}"#);
        assert_eq!(rights.remote(), Access::REMOTE_READ);
    }
}
