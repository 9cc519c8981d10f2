//! tshark reads every kind of packet: each opcode with and without GRH, each syndrome, and raw
//! ones.

use pollux_referee::frames::{DGID, SGID, grh, packet, ud_headers};
use pollux_referee::tshark::{DissectedFrame, judge};
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::packet::ExtendedKind;
use pollux_wire::packet::crc::VCRC_LEN;
use pollux_wire::packet::opcode::PayloadRule;
use pollux_wire::packet::*;
use pollux_wire::psn::Psn;

const DETH: Deth = Deth { qkey: QKey(0x0001_0b1b), src_qp: Qpn(0x00ab_cdef) };
const RETH: Reth = Reth { va: 0x0123_4567_89ab_cdef, rkey: 0x1122_3344, dma_len: 0x1001 };
const IMM: ImmDt = ImmDt { data: 0xfeed_beef };
const IETH: Ieth = Ieth { rkey: 0x5566_7788 };
const AETH: Aeth = Aeth { syndrome: Syndrome::Ack(Credits(7)), msn: Psn::new(0x0a_0b0c) };
const ATOMIC: AtomicEth =
    AtomicEth { va: RETH.va, rkey: RETH.rkey, swap_or_add: 0x0102_0304, compare: 0x0506_0708 };
const ATOMIC_ACK: AtomicAckEth = AtomicAckEth { original: 0x0900_0000_0000_0001 };

fn extended(kind: ExtendedKind) -> Extended {
    match kind {
        ExtendedKind::None => Extended::None,
        ExtendedKind::Imm => Extended::Imm(IMM),
        ExtendedKind::Ieth => Extended::Ieth(IETH),
        ExtendedKind::Reth => Extended::Reth(RETH),
        ExtendedKind::RethImm => Extended::RethImm(RETH, IMM),
        ExtendedKind::AtomicEth => Extended::AtomicEth(ATOMIC),
        ExtendedKind::Aeth => Extended::Aeth(AETH),
        ExtendedKind::AethAtomicAckEth => Extended::AethAtomicAckEth(AETH, ATOMIC_ACK),
        ExtendedKind::Deth => Extended::Deth(DETH),
        ExtendedKind::DethImm => Extended::DethImm(DETH, IMM),
    }
}

/// Headers with a distinct value in every field.
fn headers(opcode: Opcode, extended: Extended) -> Headers {
    Headers {
        lrh: Lrh { vl: 4, sl: 9, dlid: Lid(0x1234), slid: Lid(0x0567), ..Lrh::default() },
        bth: Bth {
            opcode,
            se: true,
            mig_req: false,
            pkey: PKey(0x8abc),
            dest_qp: Qpn(0x00fe_dcba),
            ack_req: true,
            psn: Psn::new(0x65_4321),
            ..Bth::default()
        },
        extended,
        ..ud_headers()
    }
}

/// The expected fields of the LRH, the GRH and the BTH.
fn expect_base(name: String, bytes: Vec<u8>, headers: &Headers, padding: u8) -> DissectedFrame {
    let words = (bytes.len() - TRAILER_LEN) / 4 + 1;
    let frame = DissectedFrame::new(name, bytes)
        .expect("infiniband.lrh.vl", "0x04")
        .expect("infiniband.lrh.lver", 0)
        .expect("infiniband.lrh.sl", 9)
        .expect("infiniband.lrh.dlid", 0x1234)
        .expect("infiniband.lrh.slid", 0x0567)
        .expect("infiniband.lrh.pktlen", words)
        .expect("infiniband.bth.opcode", headers.bth.opcode.0)
        .expect("infiniband.bth.se", 1)
        .expect("infiniband.bth.m", 0)
        .expect("infiniband.bth.padcnt", padding)
        .expect("infiniband.bth.tver", 0)
        .expect("infiniband.bth.p_key", 0x8abc)
        .expect("infiniband.bth.destqp", "0xfedcba")
        .expect("infiniband.bth.a", 1)
        .expect("infiniband.bth.psn", 0x65_4321);
    match headers.grh {
        None => frame.expect("infiniband.lrh.lnh", "0x02").expect("infiniband.grh.ipver", ""),
        Some(_) => frame
            .expect("infiniband.lrh.lnh", "0x03")
            .expect("infiniband.grh.ipver", 6)
            .expect("infiniband.grh.tclass", 0x5a)
            .expect("infiniband.grh.flowlabel", 0xabcde)
            .expect("infiniband.grh.paylen", words * 4 - Lrh::LEN - Grh::LEN)
            .expect("infiniband.grh.nxthdr", 27)
            .expect("infiniband.grh.hoplmt", 63)
            .expect("infiniband.grh.sgid", SGID)
            .expect("infiniband.grh.dgid", DGID),
    }
}

