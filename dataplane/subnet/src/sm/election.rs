//! The election of the master among several subnet managers (IBA 14.4.1).
//!
//! ```text
//!  Discovering --swept: no master, and no superior manager----------> Master
//!       ^     \--swept: a master, or a superior manager---> Standby
//!       |                                                      |  |  ^
//!       +---- polls unanswered, or SMInfo Discover ------------+  |  |
//!                                       SMInfo Handover:     Master  |
//!  Master --SMInfo Handover to a superior manager, answered----------+
//!  Standby --SMInfo Disable--> NotActive --SMInfo Standby--> Standby
//! ```
//!
//! A manager is superior if it has a higher priority than this manager, or the same priority and a
//! lower GUID.

use super::requests::Request;
use super::{Purpose, SubnetManager, Sweep};
use crate::sa::Administrator;
use crate::subnet::Datagram;
use crate::time::Time;
use crate::view::PortRef;
use pollux_wire::address::Guid;
use pollux_wire::mad::smp::{LidSmp, MKey, SmControl, SmInfo, SmKey, SmState};
use pollux_wire::mad::{Attribute, MadHeader, MadStatus, Method, MgmtClass};
use std::cmp::Reverse;

/// The bytes of the attribute, both in LID-routed and in directed SMPs.
const DATA: std::ops::Range<usize> = 64..128;

#[derive(Clone, Debug)]
pub(super) enum State {
    /// The manager sweeps the subnet before the election.
    Discovering,
    /// Another manager is the master, and is polled.
    Standby {
        master: Guid,
        poll_due: Time,
        missed: u32,
    },
    Master {
        is_up: bool,
        /// The successor in an active handover, and the deadline of the handover.
        successor: Option<(Guid, Time)>,
        /// The predecessor, if it must still get the acknowledgement of its handover.
        predecessor: Option<Guid>,
    },
    NotActive,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Other {
    pub(super) at: PortRef,
    pub(super) info: SmInfo,
}

impl State {
    pub(super) fn code(&self) -> SmState {
        match self {
            Self::Discovering => SmState::DISCOVERING,
            Self::Standby { .. } => SmState::STANDBY,
            Self::Master { .. } => SmState::MASTER,
            Self::NotActive => SmState::NOT_ACTIVE,
        }
    }

    pub(super) fn sweeps(&self) -> bool {
        matches!(self, Self::Discovering | Self::Master { .. })
    }

    pub(super) const fn is_in_charge(&self) -> bool {
        matches!(self, Self::Master { is_up: true, successor: None, .. })
    }

    /// Records that the first sweep as master is complete.
    pub(super) fn set_up(&mut self) {
        if let Self::Master { is_up, .. } = self {
            *is_up = true;
        }
    }

    pub(super) fn due(&self) -> Option<Time> {
        match self {
            Self::Standby { poll_due, .. } => Some(*poll_due),
            Self::Master { successor: Some((_, until)), .. } => Some(*until),
            _ => None,
        }
    }
}

/// The order of managers: the greatest is the master.
fn rank(info: &SmInfo) -> (u8, Reverse<Guid>) {
    (info.priority, Reverse(info.guid))
}

impl SubnetManager {
    pub(super) fn own_info(&self) -> SmInfo {
        SmInfo {
            guid: self.guid,
            sm_key: self.config.sm_key,
            act_count: self.act_count,
            priority: self.config.priority,
            state: self.state(),
        }
    }

    /// Holds the election after a sweep. Returns whether this manager is the master and continues
    /// with the sweep.
    pub(super) fn elect(&mut self, now: Time) -> bool {
        let own = rank(&self.own_info());
        let active = self.others.iter().filter(|other| other.info.state != SmState::NOT_ACTIVE);
        let best = active.max_by_key(|other| rank(&other.info)).copied();
        let superior = best.filter(|other| rank(&other.info) > own);
        match self.state {
            State::Discovering => {
                let master = self.others.iter().find(|one| one.info.state == SmState::MASTER);
                if let Some(other) = master.copied().or(superior) {
                    self.stand_by(now, other.info.guid);
                    return false;
                }
                self.become_master(None);
                true
            }
            State::Master { .. } => {
                let is_candidate =
                    |other: &Other| matches!(other.info.state, SmState::STANDBY | SmState::MASTER);
                if let Some(other) = superior.filter(is_candidate) {
                    self.hand_over(now, other);
                    return false;
                }
                true
            }
            State::Standby { .. } | State::NotActive => false,
        }
    }

    fn become_master(&mut self, predecessor: Option<Guid>) {
        // The administrator is empty. Members and subscribers register again, because all ports get
        // ClientReregister.
        self.sa = Administrator::new(&self.config);
        self.state = State::Master { is_up: false, successor: None, predecessor };
    }

    fn stand_by(&mut self, now: Time, master: Guid) {
        let poll_due = now + self.config.poll_interval;
        self.state = State::Standby { master, poll_due, missed: 0 };
        self.requests.clear();
        self.schedule_sweep(now);
    }

    /// Hands the subnet over to a superior manager. From now on, this manager handles no
    /// queries to its administrator.
    fn hand_over(&mut self, now: Time, other: Other) {
        let until = now + self.config.response_time * u32::from(self.config.tries) * 4;
        if let State::Master { successor, .. } = &mut self.state {
            *successor = Some((other.info.guid, until));
        }
        self.control(other.at, SmControl::HANDOVER, Purpose::HandOver);
    }

