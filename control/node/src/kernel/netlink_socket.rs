//! Netlink sockets: one that is notified of changes, one for dumps and requests.
//!
//! Why two sockets: the answers of a dump must not push notifications out of the receive buffer,
//! and a request must not wait behind notifications. Both are non-blocking. The kernel handles a
//! request before the send call returns, so the acknowledgment can be read at once.

use super::KernelError;
use pollux_wire::layout::WireError;
use pollux_wire::netlink::attribute::AttributeWriter;
use pollux_wire::netlink::ip_address::AddressMessage;
use pollux_wire::netlink::request::{DumpKind, write_message};
use pollux_wire::netlink::{MessageFlags, MessageHeader, MessageType, NetlinkMessages, Payload};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, sendto,
    socket_with, sockopt,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Size in bytes of the buffer for a receive call. The kernel fills at most 32 KiB in a dump.
pub const RECEIVE_BYTES: usize = 64 * 1024;

/// Groups of notifications: links, IPv4 and IPv6 addresses and routes, nexthop objects
/// (`RTNLGRP_LINK` 1, 5, 7, 9, 11, 32), as the bits of a bind.
const GROUPS: u32 = 1 | 1 << 4 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 31;

const REQUEST_BYTES: usize = 512;

/// A netlink socket of the family `ROUTE`.
#[derive(Debug)]
pub struct NetlinkSocket {
    fd: OwnedFd,
    sequence: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetlinkReceived<'a> {
    Datagram(&'a [u8]),
    Drained,
    /// Datagrams were lost: the socket's receive buffer was full, or a datagram was truncated.
    Overrun,
}

impl NetlinkSocket {
    pub fn for_requests() -> Result<Self, KernelError> {
        Self::open(0)
    }

    /// Opens a socket for notifications of changes, with a receive buffer of about `receive_bytes`.
    /// A notification takes about 1 KiB of the buffer, depending on the kernel and the kind. The
    /// system's default holds about 200.
    ///
    /// Without `CAP_NET_ADMIN` the buffer is cut to `net.core.rmem_max`.
    pub fn for_notifications(receive_bytes: usize) -> Result<Self, KernelError> {
        let socket = Self::open(GROUPS)?;
        sockopt::set_socket_recv_buffer_size_force(&socket.fd, receive_bytes)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket.fd, receive_bytes))
            .map_err(KernelError::system("set the receive buffer of a netlink socket"))?;
        Ok(socket)
    }

    fn open(groups: u32) -> Result<Self, KernelError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0 is NETLINK_ROUTE.
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)
            .map_err(KernelError::system("open a netlink socket"))?;
        bind(&fd, &SocketAddrNetlink::new(0, groups))
            .map_err(KernelError::system("bind a netlink socket"))?;
        Ok(Self { fd, sequence: 0 })
    }

    /// The size of the receive buffer in bytes, as the kernel counts it.
    pub fn receive_bytes(&self) -> usize {
        sockopt::socket_recv_buffer_size(&self.fd).unwrap_or(0)
    }

    /// Receives a datagram from the kernel. Datagrams of other senders are discarded.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> Result<NetlinkReceived<'a>, KernelError> {
        loop {
            let (len, sender) = match recvfrom(&self.fd, &mut *buffer, RecvFlags::TRUNC) {
                Ok((_, len, sender)) => (len, sender),
                Err(Errno::AGAIN) => return Ok(NetlinkReceived::Drained),
                Err(Errno::NOBUFS) => return Ok(NetlinkReceived::Overrun),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(KernelError::system("read a netlink socket")(errno)),
            };
            let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
            if sender.is_none_or(|sender| sender.pid() != 0) {
                continue;
            }
            // A truncated datagram is a loss, too.
            return Ok(match buffer.get(..len) {
                Some(datagram) => NetlinkReceived::Datagram(datagram),
                None => NetlinkReceived::Overrun,
            });
        }
    }

    /// Sends a dump request. Returns the sequence number of its messages.
    pub fn send_dump(&mut self, kind: DumpKind) -> Result<u32, KernelError> {
        let mut request = [0; REQUEST_BYTES];
        let sequence = self.next_sequence();
        let len = kind.write(sequence, &mut request).expect("a dump request is short");
        self.send("ask the kernel for a dump", &request[..len])?;
        Ok(sequence)
    }

    /// Dumps the addresses of all links. The kernel has each part of the answer ready, so this does
    /// not wait.
    pub fn addresses(&mut self) -> Result<Vec<AddressMessage>, KernelError> {
        const OPERATION: &str = "list addresses";
        let sequence = self.send_dump(DumpKind::Addresses)?;
        let (mut all, mut buffer) = (Vec::new(), vec![0; RECEIVE_BYTES]);
        while let NetlinkReceived::Datagram(datagram) = self.receive(&mut buffer)? {
            for message in NetlinkMessages::new(datagram).flatten() {
                match message.payload() {
                    _ if message.header.sequence != sequence => {}
                    Ok(Payload::NewAddress(address)) => all.push(address),
                    Ok(Payload::Done(0)) => return Ok(all),
                    Ok(Payload::Done(_) | Payload::Error(_)) => {
                        return Err(KernelError::NoAnswer { operation: OPERATION });
                    }
                    _ => {}
                }
            }
        }
        Err(KernelError::NoAnswer { operation: OPERATION })
    }

    /// Sends a request and reads its acknowledgment. `operation` names the request in errors.
    ///
    /// # Panics
    /// If the body does not fit a request.
    pub fn request(
        &mut self,
        operation: &'static str,
        message_type: MessageType,
        flags: MessageFlags,
        body: impl FnOnce(&mut AttributeWriter<'_>) -> Result<(), WireError>,
    ) -> Result<(), KernelError> {
        let sequence = self.next_sequence();
        let flags = flags.with(MessageFlags::REQUEST).with(MessageFlags::ACK);
        let header = MessageHeader { message_type, flags, sequence, port: 0 };
        let mut request = [0; REQUEST_BYTES];
        let len = write_message(&header, &mut request, body).expect("a request is short");
        self.send(operation, &request[..len])?;
        self.acknowledgment(operation, sequence)
    }

    fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.sequence
    }

    fn send(&self, operation: &'static str, request: &[u8]) -> Result<(), KernelError> {
        let kernel = SocketAddrNetlink::new(0, 0);
        let sent = retry_on_intr(|| sendto(&self.fd, request, SendFlags::empty(), &kernel));
        sent.map(drop).map_err(KernelError::system(operation))
    }

    fn acknowledgment(&self, operation: &'static str, sequence: u32) -> Result<(), KernelError> {
        let mut buffer = [0; 4096];
        while let NetlinkReceived::Datagram(datagram) = self.receive(&mut buffer)? {
            for message in NetlinkMessages::new(datagram).flatten() {
                let Ok(Payload::Error(error)) = message.payload() else { continue };
                if message.header.sequence != sequence {
                    continue;
                }
                if error.errno == 0 {
                    return Ok(());
                }
                let errno = Errno::from_raw_os_error(error.errno.try_into().unwrap_or(i32::MAX));
                let text = String::from_utf8_lossy(error.text).into_owned();
                return Err(KernelError::Refused { operation, errno, text });
            }
        }
        Err(KernelError::NoAnswer { operation })
    }
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
