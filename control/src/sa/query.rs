//! SA queries and their answers (IBA 15.2.5).

use super::SaError;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::notice::{ProducerType, TrapNumber};
use pollux_wire::mad::sa::{
    InformInfo, JoinState, McMemberRecord, McMemberRecordMask, PathRecord, PathRecordMask, Record,
    SaMad, Selector, records,
};
use pollux_wire::mad::{Attribute, MadStatus, Method};
use pollux_wire::units::TimeCode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaQuery(pub(super) SaMad);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    pub mgid: Gid,
    pub port_gid: Gid,
    /// The partition, with the bit of full membership.
    pub p_key: PKey,
    pub join_state: JoinState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaReply {
    Path(PathRecord),
    Paths(Vec<PathRecord>),
    /// The group, with the join states of the port.
    Group(McMemberRecord),
    Subscription(InformInfo),
}

impl SaQuery {
    fn new<R: Record>(method: Method, mask: R::Mask, record: R) -> Self {
        Self(SaMad::new(method, 0, mask, record))
    }

    /// The path to a port. The query has the components that Linux uses, because every
    /// administrator supports them.
    pub fn path(sgid: Gid, dgid: Gid, p_key: PKey, traffic_class: u8) -> Self {
        let record =
            PathRecord { sgid, dgid, p_key, traffic_class, numb_path: 1, ..PathRecord::default() };
        Self::new(Method::GET, PathRecordMask::LINUX_QUERY, record)
    }

    /// All reversible paths to a port.
    pub fn paths(sgid: Gid, dgid: Gid, p_key: PKey) -> Self {
        const REVERSIBLE: PathRecordMask =
            PathRecordMask::LINUX_QUERY.with(PathRecordMask::REVERSIBLE);
        let (reversible, numb_path) = (true, 127);
        let mask = REVERSIBLE.without(PathRecordMask::TRAFFIC_CLASS);
        let record =
            PathRecord { sgid, dgid, p_key, reversible, numb_path, ..PathRecord::default() };
        Self::new(Method::GET_TABLE, mask, record)
    }

    /// Joins an existing group.
    pub fn join(member: Membership) -> Self {
        Self::new(Method::SET, McMemberRecordMask::LINUX_JOIN_BROADCAST, member.record())
    }

    /// Joins a group. If the group does not exist, it is created with the properties of `like`: for
    /// IP groups, those of the broadcast group (RFC 4391 5).
    pub fn join_or_create(member: Membership, like: &McMemberRecord) -> Self {
        let record = McMemberRecord {
            q_key: like.q_key,
            mtu_selector: Selector::EXACTLY,
            mtu: like.mtu,
            rate_selector: Selector::EXACTLY,
            rate: like.rate,
            traffic_class: like.traffic_class,
            sl: like.sl,
            flow_label: like.flow_label,
            hop_limit: like.hop_limit,
            ..member.record()
        };
        Self::new(Method::SET, McMemberRecordMask::LINUX_JOIN, record)
    }

    /// Leaves a group, with the join states of `member`.
    pub fn leave(member: Membership) -> Self {
        Self::new(Method::DELETE, McMemberRecordMask::LINUX_LEAVE, member.record())
    }

    /// Subscribes to all notices with this number, or unsubscribes.
    pub fn subscription(trap_number: TrapNumber, subscribe: bool) -> Self {
        const ALL: u16 = 0xffff;
        let record = InformInfo {
            gid: Gid::NONE,
            lid_range_begin: Lid::PERMISSIVE,
            lid_range_end: Lid::NONE,
            is_generic: 1,
            subscribe: subscribe.into(),
            notice_type: ALL,
            trap_number,
            qpn: Qpn::GSI,
            resp_time_value: TimeCode(18),
            producer: ProducerType(0xff_ffff),
        };
        Self::new(Method::SET, 0, record)
    }
}

impl Membership {
    fn record(&self) -> McMemberRecord {
        let Self { mgid, port_gid, p_key, join_state } = *self;
        McMemberRecord { mgid, port_gid, p_key, join_state, ..McMemberRecord::default() }
    }
}

pub(super) fn read_record(query: &SaQuery, answer: &SaMad) -> Result<SaReply, SaError> {
    if answer.header.status != MadStatus::OK {
        return Err(SaError::of_status(answer.header.status));
    }
    match query.0.header.attribute_id {
        PathRecord::ID => read_path(query, answer).map(SaReply::Path),
        McMemberRecord::ID => read_group(query, answer).map(SaReply::Group),
        InformInfo::ID => record(answer).map(SaReply::Subscription),
        _ => Err(SaError::BadAnswer),
    }
}

pub(super) fn read_table(
    query: &SaQuery,
    table: &[u8],
    attribute_offset: u16,
) -> Result<SaReply, SaError> {
    fn all<R: Record>(table: &[u8], attribute_offset: u16) -> Result<Vec<R>, SaError> {
        let rows = records(table, attribute_offset).map_err(|_| SaError::BadAnswer)?;
        Ok(rows.collect())
    }
    match query.0.header.attribute_id {
        PathRecord::ID => all(table, attribute_offset).map(SaReply::Paths),
        _ => Err(SaError::BadAnswer),
    }
}

fn record<R: Record>(answer: &SaMad) -> Result<R, SaError> {
    answer.record().map(|(_, record)| record).map_err(|_| SaError::BadAnswer)
}

/// The path of an answer, with the GIDs of the query. Its destination LID must be unicast and its
/// MTU valid.
///
/// Why the GIDs of an answer are not compared with those of the query: an SA may answer with
/// another GID of the same port, such as the one with the other subnet prefix. Linux's IPoIB also
/// keeps the GID that it queried. The transaction ID and the SA's LID identify the answer.
fn read_path(query: &SaQuery, answer: &SaMad) -> Result<PathRecord, SaError> {
    let asked: PathRecord = record(&query.0)?;
    let path: PathRecord = record(answer)?;
    if !path.dlid.is_unicast() || path.mtu.bytes().is_none() {
        return Err(SaError::BadAnswer);
    }
    Ok(PathRecord { dgid: asked.dgid, sgid: asked.sgid, ..path })
}

fn read_group(query: &SaQuery, answer: &SaMad) -> Result<McMemberRecord, SaError> {
    let asked: McMemberRecord = record(&query.0)?;
    let group: McMemberRecord = record(answer)?;
    let is_left = query.0.header.method == Method::DELETE;
    if group.mgid != asked.mgid || !is_left && !group.mlid.is_multicast() {
        return Err(SaError::BadAnswer);
    }
    Ok(group)
}
