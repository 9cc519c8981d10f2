//! A wire over UDP: one packet per datagram, and empty datagrams as hellos.
//!
//! UDP has no connections. So each end sends a hello at the interval [`HELLO`], and the other end
//! counts as connected for [`SILENCE`] after its last datagram. If both ends are configured with
//! the same address, the end that binds it learns the address of the other end from the first
//! datagram. It ignores other senders while that end is connected. Why only on the loopback, unless
//! configured otherwise: on a network, any host that sends first would become the other end.

use super::UdpPeer;
use crate::time::Time;
use rustix::event::{PollFd, PollFlags};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

const HELLO: Duration = Duration::from_millis(200);
/// The other end counts as disconnected after this time without a datagram.
const SILENCE: Duration = Duration::from_secs(2);
/// Datagrams received in a turn.
const TAKEN: usize = 64;
/// Datagrams sent in a turn: few enough for the receive buffer of the other end. The default size
/// in Linux is enough for about 25 of the longest packets.
const SENT: usize = 16;
/// Bytes of the receive buffer, more than the longest packet has.
const BYTES_MAX: usize = 8192;

#[derive(Debug)]
pub(super) struct UdpWire {
    socket: UdpSocket,
    /// The address of the other end. It does not change if the socket is connected.
    peer: Option<SocketAddr>,
    /// Whether the socket is connected: its peer is configured.
    is_connected: bool,
    /// The time until which the other end counts as connected.
    up_until: Option<Time>,
    hello_at: Time,
}

impl UdpWire {
    pub(super) fn bind(address: SocketAddr, remote: UdpPeer) -> io::Result<Self> {
        let (socket, peer) = match (UdpSocket::bind(address), remote) {
            (Ok(socket), UdpPeer::At(remote)) => (socket, Some(remote)),
            (Ok(_), UdpPeer::Local) if !address.ip().is_loopback() => {
                let advice = format!(
                    "{address} is not a loopback address, so any host could become the other end; \
                     write udp:LOCAL,REMOTE, or udp:{address},any to allow that"
                );
                return Err(io::Error::new(ErrorKind::InvalidInput, advice));
            }
            (Ok(socket), UdpPeer::Local | UdpPeer::Any) => (socket, None),
            (Err(error), UdpPeer::Local) if is_another_ones(&error) => {
                (UdpSocket::bind(SocketAddr::new(any(address), 0))?, Some(address))
            }
            (Err(error), _) => return Err(error),
        };
        if let Some(peer) = peer {
            socket.connect(peer)?;
        }
        socket.set_nonblocking(true)?;
        let (is_connected, hello_at) = (peer.is_some(), Time::START);
        Ok(Self { socket, peer, is_connected, up_until: None, hello_at })
    }

    pub(super) fn is_up(&self) -> bool {
        self.up_until.is_some()
    }

    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.socket, PollFlags::IN)
    }

    pub(super) fn due(&self) -> Option<Time> {
        let hello_at = self.peer.map(|_| self.hello_at);
        hello_at.into_iter().chain(self.up_until).min()
    }

    /// Receives datagrams. Calls `take` for each datagram of the other end, and when the other end
    /// counts as disconnected, with whether it is connected, and the packet if there is one.
    pub(super) fn receive(&mut self, now: Time, mut take: impl FnMut(bool, Option<&[u8]>)) {
        if self.up_until.is_some_and(|until| until <= now) {
            self.up_until = None;
            take(false, None);
        }
        let mut bytes = vec![0; BYTES_MAX];
        for _ in 0..TAKEN {
            match self.socket.recv_from(&mut bytes) {
                Ok((len, from)) if self.is_peer(from) => {
                    self.up_until = Some(now + SILENCE);
                    take(true, (len > 0).then(|| &bytes[..len]));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // A datagram from another sender, or an ICMP error for a sent datagram.
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Whether a datagram is from the other end. If none is configured or connected, the sender
    /// becomes the other end.
    fn is_peer(&mut self, from: SocketAddr) -> bool {
        if !self.is_connected && self.up_until.is_none() && self.peer != Some(from) {
            self.peer = Some(from);
            // Send a hello at once, not at the next interval.
            self.hello_at = Time::START;
        }
        self.peer == Some(from)
    }

    /// Sends packets from `next`, at most [`SENT`]. A packet that the socket refuses is lost.
    pub(super) fn send(&mut self, now: Time, next: &mut impl FnMut() -> Option<Vec<u8>>) {
        let Some(peer) = self.peer else { return };
        if self.hello_at <= now {
            self.hello_at = now + HELLO;
            self.send_one(peer, &[]);
        }
        for packet in std::iter::from_fn(next).take(SENT) {
            self.send_one(peer, &packet);
        }
    }

    fn send_one(&self, peer: SocketAddr, bytes: &[u8]) {
        let _ = match self.is_connected {
            true => self.socket.send(bytes),
            false => self.socket.send_to(bytes, peer),
        };
    }
}

/// Whether another socket has the address, here or on another machine.
fn is_another_ones(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable)
}

/// The local address to bind for sending to `address`.
fn any(address: SocketAddr) -> IpAddr {
    match address.ip() {
        ip if ip.is_loopback() => ip,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}
