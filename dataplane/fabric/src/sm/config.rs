//! What a subnet manager is told: who it is among managers, and what the subnet shall be like.

use super::partitions::Partitions;
use pollux_wire::address::{Gid, Guid, Lid};
use pollux_wire::mad::smp::{MKey, SmKey, VlWeight};
use pollux_wire::units::TimeCode;
use std::collections::BTreeMap;
use std::time::Duration;

/// A subnet manager's settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// The manager with the highest is the master; of several, the one with the lowest GUID.
    pub priority: u8,
    /// By which managers, and those who ask the administrator, know each other as trusted.
    pub sm_key: SmKey,
    /// What ports are protected with; 0 for not at all. Whoever has another key, or none, can read
    /// all but this and set nothing.
    pub m_key: MKey,
    /// How long a port keeps its key hidden after somebody else has tried to set something (IBA
    /// 14.2.4); 0 for ever. A manager that takes over with another key than its predecessor's needs
    /// that. As long as the master is there, its answer to the trap of such a try ends the lease.
    pub m_key_lease_seconds: u16,
    /// First half of all GIDs.
    pub prefix: u64,
    /// Every adapter's port gets 2^lmc addresses.
    pub lmc: u8,
    /// The addresses of earlier times, by port. They count before what the ports say.
    pub lids: BTreeMap<Guid, Lid>,
    /// Who may talk to whom.
    pub partitions: Partitions,
    /// Whether switches keep out what is of other partitions, beside adapters.
    pub switches_enforce_partitions: bool,
    /// How service levels share links; none leaves it as it is.
    pub qos: Option<Qos>,
    /// The longest way of a packet through the subnet.
    pub subnet_timeout: TimeCode,
    /// Datagrams under way at a time.
    pub window_mads: usize,
    /// How long an answer to a datagram may take.
    pub response_time: Duration,
    /// How often a datagram is sent before its receiver counts as silent.
    pub tries: u8,
    /// Between looks at whether anything has changed.
    pub sweep_interval: Duration,
    /// Between looks at everything, though traps ask for more.
    pub sweep_gap: Duration,
    /// Between questions of a standby manager to the master.
    pub poll_interval: Duration,
    /// Questions without an answer after which the master counts as gone.
    pub polls_missed_max: u32,
}

/// How service levels share links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qos {
    /// The lane of each service level.
    pub sl_to_vl: [u8; 16],
    /// In what turns lanes send that go first.
    pub high: [VlWeight; 32],
    /// How much they may send before others have a turn, in units of 4096 bytes.
    pub high_limit: u8,
    /// In what turns the others send.
    pub low: [VlWeight; 32],
}

impl Default for Config {
    fn default() -> Self {
        Self {
            priority: 0,
            sm_key: SmKey(1),
            m_key: MKey(0),
            m_key_lease_seconds: 30,
            prefix: Gid::DEFAULT_PREFIX,
            lmc: 0,
            lids: BTreeMap::new(),
            partitions: Partitions::default(),
            switches_enforce_partitions: true,
            qos: None,
            subnet_timeout: TimeCode(18),
            window_mads: 64,
            response_time: Duration::from_millis(200),
            tries: 3,
            sweep_interval: Duration::from_secs(10),
            sweep_gap: Duration::from_millis(20),
            poll_interval: Duration::from_secs(10),
            polls_missed_max: 4,
        }
    }
}
