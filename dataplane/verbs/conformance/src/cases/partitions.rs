//! Partitions (IBA 10.9, 9.6.1.4.1): which ports may communicate. For backends that can set the
//! P_Key tables.

use super::prelude::*;
use pollux_wire::keys::PKey;
use pollux_wire::units::TimeCode;

pub const CASES: &[Case] = &[
    Case::new("ud-full-and-full", "IBA 10.9.3", UD, |cx| ud(cx, FULL, FULL, true)),
    Case::new("ud-full-and-limited", "IBA 10.9.3", UD, |cx| ud(cx, FULL, LIMITED, true)),
    Case::new("ud-limited-and-full", "IBA 10.9.3", UD, |cx| ud(cx, LIMITED, FULL, true)),
    Case::new("ud-limited-and-limited", "IBA 10.9.3", UD, |cx| ud(cx, LIMITED, LIMITED, false)),
    Case::new("ud-other-partition", "IBA 10.9.3", UD, |cx| ud(cx, FULL, OTHER, false)),
    Case::new("rc-full-and-limited", "IBA 10.9.3", &[], |cx| rc(cx, FULL, LIMITED, true)),
    Case::new("rc-limited-and-full", "IBA 10.9.3", &[], |cx| rc(cx, LIMITED, FULL, true)),
    Case::new("rc-limited-and-limited", "IBA 10.9.3", &[], |cx| rc(cx, LIMITED, LIMITED, false)),
    Case::new("rc-other-partition", "IBA 10.9.3", &[], |cx| rc(cx, FULL, OTHER, false)),
    Case::new("the-table-is-told", "contract: pkey", &[], table_is_told),
    Case::new("index-is-of-the-receiver", "IBA 11.4.2.1", UD, index_is_of_the_receiver),
];

const UD: &[Need] = &[Need::Lossless];

const FULL: PKey = PKey(0x8123);
const LIMITED: PKey = PKey(0x0123);
const OTHER: PKey = PKey(0x8124);

/// A pair that uses the second entries of the P_Key tables, `a` and `b`; the first entries are the
/// default partition.
fn pair(
    cx: &mut Context<'_>,
    setup: &PairSetup,
    a: PKey,
    b: PKey,
) -> Result<(PairEnd, PairEnd), Stop> {
    cx.set_pkeys(&[PKey::DEFAULT, a], &[PKey::DEFAULT, b])?;
    cx.pair(&PairSetup { pkey_index: 1, ..*setup })
}

fn ud(cx: &mut Context<'_>, a: PKey, b: PKey, passes: bool) -> Result<(), Stop> {
    let (a, b) = pair(cx, &PairSetup::UD, a, b)?;
    let to = cx.destination(&a, &b)?;
    let source = cx.source(&a, 8, 171)?;
    let sink = cx.sink(&b, 48)?;
    cx.recv(&b, 1, &[sink.sge(0, 48)])?;
    cx.carry_out(&a, request(2, SendOp::Datagram(to), &[source.sge(0, 8)]))?;
    if passes {
        return cx.received(&b, 1, 48).map(drop);
    }
    cx.nothing_more(&b)?;
    cx.go(&b, QpState::Err)?;
    cx.flushed(&b, Queue::Recv, [1])
}

fn rc(cx: &mut Context<'_>, a: PKey, b: PKey, passes: bool) -> Result<(), Stop> {
    let retry_count = if passes { 7 } else { 1 };
    let setup = PairSetup { retry_count, timeout: TimeCode(8), ..PairSetup::RC };
    let (a, b) = pair(cx, &setup, a, b)?;
    if passes {
        return cx.exchange(&a, &b, 5000);
    }
    // The responder drops the packets, so the requester gets no answer.
    let source = cx.source(&a, 8, 172)?;
    cx.post(&a, request(1, SendOp::Send, &[source.sge(0, 8)]))?;
    cx.breaks(&a, Queue::Send, 1, &[RetryExceeded])?;
    cx.still_in(&b, QpState::Rts)
}

fn table_is_told(cx: &mut Context<'_>) -> Result<(), Stop> {
    cx.set_pkeys(&[PKey::DEFAULT, FULL], &[PKey::DEFAULT, LIMITED])?;
    for (side, second) in [(Side::A, FULL), (Side::B, LIMITED)] {
        let port = cx.port(side);
        equal("the first entry", cx.device(side).pkey(port, 0)?, PKey::DEFAULT)?;
        equal("the second entry", cx.device(side).pkey(port, 1)?, second)?;
    }
    Ok(())
}

fn index_is_of_the_receiver(cx: &mut Context<'_>) -> Result<(), Stop> {
    // The partition has different indexes in the two tables.
    cx.set_pkeys(&[PKey::DEFAULT, FULL], &[PKey::DEFAULT, OTHER, LIMITED])?;
    let (place_a, place_b) = (cx.place(Side::A)?, cx.place(Side::B)?);
    let (setup_a, setup_b) = (
        PairSetup { pkey_index: 1, ..PairSetup::UD },
        PairSetup { pkey_index: 2, ..PairSetup::UD },
    );
    let a = cx.create(&place_a, &setup_a)?;
    let b = cx.create(&place_b, &setup_b)?;
    cx.advance(&a, QpState::Rts, &b, &setup_a)?;
    cx.advance(&b, QpState::Rts, &a, &setup_b)?;
    let to = cx.destination(&a, &b)?;
    let sink = cx.sink(&b, 48)?;
    cx.recv(&b, 1, &[sink.sge(0, 48)])?;
    cx.carry_out(&a, request(2, SendOp::Datagram(to), &[]))?;
    let found = cx.received(&b, 1, Grh::LEN)?;
    equal("the P_Key's place", found.from.map(|from| from.pkey_index), Some(2))
}
