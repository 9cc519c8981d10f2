//! One end of the measured stream: it sends at a rate, or counts received data.

use super::control::TIMEOUT;
use super::wire::{Amount, Count, Test, stamp, stamped};
use pollux::{Interface, TcpStream, UdpSocket};
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

/// The timeout of send and receive calls, after which the control connection is polled.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// After all datagrams are sent, more are sent at this interval, in place of lost ones.
const REPAIR_EVERY: Duration = Duration::from_millis(100);

pub enum Socket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

pub struct Stream {
    socket: Socket,
    test: Test,
    block: Vec<u8>,
    begun: Instant,
    /// When the last block was sent.
    sent_at: Duration,
    /// The transit time of the last datagram, from the clock of the sender to that of the receiver.
    transit_s: Option<f64>,
    is_over: bool,
    pub count: Count,
}

impl Stream {
    pub fn new(socket: Socket, test: Test) -> io::Result<Self> {
        match &socket {
            Socket::Tcp(stream) => {
                stream.set_read_timeout(Some(LOOK_EVERY))?;
                stream.set_write_timeout(Some(LOOK_EVERY))?;
            }
            Socket::Udp(socket) => {
                socket.set_read_timeout(Some(LOOK_EVERY))?;
                socket.set_write_timeout(Some(LOOK_EVERY))?;
            }
        }
        Ok(Self {
            socket,
            test,
            block: vec![b'.'; test.block],
            begun: clock(),
            sent_at: Duration::ZERO,
            transit_s: None,
            is_over: false,
            count: Count::default(),
        })
    }

    /// Whether the test has sent or received its amount of data, or its time is over.
    pub fn has_enough(&self) -> bool {
        match self.test.amount {
            Amount::Bytes(bytes) => self.count.bytes >= bytes,
            Amount::Time(time) => self.begun.elapsed() >= time,
        }
    }

    /// Sends a block or a part of it, as the rate and the send buffer permit.
    pub fn send(&mut self, interface: &Interface) -> io::Result<()> {
        let now = self.begun.elapsed();
        let len = self.len_now(now);
        if len == 0 {
            if !interface.step() {
                std::thread::yield_now();
            }
            return Ok(());
        }
        let sent = match &mut self.socket {
            Socket::Tcp(stream) => stream.write(&self.block[..len]),
            Socket::Udp(socket) => {
                stamp(&mut self.block, now, self.count.datagrams as u32 + 1);
                socket.send(&self.block)
            }
        };
        if let Some(sent) = unless_timeout(sent)? {
            self.count.bytes += sent as u64;
            self.count.datagrams += u64::from(matches!(self.socket, Socket::Udp(_)));
            self.sent_at = now;
            self.count.seconds = self.begun.elapsed().as_secs_f64();
        }
        Ok(())
    }

    /// The number of bytes to send now; 0 while the rate permits none.
    fn len_now(&self, now: Duration) -> usize {
        let due_s = self.test.rate.map(|rate| self.count.bytes as f64 * 8.0 / rate as f64);
        if due_s.is_some_and(|due_s| now.as_secs_f64() < due_s) {
            return 0;
        }
        match (&self.socket, self.test.amount) {
            (Socket::Tcp(_), Amount::Bytes(bytes)) => {
                bytes.saturating_sub(self.count.bytes).min(self.block.len() as u64) as usize
            }
            (Socket::Udp(_), Amount::Bytes(bytes)) if self.count.bytes >= bytes => {
                if now < self.sent_at + REPAIR_EVERY { 0 } else { self.block.len() }
            }
            _ => self.block.len(),
        }
    }

    /// Waits for data, at most for the timeout, and counts it.
    pub fn receive(&mut self) -> io::Result<()> {
        let came = match &mut self.socket {
            Socket::Tcp(stream) => stream.read(&mut self.block),
            Socket::Udp(socket) => socket.recv_from(&mut self.block).map(|(len, _)| len),
        };
        let Some(len) = unless_timeout(came)? else { return Ok(()) };
        let now = self.begun.elapsed();
        match self.socket {
            Socket::Tcp(_) => self.is_over = len == 0,
            Socket::Udp(_) => self.number(now, len),
        }
        self.count.bytes += len as u64;
        self.count.seconds = now.as_secs_f64();
        Ok(())
    }

    /// Updates jitter and losses from the header of a received datagram.
    fn number(&mut self, now: Duration, len: usize) {
        let Some((sent, number)) = stamped(&self.block[..len]) else { return };
        match u64::from(number).checked_sub(self.count.datagrams) {
            Some(ahead @ 1..) => {
                self.count.lost += ahead - 1;
                self.count.datagrams = number.into();
            }
            // It arrived late, and was counted as lost.
            _ => self.count.lost = self.count.lost.saturating_sub(1),
        }
        let transit_s = now.as_secs_f64() - sent.as_secs_f64();
        let change_s = self.transit_s.map_or(0.0, |last_s| (transit_s - last_s).abs());
        self.count.jitter_s += (change_s - self.count.jitter_s) / 16.0;
        self.transit_s = Some(transit_s);
    }

    /// Waits until the peer has acknowledged all data.
    pub fn flush(&mut self) -> io::Result<()> {
        let Socket::Tcp(stream) = &mut self.socket else { return Ok(()) };
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.flush()
    }

    /// Closes the sending half.
    pub fn end(&self) -> io::Result<()> {
        match &self.socket {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Socket::Udp(_) => Ok(()),
        }
    }

    /// Receives the remaining data: over TCP until end of file or until the count is `bytes`, over
    /// UDP the queued datagrams.
    pub fn drain(&mut self, bytes: Option<u64>) -> io::Result<()> {
        if let Socket::Udp(_) = self.socket {
            while self.is_readable() {
                self.receive()?;
            }
            return Ok(());
        }
        let end = clock() + TIMEOUT;
        while !self.is_over && bytes.is_none_or(|bytes| self.count.bytes < bytes) {
            if clock() > end {
                return Err(ErrorKind::TimedOut.into());
            }
            self.receive()?;
        }
        Ok(())
    }

    fn is_readable(&self) -> bool {
        match &self.socket {
            Socket::Tcp(stream) => stream.is_readable(),
            Socket::Udp(socket) => socket.is_readable(),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn clock() -> Instant {
    Instant::now()
}

/// Maps a timeout of a call to `None`.
fn unless_timeout<R>(result: io::Result<R>) -> io::Result<Option<R>> {
    match result {
        Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {
            Ok(None)
        }
        other => other.map(Some),
    }
}
