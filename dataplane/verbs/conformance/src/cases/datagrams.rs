//! Datagrams (IBA 9.8.3, 10.2.4.2, 9.6.1.4): reported source, GRH in the buffer, and Q_Keys.

use super::prelude::*;
use pollux_wire::address::Gid;
use pollux_wire::keys::QKey;

pub const CASES: &[Case] = &[
    Case::new("no-grh-leaves-40-bytes", "IBA 11.4.2.1", SUBNET, no_grh),
    Case::new("grh-is-in-the-first-40", "IBA 8.3", UD, with_grh),
    Case::new("source-is-told", "IBA 11.4.2.1", UD, source_is_told),
    Case::new("source-can-be-answered", "IBA 11.4.2.1", SUBNET, answered),
    Case::new("two-receivers", "IBA 9.8.3", UD, two_receivers),
    Case::new("two-senders", "IBA 9.8.3", UD, two_senders),
    Case::new("to-itself", "IBA 17.2.2", UD, to_itself),
    Case::new("in-order", "IBA 9.8.3", UD, in_order),
    Case::new("ah-ends-after-post", "contract: destroy_ah", UD, ah_ends_after_post),
    Case::new("ah-of-another-domain", "IBA 10.2.3", UD, ah_of_another_domain),
    Case::new("qkey-mismatch-is-dropped", "IBA 9.6.1.4.2", UD, qkey_mismatch),
    Case::new("qkey-high-bit-sends-own", "IBA 10.2.4.2", UD, high_bit_sends_own),
    Case::new("qkey-high-bit-is-never-sent", "IBA 10.2.4.2", UD, high_bit_is_never_sent),
    Case::new("qkey-high-bit-of-own", "IBA 10.2.4.2", UD, high_bit_of_own),
    Case::new("qkey-changes-in-rts", "IBA 11.2.4.2", UD, qkey_changes),
    Case::new("rtr-receives", "IBA 10.3.1.3", UD, rtr_receives),
    Case::new("init-drops", "IBA 10.3.1.2", UD, init_drops),
];

const UD: &[Need] = &[Need::Lossless];
const SUBNET: &[Need] = &[Need::Lossless, Need::Subnet];

/// Sends eight bytes, and expects them in receive `id`.
fn arrives(
    cx: &mut Context<'_>,
    a: &PairEnd,
    b: &PairEnd,
    to: Destination,
    id: u64,
) -> Result<(Completion, Buffer), Stop> {
    let source = cx.source(a, 8, id as u8)?;
    let sink = cx.sink(b, Grh::LEN + 8)?;
    cx.recv(b, id, &[sink.sge(0, Grh::LEN + 8)])?;
    cx.carry_out(a, request(id, SendOp::Datagram(to), &[source.sge(0, 8)]))?;
    let found = cx.received(b, id, Grh::LEN + 8)?;
    same(&source, 0, &sink, Grh::LEN, 8)?;
    Ok((found, sink))
}

/// Sends a datagram to `bad` that must not arrive, then one to `good` that must use the receive.
fn is_dropped(
    cx: &mut Context<'_>,
    a: &PairEnd,
    b: &PairEnd,
    bad: Destination,
    good: Destination,
) -> Result<(), Stop> {
    let source = cx.source(a, 16, 160)?;
    let sink = cx.sink(b, Grh::LEN + 8)?;
    cx.recv(b, 1, &[sink.sge(0, Grh::LEN + 8)])?;
    cx.carry_out(a, request(2, SendOp::Datagram(bad), &[source.sge(0, 8)]))?;
    cx.nothing_more(b)?;
    cx.carry_out(a, request(3, SendOp::Datagram(good), &[source.sge(8, 8)]))?;
    cx.received(b, 1, Grh::LEN + 8)?;
    same(&source, 8, &sink, Grh::LEN, 8)
}

fn no_grh(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    if cx.path(Side::A, Side::B)?.grh.is_some() {
        return skip("between subnets every packet has a GRH");
    }
    let to = cx.destination(&a, &b)?;
    let (found, sink) = arrives(cx, &a, &b, to, 1)?;
    equal("a GRH", found.from.map(|from| from.has_grh), Some(false))?;
    // The contract is stricter than IBA, which leaves the content of these bytes undefined.
    sink.is_untouched(0, Grh::LEN)
}

