//! The driver of a port at a queue of a TUN device.
//!
//! ```text
//!   kernel --readv--> a long buffer --+-- a packet: its checksum is completed --> transit
//!                                     +-- a unit: cut into packets, as they are taken
//!   batch --> packets of a flow, merged --writev: one unit--> kernel
//! ```
//!
//! A unit is a long TCP packet that still has to be segmented. The length of a packet is not known
//! before it is read, so it is read into a long buffer. A short packet is copied to a short buffer,
//! and the long buffer serves the next read; a long packet keeps the long buffer, and is not
//! copied. The queue is not read before all packets of a unit are taken, nor while no buffer is
//! free. Meanwhile the kernel's queue fills. When it is full, the kernel drops and counts packets.

use super::counters::PortDrop;
use super::port::{PlainDriver, PortCore};
use crate::kernel::KernelError;
use crate::kernel::tun::{TunQueue, TunWritten, VNET_HEADER_BYTES};
use pollux_control::beyond::TransitHop;
use pollux_dataplane::offload::complete_checksum;
use pollux_dataplane::offload::merge::TcpRun;
use pollux_dataplane::offload::segment::TcpUnit;
use pollux_dataplane::port::{BATCH_MAX, TransitPacket, TxPacket};
use pollux_mem::Buf;
use pollux_verbs::WakeSource;
use pollux_verbs::time::Time;
use pollux_wire::ip::vnet_header::{SegmentKind, VnetHeader};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::time::Duration;

/// Length of the buffer for the end of a unit that is longer than a long buffer (65,520 bytes). A
/// unit has up to 65,535 bytes.
const SPILL_BYTES: usize = 64;
/// Pause before an empty queue is read again: a read is a system call.
const LOOK_EVERY: Duration = Duration::from_micros(2);

/// The driver of a port at a queue of a TUN device.
pub(super) struct TunDriver {
    queue: TunQueue,
    /// The buffer of the next read.
    landing: Option<Buf>,
    unit: Option<Unit>,
    /// When an empty queue is read again.
    look_at: Time,
    /// Packets of a flow that will be sent as one unit.
    parts: Vec<Buf>,
    run: Option<TcpRun>,
}

/// A unit that has packets left.
struct Unit {
    headers: TcpUnit,
    bytes: UnitBytes,
    next: usize,
}

enum UnitBytes {
    Buffer(Buf),
    /// The unit is longer than a buffer.
    Long(Box<[u8]>),
}

impl UnitBytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Buffer(buf) => buf.bytes(),
            Self::Long(bytes) => bytes,
        }
    }

    fn free(self, core: &mut PortCore) {
        if let Self::Buffer(buf) = self {
            core.free(buf);
        }
    }
}

impl TunDriver {
    pub(super) fn new(queue: TunQueue) -> Self {
        Self {
            queue,
            landing: None,
            unit: None,
            look_at: Time::START,
            parts: Vec::with_capacity(BATCH_MAX),
            run: None,
        }
    }

    /// Sends the packets of control. Returns whether there were any.
    fn send_frames(&mut self, core: &mut PortCore) -> bool {
        let mut busy = false;
        while let Some(frame) = core.poll_frame() {
            let header = VnetHeader::default().emit();
            let parts = [IoSlice::new(&header), IoSlice::new(&frame.packet)];
            let written = self.queue.write_parts(&parts);
            if is_taken(core, &written, 1) {
                core.note_sent(&frame.packet);
            }
            busy = true;
        }
        busy
    }

    /// Reads a packet or a unit. Returns whether there was one, and space for it.
    fn read(
        &mut self,
        core: &mut PortCore,
        transit: Option<&mut Vec<TransitPacket>>,
    ) -> Result<bool, KernelError> {
        let Some(mut landing) = self.landing.take().or_else(|| core.longest_buffer()) else {
            return Ok(false);
        };
        let (mut header, mut spill) = ([0; VNET_HEADER_BYTES], [0; SPILL_BYTES]);
        let mut parts = [&mut header[..], landing.bytes_mut(), &mut spill[..]].map(IoSliceMut::new);
        let Some(read) = self.queue.read_parts(&mut parts)? else {
            self.landing = Some(landing);
            return Ok(false);
        };
        let bytes = read.saturating_sub(VNET_HEADER_BYTES);
        match VnetHeader::parse(&header) {
            Ok(header) if header.segmentation != SegmentKind::Unsegmented => {
                self.begin_unit(core, header, landing, bytes, &spill);
            }
            Ok(header) if bytes <= landing.len() => {
                self.take(core, header, landing, bytes, transit);
            }
            _ => {
                core.counters.port_drops.count(PortDrop::BadOffload);
                self.landing = Some(landing);
            }
        }
        Ok(true)
    }

    /// Handles a packet that has been read.
    fn take(
        &mut self,
        core: &mut PortCore,
        header: VnetHeader,
        mut landing: Buf,
        bytes: usize,
        transit: Option<&mut Vec<TransitPacket>>,
    ) {
        let packet = &mut landing.bytes_mut()[..bytes];
        if header.checksum.is_some_and(|partial| !complete_checksum(packet, partial)) {
            core.counters.port_drops.count(PortDrop::BadOffload);
            self.landing = Some(landing);
            return;
        }
        let small = if core.is_small(bytes) { core.buffer(bytes) } else { None };
        let packet = match small {
            Some(mut small) => {
                small.bytes_mut().copy_from_slice(&landing.bytes()[..bytes]);
                self.landing = Some(landing);
                small
            }
            None => {
                landing.truncate(bytes);
                landing
            }
        };
        core.receive(packet, false, transit);
    }

