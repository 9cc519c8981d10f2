//! Wires to nodes of other fabrics: sockets that carry packets, LRH to VCRC.
//!
//! ```text
//! stream:PATH           unix socket: the first end listens, the other one connects
//! stream:connect:PATH   unix socket on which the other end listens
//! udp:LOCAL,REMOTE      datagrams between these two addresses
//! udp:ADDR              datagrams: one end binds the address, the other one sends to it
//! udp:LOCAL,any         binds the address; the other end may be anywhere
//! ```
//!
//! The other end of a wire becomes a node of the subnet, so it must be trusted. Only the same user
//! can connect to a unix socket. With `udp:ADDR`, the end that binds the address accepts the first
//! sender as the other end. So the address must be a loopback address, to which only programs of
//! this machine can send. On networks, name both ends, or allow any sender by `any`.
//!
//! 1. [`framing`]: packets in a stream of bytes;
//! 2. `stream` and `udp`: the sockets, which do not block;
//! 3. [`ForeignWire`]: one of these sockets at a port of a [`Net`].
//!
//! A broken wire reconnects when the other end is back. The link at its port goes down and up with
//! it. This module does not check packets; the net checks them, because the other end may be
//! hostile.

pub mod framing;
mod stream;
mod udp;

use crate::net::Net;
use crate::time::Time;
use crate::topology::End;
use rustix::event::PollFd;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use stream::StreamSocket;
pub use stream::listen;
use udp::UdpWire;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireAddress {
    Stream {
        path: PathBuf,
        /// Whether to listen if no other process does.
        may_listen: bool,
    },
    Udp {
        /// The local address; with [`UdpPeer::Local`], the address that one of the two ends binds.
        address: SocketAddr,
        remote: UdpPeer,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpPeer {
    /// Only the end with this address.
    At(SocketAddr),
    /// The first sender on this machine.
    Local,
    /// The first sender on any machine.
    Any,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no wire; write stream:PATH, stream:connect:PATH, udp:LOCAL,REMOTE, \
     udp:ADDRESS:PORT or udp:LOCAL,any"
)]
pub struct BadAddress(String);

impl FromStr for WireAddress {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let bad = || BadAddress(text.into());
        match text.split_once(':').ok_or_else(bad)? {
            ("stream", rest) => {
                let path = rest.strip_prefix("connect:");
                let may_listen = path.is_none();
                let path = path.unwrap_or(rest);
                let fits = !path.is_empty() && path.len() <= stream::PATH_LEN_MAX;
                let path = PathBuf::from(path);
                fits.then_some(Self::Stream { path, may_listen }).ok_or_else(bad)
            }
            ("udp", rest) => {
                let (address, remote) = match rest.split_once(',') {
                    Some((local, "any")) => (local, UdpPeer::Any),
                    Some((local, remote)) => {
                        (local, UdpPeer::At(remote.parse().map_err(|_| bad())?))
                    }
                    None => (rest, UdpPeer::Local),
                };
                Ok(Self::Udp { address: address.parse().map_err(|_| bad())?, remote })
            }
            _ => Err(bad()),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireCounts {
    /// Received packets, valid or not.
    pub received: u64,
    pub sent: u64,
    /// Received frames with another EtherType.
    pub ignored: u64,
    /// Streams that were closed because of invalid framing.
    pub broken: u64,
}

#[derive(Debug)]
pub struct ForeignWire {
    end: End,
    socket: Socket,
    counts: WireCounts,
}

#[derive(Debug)]
enum Socket {
    Stream(StreamSocket),
    Udp(UdpWire),
}

impl ForeignWire {
    /// Opens a wire at a port that the net knows to be foreign ([`Net::add_foreign`]).
    pub fn open(end: End, address: &WireAddress) -> io::Result<Self> {
        let socket = match address {
            WireAddress::Stream { path, may_listen } => {
                Socket::Stream(StreamSocket::new(path, *may_listen))
            }
            WireAddress::Udp { address, remote } => Socket::Udp(UdpWire::bind(*address, *remote)?),
        };
        Ok(Self { end, socket, counts: WireCounts::default() })
    }

    pub fn end(&self) -> End {
        self.end
    }

    pub fn counts(&self) -> WireCounts {
        self.counts
    }

    pub fn is_up(&self) -> bool {
        match &self.socket {
            Socket::Stream(stream) => stream.is_up(),
            Socket::Udp(udp) => udp.is_up(),
        }
    }

    /// Whether one call of [`ForeignWire::send`] sends a limited number of packets.
    pub fn is_batched(&self) -> bool {
        matches!(self.socket, Socket::Udp(_))
    }

    /// The descriptor to poll; `None` while there is no socket.
    pub fn poll_fd(&self) -> Option<PollFd<'_>> {
        match &self.socket {
            Socket::Stream(stream) => stream.poll_fd(),
            Socket::Udp(udp) => Some(udp.poll_fd()),
        }
    }

    pub fn due(&self) -> Option<Time> {
        match &self.socket {
            Socket::Stream(stream) => stream.due(),
            Socket::Udp(udp) => udp.due(),
        }
    }

    /// Connects if necessary, and moves received packets into the net.
    pub fn receive(&mut self, now: Time, net: &mut Net) {
        let Self { end, counts, .. } = self;
        let mut take = |net: &mut Net, bytes: &[u8]| {
            counts.received += 1;
            net.receive_foreign(now, *end, bytes);
        };
        match &mut self.socket {
            Socket::Stream(stream) => {
                let was_up = stream.is_up();
                stream.join(now);
                if stream.is_up() && !was_up {
                    net.set_foreign_up(*end, true);
                }
                let (ignored, broken) = stream.receive(now, |bytes| take(net, bytes));
                counts.ignored += ignored;
                counts.broken += broken;
            }
            Socket::Udp(udp) => udp.receive(now, |is_up, bytes| {
                net.set_foreign_up(*end, is_up);
                if let Some(bytes) = bytes {
                    take(net, bytes);
                }
            }),
        }
        net.set_foreign_up(self.end, self.is_up());
    }

    /// Sends waiting packets of the net, as far as the socket has space.
    pub fn send(&mut self, now: Time, net: &mut Net) {
        let Self { end, counts, .. } = self;
        let mut next = || {
            let packet = net.poll_foreign(*end)?;
            counts.sent += 1;
            Some(packet)
        };
        match &mut self.socket {
            Socket::Stream(stream) => stream.send(now, &mut next),
            Socket::Udp(udp) => udp.send(now, &mut next),
        }
        net.set_foreign_up(self.end, self.is_up());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Wire;
    use crate::node::NodeDrop;
    use crate::subnet::Subnet;
    use crate::topology::Topology;
    use std::io::Write;
    use std::net::{Ipv4Addr, UdpSocket};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    const END: End = End { node: 0, port: 2 };

    fn net() -> Net {
        let mut topology = Topology::generate("single:1", 1).unwrap();
        topology.add_ports(END);
        let mut net = Net::new(Subnet::new(topology), 1, Wire::default());
        net.add_foreign(END).unwrap();
        net
    }

    #[test]
    fn a_stream_without_sense_is_closed_and_joined_again() {
        let path = std::env::temp_dir().join(format!("pollux-{}-hostile", std::process::id()));
        let address = WireAddress::Stream { path: path.clone(), may_listen: true };
        let (mut net, mut wire) = (net(), ForeignWire::open(END, &address).unwrap());
        wire.receive(Time::START, &mut net);
        let mut bytes = Vec::new();
        framing::write(&[1, 2, 3], &mut bytes);
        framing::write(&[1, 2, 3], &mut bytes);
        bytes[16] = 0;
        for nth in 1..=2 {
            let mut peer = UnixStream::connect(&path).unwrap();
            peer.write_all(&bytes).unwrap();
            wire.receive(Time::START, &mut net);
            let ports = &net.subnet().nodes()[0].ports;
            assert!(wire.is_up() && ports[2].is_linked(), "what makes no sense is dropped");
            assert_eq!(net.subnet().nodes()[0].drops.of(NodeDrop::Malformed), nth);
            peer.write_all(&[0xff; 64]).unwrap();
            wire.receive(Time::START, &mut net);
            let ports = &net.subnet().nodes()[0].ports;
            assert!(!wire.is_up() && !ports[2].is_linked(), "nor is there a way on");
            let counts = WireCounts { received: nth, sent: 0, ignored: nth, broken: nth };
            assert_eq!(wire.counts(), counts);
        }
    }

    /// Sockets at a loopback address that only this process and test uses, so that no other process
    /// takes a free port.
    fn sockets_at(test: u8) -> impl Fn() -> UdpSocket {
        let process = std::process::id().to_be_bytes();
        let address = Ipv4Addr::new(127, process[2] | 1, process[3], test);
        move || UdpSocket::bind((address, 0)).unwrap()
    }

    #[test]
    fn a_udp_wire_listens_to_one_peer_until_that_is_silent() {
        let local = sockets_at(2);
        let address = local().local_addr().unwrap();
        let open = WireAddress::Udp { address, remote: UdpPeer::Local };
        let (mut net, mut wire) = (net(), ForeignWire::open(END, &open).unwrap());
        let (peer, stranger) = (local(), local());
        peer.send_to(&[], address).unwrap();
        wire.receive(Time::START, &mut net);
        wire.send(Time::START, &mut net);
        assert!(wire.is_up() && wire.due().is_some());
        stranger.send_to(&[1, 2], address).unwrap();
        wire.receive(Time::START, &mut net);
        assert_eq!(wire.counts().received, 0);
        peer.send_to(&[1, 2], address).unwrap();
        wire.receive(Time::START, &mut net);
        assert_eq!(wire.counts().received, 1);
        let later = Time::START + Duration::from_secs(3);
        wire.receive(later, &mut net);
        assert!(!wire.is_up() && !net.subnet().nodes()[0].ports[2].is_linked());
        stranger.send_to(&[1, 2], address).unwrap();
        wire.receive(later, &mut net);
        assert!(wire.is_up() && wire.counts().received == 2);
    }

    #[test]
    fn a_udp_wire_between_two_addresses_ignores_others() {
        let local = sockets_at(3);
        let address = local().local_addr().unwrap();
        let (peer, stranger) = (local(), local());
        let remote = UdpPeer::At(peer.local_addr().unwrap());
        let open = WireAddress::Udp { address, remote };
        let (mut net, mut wire) = (net(), ForeignWire::open(END, &open).unwrap());
        stranger.send_to(&[1, 2], address).unwrap();
        wire.receive(Time::START, &mut net);
        assert!(!wire.is_up() && wire.counts().received == 0, "though nobody else is there");
        peer.send_to(&[1, 2], address).unwrap();
        wire.receive(Time::START, &mut net);
        assert!(wire.is_up() && wire.counts().received == 1);
    }

    #[test]
    fn a_udp_wire_on_a_network_accepts_any_sender_only_if_configured() {
        let address = "0.0.0.0:0".parse().unwrap();
        let open = |remote| ForeignWire::open(END, &WireAddress::Udp { address, remote });
        let refused = open(UdpPeer::Local).unwrap_err().to_string();
        assert!(refused.contains("udp:LOCAL,REMOTE") && refused.contains("any"), "{refused}");
        assert!(open(UdpPeer::Any).is_ok());
        assert!(open(UdpPeer::At("127.0.0.1:9".parse().unwrap())).is_ok());
    }

    #[test]
    fn addresses_are_read_or_refused_with_advice() {
        let stream = |path: &str, may_listen| WireAddress::Stream { path: path.into(), may_listen };
        assert_eq!("stream:/run/a:b".parse(), Ok(stream("/run/a:b", true)));
        assert_eq!("stream:connect:x".parse(), Ok(stream("x", false)));
        let udp = "udp:127.0.0.1:7,[::1]:8".parse::<WireAddress>().unwrap();
        let (address, theirs) = ("127.0.0.1:7".parse().unwrap(), "[::1]:8".parse().unwrap());
        assert_eq!(udp, WireAddress::Udp { address, remote: UdpPeer::At(theirs) });
        let any = "udp:127.0.0.1:7,any".parse::<WireAddress>().unwrap();
        assert_eq!(any, WireAddress::Udp { address, remote: UdpPeer::Any });
        for bad in ["", "stream:", "tcp:1", "udp:localhost", "udp:127.0.0.1:1,"] {
            let error = bad.parse::<WireAddress>().unwrap_err().to_string();
            assert!(error.contains(bad) && error.contains("stream:PATH"), "{error}");
        }
        assert!(format!("stream:{}", "x".repeat(200)).parse::<WireAddress>().is_err());
    }
}
