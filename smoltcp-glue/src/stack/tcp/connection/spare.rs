//! Keeps the sockets of ended connections for new ones. The pages of their buffers are mapped
//! already; those of a new socket are mapped and zeroed one by one.

use super::Connection;
use crate::stack::config::TcpConfig;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer, State};

/// Maximum bytes of all kept buffers.
const SPARE_BYTES_MAX: usize = 16 << 20;

/// A set with the one socket of a connection.
pub(super) type OneSocket = (SocketSet<'static>, SocketHandle);

pub(in crate::stack::tcp) struct SpareSockets {
    all: Vec<OneSocket>,
    /// smoltcp's default, which depends on its features.
    congestion_control: CongestionControl,
}

impl Default for SpareSockets {
    fn default() -> Self {
        let empty = || SocketBuffer::new(Vec::new());
        let congestion_control = Socket::new(empty(), empty()).congestion_control();
        Self { all: Vec::new(), congestion_control }
    }
}

impl SpareSockets {
    /// Keeps the socket of a connection that has ended, unless it had retransmissions: smoltcp does
    /// not clear all state of losses.
    pub(in crate::stack::tcp) fn keep(&mut self, connection: Connection) {
        let has_lost = connection.loss_recovery.retransmitted.0 > 0;
        let is_closed = connection.state() == State::Closed;
        let socket = connection.socket_ref();
        let bytes = (socket.recv_capacity() + socket.send_capacity()).max(1);
        if is_closed && !has_lost && self.all.len() < SPARE_BYTES_MAX / bytes {
            self.all.push((connection.sockets, connection.handle));
        }
    }

    /// A closed socket. When it connects or listens, smoltcp clears its other state.
    pub(super) fn take(&mut self, config: &TcpConfig) -> OneSocket {
        let (mut sockets, handle) = self.all.pop().unwrap_or_else(|| new(config));
        let socket: &mut Socket<'_> = sockets.get_mut(handle);
        // smoltcp would keep the congestion window of the ended connection.
        socket.set_congestion_control(self.congestion_control);
        socket.set_nagle_enabled(config.nagle);
        // Acknowledgments are not delayed at first: the sender of a new connection has a small
        // window, and waits for each of them.
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
