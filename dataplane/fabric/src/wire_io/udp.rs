//! A wire over UDP: one packet to a datagram, and empty datagrams that say who is there.
//!
//! UDP knows no connection, so each end says every [`HELLO`] that it is there, and believes that
//! the other one is while it has heard of it within [`SILENCE`]. Where both were given one address,
//! the end that has it learns from that where the other one is, and listens to that one only, as
//! long as it is there. Why only on the loopback, unless told otherwise: on a network whoever sends
//! first would be at the end of the wire.

use super::Remote;
use crate::time::Time;
use rustix::event::{PollFd, PollFlags};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

/// How often an end says that it is there.
const HELLO: Duration = Duration::from_millis(200);
/// After so long without a word the other end is taken to be gone.
const SILENCE: Duration = Duration::from_secs(2);
/// Datagrams taken in a turn.
const TAKEN: usize = 64;
/// And sent: so few that the other end's socket has room for them, of which Linux by default has
/// enough for some 25 of the longest packets.
const SENT: usize = 16;
/// More than any packet has.
const BYTES_MAX: usize = 8192;

#[derive(Debug)]
pub(super) struct UdpWire {
    socket: UdpSocket,
    /// Where the other end is; of a socket that is connected, for good.
    peer: Option<SocketAddr>,
    is_connected: bool,
    /// Until when the other end is taken to be there.
    up_until: Option<Time>,
    hello_at: Time,
}

impl UdpWire {
    pub(super) fn bind(address: SocketAddr, remote: Remote) -> io::Result<Self> {
        let (socket, peer) = match (UdpSocket::bind(address), remote) {
            (Ok(socket), Remote::At(remote)) => (socket, Some(remote)),
            (Ok(_), Remote::Local) if !address.ip().is_loopback() => {
                let advice = format!(
                    "whoever sends to {address} first would be the other end; name that by \
                     udp:LOCAL,REMOTE, or write udp:{address},any if all who can send there may be"
                );
                return Err(io::Error::new(ErrorKind::InvalidInput, advice));
            }
            (Ok(socket), Remote::Local | Remote::Any) => (socket, None),
            (Err(error), Remote::Local) if is_another_ones(&error) => {
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

    /// Takes what has come. `take` hears whether the other end is there, and what it sent.
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
                // From a stranger; or the other end was not there when we sent.
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Whether a datagram is the other end's: whoever comes first, while that one is there.
    fn is_peer(&mut self, from: SocketAddr) -> bool {
        if !self.is_connected && self.up_until.is_none() && self.peer != Some(from) {
            self.peer = Some(from);
            // It shall hear of us now, and not only with the next hello.
            self.hello_at = Time::START;
        }
        self.peer == Some(from)
    }

    /// Sends what `next` gives, but no more than a turn's worth. What the socket does not take is
    /// lost, as on the way.
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

/// Whether somebody else has the address, here or on another machine.
fn is_another_ones(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable)
}

/// Any address of ours from which that one can be reached.
fn any(address: SocketAddr) -> IpAddr {
    match address.ip() {
        ip if ip.is_loopback() => ip,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}
