//! Subscriptions, and reports to subscribers (IBA 13.4.8.3, 15.4.1).
//!
//! A report is repeated until it is acknowledged or its attempts are used up. A subscriber that
//! does not acknowledge keeps its subscription. Only a port that has left the subnet loses its
//! subscriptions.

use crate::subnet::Datagram;
use crate::time::Time;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::notice::{Notice, NoticeReport, ProducerType, TrapNumber};
use pollux_wire::mad::sa::{InformInfo, InformInfoRecord, SaMad};
use pollux_wire::mad::{MadStatus, Method};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

pub const SUBSCRIPTIONS_MAX: usize = 16_384;
/// Reports that may wait to be sent or acknowledged. Further ones are dropped.
pub const REPORTS_MAX: usize = 4096;
const REPORT_TIME: Duration = Duration::from_secs(1);
const TRIES_MAX: u8 = 3;

/// A queue pair of a port. Its LID is where reports go, and not a part of its identity: a port with
/// another LID subscribes again.
#[derive(Clone, Copy, Debug)]
struct Subscriber {
    gid: Gid,
    qp: Qpn,
    lid: Lid,
}

#[derive(Clone, Copy, Debug)]
struct Report {
    /// All repetitions of a report have the same transaction ID.
    transaction_id: u32,
    to: Subscriber,
    report: NoticeReport,
    tries: u8,
}

#[derive(Default)]
pub(super) struct Subscriptions {
    all: Vec<(Subscriber, InformInfo)>,
    waiting: VecDeque<Report>,
    sent: BTreeMap<u32, (Report, Time)>,
    transaction_id: u32,
    pub(super) lost: u64,
}

impl Subscriptions {
    pub(super) fn set(
        &mut self,
        gid: Gid,
        datagram: &Datagram,
        info: &InformInfo,
    ) -> Result<(), MadStatus> {
        let subscriber = Subscriber { gid, qp: datagram.src_qp, lid: datagram.slid };
        let wanted = InformInfo { subscribe: 1, ..*info };
        let known = self.all.iter().position(|(known, info)| {
            (known.gid, known.qp, *info) == (subscriber.gid, subscriber.qp, wanted)
        });
        match (info.subscribe, known) {
            (1, None) if self.all.len() >= SUBSCRIPTIONS_MAX => {
                return Err(MadStatus::SA_NO_RESOURCES);
            }
            (1, None) => self.all.push((subscriber, wanted)),
            (1, Some(known)) => self.all[known].0 = subscriber,
            (0, Some(known)) => {
                self.all.remove(known);
            }
            _ => return Err(MadStatus::SA_REQUEST_INVALID),
        }
        Ok(())
    }

    /// Queues a report for all subscribers that match and may get it.
    pub(super) fn report(&mut self, report: NoticeReport, may: impl Fn(Gid) -> bool) {
        let wants = |(_, info): &&(Subscriber, InformInfo)| is_wanted(info, &report);
        for (to, _) in self.all.iter().filter(wants).filter(|(to, _)| may(to.gid)) {
            if self.waiting.len() + self.sent.len() >= REPORTS_MAX {
                self.lost += 1;
                continue;
            }
            self.transaction_id = self.transaction_id.wrapping_add(1);
            let (transaction_id, to) = (self.transaction_id, *to);
            self.waiting.push_back(Report { transaction_id, to, report, tries: 0 });
        }
    }

    pub(super) fn poll(&mut self, now: Time) -> Option<Datagram> {
        let mut report = self.waiting.pop_front()?;
        report.tries += 1;
        let id = report.transaction_id;
        self.sent.insert(id, (report, now + REPORT_TIME));
        let mad = SaMad::new(Method::REPORT, id.into(), 0, report.report).emit();
        let Subscriber { lid: dlid, qp: dest_qp, .. } = report.to;
        let (slid, src_qp, p_key) = (Lid::NONE, Qpn::GSI, PKey::DEFAULT);
        Some(Datagram { slid, dlid, src_qp, dest_qp, p_key, mad })
    }

