//! Subnet administration: single records, and tables of records.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pollux_wire::mad::sa::*;
use pollux_wire_fuzz::survives;

fn table<R: Record>(bytes: &[u8], attribute_offset: u16) {
    if let Ok(rows) = records::<R>(bytes, attribute_offset) {
        assert!(rows.count() <= bytes.len() / R::LEN + 1);
    }
}

fuzz_target!(|bytes: &[u8]| {
    survives!(bytes, SaMad, PathRecord, MultiPathRecord, McMemberRecord, NodeRecord);
    survives!(bytes, PortInfoRecord, ServiceRecord, InformInfo, InformInfoRecord, LinkRecord);
    let Ok((mad, rest)) = SaMad::read(bytes) else { return };
    let offset = mad.sa.attribute_offset;
    table::<PathRecord>(rest, offset);
    table::<NodeRecord>(rest, offset);
    table::<McMemberRecord>(rest, offset);
    if let Ok((mask, record)) = mad.record::<MultiPathRecord>() {
        let _ = (format!("{mask:?}"), record.ends());
    }
    if let Ok((mask, record)) = mad.record::<PathRecord>() {
        let again = SaMad::new(mad.header.method, mad.header.transaction_id, mask, record);
        assert_eq!(again.record::<PathRecord>(), Ok((mask, record)));
    }
});