    /// Becomes a standby, once the successor has answered. Why not wait for its acknowledgement:
    /// OpenSM does not wait either.
    pub(super) fn handle_handover_answer(&mut self, now: Time) {
        if let State::Master { successor: Some((successor, _)), .. } = self.state {
            self.stand_by(now, successor);
        }
    }

    fn control(&mut self, at: PortRef, what: SmControl, purpose: Purpose) {
        let path = self.view.node(at.node).path(at.port);
        self.requests.ask(Request::set(path, what.0, self.own_info(), purpose));
    }

    /// Acknowledges the handover to the predecessor, as soon as its path is known.
    pub(super) fn acknowledge(&mut self) {
        let State::Master { predecessor, .. } = &mut self.state else { return };
        let Some(at) = predecessor.and_then(|guid| self.view.by_port_guid(guid)) else { return };
        *predecessor = None;
        self.control(at, SmControl::ACKNOWLEDGE, Purpose::Control);
    }

    pub(super) fn poll_the_master(&mut self, now: Time) {
        match &mut self.state {
            State::Standby { master, poll_due, missed } if *poll_due <= now => {
                *poll_due = now + self.config.poll_interval;
                *missed += 1;
                let at = self.view.by_port_guid(*master);
                match at.filter(|_| *missed <= self.config.polls_missed_max) {
                    Some(at) => {
                        let path = self.view.node(at.node).path(at.port);
                        self.requests.ask(Request::get::<SmInfo>(path, 0, Purpose::Poll));
                    }
                    None => self.rediscover(now),
                }
            }
            State::Master { successor: successor @ Some(_), .. }
                if successor.is_some_and(|(_, until)| until <= now) =>
            {
                *successor = None;
                self.request_sweep();
            }
            _ => {}
        }
    }

    fn rediscover(&mut self, now: Time) {
        self.state = State::Discovering;
        self.requests.clear();
        self.needs_sweep = true;
        self.sweep = Sweep::Resting { since: now, due: now };
    }

    pub(super) fn handle_poll_answer(&mut self, info: &SmInfo) {
        if let State::Standby { missed, .. } = &mut self.state
            && info.state == SmState::MASTER
        {
            *missed = 0;
        }
    }

    pub(super) fn sm_info(&mut self, now: Time, header: &MadHeader, datagram: &Datagram) {
        let sender = SmInfo::from_data(&LidSmp::parse(&datagram.mad).data);
        let mut status = MadStatus::OK;
        if header.method == Method::SET {
            // Sets need the SM_Key, but Gets do not.
            if sender.sm_key != self.config.sm_key {
                self.counters.strays += 1;
                return;
            }
            if !self.execute_control(now, SmControl(header.attribute_modifier), &sender) {
                status = MadStatus::BAD_FIELD;
            }
        }
        let is_directed = header.mgmt_class == MgmtClass::SUBN_DIRECTED_ROUTE;
        let status = if is_directed { status.returning() } else { status };
        let header = MadHeader { method: Method::GET_RESP, status, ..*header };
        let mut mad = datagram.mad;
        mad[..MadHeader::LEN].copy_from_slice(&header.emit());
        // The answer must have the SM_Key, because OpenSM ignores a manager without it. A requester
        // without the M_Key of the subnet belongs to another installation, and does not get it.
        let smp = LidSmp::parse(&datagram.mad);
        let is_known = self.config.m_key == MKey(0) || smp.m_key == self.config.m_key;
        let own = self.own_info();
        let sm_key = if is_known { own.sm_key } else { SmKey(0) };
        mad[DATA].copy_from_slice(&SmInfo { sm_key, ..own }.to_data::<64>());
        let slid = if is_directed { datagram.dlid } else { self.own_lid() };
        self.transmit(datagram.reply(slid, mad));
        self.acknowledge();
    }

    /// Executes an SMInfo Set; `false` if the state of this manager does not allow it.
    fn execute_control(&mut self, now: Time, what: SmControl, sender: &SmInfo) -> bool {
        match (what, &self.state) {
            (SmControl::HANDOVER, State::Standby { .. } | State::Discovering) => {
                self.rediscover(now);
                self.become_master(Some(sender.guid));
            }
            (SmControl::HANDOVER, State::Master { .. }) => {
                if let State::Master { predecessor, .. } = &mut self.state {
                    *predecessor = Some(sender.guid);
                }
                self.request_sweep();
            }
            (SmControl::ACKNOWLEDGE, State::Master { successor: Some((successor, _)), .. })
                if *successor == sender.guid =>
            {
                self.stand_by(now, sender.guid);
            }
            // A repeated acknowledgement.
            (SmControl::ACKNOWLEDGE, State::Standby { master, .. }) if *master == sender.guid => {}
            (SmControl::DISABLE, State::Standby { .. }) => {
                self.state = State::NotActive;
                self.requests.clear();
            }
            (SmControl::STANDBY, State::NotActive) => self.stand_by(now, sender.guid),
            (SmControl::DISCOVER, State::Standby { .. }) => self.rediscover(now),
            _ => return false,
        }
        true
    }
}
