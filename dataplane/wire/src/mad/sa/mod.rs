//! Subnet administration (IBA 15.2): SA queries and multicast membership.
//!
//! Each datagram is a [`SaMad`]: a query or response with one [`Record`]. The component mask of a
//! query selects the components of the record that must match. A response with several records is
//! segmented (see [`rmpp`](super::rmpp)); [`records`] iterates over the reassembled table.
//!
//! Ordinary nodes use [`PathRecord`], [`McMemberRecord`] and [`InformInfo`]. Management tools use
//! the other records.

mod inform_info;
mod mc_member_record;
mod multi_path_record;
mod node_record;
mod path_record;
mod port_info_record;
mod service_record;
mod table_records;

pub use inform_info::{InformInfo, InformInfoRecord, InformInfoRecordMask};
pub use mc_member_record::{JoinState, McMemberRecord, McMemberRecordMask};
pub use multi_path_record::{MultiPathRecord, MultiPathRecordMask};
pub use node_record::{NodeRecord, NodeRecordMask};
pub use path_record::{PathRecord, PathRecordMask};
pub use port_info_record::{PortInfoRecord, PortInfoRecordMask};
pub use service_record::{ServiceRecord, ServiceRecordMask};
pub use table_records::{
    LftRecord, LftRecordMask, LinkRecord, LinkRecordMask, MftRecord, MftRecordMask,
    PKeyTableRecord, PKeyTableRecordMask, SmInfoRecord, SmInfoRecordMask, SwitchInfoRecord,
    SwitchInfoRecordMask,
};

use super::class_port_info::ClassPortInfo;
use super::notice::NoticeReport;
use super::rmpp::RmppHeader;
use super::smp::SmKey;
use super::{Attribute, MadHeader, Method, MgmtClass};
use crate::WireError;

layout! {
    /// The SA header, behind the RMPP header (IBA 15.2.1).
    pub struct SaHeader: 20 bytes {
        /// The SM_Key of a trusted sender. 0 is an untrusted sender, which may send most queries.
        0:0   64  sm_key: SmKey,
        /// Distance from one record of a table to the next, in units of 8 bytes.
        8:0   16  attribute_offset: u16,
        /// The components of the record that a query specifies: a [`Record::Mask`].
        12:0  64  component_mask: u64,
    }
}

layout! {
    pub struct SaMad: 256 bytes {
        0:0    192  header: MadHeader,
        /// Zero if the datagram does not use RMPP.
        24:0    96  rmpp: RmppHeader,
        36:0   160  sa: SaHeader,
        56:0  1600  data: [u8; 200],
    }
}

codes! {
    /// How a component of a response must compare to the query's (IBA 15.2.5.16).
    pub struct Selector(u8) {
        GREATER_THAN = 0,
        LESS_THAN = 1,
        EXACTLY = 2,
        /// The largest available value; for times, the shortest.
        BEST = 3,
    }
}

pub trait Record: Attribute {
    type Mask: From<u64> + Into<u64>;

    /// Distance in bytes from one record to the next in tables that Pollux sends.
    const STRIDE: usize = Self::LEN.next_multiple_of(8);

    /// The [`SaHeader::attribute_offset`] of tables that Pollux sends.
    const ATTRIBUTE_OFFSET: u16 = (Self::STRIDE / 8) as u16;
}

impl SaMad {
    /// Makes a query from an untrusted sender, or a response, with one record.
    pub fn new<R: Record>(method: Method, transaction_id: u64, mask: R::Mask, record: R) -> Self {
        Self {
            header: MadHeader::new(MgmtClass::SUBN_ADM, method, transaction_id, R::ID),
            rmpp: RmppHeader::default(),
            sa: SaHeader { component_mask: mask.into(), ..SaHeader::default() },
            data: record.to_data(),
        }
    }

    /// The component mask and the record; an error if the datagram has another attribute.
    pub fn record<R: Record>(&self) -> Result<(R::Mask, R), WireError> {
        if self.header.attribute_id != R::ID {
            return Err(WireError::BadValue { format: R::NAME, field: "attribute_id" });
        }
        Ok((self.sa.component_mask.into(), R::from_data(&self.data)))
    }
}

