//! What a node asks of the subnet administrator (IBA 15.2.5), and what comes back.

use super::SaError;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::class_port_info::ClassPortInfo;
use pollux_wire::mad::notice::{ProducerType, TrapNumber};
use pollux_wire::mad::sa::{
    InformInfo, JoinState, McMemberRecord, McMemberRecordMask, PathRecord, PathRecordMask, Record,
    SaMad, Selector, ServiceRecord, ServiceRecordMask, records,
};
use pollux_wire::mad::service_id::ServiceId;
use pollux_wire::mad::{Attribute, MadStatus, Method};
use pollux_wire::units::TimeCode;

/// A query to the subnet administrator (SA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaQuery(pub(super) SaMad);

/// Who takes part in which group, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The group.
    pub mgid: Gid,
    /// The member.
    pub port_gid: Gid,
    /// The partition, with the bit of full membership.
    pub p_key: PKey,
    /// One or several ways.
    pub join_state: JoinState,
}

/// What the administrator answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaReply {
    /// A path; where to is what was asked.
    Path(PathRecord),
    /// All paths there are.
    Paths(Vec<PathRecord>),
    /// A group as it is, and how the port takes part in it now.
    Group(McMemberRecord),
    /// Every group, or member, that was asked for.
    Groups(Vec<McMemberRecord>),
    /// A subscription was made or ended.
    Subscription(InformInfo),
    /// A service.
    Service(ServiceRecord),
    /// Services.
    Services(Vec<ServiceRecord>),
    /// What the administrator can do.
    ClassPortInfo(ClassPortInfo),
}

/// What makes two announcements the same.
const SERVICE: ServiceRecordMask = ServiceRecordMask::SERVICE_ID
    .with(ServiceRecordMask::SERVICE_GID)
    .with(ServiceRecordMask::SERVICE_P_KEY);

const EVERY_COMPONENT: ServiceRecordMask = SERVICE
    .with(ServiceRecordMask::SERVICE_LEASE)
    .with(ServiceRecordMask::SERVICE_KEY)
    .with(ServiceRecordMask::SERVICE_NAME)
    .with(ServiceRecordMask::DATA8)
    .with(ServiceRecordMask::DATA16)
    .with(ServiceRecordMask::DATA32)
    .with(ServiceRecordMask::DATA64);

impl SaQuery {
    fn new<R: Record>(method: Method, mask: R::Mask, record: R) -> Self {
        Self(SaMad::new(method, 0, mask, record))
    }

    /// The path to a port: by the components by which Linux asks, since every administrator has
    /// heard that.
    pub fn path(sgid: Gid, dgid: Gid, p_key: PKey, traffic_class: u8) -> Self {
        let record =
            PathRecord { sgid, dgid, p_key, traffic_class, numb_path: 1, ..PathRecord::default() };
        Self::new(Method::GET, PathRecordMask::LINUX_QUERY, record)
    }

    /// All paths to a port that can be used both ways.
    pub fn paths(sgid: Gid, dgid: Gid, p_key: PKey) -> Self {
        const BOTH_WAYS: PathRecordMask =
            PathRecordMask::LINUX_QUERY.with(PathRecordMask::REVERSIBLE);
        let (reversible, numb_path) = (true, 127);
        let mask = BOTH_WAYS.without(PathRecordMask::TRAFFIC_CLASS);
        let record =
            PathRecord { sgid, dgid, p_key, reversible, numb_path, ..PathRecord::default() };
        Self::new(Method::GET_TABLE, mask, record)
    }

    /// To be a member of a group that is there.
    pub fn join(member: Membership) -> Self {
        Self::new(Method::SET, McMemberRecordMask::LINUX_JOIN_BROADCAST, member.record())
    }

    /// To be a member of a group that is made if it is not there: then with the properties of
    /// `like`, which for groups of IP are those of the broadcast group (RFC 4391 5).
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

    /// To be a member no more, in the ways that `member` says.
    pub fn leave(member: Membership) -> Self {
        Self::new(Method::DELETE, McMemberRecordMask::LINUX_LEAVE, member.record())
    }

    /// What a group is like, whoever is in it.
    pub fn group(mgid: Gid) -> Self {
        let record = McMemberRecord { mgid, ..McMemberRecord::default() };
        Self::new(Method::GET, McMemberRecordMask::MGID, record)
    }

    /// All groups of a partition.
    pub fn groups(p_key: PKey) -> Self {
        let record = McMemberRecord { p_key, ..McMemberRecord::default() };
        Self::new(Method::GET_TABLE, McMemberRecordMask::P_KEY, record)
    }

    /// To be told of all notices with this number, or no more to be.
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

    /// To announce a service.
    pub fn announce(service: ServiceRecord) -> Self {
        Self::new(Method::SET, EVERY_COMPONENT, service)
    }

    /// To announce it no more.
    pub fn withdraw(service: ServiceRecord) -> Self {
        Self::new(Method::DELETE, SERVICE.with(ServiceRecordMask::SERVICE_KEY), service)
    }

    /// Who offers a service in a partition.
    pub fn services(service_id: ServiceId, service_p_key: PKey) -> Self {
        let record = ServiceRecord { service_id, service_p_key, ..ServiceRecord::default() };
        let mask = ServiceRecordMask::SERVICE_ID.with(ServiceRecordMask::SERVICE_P_KEY);
        Self::new(Method::GET_TABLE, mask, record)
    }

    /// What the administrator can do.
    pub fn class_port_info() -> Self {
        Self::new(Method::GET, 0, ClassPortInfo::default())
    }
}

impl Membership {
    fn record(&self) -> McMemberRecord {
        let Self { mgid, port_gid, p_key, join_state } = *self;
        McMemberRecord { mgid, port_gid, p_key, join_state, ..McMemberRecord::default() }
    }
}

/// The record of a reply, if the reply matches the query.
pub(super) fn read_record(query: &SaQuery, answer: &SaMad) -> Result<SaReply, SaError> {
    if answer.header.status != MadStatus::OK {
        return Err(SaError::of_status(answer.header.status));
    }
    match query.0.header.attribute_id {
        PathRecord::ID => read_path(query, answer).map(SaReply::Path),
        McMemberRecord::ID => read_group(query, answer).map(SaReply::Group),
        InformInfo::ID => record(answer).map(SaReply::Subscription),
        ServiceRecord::ID => record(answer).map(SaReply::Service),
        ClassPortInfo::ID => record(answer).map(SaReply::ClassPortInfo),
        _ => Err(SaError::BadAnswer),
    }
}

/// What the records in a table say.
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
        McMemberRecord::ID => all(table, attribute_offset).map(SaReply::Groups),
        ServiceRecord::ID => all(table, attribute_offset).map(SaReply::Services),
        _ => Err(SaError::BadAnswer),
    }
}

fn record<R: Record>(answer: &SaMad) -> Result<R, SaError> {
    answer.record().map(|(_, record)| record).map_err(|_| SaError::BadAnswer)
}

/// The path is to whom we asked for, whatever the administrator calls it.
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
