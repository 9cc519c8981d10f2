//! The frames of an Ethernet device, as one worker receives and sends them: by AF_XDP sockets, or
//! by a packet socket.

use pollux_mem::Buf;
use pollux_mem::packet_socket::{FRAMES_PER_CALL, PacketSocket, SocketFrame};
use pollux_mem::xdp::XdpSocket;
use rustix::event::epoll;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[derive(Debug)]
pub(super) struct FrameQueue {
    xdp: Vec<XdpSocket>,
    /// The socket of a worker without AF_XDP, or the sending socket of a worker without a device
    /// queue.
    packet: Option<PacketSocket>,
    receives_packets: bool,
    /// Readable when any socket is, if there are several.
    poller: Option<OwnedFd>,
    /// Frames for the next call.
    staged: Vec<Buf>,
}

/// Counts of frames that were not sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FramesUnsent {
    pub(super) full: u64,
    /// The device is down, or the frames are too long for it.
    pub(super) refused: u64,
}

impl FrameQueue {
    /// Uses AF_XDP sockets at queues of the device. A worker without any sends by `packet`.
    pub(super) fn of_xdp(xdp: Vec<XdpSocket>, packet: Option<PacketSocket>) -> Result<Self, Errno> {
        let poller = (xdp.len() > 1).then(|| poller(&xdp)).transpose()?;
        let staged = Vec::with_capacity(FRAMES_PER_CALL);
        Ok(Self { xdp, packet, receives_packets: false, poller, staged })
    }

    pub(super) fn of_packets(packet: PacketSocket) -> Self {
        let staged = Vec::with_capacity(FRAMES_PER_CALL);
        Self { xdp: Vec::new(), packet: Some(packet), receives_packets: true, poller: None, staged }
    }

    /// Receives at most `most` frames from each AF_XDP socket, or a batch from the packet socket.
    /// Returns the number of frames.
    pub(super) fn receive(
        &mut self,
        most: usize,
        mut take: impl FnMut(SocketFrame<'_>),
    ) -> Result<usize, Errno> {
        let mut count = 0;
        for socket in &mut self.xdp {
            count += socket.receive(most, |bytes| {
                take(SocketFrame { bytes, is_truncated: false, has_partial_checksum: false });
            });
        }
        match &mut self.packet {
            Some(socket) if self.receives_packets => Ok(count + socket.receive(take)?),
            _ => Ok(count),
        }
    }

    /// Adds a frame to the next batch. Once its buffer is free, `done` gets it, and whether the
    /// frame was sent.
    pub(super) fn stage(
        &mut self,
        frame: Buf,
        unsent: &mut FramesUnsent,
        done: &mut dyn FnMut(Buf, bool),
    ) {
        let Some(socket) = self.xdp.first_mut() else {
            if self.staged.len() == FRAMES_PER_CALL {
                self.flush(unsent, done);
            }
            return self.staged.push(frame);
        };
        let is_sent = socket.stage(frame.bytes());
        unsent.full += u64::from(!is_sent);
        done(frame, is_sent);
    }

    pub(super) fn flush(&mut self, unsent: &mut FramesUnsent, done: &mut dyn FnMut(Buf, bool)) {
        if let Some(socket) = self.xdp.first_mut() {
            // A device that is down drops the frames, so the error is ignored.
            let _ = socket.flush();
        }
        let Some(socket) = &mut self.packet else { return };
        let (mut next, mut is_sent) = (0, [false; FRAMES_PER_CALL]);
        while next < self.staged.len() {
            let (count, error) = socket.send(self.staged[next..].iter().map(Buf::bytes));
            is_sent[next..next + count].fill(true);
            next += count;
            match error {
                None if count > 0 => {}
                None | Some(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => {
                    unsent.full += (self.staged.len() - next) as u64;
                    break;
                }
                Some(_) => {
                    // Later frames may be shorter, so they are still tried.
                    next += 1;
                    unsent.refused += 1;
                }
            }
        }
        self.staged.drain(..).zip(is_sent).for_each(|(frame, is_sent)| done(frame, is_sent));
    }

    /// Passes the frames to the kernel that it has not taken yet. Returns whether it has taken all.
    pub(super) fn send_rest(&mut self) -> bool {
        self.xdp.first_mut().is_none_or(XdpSocket::send_rest)
    }

    /// Frames to this worker that the kernel dropped.
    pub(super) fn dropped(&mut self) -> u64 {
        let of_packets = self.packet.as_mut().filter(|_| self.receives_packets);
        let of_packets = of_packets.map_or(0, PacketSocket::dropped);
        self.xdp.iter().map(XdpSocket::dropped).sum::<u64>() + of_packets
    }

    /// Readable as long as there is a frame.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match (&self.poller, self.xdp.first(), &self.packet) {
            (Some(poller), ..) => Some(poller.as_fd()),
            (None, Some(socket), _) => Some(socket.as_fd()),
            (None, None, packet) => packet.as_ref().map(AsFd::as_fd),
        }
    }
}

fn poller(sockets: &[XdpSocket]) -> Result<OwnedFd, Errno> {
    let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (nth, socket) in (0..).zip(sockets) {
        let (data, flags) = (epoll::EventData::new_u64(nth), epoll::EventFlags::IN);
        epoll::add(&poller, socket, data, flags)?;
    }
    Ok(poller)
}
