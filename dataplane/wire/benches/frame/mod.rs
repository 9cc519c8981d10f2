//! The packet that both benches parse and emit: a broadcast ARP request.

use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::ipoib::IpoibHeader;
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::packet::{Bth, Deth, Extended, Grh, Headers, Lrh, Opcode, Packet};
use pollux_wire::psn::Psn;

/// Length of the packet in bytes: LRH, GRH, BTH, DETH, encapsulated ARP request, and CRCs.
pub const LEN: usize = 8 + 40 + 12 + 8 + 60 + 6;

/// The header fields of a datagram, from an address handle and a queue pair.
#[derive(Clone, Copy)]
pub struct Flow {
    pub dlid: Lid,
    pub slid: Lid,
    pub sl: u8,
    pub hop_lmt: u8,
    pub sgid: Gid,
    pub dgid: Gid,
    pub pkey: PKey,
    pub dest_qp: Qpn,
    pub src_qp: Qpn,
    pub qkey: QKey,
    pub psn: Psn,
    pub ether_type: EtherType,
}

impl Flow {
    /// A flow to the broadcast group.
    pub const BROADCAST: Self = Self {
        dlid: Lid::MULTICAST_FIRST,
        slid: Lid(1),
        sl: 0,
        hop_lmt: 0,
        sgid: Gid([1; 16]),
        dgid: Gid([0xff; 16]),
        pkey: PKey::DEFAULT,
        dest_qp: Qpn::MULTICAST,
        src_qp: Qpn(0x48),
        qkey: QKey::IPOIB_OPENSM,
        psn: Psn::new(7),
        ether_type: EtherType::ARP,
    };

    /// The headers of a datagram of this flow.
    #[inline]
    pub fn headers(&self) -> Headers {
        Headers {
            lrh: Lrh { sl: self.sl, dlid: self.dlid, slid: self.slid, ..Lrh::default() },
            grh: Some(Grh {
                ip_ver: Grh::IP_VER,
                nxt_hdr: Grh::NXT_HDR_IBA,
                hop_lmt: self.hop_lmt,
                sgid: self.sgid,
                dgid: self.dgid,
                ..Grh::default()
            }),
            bth: Bth {
                opcode: Opcode::UD_SEND_ONLY,
                mig_req: true,
                pkey: self.pkey,
                dest_qp: self.dest_qp,
                psn: self.psn,
                ..Bth::default()
            },
            rd: None,
            extended: Extended::Deth(Deth { qkey: self.qkey, src_qp: self.src_qp }),
        }
    }

    /// The fields that a receiver needs; `None` if the packet has no GRH, DETH or encapsulation.
    #[inline]
    pub fn of(packet: &Packet<'_>) -> Option<Self> {
        let (lrh, grh, bth, deth) = (packet.lrh(), packet.grh()?, packet.bth(), packet.deth()?);
        Some(Self {
            dlid: lrh.dlid,
            slid: lrh.slid,
            sl: lrh.sl,
            hop_lmt: grh.hop_lmt,
            sgid: grh.sgid,
            dgid: grh.dgid,
            pkey: bth.pkey,
            dest_qp: bth.dest_qp,
            src_qp: deth.src_qp,
            qkey: deth.qkey,
            psn: bth.psn,
            ether_type: IpoibHeader::read(packet.payload()).ok()?.0.ether_type,
        })
    }

    /// A complete packet of this flow, with an all-zero ARP request.
    pub fn packet(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        let arp = [0; 56];
        let encapsulate = |out: &mut [u8]| {
            let rest = IpoibHeader { ether_type: self.ether_type }.write(out).expect("it fits");
            rest.copy_from_slice(&arp);
        };
        self.headers().emit_with(60, &mut out, encapsulate).expect("it fits");
        out
    }

    /// Writes only the headers for an ARP request, including the encapsulation header.
    #[inline]
    pub fn write_headers(&self, out: &mut [u8]) -> Option<()> {
        let out = self.headers().write(60, out).ok()?;
        IpoibHeader { ether_type: self.ether_type }.write(out).ok()?;
        Some(())
    }
}
