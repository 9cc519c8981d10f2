//! Every frame that crossed the wire, dissected by tshark.

use crate::Seen;
use pollux_referee::tshark::{PacketRow, dissect_ethernet};
use pollux_roce::middle::FrameDirection;
use pollux_roce::packet::RocePacket;
use pollux_wire::capture::{FileHeader, ethernet_record};
use pollux_wire::ethernet::EthernetHeader;
use pollux_wire::ip::ipv4::Ipv4Packet;
use pollux_wire::packet::{Bth, PACKET_LEN_MAX, Packet};

const FIELDS: [&str; 3] = ["infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn"];

/// Fails unless tshark finds the same numbers in every packet, and nothing malformed in any frame,
/// in both directions. Frames that a rule of the test has damaged are left out, by their CRC.
pub fn judge(test: &str, seen: &Seen) {
    let seen = seen.borrow();
    let frames: Vec<_> =
        seen.iter().filter_map(|(_, way, frame)| Some((way, frame, numbers(frame)?))).collect();
    let bytes: Vec<&[u8]> = frames.iter().map(|(_, frame, _)| frame.as_slice()).collect();
    let Some(rows) = dissect_ethernet(test, &bytes, &FIELDS) else { return };
    let mut complaints = Vec::new();
    for ((way, frame, numbers), row) in frames.iter().zip(&rows) {
        if !row.malformed.is_empty() || row.values != numbers[..] {
            let PacketRow { values, malformed } = row;
            complaints.push(format!("{way:?} {frame:02x?}: {malformed} {values:?} {numbers:?}"));
        }
    }
    let shown = complaints.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
    assert!(complaints.is_empty(), "tshark disagrees on {} frames:\n{shown}", complaints.len());
    let count = |wanted| frames.iter().filter(|(way, ..)| **way == wanted).count();
    println!(
        "{test}: tshark agrees on {} frames out and {} in",
        count(FrameDirection::Out),
        count(FrameDirection::In)
    );
}

/// Writes all of it to the file that `POLLUX_CAPTURE` names, if any, for the analysis of failures.
#[expect(clippy::disallowed_methods, reason = "what is kept is the environment's to say")]
pub fn keep(seen: &Seen) {
    let Some(path) = std::env::var_os("POLLUX_CAPTURE") else { return };
    let mut capture = FileHeader::ETHERNET.emit().to_vec();
    for (time, _, frame) in seen.borrow().iter() {
        capture.extend(ethernet_record(time.since_start(), frame.len() as u16).emit());
        capture.extend_from_slice(frame);
    }
    std::fs::write(path, capture).expect("a capture can be written where it is wanted");
}

/// The numbers of a packet as tshark prints them; empty for frames that are not RoCE, and `None`
/// for damaged ones.
fn numbers(frame: &[u8]) -> Option<[String; 3]> {
    let (header, bytes) = EthernetHeader::read(frame).ok()?;
    // One with a bit of its flags turned round is a fragment, which is no packet of RoCE; tshark
    // looks into it all the same.
    if Ipv4Packet::parse(bytes).is_ok_and(|packet| !packet.checksum_ok()) {
        return None;
    }
    let Some(came) = RocePacket::parse(header.ether_type, bytes).ok()? else {
        return Some([const { String::new() }; 3]);
    };
    let mut native = vec![0; PACKET_LEN_MAX];
    let len = came.write_native(&mut native).ok()?;
    let Bth { opcode, dest_qp, psn, .. } = Packet::parse(&native[..len]).ok()?.bth();
    Some([opcode.0.to_string(), format!("{:#08x}", dest_qp.0), psn.get().to_string()])
}
