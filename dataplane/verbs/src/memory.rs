//! Memory access of an adapter: protection domains, memory regions and windows, keys and access
//! rights (IBA 10.2.3, 10.6); and the handles of all objects of an adapter.

use std::fmt;
use std::ops::BitOr;

macro_rules! handle {
    ($($(#[$meta:meta])* $name:ident),* $(,)?) => {$(
        $(#[$meta])*
        ///
        /// A handle is valid for the device that returned it until the object is destroyed. Later
        /// uses fail with [`NoSuch`](crate::VerbsError::NoSuch).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);
    )*};
}

handle! {
    /// A protection domain: its queue pairs can access only memory of the same domain.
    Pd,
    /// A completion queue.
    Cq,
    /// A shared receive queue.
    Srq,
    /// A queue pair (not its QPN).
    Qp,
    /// An address handle: the destination port of datagrams.
    Ah,
}

/// L_Key: identifies memory in local work requests.
#[repr(transparent)]
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LKey(pub u32);

/// R_Key: identifies memory in requests of peers.
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

/// Access rights of a memory region, or the rights that a queue pair grants to its peer.
///
/// Local reads are always allowed. Remote write and atomic rights require
/// [`Access::LOCAL_WRITE`] (IBA 10.6.3.1).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Access(u8);

impl Access {
    pub const NONE: Self = Self(0);
    /// The adapter may write receives and the responses of reads and atomics.
    pub const LOCAL_WRITE: Self = Self(1);
    pub const REMOTE_WRITE: Self = Self(2);
    pub const REMOTE_READ: Self = Self(4);
    pub const REMOTE_ATOMIC: Self = Self(8);
    /// Memory windows may be bound to the region.
    pub const BIND: Self = Self(16);
    pub const ALL: Self = Self(31);

    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    #[must_use]
    pub const fn remote(self) -> Self {
        Self(self.0 & (Self::REMOTE_WRITE.0 | Self::REMOTE_READ.0 | Self::REMOTE_ATOMIC.0))
    }

    /// Whether a region may have these rights: remote write and atomics require local write.
    pub const fn is_consistent(self) -> bool {
        let writes = Self::REMOTE_WRITE.0 | Self::REMOTE_ATOMIC.0;
        self.0 & writes == 0 || self.has(Self::LOCAL_WRITE)
    }

    /// The rights as five bits, in the order of the constants.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRegion {
    /// Address of the first byte, in work requests and for peers.
    pub address: u64,
    pub bytes: u64,
    pub lkey: LKey,
    /// Key for peers; useless without remote rights.
    pub rkey: RKey,
}

/// A memory window: an R_Key that a work request binds to part of a region, and that a work request
/// or a peer's Send with Invalidate revokes (IBA 10.6.7). The key changes with every bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryWindow {
    /// The key at creation, unbound.
    pub rkey: RKey,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_writes_require_local_write() {
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
