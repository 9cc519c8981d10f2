//! Follows the kernel's routes: [`KernelRoutes`] with its netlink sockets.
//!
//! The control thread waits on both descriptors, and on the clock for
//! [`KernelRouteWatch::poll_timeout`]; then it calls [`KernelRouteWatch::turn`], whose work is
//! bounded.

use super::KernelError;
use super::netlink_socket::{NetlinkReceived, NetlinkSocket, RECEIVE_BYTES};
use pollux_control::router::kernel_routes::{KernelRouteChange, KernelRoutes, KernelRoutesConfig};
use pollux_verbs::time::Time;
use pollux_wire::netlink::{NetlinkMessage, NetlinkMessages};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};

/// Size of the receive buffer for notifications, in bytes. The kernel doubles it, so that it holds
/// about 40,000 notifications of 832 bytes each (Linux 6.18).
pub const NOTIFICATION_BYTES: usize = 16 * 1024 * 1024;

/// Maximum number of datagrams that a turn reads: 4,096 notifications, or 8 MiB of a dump.
const RECEIVES_PER_TURN: usize = 4096;
const DUMP_RECEIVES_PER_TURN: usize = 256;

#[derive(Debug, Default)]
pub struct KernelTurn {
    /// The net changes of routes, to be committed at once.
    pub changes: Vec<KernelRouteChange>,
    /// More can be read now: call again soon.
    pub more: bool,
}

#[derive(Debug)]
pub struct KernelRouteWatch {
    routes: KernelRoutes,
    notifications: NetlinkSocket,
    dumps: NetlinkSocket,
    /// Sequence number of the current dump.
    sequence: u32,
    buffer: Box<[u8]>,
}

impl KernelRouteWatch {
    /// Subscribes to the kernel's notifications, with a receive buffer of about `receive_bytes`
    /// ([`NOTIFICATION_BYTES`]). The first turns read the tables.
    pub fn open(config: KernelRoutesConfig, receive_bytes: usize) -> Result<Self, KernelError> {
        Ok(Self {
            routes: KernelRoutes::new(config),
            // Notifications come first, so that no change is missed between them and the dump.
            notifications: NetlinkSocket::for_notifications(receive_bytes)?,
            dumps: NetlinkSocket::for_requests()?,
            sequence: 0,
            buffer: vec![0; RECEIVE_BYTES].into(),
        })
    }

    /// The mirror: counters, published routes, whether it is synchronized.
    pub const fn routes(&self) -> &KernelRoutes {
        &self.routes
    }

    /// Names of links that were set up since the last call.
    pub fn take_links_up(&mut self) -> BTreeSet<String> {
        self.routes.take_links_up()
    }

    pub fn set_config(&mut self, config: KernelRoutesConfig, now: Time) {
        self.routes.set_config(config, now);
    }

    /// The descriptor to wait on: the dump socket during a dump, else the notification socket.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        let notifications = self.routes.wants_notifications();
        if notifications { self.notifications.as_fd() } else { self.dumps.as_fd() }
    }

    /// When to call [`Self::turn`] even if nothing can be read.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.routes.poll_timeout()
    }

    /// Reads pending messages, up to the limits of a turn.
    pub fn turn(&mut self, now: Time) -> Result<KernelTurn, KernelError> {
        if !self.turn_dump(now)? {
            return Ok(KernelTurn { more: true, ..KernelTurn::default() });
        }
        if !self.routes.wants_notifications() {
            return Ok(KernelTurn::default());
        }
        for _ in 0..RECEIVES_PER_TURN {
            match self.notifications.receive(&mut self.buffer)? {
                NetlinkReceived::Overrun => self.routes.handle_overrun(now),
                NetlinkReceived::Drained => {
                    let changes = self.routes.handle_drained(now);
                    return Ok(KernelTurn { changes, more: false });
                }
                NetlinkReceived::Datagram(datagram) => {
                    for message in NetlinkMessages::new(datagram) {
                        match message {
                            Ok(message) => self.routes.handle_notification(&message, now),
                            Err(_) => self.routes.handle_overrun(now),
                        }
                    }
                }
            }
        }
        Ok(KernelTurn { changes: self.routes.handle_busy(), more: true })
    }

    /// Reads messages of a dump. Returns `false` if the limit of a turn cut this short.
    fn turn_dump(&mut self, now: Time) -> Result<bool, KernelError> {
        for _ in 0..DUMP_RECEIVES_PER_TURN {
            if let Some(kind) = self.routes.poll_dump(now) {
                match self.dumps.send_dump(kind) {
                    Ok(sequence) => self.sequence = sequence,
                    Err(_) => self.fail_dump(now)?,
                }
            }
            if self.routes.wants_notifications() {
                return Ok(true);
            }
            match self.dumps.receive(&mut self.buffer)? {
                NetlinkReceived::Drained => return Ok(true),
                NetlinkReceived::Overrun => self.fail_dump(now)?,
                NetlinkReceived::Datagram(datagram) => {
                    let of_dump =
                        |message: &NetlinkMessage<'_>| message.header.sequence == self.sequence;
                    for message in NetlinkMessages::new(datagram).flatten().filter(of_dump) {
                        self.routes.handle_dump(&message, now);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Starts the dump over with a new socket, which holds no messages of the failed dump.
    fn fail_dump(&mut self, now: Time) -> Result<(), KernelError> {
        self.routes.handle_dump_failure(now);
        self.dumps = NetlinkSocket::for_requests()?;
        Ok(())
    }
}