fn be(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// The expected fields of the extended headers, and behind the payload.
fn expect_extended(frame: DissectedFrame, kind: ExtendedKind) -> DissectedFrame {
    // tshark has the immediate data, and the key below, twice in its tree: as heading and below it.
    let imm = |frame: DissectedFrame| frame.expect("infiniband.immdt", "feedbeef,feedbeef");
    let aeth = |frame: DissectedFrame| {
        frame
            .expect("infiniband.aeth.syndrome", 7)
            .expect("infiniband.aeth.syndrome.credit_count", 7)
            .expect("infiniband.aeth.msn", 0x0a_0b0c)
    };
    let deth = |frame: DissectedFrame| {
        frame
            .expect("infiniband.deth.q_key", "0x0000000000010b1b")
            .expect("infiniband.deth.srcqp", "0x00abcdef")
    };
    let place = |frame: DissectedFrame| {
        frame
            .expect("infiniband.reth.va", "0x0123456789abcdef")
            .expect("infiniband.reth.r_key", "0x11223344")
    };
    let reth = |frame: DissectedFrame| place(frame).expect("infiniband.reth.dmalen", 0x1001);
    match kind {
        ExtendedKind::None => frame.expect("infiniband.aeth", "").expect("infiniband.reth", ""),
        ExtendedKind::Imm => imm(frame),
        ExtendedKind::Ieth => frame.expect("infiniband.ieth", "55667788,55667788"),
        ExtendedKind::Reth => reth(frame),
        ExtendedKind::RethImm => imm(reth(frame)),
        ExtendedKind::AtomicEth => place(frame)
            .expect("infiniband.atomiceth.swapdt", ATOMIC.swap_or_add)
            .expect("infiniband.atomiceth.cmpdt", ATOMIC.compare),
        ExtendedKind::Aeth => aeth(frame),
        ExtendedKind::AethAtomicAckEth => {
            aeth(frame).expect("infiniband.atomicacketh.origremdt", ATOMIC_ACK.original)
        }
        ExtendedKind::Deth => deth(frame),
        ExtendedKind::DethImm => imm(deth(frame)),
    }
}

/// A payload that no dissector mistakes for its protocol.
fn payload(opcode: Opcode) -> &'static [u8] {
    match opcode.operation().payload() {
        PayloadRule::Empty => &[],
        _ => &[0xff; 253],
    }
}

// req: iba-packets
#[test]
fn every_opcode_with_and_without_grh() {
    let mut frames = Vec::new();
    for opcode in (0..=255).map(Opcode) {
        let Some(kind) = opcode.extended() else { continue };
        let rd = (opcode.transport() == Transport::RD).then(|| RdHeaders {
            rdeth: Rdeth { ee_context: 0x00_1234 },
            deth: opcode.is_request().then_some(DETH),
        });
        for global in [false, true] {
            let mut headers = Headers { rd, ..headers(opcode, extended(kind)) };
            headers.grh =
                global.then(|| Grh { tclass: 0x5a, flow_label: 0xabcde, hop_lmt: 63, ..grh(DGID) });
            let payload = payload(opcode);
            let padding = (payload.len().next_multiple_of(4) - payload.len()) as u8;
            let name = format!("{opcode}{}", if global { " with GRH" } else { "" });
            let bytes = packet(&headers, payload);
            let (icrc, vcrc) = bytes[bytes.len() - TRAILER_LEN..].split_at(4);
            let (icrc, vcrc) = (be(icrc), be(vcrc));
            let frame = expect_base(name, bytes, &headers, padding);
            frames.push(if rd.is_some() {
                frame.misread("tshark 4.0 takes the opcodes of RD, 0x40 to 0x5f, for those of DC")
            } else {
                // tshark prints the CRCs as the numbers that their bytes are in network order.
                expect_extended(frame, kind)
                    .expect_hex("infiniband.invariant.crc", icrc, 8)
                    .expect_hex("infiniband.variant.crc", vcrc, 4)
            });
        }
    }
    assert_eq!(frames.len(), 2 * (23 + 12 + 22 + 2));
    judge("every_opcode_with_and_without_grh", &frames);
}

#[test]
fn every_syndrome() {
    let frame = |syndrome, kind: u8| {
        let aeth = Aeth { syndrome, msn: Psn::new(5) };
        let bytes = packet(
            &headers(Opcode::new(Transport::RC, Operation::ACKNOWLEDGE), Extended::Aeth(aeth)),
            &[],
        );
        DissectedFrame::new(format!("{syndrome:?}"), bytes)
            .expect("infiniband.aeth.syndrome.opcode", kind)
            .expect("infiniband.aeth.msn", 5)
    };
    let mut frames = Vec::new();
    for code in 0..32 {
        frames.push(
            frame(Syndrome::Ack(Credits(code)), 0)
                .expect("infiniband.aeth.syndrome.credit_count", code),
        );
        frames.push(
            frame(Syndrome::RnrNak(RnrTimer(code)), 1)
                .expect("infiniband.aeth.syndrome.timer", code),
        );
    }
    for &code in NakCode::ALL {
        frames.push(
            frame(Syndrome::Nak(code), 3).expect("infiniband.aeth.syndrome.error_code", code.0),
        );
    }
    judge("every_syndrome", &frames);
}

#[test]
fn raw_packets() {
    let lrh = Lrh { dlid: Lid(2), slid: Lid(1), ..Lrh::default() };
    let emit = |lnh, header: &[u8]| {
        let words = (Lrh::LEN + header.len() + 20) / 4;
        let lrh = Lrh { lnh, pkt_len: words as u16, ..lrh }.emit();
        let mut bytes = [&lrh, header, &[0xff; 20], &[0; VCRC_LEN]].concat();
        seal_hop(&mut bytes);
        bytes
    };
    // An EtherType for local experiments, which no dissector claims.
    let ether_type = emit(Lnh::RAW, &Rwh { ether_type: 0x88b5 }.emit());
    // 59: nothing follows.
    let ipv6 = emit(Lnh::IPV6, &Grh { nxt_hdr: 59, pay_len: 20, ..grh(DGID) }.emit());
    judge(
        "raw_packets",
        &[
            DissectedFrame::new("raw EtherType", ether_type)
                .expect("infiniband.lrh.lnh", "0x00")
                .expect("infiniband.lrh.pktlen", (8 + 4 + 20) / 4)
                .expect("infiniband.rwh.etype", "0x88b5"),
            DissectedFrame::new("raw IPv6", ipv6)
                .expect("infiniband.lrh.lnh", "0x01")
                .expect("infiniband.lrh.pktlen", (8 + 40 + 20) / 4)
                .expect("ipv6.dst", DGID)
                .expect("ipv6.nxt", 59),
        ],
    );
}