/// The records of a table, reassembled from its segments.
///
/// A remainder that is too short for a record is ignored.
pub fn records<R: Record>(
    table: &[u8],
    attribute_offset: u16,
) -> Result<impl Iterator<Item = R>, WireError> {
    let stride = usize::from(attribute_offset) * 8;
    if stride < R::LEN && !table.is_empty() {
        return Err(WireError::BadLength { format: R::NAME });
    }
    let rows = table.chunks(stride.max(R::LEN));
    Ok(rows.map_while(|row| Some(R::read(row).ok()?.0)))
}

/// Writes a record of a table to the front of `out`, and zeros up to the next record; returns the
/// rest of `out`.
pub fn write_record<R: Record>(record: R, out: &mut [u8]) -> Result<&mut [u8], WireError> {
    let no_room = WireError::NoRoom { format: R::NAME, needed: R::STRIDE, have: out.len() };
    let (row, rest) = out.split_at_mut_checked(R::STRIDE).ok_or(no_room)?;
    record.write(row)?.fill(0);
    Ok(rest)
}

/// Implements [`Record`] for a layout, with this attribute ID, and makes its component mask type.
macro_rules! record {
    ($record:ident = $id:literal, $mask:ident { $($components:tt)* }) => {
        $crate::mad::attributes!($record = $id);

        flags! {
            #[doc = concat!("Components of a [`", stringify!($record), "`].")]
            pub struct $mask(u64) { $($components)* }
        }

        impl $crate::mad::sa::Record for $record {
            type Mask = $mask;
        }

        impl From<u64> for $mask {
            fn from(bits: u64) -> Self {
                Self(bits)
            }
        }

        impl From<$mask> for u64 {
            fn from(mask: $mask) -> Self {
                mask.0
            }
        }
    };
}
use record;

/// ClassPortInfo has no components, so its mask has no named bits.
impl Record for ClassPortInfo {
    type Mask = u64;
}

/// Notices are reported, not queried, so the mask has no named bits.
impl Record for NoticeReport {
    type Mask = u64;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{Gid, Lid};
    use crate::layout::FieldSpec;
    use crate::mad::smp::{NodeInfo, PortInfo, SmInfo};
    use crate::mad::tests::{assert_bytes, counting};
    use proptest::prelude::*;
    use std::string::String;
    use std::vec::Vec;

    #[test]
    fn every_field_of_the_header_is_where_the_specification_has_it() {
        let mad = SaMad {
            header: MadHeader { base_version: 1, ..MadHeader::default() },
            rmpp: RmppHeader { version: 1, ..RmppHeader::default() },
            sa: SaHeader {
                sm_key: SmKey(0x1112_1314_1516_1718),
                attribute_offset: 0x2122,
                component_mask: 0x3132_3334_3536_3738,
            },
            data: counting(0x41),
        };
        assert_bytes(
            &mad,
            &[
                (0, &[1]),
                (24, &[1]),
                (36, &counting::<8>(0x11)),
                (44, &[0x21, 0x22]),
                (48, &counting::<8>(0x31)),
                (56, &counting::<200>(0x41)),
            ],
        );
    }

    #[test]
    fn a_path_query_as_linux_makes_it() {
        let query = PathRecord { numb_path: 1, ..PathRecord::default() };
        let mad = SaMad::new(Method::GET, 0x0102, PathRecordMask::LINUX_QUERY, query);
        let bytes = mad.emit();
        assert_eq!(bytes[..24], *b"\x01\x03\x02\x01\0\0\0\0\0\0\0\0\0\0\x01\x02\0\x35\0\0\0\0\0\0");
        assert_eq!(bytes[24..54], [0; 30]);
        assert_eq!(bytes[54..56], [0x34, 0x0c]);
        assert_eq!(mad.record(), Ok((PathRecordMask::LINUX_QUERY, query)));
        assert_eq!(
            mad.record::<McMemberRecord>(),
            Err(WireError::BadValue { format: "McMemberRecord", field: "attribute_id" })
        );
    }

    const LINK: LinkRecord =
        LinkRecord { from_lid: Lid(1), from_port: 2, to_port: 3, to_lid: Lid(4) };

    #[test]
    fn a_table_has_padding_between_its_records() {
        let mut out = [0xff; 17];
        let rest = write_record(LINK, &mut out).unwrap();
        assert_eq!(write_record(LINK, rest).unwrap(), [0xff]);
        assert_eq!(out[..16], [0, 1, 2, 3, 0, 4, 0, 0, 0, 1, 2, 3, 0, 4, 0, 0]);
        assert_eq!(LinkRecord::ATTRIBUTE_OFFSET, 1);
        assert_eq!(records(&out, 1).unwrap().collect::<Vec<LinkRecord>>(), [LINK, LINK]);
        // The padding of the last record may be absent.
        assert_eq!(records::<LinkRecord>(&out[..14], 1).unwrap().count(), 2);
        assert_eq!(records::<LinkRecord>(&out[..13], 1).unwrap().count(), 1);
        assert!(write_record(LINK, &mut out[..7]).is_err());
    }

