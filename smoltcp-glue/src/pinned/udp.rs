//! UDP sockets that any thread can hold.
//!
//! A ring in each direction carries datagrams between the socket and the worker. The worker reports
//! errors of sent datagrams later: the next call on the socket returns them, as it returns an ICMP
//! error. Invalid addresses and lengths are reported at once.

use super::datagram::{HEAD_BYTES, Head};
use super::doorbell::SocketFlags;
use super::request::ask;
use super::waiters::Waiters;
use super::{Hold, lock};
use crate::interface::resolve;
use crate::stack::{UdpError, UdpId, UdpOptions, UdpReceived, udp_packet_len};
use crate::std_calls::{timeout_calls, udp_calls};
use crate::timeout::SocketTimeout;
use crate::udp::UdpSlot;
use pollux_mem::byte_ring;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

/// A UDP socket.
///
/// Threads may share it. Each direction has a lock, so concurrent receivers get different
/// datagrams. The worker takes neither lock.
pub struct UdpSocket {
    ends: Arc<SocketEnds>,
}

/// Shared by all clones. Dropping the last clone closes the socket.
struct SocketEnds {
    hold: Hold,
    line: Arc<UdpLine>,
    id: UdpId,
    local: SocketAddr,
    reader: Mutex<byte_ring::Reader>,
    writer: Mutex<byte_ring::Writer>,
    peer: Mutex<Option<SocketAddr>>,
    /// Held during a join or leave, which the worker and the control thread handle one after the
    /// other.
    joins: Mutex<()>,
    read_timeout: SocketTimeout,
    write_timeout: SocketTimeout,
}

pub(super) struct UdpLine {
    pub(super) flags: SocketFlags,
    pub(super) readers: Waiters,
    pub(super) writers: Waiters,
    /// Whether there is a pending error, so that calls need no lock to check.
    has_pending_error: AtomicBool,
    pending_error: Mutex<Option<io::Error>>,
    /// Set by the application when it drops the socket.
    pub(super) is_dropped: AtomicBool,
}

impl UdpLine {
    pub(super) fn new(flags: SocketFlags) -> Self {
        Self {
            flags,
            readers: Waiters::default(),
            writers: Waiters::default(),
            has_pending_error: AtomicBool::new(false),
            pending_error: Mutex::new(None),
            is_dropped: AtomicBool::new(false),
        }
    }

    /// Sets the pending error for the next call, replacing an earlier one.
    pub(super) fn set_pending_error(&self, why: io::Error) {
        *lock(&self.pending_error) = Some(why);
        self.has_pending_error.store(true, Ordering::Release);
    }

    fn take_pending_error(&self) -> io::Result<()> {
        let is_there = self.has_pending_error.load(Ordering::Relaxed)
            && self.has_pending_error.swap(false, Ordering::AcqRel);
        match is_there {
            true => lock(&self.pending_error).take().map_or(Ok(()), Err),
            false => Ok(()),
        }
    }
}

impl UdpSocket {
    pub(super) fn new(
        hold: Hold,
        line: Arc<UdpLine>,
        (reader, writer): (byte_ring::Reader, byte_ring::Writer),
        (id, local): (UdpId, SocketAddr),
    ) -> Self {
        let ends = SocketEnds {
            hold,
            line,
            id,
            local,
            reader: Mutex::new(reader),
            writer: Mutex::new(writer),
            joins: Mutex::default(),
            peer: Mutex::new(None),
            read_timeout: SocketTimeout::new(),
            write_timeout: SocketTimeout::new(),
        };
        Self { ends: Arc::new(ends) }
    }

