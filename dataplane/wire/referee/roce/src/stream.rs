//! Ethernet frames on a byte stream. Each frame follows its length in four bytes, most significant
//! byte first. QEMU's network backend `stream` uses this format for the frames of a guest.

use super::{EthernetWire, FRAME_BYTES_MAX};
use pollux_fabric::Time;
use std::io::{ErrorKind, Read, Write};

const LENGTH_BYTES: usize = 4;
/// Bytes of one read.
const READ_BYTES: usize = 1 << 16;
/// Bytes that wait to be written before the wire accepts no more frames.
const OUTBOX_BYTES_MAX: usize = 1 << 20;

/// A wire over a stream that does not block.
#[derive(Debug)]
pub struct StreamWire<S> {
    stream: S,
    inbox: Vec<u8>,
    /// Number of bytes of `inbox` that are parsed.
    taken: usize,
    outbox: Vec<u8>,
    /// The other end closed the stream, or sent an invalid length.
    is_closed: bool,
    lost_frames: u64,
}

impl<S: Read + Write> StreamWire<S> {
    /// A wire over this stream, which must be non-blocking.
    pub fn new(stream: S) -> Self {
        let (inbox, outbox) = (Vec::new(), Vec::new());
        Self { stream, inbox, taken: 0, outbox, is_closed: false, lost_frames: 0 }
    }

    /// Whether the other end closed the stream, or sent an invalid length.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Frames lost because the outbox was full or the stream closed.
    pub fn lost_frames(&self) -> u64 {
        self.lost_frames
    }

    fn flush(&mut self) {
        while !self.outbox.is_empty() && !self.is_closed {
            match self.stream.write(&self.outbox) {
                Ok(0) => self.is_closed = true,
                Ok(bytes) => drop(self.outbox.drain(..bytes)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.is_closed = true,
            }
        }
    }

    /// Reads from the stream; returns whether there were bytes.
    fn fill(&mut self) -> bool {
        if self.is_closed {
            return false;
        }
        self.inbox.drain(..self.taken);
        self.taken = 0;
        let had = self.inbox.len();
        self.inbox.resize(had + READ_BYTES, 0);
        let read = self.stream.read(&mut self.inbox[had..]);
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(error) => {
                let waits = [ErrorKind::WouldBlock, ErrorKind::Interrupted];
                self.is_closed = !waits.contains(&error.kind());
                self.inbox.truncate(had);
                return false;
            }
        };
        self.inbox.truncate(had + bytes);
        self.is_closed = bytes == 0;
        bytes > 0
    }

    /// The next complete frame.
    fn take(&mut self) -> Option<&[u8]> {
        let (length, rest) = self.inbox[self.taken..].split_first_chunk::<LENGTH_BYTES>()?;
        let length = u32::from_be_bytes(*length) as usize;
        if length > FRAME_BYTES_MAX {
            // The start of the next frame cannot be found any more.
            self.is_closed = true;
            self.taken = self.inbox.len();
            return None;
        }
        let frame = rest.get(..length)?;
        self.taken += LENGTH_BYTES + length;
        Some(frame)
    }
}

impl<S: Read + Write> EthernetWire for StreamWire<S> {
    fn has_room(&mut self) -> bool {
        self.flush();
        self.outbox.len() < OUTBOX_BYTES_MAX
    }

    fn send(&mut self, _: Time, frame: &[u8]) {
        if self.is_closed || self.outbox.len() >= OUTBOX_BYTES_MAX + FRAME_BYTES_MAX {
            self.lost_frames += 1;
            return;
        }
        self.outbox.extend((frame.len() as u32).to_be_bytes());
        self.outbox.extend_from_slice(frame);
        self.flush();
    }

    fn receive(&mut self, _: Time, frame: &mut Vec<u8>) -> bool {
        loop {
            if let Some(taken) = self.take() {
                frame.clear();
                frame.extend_from_slice(taken);
                return true;
            }
            if !self.fill() {
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn joined() -> [StreamWire<UnixStream>; 2] {
        let (a, b) = UnixStream::pair().unwrap();
        [a, b].map(|stream| {
            stream.set_nonblocking(true).unwrap();
            StreamWire::new(stream)
        })
    }

    #[test]
    fn frames_are_complete_and_in_order_for_any_segmentation() {
        let [mut a, mut b] = joined();
        let frames: Vec<Vec<u8>> = (1..2000_u32).map(|nth| vec![nth as u8; nth as usize]).collect();
        let (mut came, mut frame) = (Vec::new(), Vec::new());
        for sent in &frames {
            while !a.has_room() {
                assert!(b.receive(Time::START, &mut frame));
                came.push(frame.clone());
            }
            a.send(Time::START, sent);
        }
        while came.len() < frames.len() {
            a.has_room();
            if b.receive(Time::START, &mut frame) {
                came.push(frame.clone());
            }
        }
        assert!(came == frames);
        assert_eq!(a.lost_frames(), 0);
    }

    #[test]
    fn a_length_that_no_frame_has_closes_the_wire() {
        let (mut a, b) = UnixStream::pair().unwrap();
        b.set_nonblocking(true).unwrap();
        let (mut wire, mut frame) = (StreamWire::new(b), Vec::new());
        a.write_all(&[0, 0, 0, 1, 7, 0xff, 0, 0, 0, 9]).unwrap();
        assert!(wire.receive(Time::START, &mut frame) && frame == [7]);
        assert!(!wire.receive(Time::START, &mut frame) && wire.is_closed());
        wire.send(Time::START, &[1]);
        assert_eq!(wire.lost_frames(), 1);
    }

    #[test]
    fn a_closed_end_is_detected() {
        let [a, mut b] = joined();
        drop(a);
        assert!(!b.receive(Time::START, &mut Vec::new()) && b.is_closed());
    }
}
