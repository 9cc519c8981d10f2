//! Event queues that programs read from a descriptor: a socket pair that carries one record per
//! read.
//!
//! The answer to a destroy command contains the number of the object's events that the program has
//! read. The verbs library then waits until this many events were acknowledged. Unread events of
//! the object therefore have to be removed from the socket.
//!
//! Why not a pipe: a thread of the program may read the same end while this library removes
//! records. That requires a read that never blocks, even if the program's own reads block.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;

/// A queue of records of `N` bytes. A record begins with the 8-byte handle of its object.
#[derive(Debug)]
pub(crate) struct EventQueue<const N: usize> {
    sender: OwnedFd,
    /// A duplicate of the program's descriptor, to remove unread records.
    receiver: OwnedFd,
    /// Records that did not fit in the socket.
    waiting: VecDeque<[u8; N]>,
    /// The number of records of each object, those in `waiting` included.
    sent: BTreeMap<u64, u32>,
}

impl<const N: usize> EventQueue<N> {
    /// Returns the queue, and the descriptor for the program.
    pub(crate) fn new() -> Result<(Self, OwnedFd), Errno> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (receiver, sender) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
        let own = receiver.try_clone().map_err(|_| Errno::MFILE)?;
        let (waiting, sent) = (VecDeque::new(), BTreeMap::new());
        Ok((Self { sender, receiver: own, waiting, sent }, receiver))
    }

    pub(crate) fn send(&mut self, object: u64, record: [u8; N]) {
        *self.sent.entry(object).or_default() += 1;
        self.waiting.push_back(record);
        self.flush();
    }

    /// Sends waiting records, as far as the socket has space.
    pub(crate) fn flush(&mut self) {
        while let Some(record) = self.waiting.front() {
            if send(&self.sender, record, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_err() {
                return;
            }
            self.waiting.pop_front();
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Removes the unread records of an object that is destroyed. Returns the number of its records
    /// that the program has read.
    pub(crate) fn end(&mut self, object: u64) -> u32 {
        let mut unread: VecDeque<[u8; N]> = VecDeque::new();
        let mut record = [0; N];
        let read = |record: &mut [u8; N]| recv(&self.receiver, record, RecvFlags::DONTWAIT);
        while matches!(read(&mut record), Ok((_, bytes)) if bytes == N) {
            unread.push_back(record);
        }
        unread.append(&mut self.waiting);
        let all = unread.len();
        unread.retain(|record| object_of(record) != object);
        let back = (all - unread.len()) as u32;
        self.waiting = unread;
        self.flush();
        self.sent.remove(&object).unwrap_or(0).saturating_sub(back)
    }
}

fn object_of(record: &[u8]) -> u64 {
    record.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::read;

    #[test]
    fn an_object_that_ends_takes_its_unread_events_back() {
        let (mut queue, program) = EventQueue::<8>::new().unwrap();
        for object in [1, 2, 1, 1u64] {
            queue.send(object, object.to_ne_bytes());
        }
        let mut first = [0; 8];
        assert_eq!(read(&program, &mut first), Ok(8));
        assert_eq!(queue.end(1), 1);
        assert_eq!(read(&program, &mut first), Ok(8));
        assert_eq!(u64::from_ne_bytes(first), 2);
        assert_eq!((queue.end(2), queue.end(3)), (1, 0));
    }

    #[test]
    fn a_full_socket_keeps_events_for_later() {
        let (mut queue, program) = EventQueue::<16>::new().unwrap();
        let sent = 10_000_u64;
        for object in 0..sent {
            let mut record = [0; 16];
            record[..8].copy_from_slice(&object.to_ne_bytes());
            queue.send(object, record);
        }
        assert!(queue.is_full());
        for object in 0..sent {
            let mut record = [0; 16];
            assert_eq!(read(&program, &mut record), Ok(16));
            assert_eq!(object_of(&record), object);
            queue.flush();
        }
    }
}