    /// Ends a report that a subscriber has acknowledged; `false` if there is no such report.
    pub(super) fn handle_acknowledgement(&mut self, from: Lid, transaction_id: u64) -> bool {
        // The upper half of a TID routes responses to agents.
        let id = transaction_id as u32;
        let is_known = self.sent.get(&id).is_some_and(|(report, _)| report.to.lid == from);
        is_known && self.sent.remove(&id).is_some()
    }

    pub(super) fn retain(&mut self, is_there: impl Fn(Gid) -> bool) {
        self.all.retain(|(subscriber, _)| is_there(subscriber.gid));
    }

    pub(super) fn records(&self) -> impl Iterator<Item = InformInfoRecord> {
        self.all.iter().zip(0..).map(|((subscriber, inform_info), inform_info_enum)| {
            let (subscriber_gid, inform_info) = (subscriber.gid, *inform_info);
            InformInfoRecord { subscriber_gid, inform_info_enum, inform_info }
        })
    }

    pub(super) fn due(&self) -> Option<Time> {
        self.sent.values().map(|(_, due)| *due).min()
    }

    pub(super) fn timeout(&mut self, now: Time) {
        let waiting = &mut self.waiting;
        self.sent.retain(|_, (report, due)| {
            let is_over = *due <= now;
            if is_over && report.tries < TRIES_MAX {
                waiting.push_back(*report);
            }
            !is_over
        });
    }
}

fn is_wanted(info: &InformInfo, report: &NoticeReport) -> bool {
    const ALL: u16 = 0xffff;
    const ALL_PRODUCERS: ProducerType = ProducerType(0xff_ffff);
    let notice: &Notice = &report.notice;
    let lids = info.lid_range_begin..=info.lid_range_end.max(info.lid_range_begin);
    let is_from = if info.gid == Gid::NONE {
        info.lid_range_begin == Lid::PERMISSIVE || lids.contains(&notice.issuer_lid)
    } else {
        info.gid == report.issuer_gid
    };
    is_from
        && (info.is_generic != 0) == notice.is_generic
        && (info.notice_type == ALL || info.notice_type == u16::from(notice.notice_type.0))
        && (info.trap_number == TrapNumber(ALL) || info.trap_number == notice.trap_number)
        && (info.producer == ALL_PRODUCERS || info.producer == notice.producer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::address::Guid;

    #[test]
    fn a_subscriber_with_another_lid_has_one_subscription() {
        let mut subscriptions = Subscriptions::default();
        let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(1));
        let info = InformInfo {
            lid_range_begin: Lid::PERMISSIVE,
            is_generic: 1,
            subscribe: 1,
            notice_type: 0xffff,
            trap_number: TrapNumber(0xffff),
            producer: ProducerType(0xff_ffff),
            ..InformInfo::default()
        };
        let from = |slid, src_qp| Datagram {
            slid: Lid(slid),
            dlid: Lid(1),
            src_qp,
            dest_qp: Qpn::GSI,
            p_key: PKey::DEFAULT,
            mad: [0; 256],
        };
        for (slid, src_qp) in [(5, Qpn::GSI), (9, Qpn::GSI), (9, Qpn(0x41))] {
            assert_eq!(subscriptions.set(gid, &from(slid, src_qp), &info), Ok(()));
        }
        let notice = Notice { is_generic: true, ..Notice::default() };
        subscriptions.report(NoticeReport { notice, issuer_gid: gid }, |_| true);
        let reports = std::iter::from_fn(|| subscriptions.poll(Time::START));
        let to: Vec<_> = reports.map(|report| (report.dlid, report.dest_qp)).collect();
        assert_eq!(to, [(Lid(9), Qpn::GSI), (Lid(9), Qpn(0x41))]);
        let end = InformInfo { subscribe: 0, ..info };
        assert_eq!(subscriptions.set(gid, &from(9, Qpn::GSI), &end), Ok(()));
        assert_eq!(subscriptions.records().count(), 1);
    }
}
