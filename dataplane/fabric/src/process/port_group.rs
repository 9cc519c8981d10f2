//! The group of contexts that share a port: a common secret, and which contexts are taken.
//!
//! The first adapter at a port makes the secret, and every
//! [`Attach`](super::control_message::Attach) shows it. After a server restart the members of the
//! group can attach in any order. The secret, not the order of arrival, identifies the group, so
//! its port cannot be taken by others meanwhile.

use pollux_hca::PORT_CONTEXTS_MAX;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A context at a shared port, taken until this is dropped.
pub(super) struct GroupMember {
    group: Arc<PortGroup>,
    context: u8,
}

struct PortGroup {
    secret: u64,
    /// A bit for each context that is taken.
    taken: AtomicU32,
}

const _: () = assert!(PORT_CONTEXTS_MAX as u32 == u32::BITS);

impl GroupMember {
    /// The first member of a new group, in context 0.
    pub(super) fn first() -> Self {
        // Its keys are the system's randomness, and nobody guesses them.
        let secret = RandomState::new().hash_one(());
        Self { group: Arc::new(PortGroup { secret, taken: AtomicU32::new(1) }), context: 0 }
    }

    /// Another member; none if all contexts are taken. Context 0 is never given out again.
    pub(super) fn another(&self) -> Option<Self> {
        let free = |taken: u32| Some((taken | 1).trailing_ones()).filter(|free| *free < u32::BITS);
        let taken = &self.group.taken;
        let before = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            free(taken).map(|free| taken | 1 << free)
        });
        let context = before.ok().and_then(free)? as u8;
        Some(Self { group: self.group.clone(), context })
    }

    pub(super) fn context(&self) -> u8 {
        self.context
    }

    pub(super) fn secret(&self) -> u64 {
        self.group.secret
    }
}

impl Drop for GroupMember {
    fn drop(&mut self) {
        self.group.taken.fetch_and(!(1 << self.context), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_context_is_taken_once() {
        let first = GroupMember::first();
        assert_ne!(first.secret(), GroupMember::first().secret());
        let mut others: Vec<GroupMember> = std::iter::from_fn(|| first.another()).collect();
        assert!(others.iter().map(GroupMember::context).eq(1..PORT_CONTEXTS_MAX));
        assert!(others.iter().all(|other| other.secret() == first.secret()));
        drop(others.remove(2));
        drop(first);
        let last = others[0].another();
        assert_eq!(last.as_ref().map(GroupMember::context), Some(3));
        assert!(others[0].another().is_none(), "the first context is gone with the first");
    }
}
