//! MADs of management agents in processes: conversion to datagrams or packets of their port, and
//! back.

use super::management::{packet_with, start_return_path};
use super::{MadDelivery, Net};
use crate::node::NodeDrop;
use crate::subnet::Datagram;
use crate::time::Time;
use crate::topology::End;
use pollux_hca::Frame;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::{MAD_LEN, Method, MgmtClass};
use pollux_wire::packet::{Grh, Packet};
use pollux_wire::psn::Psn;

/// A MAD from or to an agent, with the address of the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentMad {
    pub agent: u32,
    pub lid: Lid,
    pub qpn: Qpn,
    pub sl: u8,
    /// The low bits of this port's LID, by its LMC.
    pub path_bits: u8,
    pub p_key_index: u16,
    pub grh: Option<AgentGrh>,
    pub mad: [u8; MAD_LEN],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentGrh {
    /// The index of this port's GID.
    pub gid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub flow_label: u32,
    /// The GID of the other end.
    pub gid: Gid,
}

impl Net {
    /// Sends a MAD of an agent at a port. SMPs other than Gets need the management grant, as in all
    /// frames of processes.
    pub(crate) fn send_of_agent(&mut self, now: Time, at: End, sent: &AgentMad) {
        let is_smi = MgmtClass(sent.mad[1]).is_smi();
        if is_smi && Method(sent.mad[3]) != Method::GET && !self.managing.contains(&at) {
            return self.count_drop(at, NodeDrop::NotManager);
        }
        let port = self.subnet.port(at);
        let entries = port.p_keys.entries();
        let Some(p_key) = entries.get(usize::from(sent.p_key_index)).copied() else {
            return self.count_drop(at, NodeDrop::Key);
        };
        let mask = (1 << port.info.lmc) - 1;
        let slid = match sent.lid {
            Lid::PERMISSIVE => Lid::PERMISSIVE,
            _ => Lid(port.info.lid.0 | u16::from(sent.path_bits) & mask),
        };
        let src_qp = if is_smi { Qpn::SMI } else { Qpn::GSI };
        let dest_qp = if is_smi { Qpn::SMI } else { sent.qpn };
        let (dlid, mad) = (sent.lid, sent.mad);
        let mut datagram = Datagram { slid, dlid, src_qp, dest_qp, p_key, mad };
        if is_smi {
            datagram.p_key = PKey::DEFAULT;
            start_return_path(&mut datagram.mad);
            return self.send_datagram(now, at, datagram);
        }
        let grh = sent.grh.map(|grh| Grh {
            ip_ver: Grh::IP_VER,
            tclass: grh.traffic_class,
            flow_label: grh.flow_label & 0xf_ffff,
            nxt_hdr: Grh::NXT_HDR_IBA,
            hop_lmt: grh.hop_limit,
            sgid: port.gids().nth(grh.gid_index.into()).unwrap_or_default(),
            dgid: grh.gid,
            ..Grh::default()
        });
        self.datagrams += 1;
        let psn = Psn::new(self.datagrams as u32 & 0xff_ffff);
        self.send(now, at, packet_with(&datagram, sent.sl & 0xf, grh, psn));
    }

    /// Converts a delivered MAD for an agent, with the address of the sender. The caller sets
    /// [`AgentMad::agent`].
    pub(crate) fn for_agent(&self, delivery: &MadDelivery) -> AgentMad {
        let MadDelivery { at, datagram, frame } = delivery;
        let port = self.subnet.port(*at);
        let mask = (1 << port.info.lmc) - 1;
        let path_bits = if datagram.dlid == Lid::PERMISSIVE { 0 } else { datagram.dlid.0 & mask };
        let packet = match frame {
            Some((_, Frame::Packet(bytes))) => Packet::parse(bytes).ok(),
            _ => None,
        };
        let grh = packet.as_ref().and_then(|packet| packet.grh()).map(|grh| AgentGrh {
            gid_index: port.gids().position(|gid| gid == grh.dgid).unwrap_or(0) as u8,
            hop_limit: grh.hop_lmt,
            traffic_class: grh.tclass,
            flow_label: grh.flow_label,
            gid: grh.sgid,
        });
        AgentMad {
            agent: 0,
            lid: datagram.slid,
            qpn: datagram.src_qp,
            sl: packet.map_or(0, |packet| packet.lrh().sl),
            path_bits: path_bits as u8,
            p_key_index: port.p_keys.matching(datagram.p_key).unwrap_or(0),
            grh,
            mad: datagram.mad,
        }
    }
}
