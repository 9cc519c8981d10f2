//! Wake sockets: the sender of a direct ring uses one to wake the receiver.
//!
//! Each ring has its own pair of datagram sockets: the sender notifies by one socket, and the
//! receiver polls the other. So a sender can damage only its own ring. If several senders shared a
//! descriptor, each could take the notifications of the others, or block the descriptor.
//! [`WakeSet`] is one descriptor for all wake sockets of a client and its socket to the server.

use rustix::event::epoll::{CreateFlags, Event, EventData, EventFlags, add, create, wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The number of the socket to the server; the numbers of rings begin at 1.
pub(super) const SERVER: u64 = 0;
/// Readable descriptors that one call of [`WakeSet::ready`] returns at most.
const AT_ONCE: usize = 64;
/// Notifications that one call of [`clear`] takes: more than a socket holds.
const NOTIFICATIONS_MAX: usize = 1024;

/// All descriptors that end the sleep of a client.
#[derive(Debug)]
pub(super) struct WakeSet {
    epoll: OwnedFd,
}

/// The end that is polled, and the end that notifies.
pub(super) fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
}

pub(super) fn notify(end: &OwnedFd) {
    // Errors need no handling: a full socket wakes the receiver, too, and a closed one has none.
    let _ = send(end, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Takes all notifications, so that the next one ends a sleep.
pub(super) fn clear(end: &OwnedFd) {
    for _ in 0..NOTIFICATIONS_MAX {
        if recv(end, &mut [0; 1], RecvFlags::DONTWAIT).is_err() {
            break;
        }
    }
}

impl WakeSet {
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Self { epoll: create(CreateFlags::CLOEXEC)? })
    }

    /// Adds a descriptor, which ends sleeps until it is closed. `false` if the system refuses.
    #[must_use]
    pub(super) fn watch(&self, fd: impl AsFd, number: u64) -> bool {
        add(&self.epoll, fd, EventData::new_u64(number), EventFlags::IN).is_ok()
    }

    /// Calls `each` with the numbers of readable descriptors.
    pub(super) fn ready(&self, each: impl FnMut(u64)) {
        let mut events = [const { MaybeUninit::<Event>::uninit() }; AT_ONCE];
        let now = Timespec::default();
        if let Ok((events, _)) = wait(&self.epoll, &mut events, Some(&now)) {
            events.iter().map(|event| event.data.u64()).for_each(each);
        }
    }

    /// Sleeps until a descriptor is readable, for `longest` at most.
    pub(super) fn sleep(&self, longest: Duration) {
        // The caller polls everything after any wake-up.
        let longest = Timespec::try_from(longest).ok();
        let _ = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], longest.as_ref());
    }
}

impl AsFd for WakeSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(wake_set: &WakeSet) -> Vec<u64> {
        let mut numbers = Vec::new();
        wake_set.ready(|number| numbers.push(number));
        numbers
    }

    #[test]
    fn a_notification_is_seen_until_it_is_taken_or_its_socket_closes() {
        let wake_set = WakeSet::new().unwrap();
        let (near, far) = pair().unwrap();
        let (near_too, far_too) = pair().unwrap();
        assert!(
            wake_set.watch(&near, 7) && wake_set.watch(&near_too, 8) && ready(&wake_set).is_empty()
        );
        notify(&far);
        wake_set.sleep(Duration::from_secs(60));
        assert_eq!((ready(&wake_set), ready(&wake_set)), (vec![7], vec![7]));
        clear(&near);
        assert!(ready(&wake_set).is_empty());
        notify(&far_too);
        assert_eq!(ready(&wake_set), [8]);
        drop((near_too, far));
        assert!(ready(&wake_set).is_empty(), "one is closed, and nobody notifies the other");
        notify(&far_too);
        clear(&near);
    }

    #[test]
    fn a_flood_of_notifications_can_be_taken() {
        let (near, far) = pair().unwrap();
        (0..10_000).for_each(|_| notify(&far));
        clear(&near);
        let wake_set = WakeSet::new().unwrap();
        assert!(wake_set.watch(&near, 1) && ready(&wake_set).is_empty());
    }
}
