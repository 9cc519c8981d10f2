//! Datagrams of management as packets: how a node takes them out of a frame, and puts them into one
//! (IBA 13.4, 13.5.3).
//!
//! Subnet management goes to queue pair 0 on lane 15 and knows no keys but its own; general
//! services go to queue pair 1 on a lane of data, with a Q_Key that everybody knows and the P_Key
//! of a partition that the port is in.

use crate::frame::{Arrival, Frame, Source};
use crate::head::Head;
use crate::node::{NodeDrop, PKeys};
use crate::sma::Mad;
use crate::subnet::Datagram;
use pollux_wire::address::Qpn;
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::mad::{Method, MgmtClass};
use pollux_wire::packet::{Deth, Extended, Lrh, Opcode, PACKET_LEN_MAX, Packet};
use pollux_wire::psn::Psn;

impl Frame {
    /// Whether it is for one of the queue pairs of management.
    pub(super) fn is_management(&self) -> bool {
        match self {
            Self::Message(message) => message.head_words().dest_qp <= Qpn::GSI,
            Self::Packet(bytes) => {
                Packet::parse(bytes).is_ok_and(|packet| packet.bth().dest_qp <= Qpn::GSI)
            }
        }
    }

    /// The method of a datagram of subnet management, if it is one. Those go as packets: what a
    /// message says of queue pair 0 no agent takes.
    pub(super) fn smp_method(&self) -> Option<Method> {
        let Self::Packet(bytes) = self else { return None };
        let packet = Packet::parse(bytes).ok()?;
        let is_smp = packet.bth().dest_qp == Qpn::SMI;
        is_smp.then(|| Method(packet.payload().get(3).copied().unwrap_or(0)))
    }

    /// The datagram in a frame for one of the queue pairs of management, at a port that is in these
    /// partitions.
    pub(super) fn datagram(&self, p_keys: &PKeys) -> Result<Datagram, NodeDrop> {
        match self {
            Self::Packet(bytes) => {
                let packet = Packet::parse(bytes).map_err(|_| NodeDrop::Malformed)?;
                if !packet.vcrc_ok() || !packet.icrc_ok() {
                    return Err(NodeDrop::Crc);
                }
                datagram(&Arrival::of_packet(&packet), packet.lrh().vl, p_keys)
            }
            Self::Message(message) => {
                let arrival = Arrival::of_message(message, None).ok_or(NodeDrop::Malformed)?;
                datagram(&arrival, message.lane(), p_keys)
            }
        }
    }

    /// The packet of a datagram.
    pub(crate) fn of_datagram(datagram: &Datagram, psn: Psn) -> Self {
        let is_smi = datagram.dest_qp == Qpn::SMI;
        let head = Head {
            opcode: Opcode::UD_SEND_ONLY,
            se: false,
            mig_req: true,
            ack_req: false,
            whole: false,
            lent: false,
            pkey: if is_smi { PKey::DEFAULT } else { datagram.p_key },
            dest_qp: datagram.dest_qp,
            psn,
            packets: 1,
            dlid: datagram.dlid,
            slid: datagram.slid,
            sl: 0,
        };
        let qkey = if is_smi { QKey(0) } else { QKey::GSI };
        let extended = Extended::Deth(Deth { qkey, src_qp: datagram.src_qp });
        let mut headers = head.headers(None, extended);
        headers.lrh.vl = if is_smi { Lrh::VL_MANAGEMENT } else { 0 };
        let mut bytes = vec![0; PACKET_LEN_MAX];
        let len = headers.emit(&datagram.mad, &mut bytes).expect("a datagram fits a packet");
        bytes.truncate(len);
        Self::Packet(bytes)
    }
}

fn datagram(arrival: &Arrival<'_>, vl: u8, p_keys: &PKeys) -> Result<Datagram, NodeDrop> {
    let (Extended::Deth(deth), Source::Bytes(bytes)) = (arrival.extended, arrival.payload) else {
        return Err(NodeDrop::Malformed);
    };
    let mad: Mad = bytes.try_into().map_err(|_| NodeDrop::Malformed)?;
    let head = &arrival.head;
    let is_smi = head.dest_qp == Qpn::SMI;
    // What manages the subnet comes by the lane and the queue pair that are for that only.
    if MgmtClass(mad[1]).is_smi() != is_smi || (vl == Lrh::VL_MANAGEMENT) != is_smi {
        return Err(NodeDrop::Malformed);
    }
    let is_member = p_keys.matching(head.pkey).is_some();
    if !is_smi && (deth.qkey != QKey::GSI || !is_member) {
        return Err(NodeDrop::Key);
    }
    Ok(Datagram {
        slid: head.slid,
        dlid: head.dlid,
        src_qp: deth.src_qp,
        dest_qp: head.dest_qp,
        p_key: head.pkey,
        mad,
    })
}
