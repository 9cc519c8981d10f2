//! Messages with sizes next to a boundary: of words, inline data, cache lines, packets, pages and
//! 16-bit lengths.
//!
//! Each message is received at an unaligned address, between two ranges that must not change.

use super::prelude::*;
use pollux_wire::units::Mtu;

/// The length of a message.
#[derive(Clone, Copy)]
enum Size {
    Bytes(usize),
    /// A number of full packets, plus or minus a few bytes.
    Packets(usize, isize),
}
use Size::{Bytes, Packets};

/// Bytes before and after the message that must not change. Odd, so that the message is unaligned.
const MARGIN: usize = 37;

impl Size {
    fn bytes(self, cx: &mut Context<'_>) -> Result<usize, Stop> {
        match self {
            Bytes(bytes) => Ok(bytes),
            Packets(count, more) => Ok((cx.mtu_bytes()? * count).saturating_add_signed(more)),
        }
    }
}

const LOSSLESS_UC: &[Need] = &[Need::Uc, Need::Lossless];

macro_rules! connected {
    ($($name:literal $size:expr),* $(,)?) => {
        &[$(
            Case::new(concat!("rc-send-", $name), "IBA 9.7.4", &[], |cx| {
                send(cx, QpType::Rc, $size)
            }),
            Case::new(concat!("rc-write-", $name), "IBA 9.4.3", &[], |cx| {
                write(cx, QpType::Rc, $size)
            }),
            Case::new(concat!("rc-read-", $name), "IBA 9.4.4", &[], |cx| read(cx, $size)),
            Case::new(concat!("uc-send-", $name), "IBA 9.8.2", LOSSLESS_UC, |cx| {
                send(cx, QpType::Uc, $size)
            }),
            Case::new(concat!("uc-write-", $name), "IBA 9.8.2", LOSSLESS_UC, |cx| {
                write(cx, QpType::Uc, $size)
            }),
        )*]
    };
}

macro_rules! datagrams {
    ($($name:literal $size:expr),* $(,)?) => {
        &[$(Case::new(concat!("ud-send-", $name), "IBA 9.8.3", &[Need::Lossless], |cx| {
            datagram(cx, $size)
        }),)*]
    };
}

/// Cases for connections.
pub const CONNECTED: &[Case] = connected![
    "0" Bytes(0),
    "1" Bytes(1),
    "2" Bytes(2),
    "3" Bytes(3),
    "4" Bytes(4),
    "5" Bytes(5),
    "63" Bytes(63),
    "64" Bytes(64),
    "65" Bytes(65),
    "255" Bytes(255),
    "256" Bytes(256),
    "257" Bytes(257),
    "mtu-less-1" Packets(1, -1),
    "mtu" Packets(1, 0),
    "mtu-and-1" Packets(1, 1),
    "mtu-twice" Packets(2, 0),
    "4095" Bytes(4095),
    "4096" Bytes(4096),
    "65520" Bytes(65520),
    "65535" Bytes(65535),
    "65536" Bytes(65536),
    "1MiB" Bytes(1 << 20),
];

/// Cases for datagrams, which are a single packet.
pub const DATAGRAMS: &[Case] = datagrams![
    "0" Bytes(0),
    "1" Bytes(1),
    "2" Bytes(2),
    "3" Bytes(3),
    "4" Bytes(4),
    "5" Bytes(5),
    "63" Bytes(63),
    "64" Bytes(64),
    "65" Bytes(65),
    "255" Bytes(255),
    "256" Bytes(256),
    "mtu-less-1" Packets(1, -1),
    "mtu" Packets(1, 0),
];

/// The longest message, and a message that is too long.
pub const LONGEST: &[Case] = &[
    Case::new("rc-write-2GiB", "IBA 9.7.7.1.1", &[], |cx| longest(cx, &PairSetup::RC, false)),
    Case::new("rc-write-2GiB-mtu-256", "IBA 9.7.1", &[], |cx| longest(cx, &SMALLEST, false)),
    Case::new("rc-read-2GiB-mtu-256", "IBA 9.7.1", &[], |cx| longest(cx, &SMALLEST, true)),
    Case::new("rc-send-over-2GiB", "IBA 9.7.7.1.1", &[], too_long),
];

fn send(cx: &mut Context<'_>, qp_type: QpType, size: Size) -> Result<(), Stop> {
    let bytes = size.bytes(cx)?;
    let (a, b) = cx.connected(qp_type)?;
    let source = cx.source(&a, bytes + 1, 11)?;
    let sink = cx.sink(&b, bytes + 2 * MARGIN)?;
    cx.recv(&b, 1, &[sink.sge(MARGIN, bytes)])?;
    cx.carry_out(&a, request(2, SendOp::Send, &[source.sge(1, bytes)]))?;
    cx.received(&b, 1, bytes)?;
    same(&source, 1, &sink, MARGIN, bytes)?;
    margins_are_untouched(&sink, bytes)
}

