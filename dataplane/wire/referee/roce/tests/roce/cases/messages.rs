//! Successful operations on connections: messages of all lengths and kinds.

use super::Case;
use crate::peer::*;
use pollux_conformance::end::op;
use pollux_verbs::CompletionStatus::Success;

pub const MIB: u64 = 1 << 20;

pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("RC send 100", |t| send(t, &RC, 100, None)).over_v6(),
        Case::new("RC send 5000", |t| send(t, &RC, 5000, None)).over_v6(),
        Case::new("RC read 5000", |t| read(t, &RC, 5000)).over_v6(),
    ];
    for bytes in [0, 1, 3, 1023, 1024, 1025, 4096, 65_536, MIB] {
        cases.push(Case::new(format!("RC send {bytes}"), move |t| send(t, &RC, bytes, None)));
    }
    for bytes in [0, 1, 1025, 65_536] {
        let name = format!("RC send {bytes} with immediate data");
        cases.push(Case::new(name, move |t| send(t, &RC, bytes, Some(0xdead_beef))));
    }
    for bytes in [0, 1, 1024, 5000, MIB] {
        cases.push(Case::new(format!("RC write {bytes}"), move |t| write(t, &RC, bytes, None)));
        cases.push(Case::new(format!("RC read {bytes}"), move |t| read(t, &RC, bytes)));
    }
    for bytes in [0, 3000] {
        let name = format!("RC write {bytes} with immediate data");
        cases.push(Case::new(name, move |t| write(t, &RC, bytes, Some(7))));
    }
    for mtu in 1..=5 {
        let bytes = 128 << mtu;
        let connection = Connection { mtu, ..RC };
        cases.push(Case::new(format!("RC all kinds, path MTU {bytes}"), move |t| {
            send(t, &connection, 10_001, None)?;
            write(t, &connection, 10_001, None)?;
            read(t, &connection, 10_001)
        }));
    }
    let wraps = Connection { psn: 0xff_fffd, mtu: 1, ..RC };
    cases.extend([
        Case::new("RC PSN wraps in a send", move |t| send(t, &wraps, 2500, None)),
        Case::new("RC PSN wraps in a write", move |t| write(t, &wraps, 2500, None)),
        Case::new("RC PSN wraps in a read", move |t| read(t, &wraps, 2500)),
        Case::new("RC compare and swap", compare_and_swap),
        Case::new("RC fetch and add", fetch_and_add),
        Case::new("RC 16 reads at once, 4 outstanding", many_reads),
        Case::new("RC all kinds at once", mixture),
        Case::new("RC 48 sends at once", many_sends),
    ]);
    for bytes in [0, 1, 1024, 5000, 65_536] {
        cases.push(Case::new(format!("UC send {bytes}"), move |t| send(t, &UC, bytes, Some(9))));
        cases.push(Case::new(format!("UC write {bytes}"), move |t| write(t, &UC, bytes, Some(9))));
    }
    cases
}

pub fn send(t: &mut Trial<'_>, connection: &Connection, bytes: u64, imm: Option<u64>) -> Outcome {
    t.connect(connection)?;
    t.fill(t.asker, FROM, bytes, bytes + 1)?;
    t.recv(1, TO, MIB)?;
    let op = if imm.is_some() { op::SEND_IMM } else { op::SEND };
    t.post(Request { id: 2, op, bytes, first: imm.unwrap_or(0), ..Request::default() })?;
    t.ends(2, Success)?;
    t.received(1, bytes, imm)?;
    t.check(t.answerer(), TO, bytes, bytes + 1)
}

fn write(t: &mut Trial<'_>, connection: &Connection, bytes: u64, imm: Option<u64>) -> Outcome {
    t.connect(connection)?;
    t.fill(t.asker, FROM, bytes, bytes + 2)?;
    let op = if imm.is_some() { op::WRITE_IMM } else { op::WRITE };
    if imm.is_some() {
        t.recv(1, FROM, 0)?;
    }
    let request = Request { id: 2, op, bytes, to: TO, ..Request::default() };
    t.post(Request { first: imm.unwrap_or(0), ..request })?;
    t.ends(2, Success)?;
    if imm.is_some() {
        t.received(1, bytes, imm)?;
    }
    t.check(t.answerer(), TO, bytes, bytes + 2)
}

pub fn read(t: &mut Trial<'_>, connection: &Connection, bytes: u64) -> Outcome {
    t.connect(connection)?;
    t.fill(t.answerer(), FROM, bytes, bytes + 3)?;
    t.post(Request { id: 2, op: op::READ, at: TO, bytes, ..Request::default() })?;
    t.ends(2, Success)?;
    t.check(t.asker, TO, bytes, bytes + 3)
}

