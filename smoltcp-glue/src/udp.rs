//! UDP sockets with the API of `std::net`, served by the caller's thread.

use crate::host::Host;
use crate::interface::{Interface, resolve};
use crate::stack::{UdpError, UdpId, UdpOptions, UdpReceived};
use crate::std_calls::{timeout_calls, udp_calls};
use crate::timeout::SocketTimeout;
use pollux_verbs::time::Time;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::time::Duration;

/// A UDP socket of an inline interface.
pub struct UdpSocket {
    ends: Rc<SocketEnds>,
}

/// Shared by all clones. Dropping the last clone closes the socket.
struct SocketEnds {
    interface: Interface,
    id: UdpId,
    read_timeout: SocketTimeout,
    write_timeout: SocketTimeout,
}

/// A buffer for one datagram of [`UdpSocket::recv_batch`].
#[derive(Debug)]
pub struct UdpSlot<'a> {
    /// The buffer for the payload.
    pub buffer: &'a mut [u8],
    /// The datagram in the buffer, if one was received.
    pub received: Option<UdpReceived>,
}

impl Interface {
    /// Binds a UDP socket to an address of the interface, to all addresses of a family (`0.0.0.0`
    /// or `::`), or to a multicast group. Port 0 picks a free port. A socket bound to a group
    /// receives only datagrams to this group, once it has joined it.
    pub fn udp_bind(&self, local: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        let local = resolve(local)?;
        Ok(self.udp_socket(self.with(|host, _| host.stack.udp_bind(local))?))
    }

    /// Like [`Interface::udp_bind`], but several sockets can bind the same address and port if all
    /// of them use this call (`SO_REUSEADDR`). A multicast datagram goes to every socket that
    /// joined its group; a unicast datagram goes to the socket that was bound last.
    pub fn udp_bind_shared(&self, local: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        let local = resolve(local)?;
        Ok(self.udp_socket(self.with(|host, _| host.stack.udp_bind_shared(local))?))
    }

    fn udp_socket(&self, id: UdpId) -> UdpSocket {
        let interface = self.clone();
        let (read_timeout, write_timeout) = (SocketTimeout::new(), SocketTimeout::new());
        let ends = SocketEnds { interface, id, read_timeout, write_timeout };
        UdpSocket { ends: Rc::new(ends) }
    }
}