fn with_grh(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let path = cx.global_path(Side::A, Side::B)?;
    let route = GlobalRoute {
        flow_label: 0x12345,
        traffic_class: 0x67,
        hop_limit: 64,
        ..path.grh.unwrap_or_default()
    };
    let path = AddressVector { grh: Some(route), ..path };
    let ah = cx.device(Side::A).create_ah(a.place.pd, &path)?;
    let to = Destination { ah, qpn: b.qpn, qkey: PairSetup::UD.qkey };
    let (found, sink) = arrives(cx, &a, &b, to, 1)?;
    equal("a GRH", found.from.map(|from| from.has_grh), Some(true))?;
    let port = cx.port(Side::A);
    let sgid = cx.device(Side::A).gid(port, 0)?;
    let bytes = sink.bytes_at(0, Grh::LEN);
    let gid_at = |at: usize| {
        let mut gid = Gid::NONE;
        gid.0.copy_from_slice(&bytes[at..at + 16]);
        gid
    };
    // On RoCEv2 over IPv4 the last 20 of the 40 bytes are an IPv4 header instead.
    if cx.device(Side::A).attributes().can.subnet {
        equal("version and traffic class", &bytes[..2], &[0x66, 0x71][..])?;
        equal("flow label", &bytes[2..4], &[0x23, 0x45][..])?;
        equal("next header", bytes[6], Grh::NXT_HDR_IBA)?;
        equal("SGID", gid_at(8), sgid)?;
        equal("DGID", gid_at(24), route.dgid)?;
    }
    Ok(())
}

fn source_is_told(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let to = cx.destination(&a, &b)?;
    let (found, _) = arrives(cx, &a, &b, to, 1)?;
    let Some(from) = found.from else {
        return fail(format!("expected the source of a datagram, found {found:?}"));
    };
    equal("the sender's queue pair", from.src_qp, a.qpn)?;
    equal("the P_Key's place", from.pkey_index, 0)?;
    if cx.device(Side::A).attributes().can.subnet && cx.path(Side::A, Side::B)?.grh.is_none() {
        let port = cx.port(Side::A);
        let lid = cx.device(Side::A).port(port)?.lid;
        equal("the sender's LID", from.slid, lid)?;
        equal("the service level", from.sl, 0)?;
        equal("our path bits", from.dlid_path_bits, 0)?;
    }
    Ok(())
}

fn answered(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let to = cx.destination(&a, &b)?;
    let (found, _) = arrives(cx, &a, &b, to, 1)?;
    let Some(from) = found.from else { return fail("expected the source of a datagram") };
    if from.has_grh {
        return skip("between subnets the answer's way is in the GRH");
    }
    let port = cx.port(Side::B);
    let path = AddressVector { dlid: from.slid, sl: from.sl, port, ..AddressVector::default() };
    let ah = cx.device(Side::B).create_ah(b.place.pd, &path)?;
    let back = Destination { ah, qpn: from.src_qp, qkey: PairSetup::UD.qkey };
    arrives(cx, &b, &a, back, 2).map(drop)
}

fn two_receivers(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let other = cx.create(&b.place, &PairSetup::UD)?;
    cx.advance(&other, QpState::Rts, &a, &PairSetup::UD)?;
    let to = cx.destination(&a, &b)?;
    arrives(cx, &a, &other, Destination { qpn: other.qpn, ..to }, 1)?;
    arrives(cx, &a, &b, to, 2).map(drop)
}

fn two_senders(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let other = cx.create(&a.place, &PairSetup::UD)?;
    cx.advance(&other, QpState::Rts, &b, &PairSetup::UD)?;
    let to = cx.destination(&a, &b)?;
    for (id, from) in [(1, &a), (2, &other)] {
        let (found, _) = arrives(cx, from, &b, to, id)?;
        equal("the sender", found.from.map(|from| from.src_qp), Some(from.qpn))?;
    }
    Ok(())
}

fn to_itself(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, _) = cx.connected(QpType::Ud)?;
    let to = cx.destination(&a, &a)?;
    arrives(cx, &a, &a, to, 1).map(drop)
}

fn in_order(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let to = cx.destination(&a, &b)?;
    let source = cx.source(&a, 128, 161)?;
    let sink = cx.sink(&b, 16 * 64)?;
    for nth in 0..16 {
        cx.recv(&b, nth as u64, &[sink.sge(64 * nth, 48)])?;
    }
    for nth in 0..16 {
        cx.post(&a, request(nth as u64, SendOp::Datagram(to), &[source.sge(8 * nth, 8)]))?;
    }
    for nth in 0..16 {
        cx.done(&a, CompletionKind::Send, nth as u64)?;
        cx.received(&b, nth as u64, 48)?;
        same(&source, 8 * nth, &sink, 64 * nth + Grh::LEN, 8)?;
    }
    Ok(())
}

fn ah_ends_after_post(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let to = cx.destination(&a, &b)?;
    let source = cx.source(&a, 8, 162)?;
    let sink = cx.sink(&b, 48)?;
    cx.recv(&b, 1, &[sink.sge(0, 48)])?;
    cx.post(&a, request(2, SendOp::Datagram(to), &[source.sge(0, 8)]))?;
    cx.device(Side::A).destroy_ah(to.ah)?;
    cx.done(&a, CompletionKind::Send, 2)?;
    cx.received(&b, 1, 48).map(drop)
}

