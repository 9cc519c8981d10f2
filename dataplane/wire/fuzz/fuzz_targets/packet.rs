//! InfiniBand packets and raw packets: writing a parsed InfiniBand packet keeps its payload and
//! extended headers.
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
    // A received packet may have up to 8188 bytes (PktLen), which do not fit into `out`.
    if let Ok(len) = packet.headers().emit(packet.payload(), &mut out) {
        let again = Packet::parse(&out[..len]).expect("what was emitted parses");
        assert!(again.icrc_ok() && again.vcrc_ok());
        assert_eq!(again.payload(), packet.payload());
        assert_eq!(again.extended(), packet.extended());
    }
});
