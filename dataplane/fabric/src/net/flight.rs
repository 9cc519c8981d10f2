//! A frame on its way, as links and switches see it.

use super::seats::Seat;
use crate::frame::Frame;
use crate::switch::{Hop, Transit};
use crate::topology::End;
use pollux_wire::packet::{Lnh, Lrh, Packet, seal_hop};
use std::sync::Arc;

/// A frame between two ends.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    /// Where it was sent from.
    pub(super) origin: Seat,
    /// The end that it is on its way to.
    pub(super) to: End,
    /// Links that it has crossed.
    pub(super) hops: u8,
    /// Not to that end but out of it, to a node that is not ours.
    pub(super) leaves: bool,
    pub(super) frame: Frame,
    /// The room that it takes up at the port it came in by; copies share it.
    pub(super) hold: Option<Arc<Hold>>,
}

/// Room at the end of a link.
#[derive(Debug)]
pub(super) struct Hold {
    /// The port at the other end, which counts the room.
    pub(super) from: End,
    pub(super) lane: u8,
    pub(super) bytes: u64,
}

impl Flight {
    /// A frame that leaves a port after so many links.
    pub(super) fn new(from: impl Into<Seat>, hops: u8, frame: Frame) -> Self {
        let origin = from.into();
        Self { origin, to: origin.end, hops, leaves: false, frame, hold: None }
    }

    /// The same on its way out of the node where it is.
    pub(super) fn by(mut self, hop: Hop) -> Self {
        self.to.port = hop.port;
        self.frame.set_lane(hop.vl);
        self
    }

    /// How long it is, LRH to VCRC.
    pub(super) fn bytes(&self) -> u64 {
        let (_, words) = self.frame.size();
        words * 4 + 2
    }
}

/// Bytes of LRH, BTH and ICRC: what every packet has beside its payload.
const HEADERS: u64 = 8 + 12 + 4;

/// How many packets a message stands for, and their words of four bytes, LRH to ICRC.
#[inline(always)]
pub(crate) fn size_of_message(packets: u32, bytes: u64) -> (u64, u64) {
    let packets = u64::from(packets.max(1));
    (packets, (packets * HEADERS + bytes).div_ceil(4))
}

impl Frame {
    /// What a switch looks at; none if there is nothing to be seen.
    pub(super) fn transit(&self, in_port: u8) -> Option<Transit> {
        match self {
            Self::Message(message) => Some(Transit {
                in_port,
                slid: message.head_words().slid,
                dlid: message.head_words().dlid,
                sl: message.head_words().sl,
                vl: message.lane(),
                p_key: Some(message.head_words().pkey),
            }),
            Self::Packet(bytes) => {
                let (lrh, _) = Lrh::read(bytes).ok()?;
                let has_transport = matches!(lrh.lnh, Lnh::LOCAL | Lnh::GLOBAL);
                let packet = Packet::parse(bytes).ok().filter(|_| has_transport);
                Some(Transit {
                    in_port,
                    slid: lrh.slid,
                    dlid: lrh.dlid,
                    sl: lrh.sl,
                    vl: lrh.vl,
                    p_key: packet.map(|packet| packet.bth().pkey),
                })
            }
        }
    }

    /// How many packets it is or stands for, and their words of four bytes, LRH to ICRC.
    pub(super) fn size(&self) -> (u64, u64) {
        match self {
            Self::Packet(bytes) => (1, bytes.len() as u64 / 4),
            Self::Message(message) => {
                size_of_message(message.head_words().packets, message.bytes())
            }
        }
    }

    /// The lane that it is on.
    pub(super) fn lane(&self) -> u8 {
        match self {
            Self::Message(message) => message.lane(),
            Self::Packet(bytes) => bytes.first().map_or(0, |byte| byte >> 4),
        }
    }

    /// Puts it on a lane for its next hop.
    pub(super) fn set_lane(&mut self, vl: u8) {
        match self {
            Self::Message(message) => message.set_lane(vl),
            Self::Packet(bytes) => {
                let lane = bytes[0] & 0x0f | vl << 4;
                if bytes[0] != lane {
                    bytes[0] = lane;
                    seal_hop(bytes);
                }
            }
        }
    }
}
