//! tshark reads every management datagram but those of subnet administration and connections.
//!
//! Each attribute is sent many times, with bytes in which no two bits are the same every time: so
//! any difference between tshark and us in a field's offset or width shows.

/// Adds tshark's fields below a prefix, each `name: digits = our value`.
macro_rules! fields {
    ($frame:expr, $prefix:literal, $( $field:ident: $digits:literal = $value:expr ),* $(,)?) => {
        $frame $( .expect_hex(
            concat!("infiniband.", $prefix, ".", stringify!($field)), $value, $digits,
        ) )*
    };
}

mod general_services;
mod notices;
mod subnet_management;

use pollux_referee::frames::{gmp, smp};
use pollux_referee::tshark::DissectedFrame;
use pollux_wire::mad::smp::{LidSmp, MKey};
use pollux_wire::mad::{Attribute, AttributeId, MAD_LEN, MadHeader, Method, MgmtClass};
use std::collections::BTreeSet;

/// Rounds of each attribute.
const ROUNDS: u32 = 32;

/// The bytes of one round.
fn bytes<const N: usize>(round: u32) -> [u8; N] {
    const ODD: u32 = 0x9e37_79b1;
    core::array::from_fn(|i| {
        let mixed = (i as u32 + 256 * round + 1).wrapping_mul(ODD);
        ((mixed ^ mixed >> 15).wrapping_mul(ODD) >> 24) as u8
    })
}

#[test]
fn no_two_bits_are_the_same_in_all_rounds() {
    const LEN: usize = 216;
    let rounds: Vec<[u8; LEN]> = (0..ROUNDS).map(bytes).collect();
    let bit = |bytes: &[u8; LEN], i: usize| u32::from(bytes[i / 8] >> (i % 8) & 1);
    let histories: BTreeSet<u32> = (0..LEN * 8)
        .map(|i| rounds.iter().fold(0, |history, bytes| history << 1 | bit(bytes, i)))
        .collect();
    assert_eq!(histories.len(), LEN * 8);
}

/// A repeated field as tshark prints it.
fn list<T: Into<u64>>(values: impl IntoIterator<Item = T>, digits: usize) -> String {
    let print = |value: T| format!("{:#0width$x}", value.into(), width = digits + 2);
    values.into_iter().map(print).collect::<Vec<_>>().join(",")
}

/// Plain bytes as tshark prints them.
fn plain(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn header(mgmt_class: MgmtClass, method: Method, attribute_id: AttributeId) -> MadHeader {
    MadHeader {
        attribute_modifier: 0x99aa_bbcc,
        ..MadHeader::new(mgmt_class, method, 0x1122_3344_5566_7788, attribute_id)
    }
}

fn expect_header(frame: DissectedFrame, header: &MadHeader) -> DissectedFrame {
    fields!(frame, "mad",
        baseversion: 2 = header.base_version,
        mgmtclass: 2 = header.mgmt_class.0,
        classversion: 2 = header.class_version,
        method: 2 = header.method.0,
        status: 4 = header.status.0,
        classspecific: 4 = header.class_specific,
        transactionid: 16 = header.transaction_id,
        attributeid: 4 = header.attribute_id.0,
        attributemodifier: 8 = header.attribute_modifier,
    )
}

/// An attribute in a packet that is routed by LID.
fn by_lid<A: Attribute>(name: &str, method: Method, attribute: A) -> DissectedFrame {
    let header = header(MgmtClass::SUBN_LID_ROUTED, method, A::ID);
    let mad = LidSmp { header, m_key: MKey(0x0102_0304_0506_0708), data: attribute.to_data() };
    let frame = expect_header(DissectedFrame::new(name, smp(&mad.emit())), &header);
    fields!(frame, "smplid", mkey: 16 = mad.m_key.0)
}

/// An attribute in a datagram of subnet administration, whose data begin at byte 56.
fn sa<A: Attribute>(name: &str, method: Method, attribute: A) -> DissectedFrame {
    let header = header(MgmtClass::SUBN_ADM, method, A::ID);
    let mut mad = [0; MAD_LEN];
    mad[..24].copy_from_slice(&header.emit());
    mad[56..].copy_from_slice(&attribute.to_data::<200>());
    expect_header(DissectedFrame::new(name, gmp(&mad)), &header)
}