/// A word of the other end's memory, which is filled by a seed.
fn seeded_word(t: &mut Trial<'_>, at: u64) -> Result<u64, String> {
    let answerer = t.answerer();
    t.fill(answerer, at, 8, 11)?;
    t.word(answerer, at)
}

fn compare_and_swap(t: &mut Trial<'_>) -> Outcome {
    t.connect(&RC)?;
    let before = seeded_word(t, TO)?;
    let swap = |compare, second| Request {
        id: 1,
        op: op::COMPARE_SWAP,
        bytes: 8,
        to: TO,
        first: compare,
        second,
        ..Request::default()
    };
    for (compare, new, after) in [(before, 77, 77), (before, 78, 77), (77, u64::MAX, u64::MAX)] {
        let was = t.word(t.answerer(), TO)?;
        t.post(swap(compare, new))?;
        t.ends(1, Success)?;
        expect("what it was", t.word(t.asker, FROM)?, was)?;
        expect("what it is", t.word(t.answerer(), TO)?, after)?;
    }
    Ok(())
}

fn fetch_and_add(t: &mut Trial<'_>) -> Outcome {
    t.connect(&RC)?;
    let mut expected = seeded_word(t, TO)?;
    for first in [1, 0, u64::MAX, 1 << 63] {
        t.post(Request {
            id: 1,
            op: op::FETCH_ADD,
            bytes: 8,
            to: TO,
            first,
            ..Request::default()
        })?;
        t.ends(1, Success)?;
        expect("what it was", t.word(t.asker, FROM)?, expected)?;
        expected = expected.wrapping_add(first);
        expect("what it is", t.word(t.answerer(), TO)?, expected)?;
    }
    Ok(())
}

fn many_reads(t: &mut Trial<'_>) -> Outcome {
    t.connect(&RC)?;
    t.fill(t.answerer(), FROM, 16 * 3000, 5)?;
    for id in 0..16 {
        let at = id * 3000;
        t.post(Request {
            id,
            op: op::READ,
            at: TO + at,
            bytes: 3000,
            to: at,
            ..Request::default()
        })?;
    }
    for id in 0..16 {
        t.ends(id, Success)?;
    }
    t.check(t.asker, TO, 16 * 3000, 5)
}

fn many_sends(t: &mut Trial<'_>) -> Outcome {
    t.connect(&RC)?;
    t.fill(t.asker, FROM, 48 * 2000, 6)?;
    for id in 0..48 {
        t.recv(id, TO + id * 2000, 2000)?;
    }
    for id in 0..48 {
        t.post(Request { id, op: op::SEND, at: id * 2000, bytes: 2000, ..Request::default() })?;
    }
    for id in 0..48 {
        t.ends(id, Success)?;
    }
    for id in 0..48 {
        t.received(id, 2000, None)?;
    }
    t.check(t.answerer(), TO, 48 * 2000, 6)
}

/// Writes, reads of what was written, atomics and sends, all posted before the first is done.
fn mixture(t: &mut Trial<'_>) -> Outcome {
    t.connect(&RC)?;
    t.fill(t.asker, FROM, 40_000, 8)?;
    t.recv(100, TO + 100_000, 40_000)?;
    t.recv(101, TO + 150_000, 40_000)?;
    let start = seeded_word(t, TO + 99_200)?;
    let base = Request { bytes: 40_000, ..Request::default() };
    let add =
        Request { op: op::FETCH_ADD, bytes: 8, at: TO + 99_000, to: TO + 99_200, first: 1, ..base };
    let requests = [
        Request { op: op::SEND, ..base },
        Request { op: op::WRITE, to: TO, ..base },
        Request { op: op::READ, at: TO, to: TO, ..base },
        add,
        Request { op: op::SEND_IMM, first: 3, ..base },
        add,
        Request { op: op::READ, at: TO + 50_000, to: TO, bytes: 100, ..base },
        add,
    ];
    for (id, request) in requests.iter().enumerate() {
        t.post(Request { id: id as u64, ..*request })?;
    }
    for id in 0..requests.len() {
        t.ends(id as u64, Success)?;
    }
    t.received(100, 40_000, None)?;
    t.received(101, 40_000, Some(3))?;
    for at in [TO, TO + 100_000, TO + 150_000] {
        t.check(t.answerer(), at, 40_000, 8)?;
    }
    t.check(t.asker, TO, 40_000, 8)?;
    expect("the last word fetched", t.word(t.asker, TO + 99_000)?, start.wrapping_add(2))?;
    expect("the word", t.word(t.answerer(), TO + 99_200)?, start.wrapping_add(3))
}
