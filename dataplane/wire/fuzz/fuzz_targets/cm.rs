//! Communication management: any message, and the private data of IP over InfiniBand.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pollux_wire::mad::cm::CmMessage;
use pollux_wire::mad::cm::ipoib::{AskingWorker, Dialect, IpoibPrivateData};

fuzz_target!(|bytes: &[u8]| {
    let Some(mad) = bytes.first_chunk() else { return };
    let Ok((header, message)) = CmMessage::parse_mad(mad) else { return };
    let again = CmMessage::parse_mad(&message.emit_mad(header.transaction_id));
    assert_eq!(again.map(|(_, message)| message), Ok(message));
    let _ = format!("{message:?}");
    match message {
        CmMessage::Req(req) => {
            let _ = (IpoibPrivateData::read(&req.private_data), Dialect::of(req.service_id));
            let _ = AskingWorker::of(&req.private_data);
        }
        CmMessage::Rej(rej) => {
            let _ = (rej.info(), rej.timed_out_ca());
        }
        _ => {}
    }
});
