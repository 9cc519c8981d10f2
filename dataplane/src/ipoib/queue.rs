//! Outstanding requests: the sends of a queue pair with their buffers, and the count of receives.
//!
//! The adapter owns a buffer from the post to the completion. Most sends are unsignaled. If a batch
//! posts a buffer, its last send is signaled, so that no buffer waits for later traffic. An inline
//! send leaves no buffer outstanding, only a slot, so only one in [`UNSIGNALED_MAX`] is signaled.

use pollux_mem::Buf;
use pollux_verbs::SendFlags;

/// The maximum distance between two signaled sends.
pub(super) const UNSIGNALED_MAX: u32 = 32;

/// Outstanding sends of a queue pair, oldest first.
#[derive(Debug)]
pub(super) struct SendQueue {
    /// The slots of inline sends are empty. The number of slots is a power of two.
    held: Box<[Option<Buf>]>,
    head: u32,
    tail: u32,
    /// One past the last signaled send.
    signaled_end: u32,
    unsignaled: u32,
    /// Whether a buffer was posted since the last signaled send.
    holds_unsignaled_buffer: bool,
}

impl SendQueue {
    /// A queue for at least `requests_max` sends.
    pub(super) fn new(requests_max: u32) -> Self {
        let slots = Self::capacity(requests_max);
        let held = (0..slots).map(|_| None).collect();
        Self {
            held,
            head: 0,
            tail: 0,
            signaled_end: 0,
            unsignaled: 0,
            holds_unsignaled_buffer: false,
        }
    }

    pub(super) fn capacity(requests_max: u32) -> u32 {
        requests_max.max(2 * UNSIGNALED_MAX).next_power_of_two()
    }

    #[inline]
    pub(super) fn free_slots(&self) -> usize {
        self.held.len() - self.outstanding() as usize
    }

    #[inline]
    fn outstanding(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// The sequence number of the send at index `behind` of a batch.
    #[inline]
    pub(super) fn number(&self, behind: usize) -> u32 {
        self.tail.wrapping_add(behind as u32)
    }

    /// The flags of the next send of a batch. Call it once for each send, in order.
    #[inline]
    pub(super) fn flags(&mut self, holds_buffer: bool, is_last: bool) -> SendFlags {
        self.unsignaled += 1;
        self.holds_unsignaled_buffer |= holds_buffer;
        if self.unsignaled < UNSIGNALED_MAX && !(is_last && self.holds_unsignaled_buffer) {
            return SendFlags::NONE;
        }
        (self.unsignaled, self.holds_unsignaled_buffer) = (0, false);
        SendFlags::SIGNALED
    }

    /// Signals the next send, after the adapter accepted only part of a batch, perhaps without its
    /// signaled send.
    pub(super) fn signal_next(&mut self) {
        self.unsignaled = UNSIGNALED_MAX;
    }

    #[inline]
    pub(super) fn push(&mut self, held: Buf, flags: SendFlags) {
        let mask = self.held.len() - 1;
        self.held[self.tail as usize & mask] = Some(held);
        self.push_inline(flags);
    }

    #[inline]
    pub(super) fn push_inline(&mut self, flags: SendFlags) {
        self.tail = self.tail.wrapping_add(1);
        if flags.has(SendFlags::SIGNALED) {
            self.signaled_end = self.tail;
        }
    }

    /// Completes the send with this number and all sends before it, and passes their buffers to
    /// `free`. Returns `false` if the send is not outstanding.
    #[inline]
    pub(super) fn retire(&mut self, number: u32, mut free: impl FnMut(Buf)) -> bool {
        let count = number.wrapping_sub(self.head).wrapping_add(1);
        if count == 0 || count > self.outstanding() {
            return false;
        }
        let mask = self.held.len() - 1;
        for _ in 0..count {
            if let Some(buf) = self.held[self.head as usize & mask].take() {
                free(buf);
            }
            self.head = self.head.wrapping_add(1);
        }
        true
    }

    pub(super) fn is_drained(&self) -> bool {
        let behind = self.tail.wrapping_sub(self.signaled_end);
        self.outstanding() <= behind
    }

    pub(super) fn oldest(&self) -> Option<u32> {
        (!self.is_drained()).then_some(self.head)
    }

    /// Frees all outstanding sends, when the queue pair is destroyed or reset.
    pub(super) fn clear(&mut self, mut free: impl FnMut(Buf)) {
        self.held.iter_mut().filter_map(Option::take).for_each(&mut free);
        let tail = self.tail;
        (self.head, self.signaled_end, self.unsignaled, self.holds_unsignaled_buffer) =
            (tail, tail, 0, false);
    }
}

impl Drop for SendQueue {
    /// The adapter may still read posted buffers, so they are leaked, not reused.
    fn drop(&mut self) {
        self.held.iter_mut().filter_map(Option::take).for_each(Buf::leak);
    }
}

/// The number of posted receives and the number to keep posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receives {
    pub(super) posted: u32,
    pub(super) target: u32,
}

