//! A frame in flight, as links and switches see it.

use super::shared_port::PortContext;
use crate::switch::{Hop, Transit};
use crate::topology::End;
use pollux_hca::Frame;
use pollux_wire::packet::{Lnh, Lrh, Packet};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) origin: PortContext,
    /// The port that the frame is at or arrives at next.
    pub(super) to: End,
    /// The links that it has crossed.
    pub(super) hops: u8,
    /// Whether it leaves by that port, over a wire to a node of another fabric.
    pub(super) leaves_fabric: bool,
    pub(super) frame: Frame,
    /// The credits that it holds at its input port; copies share them.
    pub(super) credits: Option<Arc<HeldCredits>>,
}

/// The credits that a frame holds at its input port.
#[derive(Debug)]
pub(super) struct HeldCredits {
    /// The port that sent the frame. Its egress counts the credits.
    pub(super) from: End,
    /// The number of that egress. A cable that is plugged in again begins with all its credits.
    pub(super) egress: u64,
    pub(super) lane: u8,
    pub(super) bytes: u64,
}

impl Flight {
    /// A frame at a port; it has crossed `hops` links.
    pub(super) fn new(from: impl Into<PortContext>, hops: u8, frame: Frame) -> Self {
        let origin = from.into();
        Self { origin, to: origin.end, hops, leaves_fabric: false, frame, credits: None }
    }

    /// Sets the output port and the VL that a switch chose for the frame.
    pub(super) fn with_hop(mut self, hop: Hop) -> Self {
        self.to.port = hop.port;
        self.frame.set_lane(hop.vl);
        self
    }

    /// Its length in bytes, LRH to VCRC.
    pub(super) fn bytes(&self) -> u64 {
        let (_, words) = self.frame.size();
        words * 4 + 2
    }
}

/// The header fields that a switch reads; `None` if the frame has no valid LRH.
pub(super) fn transit_of(frame: &Frame, in_port: u8) -> Option<Transit> {
    match frame {
        Frame::Message(message) => Some(Transit {
            in_port,
            slid: message.head_words().slid,
            dlid: message.head_words().dlid,
            sl: message.head_words().sl,
            vl: message.lane(),
            p_key: Some(message.head_words().pkey),
        }),
        Frame::Packet(bytes) => {
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
