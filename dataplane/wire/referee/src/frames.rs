//! Complete packets with default headers, so that each test states only the part that it is about.

use pollux_wire::address::{Gid, Guid, Lid, Qpn};
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::packet::{Bth, Deth, Extended, Grh, Headers, Lrh, Opcode, PACKET_LEN_MAX};
use pollux_wire::psn::Psn;

pub const SGID: Gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0002_c903_0000_1001));
pub const DGID: Gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0002_c903_0000_2001));

/// A packet with these headers and this payload, LRH to VCRC.
pub fn packet(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut out = [0; PACKET_LEN_MAX];
    let len = headers.emit(payload, &mut out).expect("a test's packet fits");
    out[..len].to_vec()
}

/// Headers of a datagram from LID 1 to LID 2, QPN 0x48 to QPN 0x49, without GRH.
pub fn ud_headers() -> Headers {
    Headers {
        lrh: Lrh { dlid: Lid(2), slid: Lid(1), ..Lrh::default() },
        grh: None,
        bth: Bth {
            opcode: Opcode::UD_SEND_ONLY,
            mig_req: true,
            pkey: PKey::DEFAULT,
            dest_qp: Qpn(0x49),
            psn: Psn::new(7),
            ..Bth::default()
        },
        rd: None,
        extended: Extended::Deth(Deth { qkey: QKey::IPOIB_OPENSM, src_qp: Qpn(0x48) }),
    }
}

/// A GRH from [`SGID`] to `dgid`.
pub fn grh(dgid: Gid) -> Grh {
    Grh { ip_ver: 6, nxt_hdr: Grh::NXT_HDR_IBA, hop_lmt: 1, sgid: SGID, dgid, ..Grh::default() }
}

/// A unicast datagram.
pub fn ud(payload: &[u8]) -> Vec<u8> {
    packet(&ud_headers(), payload)
}

/// A datagram to the group `mgid`.
pub fn ud_multicast(mgid: Gid, payload: &[u8]) -> Vec<u8> {
    let mut headers = ud_headers();
    headers.lrh.dlid = Lid::MULTICAST_FIRST;
    headers.grh = Some(grh(mgid));
    headers.bth.dest_qp = Qpn::MULTICAST;
    packet(&headers, payload)
}

/// A management datagram between queue pairs 0, on VL 15. It is LID-routed, or has permissive LIDs
/// if its class is directed-route.
pub fn smp(mad: &[u8]) -> Vec<u8> {
    let mut headers = ud_headers();
    headers.lrh.vl = Lrh::VL_MANAGEMENT;
    if mad.get(1) == Some(&0x81) {
        (headers.lrh.dlid, headers.lrh.slid) = (Lid::PERMISSIVE, Lid::PERMISSIVE);
    }
    headers.bth.dest_qp = Qpn::SMI;
    headers.extended = Extended::Deth(Deth { qkey: QKey(0), src_qp: Qpn::SMI });
    packet(&headers, mad)
}

/// A management datagram between queue pairs 1.
pub fn gmp(mad: &[u8]) -> Vec<u8> {
    let mut headers = ud_headers();
    headers.bth.dest_qp = Qpn::GSI;
    headers.extended = Extended::Deth(Deth { qkey: QKey::GSI, src_qp: Qpn::GSI });
    packet(&headers, mad)
}
