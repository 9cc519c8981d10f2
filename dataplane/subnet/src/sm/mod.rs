//! The subnet manager: it discovers the subnet, assigns LIDs, and writes forwarding tables (IBA
//! 14.4).
//!
//! The manager is a state machine without I/O and without a clock: the caller passes datagrams and
//! the time, and takes datagrams. It sends its requests by directed routes only, so they depend on
//! cables but not on forwarding tables.
//!
//! ```text
//! Resting --due, or a trap--> Discovering --all answered--> elect --master--> Tables --> Arming
//!    ^                                                        |                            |
//!    +---- Light <--due--+                                    +--not master--> Resting     v
//!    +------------------------------------------------------------------------------ Activating
//! ```
//!
//! 1. `requests`: outstanding requests; `view`: the discovered subnet;
//! 2. `discovery`: the heavy sweep; `election`: the master among several managers;
//! 3. `lids`, `routing`, `trees`: its decisions; `setup`: the Sets that apply them;
//! 4. [`resident`]: managers at ports of a [`Subnet`](crate::subnet::Subnet).
//!
//! The subnet administrator is [`crate::sa`].

mod discovery;
mod election;
mod lids;
mod requests;
pub mod resident;
mod routing;
mod setup;
mod trees;

pub use crate::config::SmConfig;
pub use crate::partitions::Partitions;
pub use resident::Residents;

use crate::sa::Administrator;
use crate::subnet::Datagram;
use crate::time::Time;
use crate::view::{PortRef, View};
use election::{Other, State};
use pollux_wire::address::{Guid, Lid};
use pollux_wire::mad::notice::{Notice, TrapNumber};
use pollux_wire::mad::smp::{DirectedSmp, LidSmp, SmInfo, SmState};
use pollux_wire::mad::{Attribute, MadHeader, Method, MgmtClass};
use requests::Requests;
use std::collections::{BTreeMap, VecDeque};
use trees::Trees;

const OUTGOING_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// NodeInfo of the node at the other end of a port; without a port, of the manager's own node.
    NodeInfo(Option<PortRef>),
    NodeDescription(u32),
    SwitchInfo(u32),
    PortInfo(PortRef),
    SmInfo(PortRef),
    /// The light sweep of a switch.
    Light(u32),
    SetSwitchInfo(u32),
    SetLinearBlock(u32, u16),
    /// SwitchInfo with PortStateChange, which clears the bit.
    ClearChange(u32),
    /// PortInfo after the bit was cleared: the link may have changed between discovery and that.
    Recheck(PortRef),
    SetGroups(u32),
    SetPKeys(PortRef),
    SetPortInfo(PortRef),
    Poll,
    HandOver,
    /// An SMInfo Set other than Handover.
    Control,
}

