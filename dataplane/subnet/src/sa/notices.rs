//! Notices about the subnet for subscribers (IBA 13.4.8, 14.4.10).
//!
//! The administrator forwards traps of nodes, and creates the notices of new and removed ports and
//! groups.

use super::Administrator;
use crate::subnet::Datagram;
use crate::view::View;
use pollux_wire::address::{Gid, Lid};
use pollux_wire::mad::Attribute;
use pollux_wire::mad::notice::{
    GidTrap, Notice, NoticeReport, NoticeType, ProducerType, TrapDetails, TrapNumber,
};
use pollux_wire::mad::sa::{McMemberRecord, SaMad};

impl Administrator {
    /// Applies the changes that a sweep has found. Ports that have left the subnet lose their
    /// memberships and subscriptions. Subscribers get reports of new and ended groups, and of ports
    /// in and out of service. The first sweep reports no port as new.
    pub(crate) fn handle_changes(&mut self, before: &View, view: &View) {
        let capacity = view.switches().map(|(.., switch)| switch.info.multicast_fdb_cap).min();
        self.groups.set_capacity(capacity.unwrap_or(0).into());
        self.groups.retain(view, self.prefix);
        let prefix = self.prefix;
        self.subscriptions.retain(|gid| view.by_gid(prefix, gid).is_some());
        self.report_groups(view);
        for (at, port) in before.ports_with_lid() {
            if view.by_port_guid(port.guid).is_none() {
                let gid = self.gid_of(before, at);
                self.report_gid(view, TrapNumber::GID_OUT_OF_SERVICE, gid);
            }
        }
        if before.nodes.is_empty() {
            return;
        }
        for (at, port) in view.ports_with_lid() {
            if before.by_port_guid(port.guid).is_none() {
                self.report_gid(view, TrapNumber::GID_IN_SERVICE, self.gid_of(view, at));
            }
        }
    }

    pub(super) fn report_groups(&mut self, view: &View) {
        for (mgid, is_new) in self.groups.take_unreported() {
            if !is_new {
                // A member must get the answer to its join before the report of the group's end.
                self.answer_joins_of(mgid);
            }
            let deleted = TrapNumber::MULTICAST_GROUP_DELETED;
            let trap = if is_new { TrapNumber::MULTICAST_GROUP_CREATED } else { deleted };
            self.report_gid(view, trap, mgid);
        }
    }

    /// Sends the answers to joins of one group, even if its MFTs are not written yet.
    fn answer_joins_of(&mut self, mgid: Gid) {
        let is_of = |answer: &mut Datagram| {
            McMemberRecord::from_data(&SaMad::parse(&answer.mad).data).mgid == mgid
        };
        let mut answers: Vec<Datagram> = self.written_joins.extract_if(.., is_of).collect();
        answers.extend(self.unwritten_joins.extract_if(.., is_of));
        answers.into_iter().for_each(|answer| self.transmit(answer));
    }

    fn report_gid(&mut self, view: &View, trap_number: TrapNumber, gid: Gid) {
        let own = self.managers.first().and_then(|own| view.by_port_guid(own.guid));
        let notice = Notice {
            is_generic: true,
            notice_type: NoticeType::SUBNET_MANAGEMENT,
            producer: ProducerType::CLASS_MANAGER,
            trap_number,
            issuer_lid: own.map_or(Lid::NONE, |own| view.port(own).lid),
            data_details: TrapDetails::Gid(GidTrap { gid }).emit(),
            ..Notice::default()
        };
        self.report(view, notice);
    }

    /// Reports a notice to its subscribers. Subscribers get a notice about a port or group only if
    /// they share a partition with it. If the port or group is gone, its partitions are unknown, so
    /// all subscribers get the notice.
    pub(crate) fn report(&mut self, view: &View, notice: Notice) {
        let issuer = view.by_lid(notice.issuer_lid);
        let issuer_gid = issuer.map_or(Gid::NONE, |at| self.gid_of(view, at));
        let keys = |gid: Gid| {
            let at = view.by_gid(self.prefix, gid);
            at.and_then(|at| view.port(at).p_keys.as_deref()).unwrap_or_default()
        };
        let subject_p_keys = match notice.details() {
            TrapDetails::Gid(GidTrap { gid }) => match self.groups.by_mgid(gid) {
                Some(group) => Some(vec![group.p_key]),
                None => Some(keys(gid).to_vec()).filter(|keys| !keys.is_empty()),
            },
            _ => None,
        };
        let shares_partition = |gid: Gid| {
            subject_p_keys.as_ref().is_none_or(|subject| {
                keys(gid).iter().any(|own| subject.iter().any(|other| own.matches(*other)))
            })
        };
        self.subscriptions.report(NoticeReport { notice, issuer_gid }, shares_partition);
    }
}