impl UdpSocket {
    /// Another handle of the same socket. The handles share all settings; dropping the last one
    /// closes the socket.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { ends: Rc::clone(&self.ends) })
    }

    /// The address and port that it is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let local = self.ends.interface.with(|inner, _| inner.stack.udp_local(self.ends.id));
        local.ok_or_else(|| UdpError::Closed.into())
    }

    /// The connected peer.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let peer = self.ends.interface.with(|inner, _| inner.stack.udp_peer(self.ends.id));
        peer.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Connects the socket: it receives only datagrams from this peer, and ICMP errors about
    /// datagrams to it.
    pub fn connect(&self, peer: impl ToSocketAddrs) -> io::Result<()> {
        let peer = resolve(peer)?;
        Ok(self.ends.interface.with(|inner, _| inner.stack.udp_connect(self.ends.id, peer))?)
    }

    timeout_calls!("receive calls", "send calls");

    /// Sends a datagram; returns the bytes of its payload. Waits for space in the send queue, at
    /// most for the write timeout.
    pub fn send_to(&self, payload: &[u8], to: impl ToSocketAddrs) -> io::Result<usize> {
        self.send_batch(&[(payload, resolve(to)?)])?;
        Ok(payload.len())
    }

    /// Sends a datagram to the connected peer.
    pub fn send(&self, payload: &[u8]) -> io::Result<usize> {
        self.send_to(payload, self.peer_addr()?)
    }

    /// Sends datagrams together; returns how many were queued. Waits only for space for the first
    /// datagram, and fails only if the first datagram fails.
    pub fn send_batch(&self, batch: &[(&[u8], SocketAddr)]) -> io::Result<usize> {
        self.ends.interface.wait(self.ends.write_timeout.get(), |inner, now| {
            for (sent, (payload, to)) in batch.iter().enumerate() {
                match inner.udp_send(now, self.ends.id, *to, payload) {
                    Ok(()) => {}
                    Err(_) if sent > 0 => return Ok(Some(sent)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                    Err(error) => return Err(error),
                }
            }
            Ok(Some(batch.len()))
        })
    }

    /// Whether receiving would return at once. This call serves no sockets: call
    /// [`Interface::step`] before checking many of them.
    pub fn is_readable(&self) -> bool {
        self.ends.interface.with(|inner, _| inner.stack.udp_is_readable(self.ends.id))
    }

    /// Receives a datagram; returns the number of bytes in the buffer, and the sender.
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let received = self.ends.interface.wait(self.ends.read_timeout.get(), |inner, _| {
            Ok(inner.stack.udp_recv(self.ends.id, buffer)?)
        })?;
        Ok((received.len, received.from))
    }

    /// Like [`UdpSocket::recv_from`], but the datagram stays in the queue.
    pub fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let received = self.ends.interface.wait(self.ends.read_timeout.get(), |inner, _| {
            Ok(inner.stack.udp_peek(self.ends.id, buffer)?)
        })?;
        Ok((received.len, received.from))
    }

    /// Like [`UdpSocket::recv`], but the datagram stays in the queue.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.peek_from(buffer)?.0)
    }

    /// Receives a datagram; returns the number of bytes in the buffer.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv_from(buffer)?.0)
    }

    /// Takes the pending error, which the next receive call would return otherwise.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        let error = self.ends.interface.with(|inner, _| inner.stack.udp_take_error(self.ends.id));
        Ok(error.map(io::Error::from))
    }

    /// Waits for a datagram, then receives queued datagrams, one for each slot; returns how many.
    pub fn recv_batch(&self, slots: &mut [UdpSlot<'_>]) -> io::Result<usize> {
        self.ends.interface.wait(self.ends.read_timeout.get(), |inner, _| {
            let mut count = 0;
            for slot in &mut *slots {
                slot.received = match inner.stack.udp_recv(self.ends.id, slot.buffer) {
                    Ok(received) => received,
                    Err(error) if count == 0 => return Err(error.into()),
                    Err(_) => None,
                };
                if slot.received.is_none() {
                    break;
                }
                count += 1;
            }
            Ok((count > 0 || slots.is_empty()).then_some(count))
        })
    }

    /// Joins a multicast group.
    pub fn join(&self, group: IpAddr) -> io::Result<()> {
        let is_first =
            self.ends.interface.with(|inner, _| inner.stack.udp_join(self.ends.id, group))?;
        self.join_on_link(group, is_first)
    }

    /// Leaves a multicast group.
    pub fn leave(&self, group: IpAddr) {
        self.ends.interface.with(|inner, now| inner.udp_leave(now, self.ends.id, group));
    }

    /// Joins a multicast group for the datagrams of one source (RFC 4607). Further calls add
    /// sources. This host drops datagrams of other sources; routers still forward them.
    pub fn join_source(&self, group: IpAddr, source: IpAddr) -> io::Result<()> {
        let id = self.ends.id;
        let is_first =
            self.ends.interface.with(|inner, _| inner.stack.udp_join_source(id, group, source))?;
        self.join_on_link(group, is_first)
    }

    /// Removes a source that [`UdpSocket::join_source`] added; without sources, the socket leaves
    /// the group.
    pub fn leave_source(&self, group: IpAddr, source: IpAddr) -> io::Result<()> {
        let id = self.ends.id;
        self.ends.interface.with(|inner, now| inner.udp_leave_source(now, id, group, source))
    }

    fn join_on_link(&self, group: IpAddr, is_first: bool) -> io::Result<()> {
        if !is_first {
            return Ok(());
        }
        self.ends.interface.control().join_group(group).inspect_err(|_| {
            self.ends.interface.with(|inner, _| inner.stack.udp_leave(self.ends.id, group));
        })
    }

    fn owns(&self, ip: IpAddr) -> io::Result<bool> {
        Ok(self.ends.interface.with(|inner, _| inner.owns(ip)))
    }

    fn options(&self) -> io::Result<UdpOptions> {
        Ok(self.ends.interface.with(|inner, _| inner.stack.udp_options(self.ends.id))?)
    }

    fn set_options(&self, change: impl FnOnce(&mut UdpOptions)) -> io::Result<()> {
        let id = self.ends.id;
        Ok(self.ends.interface.with(|inner, _| inner.stack.udp_set_options(id, change))?)
    }

    udp_calls!();
}

impl Drop for SocketEnds {
    fn drop(&mut self) {
        self.interface.with(|inner, now| inner.udp_close(now, self.id));
    }
}

impl Host {
    pub(crate) fn udp_leave(&mut self, now: Time, id: UdpId, group: IpAddr) {
        if self.stack.udp_leave(id, group) {
            self.leave_group(now, group);
        }
    }

    pub(crate) fn udp_leave_source(
        &mut self,
        now: Time,
        id: UdpId,
        group: IpAddr,
        source: IpAddr,
    ) -> io::Result<()> {
        if self.stack.udp_leave_source(id, group, source)? {
            self.leave_group(now, group);
        }
        Ok(())
    }

    /// Closes the socket and leaves its groups.
    pub(crate) fn udp_close(&mut self, now: Time, id: UdpId) {
        for group in self.stack.udp_groups(id) {
            self.udp_leave(now, id, group);
        }
        self.stack.udp_close(id);
    }
}