    #[test]
    fn records_may_have_a_larger_stride_but_no_smaller_one() {
        let mut table = [0; 96];
        LINK.write(&mut table[24..]).unwrap();
        let second = records::<LinkRecord>(&table, 3).unwrap().nth(1);
        assert_eq!(second, Some(LINK));
        assert!(records::<PathRecord>(&table, 7).is_err());
        assert!(records::<PathRecord>(&table, 0).is_err());
        assert_eq!(records::<PathRecord>(&[], 0).unwrap().count(), 0, "no records, no offset");
    }

    #[test]
    fn masks_of_different_records_have_the_same_bits_on_the_wire() {
        let mask = McMemberRecordMask::LINUX_LEAVE;
        let leave = McMemberRecord { mgid: Gid(counting(1)), ..McMemberRecord::default() };
        let mad = SaMad::new(Method::DELETE, 1, mask, leave);
        assert_eq!(mad.emit()[48..56], [0, 0, 0, 0, 0, 1, 0, 3]);
    }

    /// The components of a record by number: its fields in order. Each reserved gap between fields
    /// has a number too.
    fn components(fields: &[FieldSpec]) -> Vec<String> {
        let mut components = Vec::new();
        let mut end = 0;
        for field in fields {
            if field.bit > end {
                components.push(String::new());
            }
            components.push(field.name.to_uppercase());
            end = field.bit + field.width;
        }
        components
    }

    fn assert_numbered<M: Copy + Into<u64>>(mask: &[(M, &str)], components: &[String]) {
        for &(bits, name) in mask {
            let bits: u64 = bits.into();
            assert_eq!(
                (bits.count_ones(), &*components[bits.trailing_zeros() as usize]),
                (1, name)
            );
        }
        let named = components.iter().filter(|component| !component.is_empty());
        assert_eq!(mask.len(), named.count(), "{components:?}");
    }

    #[test]
    fn masks_number_the_components_as_the_tables_have_them() {
        assert_numbered(McMemberRecordMask::NAMES, &components(McMemberRecord::FIELDS));
        assert_numbered(LinkRecordMask::NAMES, &components(LinkRecord::FIELDS));

        let mut path = components(PathRecord::FIELDS);
        path.splice(..1, ["SERVICE_ID_8_MSB".into(), "SERVICE_ID_56_LSB".into()]);
        assert_numbered(PathRecordMask::NAMES, &path);
        let mut paths = components(MultiPathRecord::FIELDS);
        assert_eq!(paths.pop().as_deref(), Some("GIDS"), "the counts stand for them");
        assert_numbered(MultiPathRecordMask::NAMES, &paths);

        // The fields of an attribute within a record are components; the attribute itself is not.
        let mut node = components(NodeRecord::FIELDS);
        node.splice(2..3, components(NodeInfo::FIELDS));
        assert_numbered(NodeRecordMask::NAMES, &node);
        let mut port = components(PortInfoRecord::FIELDS);
        port.splice(3.., components(PortInfo::FIELDS));
        port[5] = "BASE_LID".into();
        assert_numbered(PortInfoRecordMask::NAMES, &port);
        let mut sm = components(SmInfoRecord::FIELDS);
        sm.splice(2.., components(SmInfo::FIELDS));
        assert_numbered(SmInfoRecordMask::NAMES, &sm);
        let mut subscription = components(InformInfoRecord::FIELDS);
        subscription.splice(3.., components(InformInfo::FIELDS));
        assert_numbered(InformInfoRecordMask::NAMES, &subscription);
    }

    proptest! {
        #[test]
        fn any_table_gives_as_many_records_as_fit(
            table in proptest::collection::vec(any::<u8>(), 0..600),
            attribute_offset: u16,
        ) {
            if let Ok(rows) = records::<PathRecord>(&table, attribute_offset) {
                let stride = usize::from(attribute_offset) * 8;
                let fit = (0..table.len()).step_by(stride.max(1));
                let fit = fit.filter(|start| start + PathRecord::LEN <= table.len());
                prop_assert_eq!(rows.count(), fit.count());
            }
        }
    }
}
