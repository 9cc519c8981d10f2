//! Gathering and scattering: entries that do not end at packet boundaries, and empty entries.

use super::prelude::*;

pub const CASES: &[Case] = &[
    Case::new("gather-odd", "IBA 10.8.1", &[], |cx| gather(cx, &[1, 2, 61])),
    Case::new("gather-empty-first", "IBA 10.8.1", &[], |cx| gather(cx, &[0, 5, 7])),
    Case::new("gather-empty-middle", "IBA 10.8.1", &[], |cx| gather(cx, &[5, 0, 7])),
    Case::new("gather-empty-last", "IBA 10.8.1", &[], |cx| gather(cx, &[5, 7, 0])),
    Case::new("gather-only-empty", "IBA 10.8.1", &[], |cx| gather(cx, &[0, 0, 0])),
    Case::new("gather-over-packets", "IBA 10.8.1", &[], |cx| gather(cx, &[255, 4097, 13])),
    Case::new("scatter-odd", "IBA 10.8.1", &[], |cx| scatter(cx, &[61, 2, 1])),
    Case::new("scatter-empty-first", "IBA 10.8.1", &[], |cx| scatter(cx, &[0, 3, 9])),
    Case::new("scatter-empty-middle", "IBA 10.8.1", &[], |cx| scatter(cx, &[3, 0, 9])),
    Case::new("scatter-empty-last", "IBA 10.8.1", &[], |cx| scatter(cx, &[3, 9, 0])),
    Case::new("scatter-over-packets", "IBA 10.8.1", &[], |cx| scatter(cx, &[257, 4095, 4099])),
    Case::new("write-gathers", "IBA 10.8.1", &[], write_gathers),
    Case::new("read-scatters", "IBA 10.8.1", &[], read_scatters),
    Case::new("a-receive-may-be-longer", "IBA 10.8.1", &[], a_receive_may_be_longer),
    Case::new("the-same-bytes-twice", "IBA 10.8.1", &[], the_same_bytes_twice),
    Case::new("entries-of-two-regions", "IBA 10.8.1", &[], entries_of_two_regions),
    Case::new("no-entries-at-all", "IBA 10.8.1", &[], no_entries_at_all),
    Case::new("ud-scatter-splits-the-grh", "IBA 10.8.1", &[Need::Lossless], splits_the_grh),
    Case::new("as-many-as-the-queue-takes", "IBA 11.2.4.1", &[], as_many_as_possible),
];

/// Entries of these lengths in a buffer, with one byte between them to detect a write to the gap.
fn cuts(buffer: &Buffer, lengths: &[usize]) -> Vec<Sge> {
    let mut at = 1;
    let cut = |&bytes: &usize| {
        let sge = buffer.sge(at, bytes);
        at += bytes + 1;
        sge
    };
    lengths.iter().map(cut).collect()
}

/// The concatenated contents of the entries of [`cuts`].
fn joined(buffer: &Buffer, lengths: &[usize]) -> Vec<u8> {
    let mut at = 1;
    let mut all = Vec::new();
    for &bytes in lengths {
        all.extend(buffer.bytes_at(at, bytes));
        at += bytes + 1;
    }
    all
}

fn gather(cx: &mut Context<'_>, lengths: &[usize]) -> Result<(), Stop> {
    let bytes: usize = lengths.iter().sum();
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, bytes + 10, 21)?;
    let sink = cx.sink(&b, bytes + 1)?;
    cx.recv(&b, 1, &[sink.sge(0, bytes)])?;
    cx.carry_out(&a, request(2, SendOp::Send, &cuts(&source, lengths)))?;
    cx.received(&b, 1, bytes)?;
    sink.holds(0, &joined(&source, lengths))?;
    sink.is_untouched(bytes, 1)
}

fn scatter(cx: &mut Context<'_>, lengths: &[usize]) -> Result<(), Stop> {
    let bytes: usize = lengths.iter().sum();
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, bytes, 22)?;
    let sink = cx.sink(&b, bytes + 10)?;
    cx.recv(&b, 1, &cuts(&sink, lengths))?;
    cx.carry_out(&a, request(2, SendOp::Send, &[source.sge(0, bytes)]))?;
    cx.received(&b, 1, bytes)?;
    source.holds(0, &joined(&sink, lengths))?;
    sink.is_untouched(0, 1)?;
    sink.is_untouched(1 + lengths[0], 1)
}

