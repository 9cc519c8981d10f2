//! The subnet administrator: it answers SA queries, keeps groups, services and subscriptions, and
//! sends reports to subscribers (IBA 15).
//!
//! The administrator is part of the master subnet manager and answers from the manager's view.
//! Queries wait in a bounded queue, and are answered one at a time when the manager itself has
//! nothing to send, so a flood of queries cannot stop a sweep. If the queue is full, the answer is
//! BUSY.
//!
//! 1. `paths`, `groups`, `services`, `subscriptions`: attributes for ordinary nodes;
//! 2. `notices`: reports to subscribers; `records`: attributes for management tools.
//!
//! Answers to GetTable and GetMulti use RMPP ([`pollux_verbs::rmpp`]), even short ones.

mod groups;
mod notices;
mod paths;
mod records;
mod services;
mod subscriptions;

pub use groups::{GROUPS_MAX, MEMBERS_MAX};
pub use paths::PATHS_MAX;
pub use records::TABLE_BYTES_MAX;
pub use services::SERVICES_MAX;
pub use subscriptions::{REPORTS_MAX, SUBSCRIPTIONS_MAX};

use crate::config::SmConfig;
use crate::partitions::Partitions;
use crate::sma::Mad;
use crate::subnet::Datagram;
use crate::time::Time;
use crate::view::{PortRef, View};
use groups::{Groups, Requester};
use pollux_verbs::rmpp::{Reception, SegmentOutcome, Transfers};
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::class_port_info::{ClassAddress, ClassCapabilities, ClassPortInfo};
use pollux_wire::mad::rmpp::{RmppHeader, RmppType};
use pollux_wire::mad::sa::{
    InformInfo, InformInfoRecord, LftRecord, LinkRecord, McMemberRecord, MftRecord,
    MultiPathRecord, NodeRecord, PKeyTableRecord, PathRecord, PortInfoRecord, Record, SaHeader,
    SaMad, ServiceRecord, SmInfoRecord, SwitchInfoRecord,
};
use pollux_wire::mad::smp::{SmInfo, SmKey};
use pollux_wire::mad::{Attribute, MadHeader, MadStatus, Method, MgmtClass};
use pollux_wire::units::{Rate, TimeCode};
use records::{Table, table_of};
use std::collections::{BTreeSet, VecDeque};
use subscriptions::Subscriptions;