    /// Handles a unit that has been read.
    fn begin_unit(
        &mut self,
        core: &mut PortCore,
        header: VnetHeader,
        mut landing: Buf,
        bytes: usize,
        spill: &[u8],
    ) {
        let fits = bytes <= landing.len();
        let long = (!fits).then(|| {
            let rest = &spill[..spill.len().min(bytes - landing.len())];
            Box::from([landing.bytes(), rest].concat())
        });
        let bytes = match long {
            Some(long) => {
                self.landing = Some(landing);
                UnitBytes::Long(long)
            }
            None => {
                landing.truncate(bytes);
                UnitBytes::Buffer(landing)
            }
        };
        match TcpUnit::parse(bytes.as_slice(), header.segment_bytes) {
            Some(headers) => self.unit = Some(Unit { headers, bytes, next: 0 }),
            None => {
                core.counters.port_drops.count(PortDrop::BadOffload);
                bytes.free(core);
            }
        }
    }

    /// Takes the next packet of the unit. Returns whether there was space for it.
    fn take_of_unit(
        &mut self,
        core: &mut PortCore,
        transit: Option<&mut Vec<TransitPacket>>,
    ) -> bool {
        let Some(mut unit) = self.unit.take() else { return false };
        let Some(mut packet) = core.buffer(unit.headers.packet_bytes(unit.next)) else {
            self.unit = Some(unit);
            return false;
        };
        let written = unit.headers.write(unit.bytes.as_slice(), unit.next, packet.bytes_mut());
        match written {
            Some(()) => core.receive(packet, false, transit),
            None => core.free(packet),
        }
        unit.next += 1;
        match unit.next < unit.headers.count() {
            true => self.unit = Some(unit),
            false => unit.bytes.free(core),
        }
        true
    }

    /// Writes the packets that are merged so far.
    fn send_run(&mut self, core: &mut PortCore) {
        let bytes: usize = self.parts.iter().map(Buf::len).sum();
        if !core.taps.is_empty() {
            // This comes before merging, which changes the header of the first packet.
            self.parts.iter().for_each(|part| core.taps.offer(part.bytes()));
        }
        let Some((first, rest)) = self.parts.split_first_mut() else { return };
        let (header, header_bytes) = match self.run.take() {
            Some(run) => (run.finish(first.bytes_mut()), run.header_bytes()),
            None => (VnetHeader::default(), 0),
        };
        let header = header.emit();
        let mut all = [IoSlice::new(&[]); BATCH_MAX + 1];
        all[0] = IoSlice::new(&header);
        all[1] = IoSlice::new(first.bytes());
        for (slice, part) in all[2..].iter_mut().zip(&*rest) {
            *slice = IoSlice::new(&part.bytes()[header_bytes..]);
        }
        let packets = 1 + rest.len();
        let written = self.queue.write_parts(&all[..1 + packets]);
        let is_taken = is_taken(core, &written, packets as u64);
        if is_taken {
            core.counters.sent += packets as u64;
            core.counters.bytes_sent += bytes as u64;
        }
        if !core.taps.is_empty() {
            core.taps.finish_offers(|_| !is_taken);
        }
        while let Some(part) = self.parts.pop() {
            core.free(part);
        }
    }
}

impl PlainDriver for TunDriver {
    fn receive(
        &mut self,
        core: &mut PortCore,
        now: Time,
        mut transit: Option<&mut Vec<TransitPacket>>,
    ) -> bool {
        let mut busy = core.begins_turn(now) && self.send_frames(core);
        if core.has_failed {
            return true;
        }
        let mut left = BATCH_MAX;
        while left > 0 {
            if self.unit.is_some() {
                match self.take_of_unit(core, transit.as_deref_mut()) {
                    true => left -= 1,
                    false => break,
                }
            } else if now < self.look_at {
                break;
            } else {
                match self.read(core, transit.as_deref_mut()) {
                    Ok(true) => left -= 1,
                    Ok(false) => {
                        self.look_at = now + LOOK_EVERY;
                        break;
                    }
                    Err(why) => {
                        core.fail(&why);
                        return true;
                    }
                }
            }
            busy = true;
        }
        busy
    }

    fn send(&mut self, core: &mut PortCore, _: Time, batch: &mut Vec<TxPacket>) {
        let mtu = core.mtu();
        for TxPacket { packet, next_hop, from, .. } in batch.drain(..) {
            if core.has_failed {
                core.free(packet);
                continue;
            }
            if packet.len() > mtu {
                core.too_big(packet, TransitHop { from: from.0, next_hop });
                continue;
            }
            let continues = self.parts.len() < BATCH_MAX
                && self.run.as_mut().is_some_and(|run| run.append(packet.bytes()));
            if !continues {
                self.send_run(core);
                self.run = TcpRun::begin(packet.bytes());
            }
            self.parts.push(packet);
        }
        self.send_run(core);
    }

    /// The descriptor is readable as long as there is a packet.
    fn arm(&mut self, core: &mut PortCore) -> bool {
        core.prepare_sleep();
        self.look_at = Time::START;
        self.unit.is_none()
    }

    fn wake_source(&self) -> Option<WakeSource<'_>> {
        Some(WakeSource { fd: self.queue.as_fd(), longest: Duration::MAX })
    }
}

/// Whether the kernel took this many packets. If not, they are counted as drops, or the port fails.
fn is_taken(core: &mut PortCore, written: &Result<TunWritten, KernelError>, packets: u64) -> bool {
    let drops = &mut core.counters.port_drops;
    match written {
        Ok(TunWritten::Taken) => return true,
        Ok(TunWritten::Full) => drops.add(PortDrop::Full, packets),
        Ok(TunWritten::Refused) => drops.add(PortDrop::Refused, packets),
        Err(why) => core.fail(why),
    }
    false
}