fn ah_of_another_domain(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let to = cx.destination(&a, &b)?;
    let elsewhere = cx.device(Side::A).create_pd()?;
    let path = cx.path(Side::A, Side::B)?;
    let ah = cx.device(Side::A).create_ah(elsewhere, &path)?;
    let wrong = request(1, SendOp::Datagram(Destination { ah, ..to }), &[]);
    match cx.device(Side::A).post_send(a.qp, &[wrong]) {
        Err(error) => {
            post_refused("a datagram", Err(error), 0, &[PostRefusal::BadOperation])?;
            cx.still_in(&a, QpState::Rts)
        }
        // Hardware detects the error when it executes the request.
        Ok(()) => {
            cx.ended(&a, Queue::Send, 1, &[LocalQpOperation, LocalProtection])?;
            cx.in_state(&a, QpState::Sqe)
        }
    }
}

fn qkey_mismatch(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let good = cx.destination(&a, &b)?;
    let bad = Destination { qkey: QKey(good.qkey.0 ^ 1), ..good };
    is_dropped(cx, &a, &b, bad, good)
}

/// A Q_Key with the high bit set: the adapter sends the queue pair's own Q_Key instead.
const OWN: QKey = QKey(0x8000_0000);

fn high_bit_sends_own(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let to = cx.destination(&a, &b)?;
    arrives(cx, &a, &b, Destination { qkey: OWN, ..to }, 1).map(drop)
}

/// A pair of queue pairs with these Q_Keys.
fn pair_of_keys(cx: &mut Context<'_>, a: QKey, b: QKey) -> Result<(PairEnd, PairEnd), Stop> {
    let (place_a, place_b) = (cx.place(Side::A)?, cx.place(Side::B)?);
    let (setup_a, setup_b) =
        (PairSetup { qkey: a, ..PairSetup::UD }, PairSetup { qkey: b, ..PairSetup::UD });
    let a = cx.create(&place_a, &setup_a)?;
    let b = cx.create(&place_b, &setup_b)?;
    cx.advance(&a, QpState::Rts, &b, &setup_a)?;
    cx.advance(&b, QpState::Rts, &a, &setup_b)?;
    Ok((a, b))
}

fn high_bit_is_never_sent(cx: &mut Context<'_>) -> Result<(), Stop> {
    // B has a privileged Q_Key, A does not. A request of A with B's Q_Key must not reach B.
    let privileged = QKey(0x8765_4321);
    let (a, b) = pair_of_keys(cx, PairSetup::UD.qkey, privileged)?;
    let to = cx.destination(&a, &b)?;
    let bad = Destination { qkey: privileged, ..to };
    let source = cx.source(&a, 8, 163)?;
    let sink = cx.sink(&b, 48)?;
    cx.recv(&b, 1, &[sink.sge(0, 48)])?;
    cx.carry_out(&a, request(2, SendOp::Datagram(bad), &[source.sge(0, 8)]))?;
    cx.nothing_more(&b)?;
    sink.is_untouched(0, 48)?;
    cx.go(&b, QpState::Err)?;
    cx.flushed(&b, Queue::Recv, [1])
}

fn high_bit_of_own(cx: &mut Context<'_>) -> Result<(), Stop> {
    // Queue pairs with the same privileged Q_Key reach each other; any privileged Q_Key in the
    // request selects it.
    let privileged = QKey(0x8765_4321);
    let (a, b) = pair_of_keys(cx, privileged, privileged)?;
    let to = cx.destination(&a, &b)?;
    arrives(cx, &a, &b, Destination { qkey: OWN, ..to }, 1).map(drop)
}

fn qkey_changes(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let old = cx.destination(&a, &b)?;
    let new = Destination { qkey: QKey(0x4242), ..old };
    arrives(cx, &a, &b, old, 7)?;
    let change =
        QpAttributes { state: Some(QpState::Rts), qkey: Some(new.qkey), ..QpAttributes::default() };
    cx.device(Side::B).modify_qp(b.qp, &change)?;
    is_dropped(cx, &a, &b, old, new)
}

fn rtr_receives(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let other = cx.create(&b.place, &PairSetup::UD)?;
    cx.advance(&other, QpState::Rtr, &a, &PairSetup::UD)?;
    let to = cx.destination(&a, &other)?;
    arrives(cx, &a, &other, to, 1).map(drop)
}

fn init_drops(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let other = cx.create(&b.place, &PairSetup::UD)?;
    cx.advance(&other, QpState::Init, &a, &PairSetup::UD)?;
    let to = cx.destination(&a, &other)?;
    let source = cx.source(&a, 16, 164)?;
    let sink = cx.sink(&other, 48)?;
    cx.recv(&other, 1, &[sink.sge(0, 48)])?;
    cx.carry_out(&a, request(2, SendOp::Datagram(to), &[source.sge(0, 8)]))?;
    cx.nothing_more(&other)?;
    let change = cx.change(&other, QpState::Rtr, &a, &PairSetup::UD)?;
    cx.device(Side::B).modify_qp(other.qp, &change)?;
    cx.carry_out(&a, request(3, SendOp::Datagram(to), &[source.sge(8, 8)]))?;
    cx.received(&other, 1, 48)?;
    same(&source, 8, &sink, Grh::LEN, 8)
}