impl Receives {
    pub(super) const fn new(target: u32) -> Self {
        Self { posted: 0, target }
    }

    /// How many receives to post now. None until a quarter of the target (at most `batch`) is
    /// missing, because fewer receives are not worth a doorbell.
    #[inline]
    pub(super) fn wanted(&self, batch: u32) -> u32 {
        let missing = self.target.saturating_sub(self.posted);
        let least = (self.target / 4).clamp(1, batch);
        if missing < least { 0 } else { missing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_mem::{Pool, PoolConfig};

    const SIGNALED: SendFlags = SendFlags::SIGNALED;

    fn pool() -> Pool {
        let config = PoolConfig { buffers: 64, buffer_bytes: 64, headroom_bytes: 0 };
        Pool::new(config).unwrap()
    }

    #[test]
    fn a_batch_with_a_buffer_ends_with_a_signaled_send() {
        let mut queue = SendQueue::new(64);
        assert_eq!(queue.flags(true, false), SendFlags::NONE);
        assert_eq!(queue.flags(false, true), SIGNALED);
        assert_eq!(queue.flags(false, true), SendFlags::NONE, "no buffer is outstanding");
        let flags: Vec<_> = (0..2 * UNSIGNALED_MAX).map(|_| queue.flags(false, true)).collect();
        assert_eq!(flags.iter().filter(|&&flags| flags == SIGNALED).count(), 2);
    }

    #[test]
    fn a_completion_retires_all_sends_before_it() {
        let (pool, mut queue) = (pool(), SendQueue::new(64));
        queue.tail = u32::MAX - 1;
        queue.clear(drop);
        let first = queue.number(0);
        for nth in 0..4 {
            let flags = if nth == 2 { SIGNALED } else { SendFlags::NONE };
            queue.push(pool.alloc().unwrap(), flags);
        }
        assert!(!queue.is_drained());
        let mut freed = Vec::new();
        assert!(queue.retire(first.wrapping_add(2), |buf| freed.push(buf.index())));
        assert_eq!((freed, queue.free_slots()), (vec![0, 1, 2], 63));
        assert!(queue.is_drained(), "the last one is unsignaled");
        assert!(!queue.retire(first, drop), "it is retired already");
        assert!(!queue.retire(first.wrapping_add(4), drop), "not posted");
        queue.clear(drop);
        assert_eq!((queue.free_slots(), pool.outstanding()), (64, 0));
    }

    #[test]
    fn receives_are_posted_once_a_quarter_or_a_batch_is_missing() {
        let wanted = |posted, target| Receives { posted, target }.wanted(32);
        assert_eq!((wanted(256, 256), wanted(240, 256), wanted(224, 256)), (0, 0, 32));
        assert_eq!((wanted(2, 3), wanted(0, 1), wanted(0, 256)), (1, 1, 256));
        assert_eq!(wanted(9, 3), 0);
    }
}
