//! Datagrams: lengths, immediate data, and keys that do not match.

use super::Case;
use crate::peer::*;
use pollux_conformance::end::op;
use pollux_verbs::CompletionStatus::Success;

/// Bytes before a datagram in its receive.
const GRH: u64 = 40;

pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("UD 100", |t| datagram(t, &UD, 100, None)).over_v6(),
        Case::new("UD to a group", |t| {
            // IPv6 of the guest does not send to a group that it is a member of.
            let group = if t.asker == Side::Ours { 0x1234 } else { 0x1235 };
            datagram(t, &Connection { group, ..UD }, 1000, Some(5))
        })
        .over_v6(),
        Case::new("UD other Q_Key", |t| lost(t, &Connection { qkeys: [0x1111, 0x2222], ..UD })),
        Case::new("UD other partition", |t| lost(t, &Connection { our_pkey_index: 1, ..UD })),
        Case::new("UD no such queue pair", |t| lost(t, &Connection { qpn_off: 0x5a00, ..UD })),
    ];
    for bytes in [0, 1, 1024, 4096] {
        cases.push(Case::new(format!("UD {bytes}"), move |t| datagram(t, &UD, bytes, None)));
        let name = format!("UD {bytes} with immediate data");
        cases.push(Case::new(name, move |t| datagram(t, &UD, bytes, Some(0xfeed_f00d))));
    }
    cases
}

fn datagram(t: &mut Trial<'_>, connection: &Connection, bytes: u64, imm: Option<u64>) -> Outcome {
    t.connect(connection)?;
    t.fill(t.asker, FROM, bytes, bytes + 9)?;
    t.recv(1, TO, GRH + bytes)?;
    let op = if imm.is_some() { op::DATAGRAM_IMM } else { op::DATAGRAM };
    t.post(Request { id: 2, op, bytes, first: imm.unwrap_or(0), ..Request::default() })?;
    t.ends(2, Success)?;
    let done = t.wait(t.answerer())?;
    let found = (done.id, done.status, done.bytes, done.imm, done.src_qp);
    expect("receive", found, (1, Success, GRH + bytes, imm, t.asks.qpn))?;
    t.check(t.answerer(), TO + GRH, bytes, bytes + 9)
}

/// The sender gets no error, and the receive stays posted.
fn lost(t: &mut Trial<'_>, connection: &Connection) -> Outcome {
    t.connect(connection)?;
    t.recv(1, TO, GRH + 10)?;
    let request = Request { id: 2, op: op::DATAGRAM, bytes: 10, ..Request::default() };
    // With the sender's own key, which is not the receiver's where the case says so.
    t.post(request)?;
    t.ends(2, Success)?;
    t.is_quiet()
}