    /// Another handle of the same socket. The handles share all settings; dropping the last one
    /// closes the socket.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { ends: Arc::clone(&self.ends) })
    }

    /// The address and port that it is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.ends.local)
    }

    /// The connected peer.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        lock(&self.ends.peer).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Connects the socket: it receives only datagrams from this peer, and ICMP errors about
    /// datagrams to it.
    pub fn connect(&self, peer: impl ToSocketAddrs) -> io::Result<()> {
        let (id, to) = (self.ends.id, resolve(peer)?);
        ask(&self.ends.hold.doorbell, move |worker, _| {
            Ok(worker.inner.stack.udp_connect(id, to)?)
        })?;
        *lock(&self.ends.peer) = Some(to);
        Ok(())
    }

    timeout_calls!("receive calls", "send calls");

    /// Sends a datagram; returns the bytes of its payload. Waits for space in the ring, at most for
    /// the write timeout.
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
        self.ends.line.writers.wait(self.ends.write_timeout.get(), || self.try_send(batch))
    }

    /// Whether receiving would return at once.
    pub fn is_readable(&self) -> bool {
        let has_error = self.ends.line.has_pending_error.load(Ordering::Relaxed);
        has_error || !lock(&self.ends.reader).is_empty() || self.ends.hold.doorbell.check().is_err()
    }

    /// Receives a datagram; returns the number of bytes in the buffer, and the sender.
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let received =
            self.ends.line.readers.wait(self.ends.read_timeout.get(), || self.try_recv(buffer))?;
        Ok((received.len, received.from))
    }

    /// Like [`UdpSocket::recv_from`], but the datagram stays in the queue.
    pub fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let received =
            self.ends.line.readers.wait(self.ends.read_timeout.get(), || self.try_peek(buffer))?;
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

    /// Takes the pending error, which the next call would return otherwise.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.ends.line.take_pending_error().err())
    }

    /// Waits for a datagram, then receives queued datagrams, one for each slot; returns how many.
    pub fn recv_batch(&self, slots: &mut [UdpSlot<'_>]) -> io::Result<usize> {
        self.ends.line.readers.wait(self.ends.read_timeout.get(), || {
            let mut count = 0;
            for slot in &mut *slots {
                slot.received = match self.try_recv(slot.buffer) {
                    Ok(received) => received,
                    Err(error) if count == 0 => return Err(error),
                    Err(error) => {
                        self.ends.line.set_pending_error(error);
                        None
                    }
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
        let id = self.ends.id;
        let _one_at_a_time = lock(&self.ends.joins);
        let is_first = ask(&self.ends.hold.doorbell, move |worker, _| {
            Ok(worker.inner.stack.udp_join(id, group)?)
        })?;
        self.join_on_link(group, is_first)
    }

    /// Leaves a multicast group.
    pub fn leave(&self, group: IpAddr) {
        let id = self.ends.id;
        let _one_at_a_time = lock(&self.ends.joins);
        // If the worker has ended, so have the memberships.
        let _ = ask(&self.ends.hold.doorbell, move |worker, now| {
            worker.inner.udp_leave(now, id, group);
            worker.hand_to_control();
            Ok(())
        });
    }

    /// Joins a multicast group for the datagrams of one source (RFC 4607). Further calls add
    /// sources. This host drops datagrams of other sources; routers still forward them.
    pub fn join_source(&self, group: IpAddr, source: IpAddr) -> io::Result<()> {
        let id = self.ends.id;
        let _one_at_a_time = lock(&self.ends.joins);
        let is_first = ask(&self.ends.hold.doorbell, move |worker, _| {
            Ok(worker.inner.stack.udp_join_source(id, group, source)?)
        })?;
        self.join_on_link(group, is_first)
    }

    /// Removes a source that [`UdpSocket::join_source`] added; without sources, the socket leaves
    /// the group.
    pub fn leave_source(&self, group: IpAddr, source: IpAddr) -> io::Result<()> {
        let id = self.ends.id;
        let _one_at_a_time = lock(&self.ends.joins);
        ask(&self.ends.hold.doorbell, move |worker, now| {
            worker.inner.udp_leave_source(now, id, group, source)?;
            worker.hand_to_control();
            Ok(())
        })
    }

    fn join_on_link(&self, group: IpAddr, is_first: bool) -> io::Result<()> {
        let (id, doorbell) = (self.ends.id, &self.ends.hold.doorbell);
        if !is_first {
            return Ok(());
        }
        self.ends.hold.control().join_group(group).inspect_err(|_| {
            let _ = ask(doorbell, move |worker, _| Ok(worker.inner.stack.udp_leave(id, group)));
        })
    }

    fn owns(&self, ip: IpAddr) -> io::Result<bool> {
        ask(&self.ends.hold.doorbell, move |worker, _| Ok(worker.inner.owns(ip)))
    }

    fn options(&self) -> io::Result<UdpOptions> {
        let id = self.ends.id;
        ask(&self.ends.hold.doorbell, move |worker, _| Ok(worker.inner.stack.udp_options(id)?))
    }

    fn set_options(&self, change: impl FnOnce(&mut UdpOptions) + Send + 'static) -> io::Result<()> {
        let id = self.ends.id;
        ask(&self.ends.hold.doorbell, move |worker, _| {
            Ok(worker.inner.stack.udp_set_options(id, change)?)
        })
    }

    udp_calls!();
}

/// Calls for tasks.
impl UdpSocket {
    /// Receives a datagram, as [`UdpSocket::recv_from`] does.
    pub fn poll_recv_from(
        &self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddr)>> {
        let received = self.ends.line.readers.poll(context, || self.try_recv(buffer));
        received.map_ok(|received| (received.len, received.from))
    }

    /// Sends a datagram, as [`UdpSocket::send_to`] does.
    pub fn poll_send_to(
        &self,
        context: &mut Context<'_>,
        payload: &[u8],
        to: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        let sent = self.ends.line.writers.poll(context, || self.try_send(&[(payload, to)]));
        sent.map_ok(|_| payload.len())
    }

    /// Like [`UdpSocket::recv_from`], but for a task.
    pub async fn recv_from_async(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let received = self.ends.line.readers.wait_async(|| self.try_recv(buffer)).await?;
        Ok((received.len, received.from))
    }

    /// Like [`UdpSocket::send_to`], but for a task.
    pub async fn send_to_async(
        &self,
        payload: &[u8],
        to: impl Into<SocketAddr>,
    ) -> io::Result<usize> {
        let to = to.into();
        self.ends.line.writers.wait_async(|| self.try_send(&[(payload, to)])).await?;
        Ok(payload.len())
    }
}

/// Single attempts of calls, which return `None` if the call has to wait.
impl UdpSocket {
    fn try_send(&self, batch: &[(&[u8], SocketAddr)]) -> io::Result<Option<usize>> {
        self.ends.hold.doorbell.check()?;
        self.ends.line.take_pending_error()?;
        let mut writer = lock(&self.ends.writer);
        let mut sent = 0;
        for (payload, to) in batch {
            let is_well = self.check(payload, *to);
            if let (Err(error), 0) = (&is_well, sent) {
                return Err((*error).into());
            }
            let head = Head { len: payload.len(), peer: *to, to: to.ip() };
            if is_well.is_err() || !head.write(&mut writer, payload) {
                break;
            }
            sent += 1;
        }
        drop(writer);
        if sent > 0 {
            self.ends.hold.doorbell.notify(&self.ends.line.flags);
        }
        Ok((sent > 0 || batch.is_empty()).then_some(sent))
    }

    /// Checks a datagram before it is passed to the worker.
    fn check(&self, payload: &[u8], to: SocketAddr) -> Result<(), UdpError> {
        let is_one = to.port() != 0 && !to.ip().is_unspecified();
        if !is_one || to.is_ipv4() != self.ends.local.is_ipv4() {
            return Err(UdpError::BadAddress);
        }
        udp_packet_len(to.ip(), payload).map(drop)
    }

    fn try_recv(&self, buffer: &mut [u8]) -> io::Result<Option<UdpReceived>> {
        // The end is read first: then datagrams that were received before the end are in the ring.
        let is_served = self.ends.hold.doorbell.check();
        self.ends.line.take_pending_error()?;
        let mut reader = lock(&self.ends.reader);
        let Some(head) = Head::read(&mut reader, buffer) else {
            return is_served.map(|()| None);
        };
        self.ends.hold.doorbell.relieve_at_half(&self.ends.line.flags, &mut reader);
        Ok(Some(head.received(buffer.len())))
    }

    fn try_peek(&self, buffer: &mut [u8]) -> io::Result<Option<UdpReceived>> {
        let is_served = self.ends.hold.doorbell.check();
        self.ends.line.take_pending_error()?;
        match Head::copy(&mut lock(&self.ends.reader), buffer) {
            Some(head) => Ok(Some(head.received(buffer.len()))),
            None => is_served.map(|()| None),
        }
    }
}

impl Drop for SocketEnds {
    fn drop(&mut self) {
        self.line.is_dropped.store(true, Ordering::Release);
        self.hold.doorbell.notify(&self.line.flags);
    }
}

/// The minimum bytes of a ring: the longest datagram fits in half of it.
pub(super) const RING_BYTES_MIN: usize =
    2 * (super::datagram::PAYLOAD_MAX + HEAD_BYTES).next_power_of_two();
