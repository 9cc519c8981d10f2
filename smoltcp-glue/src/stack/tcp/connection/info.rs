//! The state and the counters of a connection, for applications and administrators.

use super::recovery::Recovery;
use super::{Connection, TcpError};
use crate::stack::mtu::Mtus;
use crate::stack::{Stack, TcpId, TcpState};
use pollux_verbs::time::Time;
use std::time::Duration;

/// A snapshot of a connection, with the values of `TCP_INFO` and `ss -ti` on Linux. Sizes are in
/// bytes of data. Counters begin when the connection is opened.
///
/// The delivery rate is not measured; it is the growth of `bytes_acknowledged` in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpInfo {
    /// The state (RFC 9293 3.3.2).
    pub state: TcpState,
    /// The smoothed round-trip time, from samples of the handshake and then of one segment every 10
    /// ms; `None` before the first sample. If the peer delays acknowledgments, it includes that
    /// delay.
    pub rtt: Option<Duration>,
    /// The variation of the round-trip time (RFC 6298 2).
    pub rtt_variation: Duration,
    /// The retransmission timeout.
    pub rto: Duration,
    /// The congestion window; `None` before the first loss recovery. Until then, smoltcp's own
    /// congestion window limits the connection, and is not reported.
    pub congestion_window: Option<usize>,
    /// The slow start threshold, if a loss has set it.
    pub slow_start_threshold: Option<usize>,
    /// Whether the connection is in loss recovery: after a recent loss or timeout, or while the
    /// congestion window of an earlier recovery limits it.
    pub is_in_loss_recovery: bool,
    /// The window that the peer advertises.
    pub send_window: usize,
    /// The free space of the receive buffer.
    pub receive_window: usize,
    /// The longest segment that is sent.
    pub mss: usize,
    /// The MTU of the path to the peer.
    pub path_mtu: u32,
    /// Bytes that were sent and are not acknowledged.
    pub bytes_in_flight: usize,
    /// Bytes that were written and are not acknowledged.
    pub send_queue: usize,
    /// Bytes that were received and are not read.
    pub receive_queue: usize,
    /// Bytes sent, retransmissions included.
    pub bytes_sent: u64,
    /// Bytes that the peer has acknowledged.
    pub bytes_acknowledged: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
    /// Bytes retransmitted, which `bytes_sent` includes.
    pub bytes_retransmitted: u64,
    /// Retransmitted segments, SYN and FIN included.
    pub retransmissions: u64,
}

impl Connection {
    pub(in crate::stack) fn info(&self, now: Time, mtus: &Mtus) -> TcpInfo {
        let (recovery, socket) = (&self.loss_recovery, self.socket_ref());
        let (send_queue, receive_queue) = (socket.send_queue(), socket.recv_queue());
        // After a FIN, SND.MAX is beyond the data.
        let unsent = recovery.given_to.wrapping_sub(recovery.sent_to).cast_signed().max(0) as usize;
        let bytes_in_flight = send_queue.saturating_sub(unsent);
        let (path_mtu, at) = (mtus.of(now, self.addresses().1.ip()), self.at(now, mtus));
        let mss = self.segment(at.mtu);
        let active = recovery.active.as_ref().map(|active| &active.recovery);
        let window = active.map(Recovery::window).or(recovery.window_kept);
        let first_timeout = || recovery.first_timeout(bytes_in_flight <= mss);
        let round_trip = recovery.timer.round_trip;
        let (retransmissions, bytes_retransmitted) = recovery.retransmitted;
        TcpInfo {
            state: self.state(),
            rtt: round_trip.smoothed,
            rtt_variation: round_trip.variation,
            rto: active.map_or_else(first_timeout, Recovery::timeout),
            congestion_window: window.map(|window| window.bytes),
            slow_start_threshold: window
                .map(|window| window.threshold)
                .filter(|threshold| *threshold < usize::MAX),
            is_in_loss_recovery: active.is_some(),
            send_window: self.peer_window(),
            receive_window: socket.recv_capacity() - receive_queue,
            mss,
            path_mtu,
            bytes_in_flight,
            send_queue,
            receive_queue,
            bytes_sent: recovery.written - unsent as u64 + bytes_retransmitted,
            bytes_acknowledged: recovery.written - send_queue as u64,
            bytes_received: recovery.read + receive_queue as u64,
            bytes_retransmitted,
            retransmissions,
        }
    }
}

impl Stack {
    /// A snapshot of a connection.
    pub fn tcp_info(&self, now: Time, id: TcpId) -> Result<TcpInfo, TcpError> {
        let connection = self.tcp.connections.get(id).ok_or(TcpError::Closed)?;
        Ok(connection.info(now, &self.mtus))
    }
}