impl Purpose {
    const fn is_of_groups(self) -> bool {
        matches!(self, Self::SetGroups(_))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sweep {
    Resting {
        since: Time,
        due: Time,
    },
    Light,
    Discovering,
    /// Writing partitions and routes.
    Tables,
    /// Setting LIDs, and arming ports.
    Arming,
    Activating,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmCounters {
    pub sweeps: u64,
    pub light_sweeps: u64,
    /// Requests that were not answered or were refused.
    pub failures: u64,
    pub traps: u64,
    pub strays: u64,
    /// Answers dropped because the queue was full.
    pub lost: u64,
}

pub struct SubnetManager {
    config: SmConfig,
    guid: Guid,
    state: State,
    sweep: Sweep,
    requests: Requests,
    /// The result of the last complete sweep.
    view: View,
    /// The result of the current sweep.
    found: View,
    others: Vec<Other>,
    trees: Option<Trees>,
    sa: Administrator,
    lids: BTreeMap<Guid, Lid>,
    outgoing: VecDeque<Datagram>,
    needs_sweep: bool,
    /// Failed requests of the current sweep.
    failed: u64,
    act_count: u32,
    counters: SmCounters,
}

impl SubnetManager {
    /// A manager at the port with this GUID, in the state Discovering.
    pub fn new(config: SmConfig, guid: Guid) -> Self {
        Self {
            requests: Requests::new(&config),
            sa: Administrator::new(&config),
            lids: config.lids.clone(),
            config,
            guid,
            state: State::Discovering,
            sweep: Sweep::Resting { since: Time::START, due: Time::START },
            view: View::default(),
            found: View::default(),
            others: Vec::new(),
            trees: None,
            outgoing: VecDeque::new(),
            needs_sweep: true,
            failed: 0,
            act_count: 0,
            counters: SmCounters::default(),
        }
    }

    pub fn state(&self) -> SmState {
        self.state.code()
    }

    /// Whether it is the master and the subnet is up.
    pub fn is_settled(&self) -> bool {
        let is_resting = matches!(self.sweep, Sweep::Resting { .. });
        self.state() == SmState::MASTER && is_resting && !self.needs_sweep && self.failed == 0
    }

    pub fn administrator(&self) -> &Administrator {
        &self.sa
    }

    /// The manager's own port, once a sweep has found it.
    fn own(&self) -> Option<PortRef> {
        self.view.by_port_guid(self.guid)
    }

    fn own_lid(&self) -> Lid {
        self.own().map_or(Lid::NONE, |own| self.view.port(own).lid)
    }

    pub fn handle(&mut self, now: Time, datagram: &Datagram) {
        let Ok((header, _)) = MadHeader::read(&datagram.mad) else { return };
        match header.mgmt_class {
            MgmtClass::SUBN_ADM if self.state.is_in_charge() => {
                self.sa.handle(now, &self.view, datagram);
            }
            class if class.is_smi() => self.handle_smp(now, &header, datagram),
            _ => self.counters.strays += 1,
        }
    }

    fn handle_smp(&mut self, now: Time, header: &MadHeader, datagram: &Datagram) {
        if header.method.is_response() {
            let Some((purpose, path)) = self.requests.handle_answer(header) else {
                self.counters.strays += 1;
                return;
            };
            let smp = DirectedSmp::parse(&datagram.mad);
            if header.status.without_direction().0 == 0 {
                self.handle_answer(now, purpose, path, &smp.data);
            } else {
                self.handle_failure(purpose);
            }
            return;
        }
        match (header.method, header.attribute_id) {
            (Method::GET | Method::SET, SmInfo::ID) => self.sm_info(now, header, datagram),
            (Method::TRAP, Notice::ID) if self.state() == SmState::MASTER => self.trap(datagram),
            _ => self.counters.strays += 1,
        }
    }

    /// The next datagram to send. Requests of the manager precede answers to queries of others. A
    /// join is answered only after switches have answered the Sets that it needs, so that the group
    /// works when the member gets the answer.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Datagram> {
        loop {
            if let Some(datagram) = self.outgoing.pop_front() {
                return Some(datagram);
            }
            self.write_changed_groups();
            if let Some(mad) = self.requests.poll(now) {
                self.act_count = self.act_count.wrapping_add(1);
                return Some(Datagram::smp(Lid::PERMISSIVE, Lid::PERMISSIVE, mad));
            }
            if self.requests.is_empty() && self.advance(now) {
                continue;
            }
            if !self.requests.has_groups() {
                self.sa.answer_joins();
            }
            if let Some(datagram) = self.sa.poll_transmit(now, &self.view) {
                return Some(Datagram { slid: self.own_lid(), ..datagram });
            }
            if !self.sa.has_changed_groups() || !self.writes_groups() {
                return None;
            }
        }
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        let rest = match self.sweep {
            Sweep::Resting { due, .. } if self.state.sweeps() => Some(due),
            _ => None,
        };
        let times = [rest, self.requests.due(), self.state.due(), self.sa.poll_timeout()];
        times.into_iter().flatten().min()
    }

    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(purpose) = self.requests.overdue(now) {
            self.handle_failure(purpose);
        }
        self.poll_the_master(now);
        if let Sweep::Resting { due, .. } = self.sweep
            && self.state.sweeps()
            && due <= now
        {
            self.begin_sweep();
        }
        self.sa.handle_timeout(now);
    }

    fn begin_sweep(&mut self) {
        let switches: Vec<u32> = self.view.switches().map(|(index, ..)| index).collect();
        let is_light = !self.needs_sweep && self.failed == 0 && !switches.is_empty();
        if is_light && self.state() == SmState::MASTER {
            self.counters.light_sweeps += 1;
            self.sweep = Sweep::Light;
            switches.into_iter().for_each(|switch| self.read_switch_info(switch));
        } else {
            self.counters.sweeps += 1;
            (self.needs_sweep, self.failed) = (false, 0);
            self.discover();
        }
    }

    /// Starts the next phase, once all requests of the current phase are done. Returns whether
    /// there was a phase to end.
    fn advance(&mut self, now: Time) -> bool {
        match self.sweep {
            Sweep::Resting { .. } => return false,
            Sweep::Light => self.schedule_sweep(now),
            Sweep::Discovering => self.finish_discovery(now),
            Sweep::Tables => {
                self.sweep = Sweep::Arming;
                self.arm();
            }
            Sweep::Arming => {
                self.sweep = Sweep::Activating;
                self.activate();
            }
            Sweep::Activating => {
                self.state.set_up();
                self.schedule_sweep(now);
            }
        }
        true
    }

    fn schedule_sweep(&mut self, now: Time) {
        let pause =
            if self.needs_sweep { self.config.sweep_gap } else { self.config.sweep_interval };
        self.sweep = Sweep::Resting { since: now, due: now + pause };
    }

    fn trap(&mut self, datagram: &Datagram) {
        let smp = LidSmp::parse(&datagram.mad);
        let notice = Notice::from_data(&smp.data);
        self.counters.traps += 1;
        let header = MadHeader { method: Method::TRAP_REPRESS, ..smp.header };
        let (slid, m_key) = (self.own_lid(), self.config.m_key);
        let mad = LidSmp { header, m_key, ..smp }.emit();
        self.transmit(Datagram { slid, dlid: datagram.slid, mad, ..*datagram });
        let is_change = matches!(
            notice.trap_number,
            TrapNumber::LINK_STATE_CHANGED
                | TrapNumber::CAPABILITY_CHANGED
                | TrapNumber::SYSTEM_IMAGE_GUID_CHANGED
        );
        if notice.is_generic && is_change {
            self.request_sweep();
        }
        self.sa.report(&self.view, notice);
    }

    /// Requests a heavy sweep.
    fn request_sweep(&mut self) {
        self.needs_sweep = true;
        if let Sweep::Resting { since, due } = &mut self.sweep {
            *due = (*due).min(*since + self.config.sweep_gap);
        }
    }

    fn transmit(&mut self, datagram: Datagram) {
        if self.outgoing.len() == OUTGOING_MAX {
            self.counters.lost += 1;
            return;
        }
        self.outgoing.push_back(datagram);
    }
}

#[cfg(test)]
mod tests;