fn write(cx: &mut Context<'_>, qp_type: QpType, size: Size) -> Result<(), Stop> {
    let bytes = size.bytes(cx)?;
    let (a, b) = cx.connected(qp_type)?;
    let source = cx.source(&a, bytes + 3, 12)?;
    let target = cx.shared(&b, bytes + 2 * MARGIN)?;
    let write = SendOp::Write(target.remote(MARGIN));
    cx.carry_out(&a, request(1, write, &[source.sge(3, bytes)]))?;
    // The completion of a UC write does not imply its arrival, but that of a later message does.
    cx.exchange(&a, &b, 1)?;
    same(&source, 3, &target, MARGIN, bytes)?;
    margins_are_untouched(&target, bytes)
}

fn read(cx: &mut Context<'_>, size: Size) -> Result<(), Stop> {
    let bytes = size.bytes(cx)?;
    let (a, b) = cx.connected(QpType::Rc)?;
    let target = cx.shared(&b, bytes + 5)?;
    target.put(0, &pattern(13, bytes + 5));
    let sink = cx.sink(&a, bytes + 2 * MARGIN)?;
    let read = SendOp::Read(target.remote(5));
    let found = cx.carry_out(&a, request(1, read, &[sink.sge(MARGIN, bytes)]))?;
    equal("bytes read", found.bytes as usize, bytes)?;
    same(&target, 5, &sink, MARGIN, bytes)?;
    margins_are_untouched(&sink, bytes)
}

fn datagram(cx: &mut Context<'_>, size: Size) -> Result<(), Stop> {
    let bytes = size.bytes(cx)?;
    let (a, b) = cx.connected(QpType::Ud)?;
    let to = cx.destination(&a, &b)?;
    let source = cx.source(&a, bytes + 1, 14)?;
    let sink = cx.sink(&b, Grh::LEN + bytes + 2 * MARGIN)?;
    cx.recv(&b, 1, &[sink.sge(MARGIN, Grh::LEN + bytes)])?;
    cx.carry_out(&a, request(2, SendOp::Datagram(to), &[source.sge(1, bytes)]))?;
    cx.received(&b, 1, Grh::LEN + bytes)?;
    same(&source, 1, &sink, MARGIN + Grh::LEN, bytes)?;
    margins_are_untouched(&sink, Grh::LEN + bytes)
}

fn margins_are_untouched(sink: &Buffer, bytes: usize) -> Result<(), Stop> {
    sink.is_untouched(0, MARGIN)?;
    sink.is_untouched(MARGIN + bytes, MARGIN)
}

/// With this MTU, the longest message uses half of all PSNs.
const SMALLEST: PairSetup = PairSetup { path_mtu: Some(Mtu::BYTES_256), ..PairSetup::RC };

fn longest(cx: &mut Context<'_>, setup: &PairSetup, is_read: bool) -> Result<(), Stop> {
    cx.needs_memory(2 * MESSAGE_BYTES_MAX)?;
    let bytes = MESSAGE_BYTES_MAX as usize;
    let (a, b) = cx.pair(setup)?;
    let (ours, theirs) = (cx.sink(&a, bytes)?, cx.shared(&b, bytes)?);
    let (source, target) = if is_read { (&theirs, &ours) } else { (&ours, &theirs) };
    // Different values at the start, the middle and the end of the message.
    let marks = [0, bytes / 2 - 4, bytes - 8];
    for (mark, at) in marks.into_iter().enumerate() {
        source.put_u64(at, mark as u64);
    }
    let there = theirs.remote(0);
    let op = if is_read { SendOp::Read(there) } else { SendOp::Write(there) };
    // A short read behind the long message; its PSN follows the last one of the message.
    let short = SendOp::Read(theirs.remote(16));
    cx.post(&a, silent(1, op, &[ours.sge(0, bytes)]))?;
    cx.carry_out(&a, request(2, short, &[ours.sge(16, 8)]))?;
    for (mark, at) in marks.into_iter().enumerate() {
        target.holds(at, &(mark as u64).to_ne_bytes())?;
    }
    Ok(())
}

fn too_long(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, _) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 64, 1)?;
    let half = Sge { bytes: 1 << 31, ..source.sge(0, 0) };
    let answer = cx.device(Side::A).post_send(a.qp, &[request(1, SendOp::Send, &[half, half])]);
    match answer {
        // The post refuses the length ...
        Err(_) => post_refused("2^32 bytes", answer, 0, &[PostRefusal::TooLong]),
        // ... or the request fails when the adapter executes it; hardware checks length and keys
        // then.
        Ok(()) => cx.breaks(&a, Queue::Send, 1, &[LocalLength, LocalProtection]),
    }
}
