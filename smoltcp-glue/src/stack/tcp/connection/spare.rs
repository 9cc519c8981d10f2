//! Sockets of ended connections, for the next ones: their buffers are in memory, where those of a
//! new socket are mapped and zeroed page by page.

use super::Connection;
use crate::stack::config::TcpConfig;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};

/// The bytes of all buffers that are kept.
const SPARE_BYTES_MAX: usize = 16 << 20;

/// A set with the one socket of a connection.
pub(super) type OneSocket = (SocketSet<'static>, SocketHandle);

#[derive(Default)]
pub(in crate::stack::tcp) struct SpareSockets {
    all: Vec<OneSocket>,
}

impl SpareSockets {
    /// Keeps the socket of a connection that has ended. smoltcp leaves traces of losses in one.
    pub(in crate::stack::tcp) fn keep(&mut self, connection: Connection) {
        let has_lost = connection.loss_recovery.retransmitted.0 > 0;
        let is_closed = connection.state() == State::Closed;
        let socket = connection.socket_ref();
        let bytes = (socket.recv_capacity() + socket.send_capacity()).max(1);
        if is_closed && !has_lost && self.all.len() < SPARE_BYTES_MAX / bytes {
            self.all.push((connection.sockets, connection.handle));
        }
    }

    /// A closed socket. smoltcp clears all else when it connects or listens.
    pub(super) fn take(&mut self, config: &TcpConfig) -> OneSocket {
        let (mut sockets, handle) = self.all.pop().unwrap_or_else(|| new(config));
        let socket: &mut Socket<'_> = sockets.get_mut(handle);
        socket.set_nagle_enabled(config.nagle);
        // A new sender has a small window, and waits for each acknowledgment.
        socket.set_ack_delay(None);
        (sockets, handle)
    }
}

fn new(config: &TcpConfig) -> OneSocket {
    let buffer = |bytes| SocketBuffer::new(vec![0; bytes]);
    let socket = Socket::new(buffer(config.receive_bytes), buffer(config.send_bytes));
    let mut sockets = SocketSet::new(Vec::with_capacity(1));
    let handle = sockets.add(socket);
    (sockets, handle)
}
