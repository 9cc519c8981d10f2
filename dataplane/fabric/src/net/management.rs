//! Management datagrams as packets: conversion from a frame and into a frame (IBA 13.4, 13.5.3).
//!
//! Subnet management uses queue pair 0 and VL 15, and has no keys except the M_Key. General
//! services use queue pair 1 on a data VL, with a well-known Q_Key and the P_Key of a partition of
//! the port.

use crate::node::{NodeDrop, PKeys};
use crate::sma::Mad;
use crate::subnet::Datagram;
use pollux_hca::frame::{Arrival, Frame, PayloadSource};
use pollux_wire::address::Qpn;
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::mad::smp::DirectedSmp;
use pollux_wire::mad::{Method, MgmtClass};
use pollux_wire::packet::{Bth, Deth, Extended, Grh, Headers, Lrh, Opcode, PACKET_LEN_MAX, Packet};
use pollux_wire::psn::Psn;

/// Decodes a frame for queue pair 0 or 1, at a port with these partitions.
pub(super) fn datagram_of(frame: &Frame, p_keys: &PKeys) -> Result<Datagram, NodeDrop> {
    match frame {
        Frame::Packet(bytes) => {
            let packet = Packet::parse(bytes).map_err(|_| NodeDrop::Malformed)?;
            if !packet.vcrc_ok() || !packet.icrc_ok() {
                return Err(NodeDrop::Crc);
            }
            datagram(&Arrival::of_packet(&packet), packet.lrh().vl, p_keys)
        }
        Frame::Message(message) => {
            let arrival = Arrival::of_message(message, None).ok_or(NodeDrop::Malformed)?;
            datagram(&arrival, message.lane(), p_keys)
        }
    }
}

pub(crate) fn packet_of(datagram: &Datagram, psn: Psn) -> Frame {
    packet_with(datagram, 0, None, psn)
}

/// A packet with this service level and this GRH.
pub(super) fn packet_with(datagram: &Datagram, sl: u8, grh: Option<Grh>, psn: Psn) -> Frame {
    let is_smi = datagram.dest_qp == Qpn::SMI;
    let lrh = Lrh {
        vl: if is_smi { Lrh::VL_MANAGEMENT } else { 0 },
        sl,
        dlid: datagram.dlid,
        slid: datagram.slid,
        ..Lrh::default()
    };
    let bth = Bth {
        opcode: Opcode::UD_SEND_ONLY,
        mig_req: true,
        pkey: if is_smi { PKey::DEFAULT } else { datagram.p_key },
        dest_qp: datagram.dest_qp,
        psn,
        ..Bth::default()
    };
    let qkey = if is_smi { QKey(0) } else { QKey::GSI };
    let extended = Extended::Deth(Deth { qkey, src_qp: datagram.src_qp });
    let headers = Headers { lrh, grh, bth, rd: None, extended };
    let mut bytes = vec![0; PACKET_LEN_MAX];
    let len = headers.emit(&datagram.mad, &mut bytes).expect("a datagram fits a packet");
    bytes.truncate(len);
    Frame::Packet(bytes)
}

fn datagram(arrival: &Arrival<'_>, vl: u8, p_keys: &PKeys) -> Result<Datagram, NodeDrop> {
    let (Extended::Deth(deth), PayloadSource::Bytes(bytes)) = (arrival.extended, arrival.payload)
    else {
        return Err(NodeDrop::Malformed);
    };
    let mad: Mad = bytes.try_into().map_err(|_| NodeDrop::Malformed)?;
    let head = &arrival.head;
    let is_smi = head.dest_qp == Qpn::SMI;
    // Subnet management must use VL 15 and queue pair 0, and other classes must not use them.
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

/// In a directed response, sets the hop pointer to its value at the responder, hop count + 1.
pub(crate) fn start_return_path(mad: &mut [u8; 256]) {
    if MgmtClass(mad[1]) == MgmtClass::SUBN_DIRECTED_ROUTE && Method(mad[3]).is_response() {
        let hop_count = DirectedSmp::parse(mad).hop_count();
        mad[6] = hop_count.saturating_add(1);
    }
}