pub const QUESTIONS_MAX: usize = 1024;
const OUTGOING_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaCounters {
    pub answered: u64,
    /// Queries answered with BUSY: the queue was full, or too many RMPP transfers were active.
    pub busy: u64,
    /// Datagrams that are malformed, unexpected, or from unknown ports.
    pub strays: u64,
    pub untrusted: u64,
    /// Answers dropped because the queue was full. Reports are counted with the subscriptions.
    pub lost: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TransferKey {
    peer: Lid,
    qp: Qpn,
    p_key: PKey,
    transaction_id: u64,
}

impl TransferKey {
    fn of(datagram: &Datagram, transaction_id: u64) -> Self {
        let Datagram { slid: peer, src_qp: qp, p_key, .. } = *datagram;
        Self { peer, qp, p_key, transaction_id }
    }

    fn datagram(self, mad: Mad) -> Datagram {
        let Self { peer: dlid, qp: dest_qp, p_key, .. } = self;
        Datagram { slid: Lid::NONE, dlid, src_qp: Qpn::GSI, dest_qp, p_key, mad }
    }
}

pub struct Administrator {
    sm_key: SmKey,
    prefix: u64,
    partitions: Partitions,
    packet_life_time: TimeCode,
    questions: VecDeque<Datagram>,
    outgoing: VecDeque<Datagram>,
    /// Answers to joins whose MFTs are still to be written.
    unwritten_joins: Vec<Datagram>,
    /// Answers to joins whose MFTs are being written.
    written_joins: Vec<Datagram>,
    transfers: Transfers<TransferKey>,
    groups: Groups,
    services: services::Services,
    subscriptions: Subscriptions,
    /// All subnet managers, the own one first.
    managers: Vec<SmInfo>,
    counters: SaCounters,
}

enum Answer {
    /// One record, or the attribute as it was set, and the attribute offset.
    One([u8; 200], u16),
    /// Several records, and the attribute offset: their distance in units of 8 bytes.
    Table(Vec<u8>, u16),
}

impl Answer {
    fn one<R: Record>(record: R) -> Self {
        Self::One(record.to_data(), R::ATTRIBUTE_OFFSET)
    }
}

type Answered = Result<Answer, MadStatus>;

struct Question {
    mad: SaMad,
    from: Datagram,
    at: PortRef,
    is_trusted: bool,
}

impl Administrator {
    pub(crate) fn new(config: &SmConfig) -> Self {
        Self {
            sm_key: config.sm_key,
            prefix: config.prefix,
            partitions: config.partitions.clone(),
            packet_life_time: config.packet_life_time,
            questions: VecDeque::new(),
            outgoing: VecDeque::new(),
            unwritten_joins: Vec::new(),
            written_joins: Vec::new(),
            transfers: Transfers::default(),
            groups: Groups::new(&config.partitions, config.packet_life_time),
            services: services::Services::default(),
            subscriptions: Subscriptions::default(),
            managers: Vec::new(),
            counters: SaCounters::default(),
        }
    }

    pub(crate) fn handle(&mut self, now: Time, view: &View, datagram: &Datagram) {
        let mad = SaMad::parse(&datagram.mad);
        let (header, rmpp) = (&mad.header, &mad.rmpp);
        if rmpp.active && rmpp.rmpp_type != RmppType::DATA {
            let key = TransferKey::of(datagram, header.transaction_id);
            let abort = self.transfers.handle_reply(now, key, rmpp);
            abort.into_iter().for_each(|(key, mad)| self.transmit(key.datagram(mad)));
            return;
        }
        if header.method == Method::REPORT_RESP {
            let is_ours =
                self.subscriptions.handle_acknowledgement(datagram.slid, header.transaction_id);
            self.counters.strays += u64::from(!is_ours);
            return;
        }
        if rmpp.active {
            // A query must fit into one segment.
            let outcome = Reception::default().receive(&mad, mad.data.len());
            if let SegmentOutcome::Complete(reply)
            | SegmentOutcome::Acknowledged(reply)
            | SegmentOutcome::Aborted(_, reply) = outcome
            {
                self.send_to(datagram, reply);
            }
            if !matches!(outcome, SegmentOutcome::Complete(_)) {
                self.counters.strays += 1;
                return;
            }
        }
        let is_known = view.by_lid(datagram.slid).is_some();
        if header.method.is_response() || !is_known || header.base_version != 1 {
            self.counters.strays += 1;
        } else if self.questions.len() >= QUESTIONS_MAX {
            self.refuse(datagram, &mad, MadStatus::BUSY);
        } else {
            self.questions.push_back(datagram.clone());
        }
    }

    /// The next datagram to send. The manager sets the source LID.
    pub(crate) fn poll_transmit(&mut self, now: Time, view: &View) -> Option<Datagram> {
        loop {
            let ready = self.outgoing.pop_front();
            let ready = ready.or_else(|| self.subscriptions.poll(now));
            let segment = || self.transfers.poll_transmit(now).map(|(key, mad)| key.datagram(mad));
            if let Some(datagram) = ready.or_else(segment) {
                return Some(datagram);
            }
            let question = self.questions.pop_front()?;
            self.handle_query(now, view, question);
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let times = [self.transfers.poll_timeout(), self.services.due(), self.subscriptions.due()];
        times.into_iter().flatten().min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Time) {
        self.services.timeout(now);
        self.subscriptions.timeout(now);
        while let Some((key, mad)) = self.transfers.handle_timeout(now) {
            self.transmit(key.datagram(mad));
        }
    }

    fn handle_query(&mut self, now: Time, view: &View, from: Datagram) {
        let mad = SaMad::parse(&from.mad);
        let Some(at) = view.by_lid(from.slid) else {
            self.counters.strays += 1;
            return;
        };
        // Ordinary queries have the SM_Key 0. Any other key must be the right one.
        let is_trusted = mad.sa.sm_key != SmKey(0);
        if is_trusted && mad.sa.sm_key != self.sm_key {
            self.counters.untrusted += 1;
            return;
        }
        let key = TransferKey::of(&from, mad.header.transaction_id);
        if self.transfers.contains(&key) {
            return;
        }
        self.counters.answered += 1;
        let question = Question { mad, from, at, is_trusted };
        match self.answer(now, view, &question) {
            Ok(Answer::One(data, attribute_offset)) => {
                let mad = response(&question.mad, MadStatus::OK, attribute_offset, data).emit();
                let waits = is_join(&question) && self.groups.has_changed();
                match waits && self.unwritten_joins.len() < OUTGOING_MAX {
                    true => self.unwritten_joins.push(answer_to(&question.from, mad)),
                    false => self.send_to(&question.from, mad),
                }
            }
            Ok(Answer::Table(table, attribute_offset)) => {
                let head = response(&question.mad, MadStatus::OK, attribute_offset, [0; 200]);
                let head = SaMad { rmpp: question.mad.rmpp, ..head };
                self.transfers.start(now, key, head, table);
            }
            Err(status) => self.refuse(&question.from, &question.mad, status),
        }
        self.report_groups(view);
    }

    fn answer(&mut self, now: Time, view: &View, question: &Question) -> Answered {
        let header = &question.mad.header;
        if header.class_version != MgmtClass::SUBN_ADM.version() {
            return Err(MadStatus::BAD_VERSION);
        }
        match header.method {
            Method::GET | Method::GET_TABLE => self.look_up(now, view, question),
            Method::SET => self.set(now, view, question),
            Method::DELETE => self.delete(view, question),
            Method::GET_MULTI if header.attribute_id == MultiPathRecord::ID => {
                let (mask, wanted) = record::<MultiPathRecord>(question)?;
                let paths = self.multi_paths(view, mask, &wanted)?;
                self.table(table_of(&paths)?, PathRecord::ATTRIBUTE_OFFSET)
            }
            Method::GET_MULTI => Err(MadStatus::BAD_METHOD_ATTRIBUTE),
            _ => Err(MadStatus::BAD_METHOD),
        }
    }

    fn look_up(&self, now: Time, view: &View, question: &Question) -> Answered {
        let (mad, is_trusted) = (&question.mad, question.is_trusted);
        let is_table = mad.header.method == Method::GET_TABLE;
        let bits = mad.sa.component_mask;
        macro_rules! table {
            ($record:ident, $table:expr) => {{
                let (_, wanted) = record::<$record>(question)?;
                let table: Result<Table, MadStatus> = ($table)(&wanted);
                let Table { bytes, count, .. } = table?;
                self.found(is_table, bytes, count, $record::ATTRIBUTE_OFFSET)
            }};
        }
        match mad.header.attribute_id {
            ClassPortInfo::ID if !is_table => {
                Ok(Answer::One(self.class_port_info(view).to_data(), 0))
            }
            NodeRecord::ID => table!(NodeRecord, |wanted| Self::node_records(view, bits, wanted)),
            PortInfoRecord::ID => {
                let by_capability = mad.header.attribute_modifier >> 31 != 0;
                table!(PortInfoRecord, |wanted| {
                    Self::port_info_records(view, bits, wanted, by_capability, is_trusted)
                })
            }
            LinkRecord::ID => table!(LinkRecord, |wanted| Self::link_records(view, bits, wanted)),
            SwitchInfoRecord::ID => {
                table!(SwitchInfoRecord, |wanted| Self::switch_info_records(view, bits, wanted))
            }
            LftRecord::ID => table!(LftRecord, |wanted| Self::lft_records(view, bits, wanted)),
            MftRecord::ID => table!(MftRecord, |wanted| Self::mft_records(view, bits, wanted)),
            PKeyTableRecord::ID if is_trusted => {
                table!(PKeyTableRecord, |wanted| Self::p_key_records(view, bits, wanted))
            }
            PKeyTableRecord::ID => Err(MadStatus::SA_DENIED),
            SmInfoRecord::ID => {
                table!(SmInfoRecord, |wanted| {
                    self.sm_info_records(view, bits, wanted, is_trusted)
                })
            }
            InformInfoRecord::ID if is_trusted => {
                table!(InformInfoRecord, |wanted| self.inform_info_records(bits, wanted))
            }
            InformInfoRecord::ID => Err(MadStatus::SA_DENIED),
            PathRecord::ID => {
                let (mask, wanted) = record::<PathRecord>(question)?;
                let paths = self.paths(view, mask, &wanted, is_table)?;
                self.found_all(is_table, &paths)
            }
            McMemberRecord::ID => {
                let (mask, wanted) = record::<McMemberRecord>(question)?;
                let members = self.groups.records(mask, &wanted, is_trusted);
                self.found_all(is_table, &members)
            }
            ServiceRecord::ID => {
                let (mask, wanted) = record::<ServiceRecord>(question)?;
                self.found_all(is_table, &self.services.records(now, mask, &wanted, is_trusted))
            }
            _ => Err(MadStatus::BAD_METHOD_ATTRIBUTE),
        }
    }

    fn found_all<R: Record>(&self, is_table: bool, records: &[R]) -> Answered {
        self.found(is_table, table_of(records)?, records.len(), R::ATTRIBUTE_OFFSET)
    }

    /// One record or a table, by the method of the query.
    fn found(&self, is_table: bool, bytes: Vec<u8>, count: usize, offset: u16) -> Answered {
        match count {
            _ if is_table => self.table(bytes, offset),
            0 => Err(MadStatus::SA_NO_RECORDS),
            1 => {
                let mut data = [0; 200];
                data[..bytes.len()].copy_from_slice(&bytes);
                Ok(Answer::One(data, offset))
            }
            _ => Err(MadStatus::SA_TOO_MANY_RECORDS),
        }
    }

    fn table(&self, bytes: Vec<u8>, offset: u16) -> Answered {
        let can_start = self.transfers.can_start(bytes.len());
        can_start.then_some(Answer::Table(bytes, offset)).ok_or(MadStatus::BUSY)
    }

    fn set(&mut self, now: Time, view: &View, question: &Question) -> Answered {
        match question.mad.header.attribute_id {
            McMemberRecord::ID => {
                let (mask, wanted) = record::<McMemberRecord>(question)?;
                let at = self.find_port(view, wanted.port_gid)?;
                let port = view.port(at);
                let info = port.info.ok_or(MadStatus::SA_INVALID_GID)?;
                let mtu = if at.port == 0 { info.mtu_cap } else { info.neighbor_mtu };
                let rate = info.rate().unwrap_or(Rate::GBPS_2_5);
                let keys = port.p_keys.as_deref().unwrap_or_default();
                let requester = requester(view, question, at);
                self.groups.join(mask, &wanted, &requester, (mtu, rate, keys)).map(Answer::one)
            }
            ServiceRecord::ID => {
                let (mask, wanted) = record::<ServiceRecord>(question)?;
                self.services.announce(now, mask, &wanted).map(Answer::one)
            }
            InformInfo::ID => {
                let (_, wanted) = record::<InformInfo>(question)?;
                let gid = self.gid_of(view, question.at);
                self.subscriptions.set(gid, &question.from, &wanted)?;
                Ok(Answer::one(wanted))
            }
            _ => Err(MadStatus::BAD_METHOD_ATTRIBUTE),
        }
    }

    fn find_port(&self, view: &View, gid: Gid) -> Result<PortRef, MadStatus> {
        view.by_gid(self.prefix, gid).ok_or(MadStatus::SA_INVALID_GID)
    }

    fn delete(&mut self, view: &View, question: &Question) -> Answered {
        match question.mad.header.attribute_id {
            McMemberRecord::ID => {
                let (mask, wanted) = record::<McMemberRecord>(question)?;
                let at = self.find_port(view, wanted.port_gid)?;
                let requester = requester(view, question, at);
                self.groups.leave(mask, &wanted, &requester).map(Answer::one)
            }
            ServiceRecord::ID => {
                let (mask, wanted) = record::<ServiceRecord>(question)?;
                self.services.withdraw(mask, &wanted).map(Answer::one)
            }
            _ => Err(MadStatus::BAD_METHOD_ATTRIBUTE),
        }
    }

    fn class_port_info(&self, view: &View) -> ClassPortInfo {
        /// Support of optional records, multicast, and MultiPathRecord (IBA 15.2.2).
        const OPTIONAL: ClassCapabilities = ClassCapabilities(1 << 8 | 1 << 9 | 1 << 10);
        /// Support of send-only full members, which keep a group alive.
        const SEND_ONLY_FULL_MEMBER: u32 = 1 << 12;
        let own = self.managers.first().and_then(|own| view.by_port_guid(own.guid));
        let address = own.map(|at| ClassAddress {
            gid: self.gid_of(view, at),
            lid: view.port(at).lid,
            ..ClassAddress::default()
        });
        ClassPortInfo {
            base_version: 1,
            class_version: MgmtClass::SUBN_ADM.version(),
            capability_mask: OPTIONAL,
            capability_mask2: SEND_ONLY_FULL_MEMBER,
            resp_time_value: TimeCode(18),
            trap: address.unwrap_or_default(),
            ..ClassPortInfo::default()
        }
    }

    fn refuse(&mut self, from: &Datagram, mad: &SaMad, status: MadStatus) {
        self.counters.busy += u64::from(status == MadStatus::BUSY);
        let answer = response(mad, status, mad.sa.attribute_offset, mad.data);
        self.send_to(from, answer.emit());
    }

    fn send_to(&mut self, from: &Datagram, mad: Mad) {
        self.transmit(answer_to(from, mad));
    }

    fn transmit(&mut self, datagram: Datagram) {
        if self.outgoing.len() >= OUTGOING_MAX {
            self.counters.lost += 1;
            return;
        }
        self.outgoing.push_back(datagram);
    }

    pub(crate) fn mlids(&self) -> impl Iterator<Item = Lid> {
        self.groups.mlids()
    }

    /// The ports in a group, each with whether it receives.
    pub(crate) fn members(&self, mlid: Lid, view: &View) -> Vec<(PortRef, bool)> {
        let at = |gid: Gid| view.by_gid(self.prefix, gid);
        self.groups.members(mlid).filter_map(|(gid, receives)| Some((at(gid)?, receives))).collect()
    }

    pub(crate) fn has_changed_groups(&self) -> bool {
        self.groups.has_changed()
    }

    /// The MLIDs of groups with changed members since the last call. The caller must write their
    /// MFTs and then call [`Self::answer_joins`].
    pub(crate) fn take_changed_groups(&mut self) -> BTreeSet<Lid> {
        self.written_joins.append(&mut self.unwritten_joins);
        self.groups.take_changed()
    }

    pub(crate) fn answer_joins(&mut self) {
        std::mem::take(&mut self.written_joins)
            .into_iter()
            .for_each(|answer| self.transmit(answer));
    }

    /// Sets the subnet managers, the own one first.
    pub(crate) fn set_managers(&mut self, managers: Vec<SmInfo>) {
        self.managers = managers;
    }
}

fn is_join(question: &Question) -> bool {
    let header = &question.mad.header;
    (header.method, header.attribute_id) == (Method::SET, McMemberRecord::ID)
}

fn answer_to(from: &Datagram, mad: Mad) -> Datagram {
    let Datagram { slid: dlid, src_qp: dest_qp, p_key, .. } = *from;
    Datagram { slid: Lid::NONE, dlid, src_qp: Qpn::GSI, dest_qp, p_key, mad }
}

fn response(query: &SaMad, status: MadStatus, attribute_offset: u16, data: [u8; 200]) -> SaMad {
    let header = MadHeader { method: query.header.method.response(), status, ..query.header };
    let sa = SaHeader { sm_key: SmKey(0), attribute_offset, ..query.sa };
    SaMad { header, rmpp: RmppHeader::default(), sa, data }
}

fn record<R: Record>(question: &Question) -> Result<(R::Mask, R), MadStatus> {
    question.mad.record().map_err(|_| MadStatus::SA_REQUEST_INVALID)
}

fn requester(view: &View, question: &Question, member: PortRef) -> Requester {
    let own = view.port(question.at);
    let p_keys = own.p_keys.clone().unwrap_or_default();
    Requester { is_member: question.at == member, p_keys }
}

#[cfg(test)]
mod tests;
