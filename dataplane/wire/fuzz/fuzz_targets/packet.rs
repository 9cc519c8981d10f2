//! Packets of InfiniBand transport, and raw ones: a parsed packet is written back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pollux_wire::packet::{PACKET_LEN_MAX, Packet, RawPacket};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(raw) = RawPacket::parse(bytes) {
        let _ = raw.vcrc_ok();
    }
    let Ok(packet) = Packet::parse(bytes) else { return };
    let _ = (packet.icrc_ok(), packet.vcrc_ok());
    let mut out = [0; PACKET_LEN_MAX];
    // A payload can be longer than any MTU, since PktLen counts to 8188 bytes.
    if let Ok(len) = packet.headers().emit(packet.payload(), &mut out) {
        let again = Packet::parse(&out[..len]).expect("what was emitted parses");
        assert!(again.icrc_ok() && again.vcrc_ok());
        assert_eq!(again.payload(), packet.payload());
        assert_eq!(again.extended(), packet.extended());
    }
});
