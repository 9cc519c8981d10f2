//! Every packet that the suite makes two adapters send, read by tshark.

use crate::worlds::Worlds;
use crate::{filter, note};
use pollux_fabric::link::Wire;
use pollux_referee::tshark::{DissectedFrame, judge};
use pollux_wire::packet::Packet;

/// The least number of packets of the suite with the even schedule: detects a tap that misses
/// packets.
const FRAMES_MIN: usize = 5_000;

/// The expected dissection: our field values, and no expert warnings.
fn frame(name: String, bytes: Vec<u8>) -> DissectedFrame {
    let bth = Packet::parse(&bytes).expect("what we sent can be read").bth();
    DissectedFrame::new(name, bytes)
        .expect("infiniband.bth.opcode", bth.opcode.0)
        .expect("infiniband.bth.destqp", format!("{:#08x}", bth.dest_qp.0))
        .expect("infiniband.bth.psn", bth.psn.get())
        .expect("infiniband.bth.m", u8::from(bth.mig_req))
        .expect("_ws.expert.message", "")
}

// req: iba-packets
#[test]
fn every_packet_of_the_suite_is_well_formed() {
    let (mut worlds, seen) = Worlds::new("capture", Wire::default(), 0).tapped();
    let (mut frames, mut failures) = (Vec::new(), Vec::new());
    pollux_conformance::run(&mut worlds, &filter(), &mut |report| {
        note("capture", report, &mut failures);
        let packets = seen.take().into_iter().enumerate();
        frames.extend(packets.map(|(nth, bytes)| frame(format!("{} {nth}", report.name), bytes)));
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(frames.len() > FRAMES_MIN || !filter().is_empty(), "only {} frames", frames.len());
    judge("every_packet_of_the_suite_is_well_formed", &frames);
}