fn write_gathers(cx: &mut Context<'_>) -> Result<(), Stop> {
    let lengths = [3, 4096, 0, 11];
    let bytes: usize = lengths.iter().sum();
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, bytes + 10, 23)?;
    let target = cx.shared(&b, bytes + 8)?;
    let write = SendOp::Write(target.remote(7));
    cx.carry_out(&a, request(1, write, &cuts(&source, &lengths)))?;
    target.holds(7, &joined(&source, &lengths))?;
    target.is_untouched(7 + bytes, 1)
}

fn read_scatters(cx: &mut Context<'_>) -> Result<(), Stop> {
    let lengths = [1023, 1, 0, 5000];
    let bytes: usize = lengths.iter().sum();
    let (a, b) = cx.connected(QpType::Rc)?;
    let target = cx.shared(&b, bytes + 1)?;
    target.put(0, &pattern(24, bytes + 1));
    let sink = cx.sink(&a, bytes + 10)?;
    let read = SendOp::Read(target.remote(1));
    cx.carry_out(&a, request(1, read, &cuts(&sink, &lengths)))?;
    target.holds(1, &joined(&sink, &lengths))?;
    sink.is_untouched(1 + lengths[0], 1)
}

fn a_receive_may_be_longer(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 20, 25)?;
    let sink = cx.sink(&b, 300)?;
    cx.recv(&b, 1, &[sink.sge(0, 10), sink.sge(100, 100), sink.sge(200, 100)])?;
    cx.carry_out(&a, request(2, SendOp::Send, &[source.sge(0, 20)]))?;
    cx.received(&b, 1, 20)?;
    same(&source, 0, &sink, 0, 10)?;
    same(&source, 10, &sink, 100, 10)?;
    sink.is_untouched(10, 90)?;
    sink.is_untouched(110, 190)
}

fn the_same_bytes_twice(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 20, 26)?;
    let sink = cx.sink(&b, 40)?;
    cx.recv(&b, 1, &[sink.sge(0, 40)])?;
    cx.carry_out(&a, request(2, SendOp::Send, &[source.sge(0, 20), source.sge(0, 20)]))?;
    cx.received(&b, 1, 40)?;
    same(&source, 0, &sink, 0, 20)?;
    same(&source, 0, &sink, 20, 20)
}

fn entries_of_two_regions(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let one = cx.source(&a, 20, 27)?;
    let other = cx.source(&a, 20, 28)?;
    let sinks = (cx.sink(&b, 30)?, cx.sink(&b, 30)?);
    cx.recv(&b, 1, &[sinks.0.sge(0, 30), sinks.1.sge(0, 10)])?;
    cx.carry_out(&a, request(2, SendOp::Send, &[one.sge(0, 20), other.sge(0, 20)]))?;
    cx.received(&b, 1, 40)?;
    same(&one, 0, &sinks.0, 0, 20)?;
    same(&other, 0, &sinks.0, 20, 10)?;
    same(&other, 10, &sinks.1, 0, 10)
}

fn no_entries_at_all(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    cx.recv(&b, 1, &[])?;
    cx.carry_out(&a, request(2, SendOp::Send, &[]))?;
    cx.received(&b, 1, 0).map(drop)
}

fn splits_the_grh(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let to = cx.destination(&a, &b)?;
    let source = cx.source(&a, 60, 29)?;
    let sink = cx.sink(&b, 200)?;
    // The end of the GRH, at byte 40, is inside the second entry.
    cx.recv(&b, 1, &[sink.sge(0, 17), sink.sge(50, 30), sink.sge(100, 53)])?;
    cx.carry_out(&a, request(2, SendOp::Datagram(to), &[source.sge(0, 60)]))?;
    cx.received(&b, 1, Grh::LEN + 60)?;
    same(&source, 0, &sink, 50 + (Grh::LEN - 17), 7)?;
    same(&source, 7, &sink, 100, 53)
}

fn as_many_as_possible(cx: &mut Context<'_>) -> Result<(), Stop> {
    let count = cx.limits().sges_max.min(64) as usize;
    let (a, b) = cx.pair(&PairSetup { sges_max: count as u32, ..PairSetup::RC })?;
    let source = cx.source(&a, 3 * count + 1, 30)?;
    let sink = cx.sink(&b, 3 * count + 1)?;
    let lengths = vec![2; count];
    cx.recv(&b, 1, &cuts(&sink, &lengths))?;
    cx.carry_out(&a, request(2, SendOp::Send, &cuts(&source, &lengths)))?;
    cx.received(&b, 1, 2 * count)?;
    sink.holds(1, &source.bytes_at(1, 2))?;
    equal("the cuts", joined(&sink, &lengths), joined(&source, &lengths))
}
