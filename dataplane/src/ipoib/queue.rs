//! What is outstanding in a send queue, and how many receives in another.
//!
//! A buffer is the adapter's from the post to the completion. Most posts ask for no completion:
//! those that leave a buffer outstanding ask at the end of their batch, so that no buffer waits for
//! traffic that may never come; inline ones, which leave nothing behind but their place in the
//! queue, once in [`SILENT_MAX`].

use pollux_mem::Buf;
use pollux_verbs::SendFlags;

/// Sends in a row without a completion.
pub(super) const SILENT_MAX: u32 = 32;

/// The sends outstanding at a queue pair, oldest first.
#[derive(Debug)]
pub(super) struct SendQueue {
    /// A ring of a power of two; inline sends leave their place empty.
    held: Box<[Option<Buf>]>,
    head: u32,
    tail: u32,
    /// Behind the last one that asked for a completion.
    asked: u32,
    silent: u32,
    /// A buffer was posted since.
    owes: bool,
}

impl SendQueue {
    /// A queue for so many sends, rounded up: at least two completions are asked for in a round.
    pub(super) fn new(requests_max: u32) -> Self {
        let places = Self::places(requests_max);
        let held = (0..places).map(|_| None).collect();
        Self { held, head: 0, tail: 0, asked: 0, silent: 0, owes: false }
    }

    /// How many sends a queue for so many has room for.
    pub(super) fn places(requests_max: u32) -> u32 {
        requests_max.max(2 * SILENT_MAX).next_power_of_two()
    }

    /// How many sends fit.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.held.len() - self.outstanding() as usize
    }

    #[inline]
    fn outstanding(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// The number that the send gets which stands `behind` others of a batch.
    #[inline]
    pub(super) fn number(&self, behind: usize) -> u32 {
        self.tail.wrapping_add(behind as u32)
    }

    /// How the next send of a batch is to be posted; to be asked for each in turn.
    #[inline]
    pub(super) fn flags(&mut self, holds_buffer: bool, is_last: bool) -> SendFlags {
        self.silent += 1;
        self.owes |= holds_buffer;
        if self.silent < SILENT_MAX && !(is_last && self.owes) {
            return SendFlags::NONE;
        }
        (self.silent, self.owes) = (0, false);
        SendFlags::SIGNALED
    }

    /// The adapter took less than was announced, perhaps without what was to complete.
    pub(super) fn cut_short(&mut self) {
        self.silent = SILENT_MAX;
    }

    /// A send was posted that keeps its buffer here.
    #[inline]
    pub(super) fn push(&mut self, held: Buf, flags: SendFlags) {
        let mask = self.held.len() - 1;
        self.held[self.tail as usize & mask] = Some(held);
        self.push_inline(flags);
    }

    /// A send was posted that leaves nothing but its place.
    #[inline]
    pub(super) fn push_inline(&mut self, flags: SendFlags) {
        self.tail = self.tail.wrapping_add(1);
        if flags.has(SendFlags::SIGNALED) {
            self.asked = self.tail;
        }
    }

    /// The send of this number is done, and so are all before it: their buffers go to `free`. Says
    /// whether it was outstanding.
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

    /// Whether everything is done that will ever complete.
    pub(super) fn is_drained(&self) -> bool {
        let behind = self.tail.wrapping_sub(self.asked);
        self.outstanding() <= behind
    }

    /// Ends what is outstanding, when the queue pair is gone or reset.
    pub(super) fn clear(&mut self, mut free: impl FnMut(Buf)) {
        self.held.iter_mut().filter_map(Option::take).for_each(&mut free);
        let tail = self.tail;
        (self.head, self.asked, self.silent, self.owes) = (tail, tail, 0, false);
    }
}

impl Drop for SendQueue {
    /// What is still posted the adapter may still read: nobody gets those buffers any more.
    fn drop(&mut self) {
        self.held.iter_mut().filter_map(Option::take).for_each(Buf::leak);
    }
}

/// How many receives a queue has, of how many it shall have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receives {
    pub(super) posted: u32,
    pub(super) target: u32,
}

impl Receives {
    pub(super) const fn new(target: u32) -> Self {
        Self { posted: 0, target }
    }

    /// How many to post now: few are not worth a doorbell, unless few are all there are.
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
    fn a_batch_with_a_buffer_ends_in_a_completion() {
        let mut queue = SendQueue::new(64);
        assert_eq!(queue.flags(true, false), SendFlags::NONE);
        assert_eq!(queue.flags(false, true), SIGNALED);
        assert_eq!(queue.flags(false, true), SendFlags::NONE, "nothing is owed");
        let flags: Vec<_> = (0..2 * SILENT_MAX).map(|_| queue.flags(false, true)).collect();
        assert_eq!(flags.iter().filter(|&&flags| flags == SIGNALED).count(), 2);
    }

    #[test]
    fn a_completion_ends_all_before_it() {
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
        assert_eq!((freed, queue.room()), (vec![0, 1, 2], 63));
        assert!(queue.is_drained(), "nobody will tell of the last one");
        assert!(!queue.retire(first, drop), "done before");
        assert!(!queue.retire(first.wrapping_add(4), drop), "not posted");
        queue.clear(drop);
        assert_eq!((queue.room(), pool.outstanding()), (64, 0));
    }

    #[test]
    fn few_receives_are_asked_for_at_once_or_not_at_all() {
        let wanted = |posted, target| Receives { posted, target }.wanted(32);
        assert_eq!((wanted(256, 256), wanted(240, 256), wanted(224, 256)), (0, 0, 32));
        assert_eq!((wanted(2, 3), wanted(0, 1), wanted(0, 256)), (1, 1, 256));
        assert_eq!(wanted(9, 3), 0);
    }
}
