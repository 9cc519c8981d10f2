//! UDP sockets with the API of `std::net`, served by the caller's thread.

use crate::host::Host;
use crate::interface::{CallTimeout, Interface, resolve};
use crate::stack::{UdpError, UdpId, UdpReceived};
use pollux_verbs::time::Time;
use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// A UDP socket of an inline interface.
pub struct UdpSocket {
    interface: Interface,
    id: UdpId,
    timeout: Cell<CallTimeout>,
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
    /// Binds a UDP socket to an address of the interface, or to all by `0.0.0.0` or `::`. Port 0
    /// picks a free port.
    pub fn udp_bind(&self, local: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        let local = resolve(local)?;
        let id = self.with(|host, _| host.stack.udp_bind(local))?;
        Ok(UdpSocket { interface: self.clone(), id, timeout: Cell::new(CallTimeout::Never) })
    }
}

impl UdpSocket {
    /// The address and port that it is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let local = self.interface.with(|inner, _| inner.stack.udp_local(self.id));
        local.ok_or_else(|| UdpError::Closed.into())
    }

    /// Connects the socket: it receives datagrams of this peer only, and its ICMP errors.
    pub fn connect(&self, peer: impl ToSocketAddrs) -> io::Result<()> {
        let peer = resolve(peer)?;
        Ok(self.interface.with(|inner, _| inner.stack.udp_connect(self.id, peer))?)
    }

    /// Sets the timeout of receive and send calls; `None` waits indefinitely.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) {
        self.timeout.set(CallTimeout::of(timeout));
    }

    /// In non-blocking mode receive and send calls return `WouldBlock` instead of waiting.
    pub fn set_nonblocking(&self, is_nonblocking: bool) {
        self.timeout.set(CallTimeout::nonblocking(is_nonblocking));
    }

    /// Sends a datagram; waits for queue space until the read timeout.
    pub fn send_to(&self, payload: &[u8], to: impl ToSocketAddrs) -> io::Result<()> {
        self.send_batch(&[(payload, resolve(to)?)]).map(drop)
    }

    /// Sends a datagram to the connected peer.
    pub fn send(&self, payload: &[u8]) -> io::Result<()> {
        let peer = self.interface.with(|inner, _| inner.stack.udp_peer(self.id));
        self.send_to(payload, peer.ok_or(io::ErrorKind::NotConnected)?)
    }

    /// Sends datagrams together; returns how many were queued. It waits only if the first one does
    /// not fit. An error is that of the first datagram.
    pub fn send_batch(&self, batch: &[(&[u8], SocketAddr)]) -> io::Result<usize> {
        self.interface.wait(self.timeout.get(), |inner, now| {
            for (sent, (payload, to)) in batch.iter().enumerate() {
                match inner.udp_send(now, self.id, *to, payload) {
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
        self.interface.with(|inner, _| inner.stack.udp_is_readable(self.id))
    }

    /// Receives a datagram; returns the number of bytes in the buffer, and the sender.
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let received = self
            .interface
            .wait(self.timeout.get(), |inner, _| Ok(inner.stack.udp_recv(self.id, buffer)?))?;
        Ok((received.len, received.from))
    }

    /// Waits for a datagram, then receives all queued ones, one for each slot; returns how many.
    pub fn recv_batch(&self, slots: &mut [UdpSlot<'_>]) -> io::Result<usize> {
        self.interface.wait(self.timeout.get(), |inner, _| {
            let mut count = 0;
            for slot in &mut *slots {
                slot.received = match inner.stack.udp_recv(self.id, slot.buffer) {
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
        let is_first = self.interface.with(|inner, _| inner.stack.udp_join(self.id, group))?;
        if !is_first {
            return Ok(());
        }
        self.interface.control().join_group(group).inspect_err(|_| {
            self.interface.with(|inner, _| inner.stack.udp_leave(self.id, group));
        })
    }

    /// Leaves a multicast group.
    pub fn leave(&self, group: IpAddr) {
        self.interface.with(|inner, now| inner.udp_leave(now, self.id, group));
    }
}

impl Drop for UdpSocket {
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

    /// Closes the socket and leaves its groups.
    pub(crate) fn udp_close(&mut self, now: Time, id: UdpId) {
        for group in self.stack.udp_groups(id) {
            self.udp_leave(now, id, group);
        }
        self.stack.udp_close(id);
    }
}
